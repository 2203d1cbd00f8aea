-- Fill a new epoch's orders, train and control from the fold; delete the older epochs' in the same script.
--
-- KEYS  1 meta  2 leases  3 work  4 orders  5 train  6 control  then four keys for each older epoch
-- ARGV  1 epoch  2 nonce  3 offset and  4 digest of the head that was folded: a call that comes late, after further
--       entries, must not undo them.  Then the outbox as in append.lua; results stay as they are.

local wanted = {'hash', 'hash', 'zset', 'hash', 'stream', 'stream'}
for i, kind in ipairs(wanted) do
  local found = redis.call('TYPE', KEYS[i]).ok
  if found ~= kind and found ~= 'none' then return {'TYPE', KEYS[i], found} end
end
local meta = redis.call('HMGET', KEYS[1], 'epoch', 'nonce', 'offset', 'digest')
if not (meta[1] and meta[2] and meta[3] and meta[4]) then return {'GONE', KEYS[1]} end
if meta[1] ~= ARGV[1] or meta[2] ~= ARGV[2] then return {'FENCED', meta[1]} end
if meta[3] ~= ARGV[3] or meta[4] ~= ARGV[4] then return {'GAP', meta[3], meta[4]} end

redis.call('HSET', KEYS[1], 'oldest', ARGV[1])
for i = 3, #KEYS do redis.call('DEL', KEYS[i]) end

local at = 5
local function take() at = at + 1; return ARGV[at - 1] end

for _ = 1, tonumber(take()) do redis.call('HDEL', KEYS[2], 'p:' .. take()) end
local orders = tonumber(take())
local place = redis.call('HINCRBY', KEYS[1], 'ordered', orders) - orders
local attempts = {}
for i = 1, orders do
  local prompt, attempt, weights, body = take(), take(), take(), take()
  redis.call('ZADD', KEYS[3], place + i, prompt)
  redis.call('HSET', KEYS[4], prompt, attempt .. '|' .. weights .. '|' .. body)
  attempts['p:' .. prompt] = attempt
end
local leases = redis.call('HGETALL', KEYS[2])
for i = 1, #leases, 2 do
  local key, number = leases[i], string.match(leases[i + 1], '^[^|]*')
  if string.sub(key, 1, 2) == 'p:' and attempts[key] ~= number then redis.call('HDEL', KEYS[2], key) end
end
for _ = 1, tonumber(take()) do redis.call('XADD', KEYS[5], '*', 'm', take(), 'step', take()) end
for _ = 1, tonumber(take()) do redis.call('XADD', KEYS[6], '*', 'm', take()) end
return {'OK'}
