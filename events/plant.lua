-- Begin a log whose first entries lie in segments: the head that the next entry follows. Done twice it is done once.
--
-- KEYS  1 log  2 meta
-- ARGV  1 log id  2 format  3 epoch, which the first pen follows  4 offset and  5 digest of the head

local found = redis.call('TYPE', KEYS[2]).ok
if found ~= 'hash' and found ~= 'none' then return {'TYPE', KEYS[2], found} end
local kind = redis.call('TYPE', KEYS[1]).ok
if kind ~= 'stream' and kind ~= 'none' then return {'TYPE', KEYS[1], kind} end
if found == 'hash' then
  local meta = redis.call('HMGET', KEYS[2], 'log_id', 'archived')
  if meta[1] == ARGV[1] and meta[2] == ARGV[4] then return {'OK'} end
  return {'USED', meta[1] or ''}
end
if kind ~= 'none' then return {'GONE', KEYS[2]} end
redis.call('HSET', KEYS[2], 'epoch', ARGV[3], 'nonce', '', 'offset', ARGV[4], 'digest', ARGV[5], 'log_id', ARGV[1],
  'format', ARGV[2], 'ordered', '0', 'oldest', tostring(tonumber(ARGV[3]) + 1), 'archived', ARGV[4])
return {'OK'}
