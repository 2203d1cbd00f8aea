-- Append one entry and what it tells the workers: all of it or nothing. See redis_log.py for the answers.
--
-- KEYS  1 log  2 meta  3 work  4 orders  5 train  6 control  7 results  8 leases
-- ARGV  1 epoch  2 nonce  3 offset  4 previous digest  5 digest  6 header  7 payload
--       then the outbox, which outbox.py packs:
--       lowest result id to keep ('' keeps all), lowest step whose train messages are kept ('' keeps all),
--       whether control is cut first (0 or 1),
--       number of ended ordinals, those; number of orders, (ordinal, attempt, weights, body) each;
--       number of train messages, (body, step) each; number of notices, bodies
--
-- A script that fails half way keeps what it wrote: every check comes before the first write, and the first write is
-- the log's XADD, which a full memory refuses.

local wanted = {'stream', 'hash', 'zset', 'hash', 'stream', 'stream', 'stream', 'hash'}
for i, kind in ipairs(wanted) do
  local found = redis.call('TYPE', KEYS[i]).ok
  if found ~= kind and found ~= 'none' then return {'TYPE', KEYS[i], found} end
end

local meta = redis.call('HMGET', KEYS[2], 'epoch', 'nonce', 'offset', 'digest', 'archived')
if not (meta[1] and meta[2] and meta[3] and meta[4]) then return {'GONE', KEYS[2]} end
if meta[1] ~= ARGV[1] or meta[2] ~= ARGV[2] then return {'FENCED', meta[1]} end
local head = tonumber(meta[3])
if head > tonumber(meta[5] or '0') and redis.call('TYPE', KEYS[1]).ok == 'none' then return {'GONE', KEYS[1]} end

local offset = tonumber(ARGV[3])
if offset == head then
  if ARGV[5] == meta[4] then return {'DUPLICATE'} end
  return {'CONFLICT', meta[4]}
end
if offset ~= head + 1 or ARGV[4] ~= meta[4] then return {'GAP', meta[3], meta[4]} end

redis.call('XADD', KEYS[1], ARGV[3] .. '-0', 'header', ARGV[6], 'digest', ARGV[5], 'payload', ARGV[7])
redis.call('HSET', KEYS[2], 'offset', ARGV[3], 'digest', ARGV[5])

local at = 8
local function take() at = at + 1; return ARGV[at - 1] end

local keep, train_from, cut = take(), take(), take()
if keep ~= '' then redis.call('XTRIM', KEYS[7], 'MINID', keep) end
for _ = 1, tonumber(take()) do
  local prompt = take()
  redis.call('ZREM', KEYS[3], prompt)
  redis.call('HDEL', KEYS[4], prompt)
  redis.call('HDEL', KEYS[8], 'p:' .. prompt)
end
local orders = tonumber(take())
local place = redis.call('HINCRBY', KEYS[2], 'ordered', orders) - orders
for i = 1, orders do
  local prompt, attempt, weights, body = take(), take(), take(), take()
  redis.call('ZADD', KEYS[3], place + i, prompt)
  redis.call('HSET', KEYS[4], prompt, attempt .. '|' .. weights .. '|' .. body)
  local lease = redis.call('HGET', KEYS[8], 'p:' .. prompt)
  if lease and string.match(lease, '^[^|]*') ~= attempt then redis.call('HDEL', KEYS[8], 'p:' .. prompt) end
end
if train_from ~= '' then
  local after, kept, found = '-', '', redis.call('XRANGE', KEYS[5], '-', '+', 'COUNT', 64)
  while #found > 0 and kept == '' do
    for _, message in ipairs(found) do
      after = '(' .. message[1]
      if tonumber(message[2][4]) >= tonumber(train_from) then kept = message[1] break end
    end
    found = redis.call('XRANGE', KEYS[5], after, '+', 'COUNT', 64)
  end
  if kept ~= '' then redis.call('XTRIM', KEYS[5], 'MINID', kept) else redis.call('XTRIM', KEYS[5], 'MAXLEN', 0) end
end
for _ = 1, tonumber(take()) do redis.call('XADD', KEYS[5], '*', 'm', take(), 'step', take()) end
if cut == '1' then redis.call('XTRIM', KEYS[6], 'MAXLEN', 0) end
for _ = 1, tonumber(take()) do redis.call('XADD', KEYS[6], '*', 'm', take()) end
return {'OK'}
