-- Take the pen. The same nonce gets the same epoch, so that a lost answer can be asked again.
--
-- KEYS  1 log  2 meta
-- ARGV  1 nonce  2 log id for a log that is new  3 format  4 genesis digest  5 epoch of the mark outside

local found = redis.call('TYPE', KEYS[2]).ok
if found ~= 'hash' and found ~= 'none' then return {'TYPE', KEYS[2], found} end
local kind = redis.call('TYPE', KEYS[1]).ok
if kind ~= 'stream' and kind ~= 'none' then return {'TYPE', KEYS[1], kind} end
if found == 'none' then
  if kind ~= 'none' then return {'GONE', KEYS[2]} end
  redis.call('HSET', KEYS[2], 'epoch', '0', 'nonce', '', 'offset', '0', 'digest', ARGV[4], 'log_id', ARGV[2],
    'format', ARGV[3], 'ordered', '0', 'oldest', tostring(tonumber(ARGV[5]) + 1), 'archived', '0')
end
local meta = redis.call('HMGET', KEYS[2], 'epoch', 'nonce', 'offset', 'digest', 'log_id', 'format', 'oldest')
for i = 1, 7 do
  if not meta[i] then return {'GONE', KEYS[2]} end
end
if meta[6] ~= ARGV[3] then return {'FORMAT', meta[6]} end
local archived = tonumber(redis.call('HGET', KEYS[2], 'archived') or '0')
if tonumber(meta[3]) > archived and kind == 'none' then return {'GONE', KEYS[1]} end
if meta[2] ~= ARGV[1] then
  meta[1] = string.format('%d', math.max(tonumber(meta[1]), tonumber(ARGV[5])) + 1)
  redis.call('HSET', KEYS[2], 'epoch', meta[1], 'nonce', ARGV[1])
end
return {'OK', meta[1], meta[3], meta[4], meta[5], meta[7]}
