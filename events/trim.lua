-- Forget entries that lie in segments.
--
-- KEYS  1 log  2 meta
-- ARGV  1 epoch  2 nonce  3 the first entry to keep

local kind = redis.call('TYPE', KEYS[1]).ok
if kind ~= 'stream' then return {'GONE', KEYS[1]} end
local meta = redis.call('HMGET', KEYS[2], 'epoch', 'nonce', 'offset', 'digest')
if not (meta[1] and meta[2] and meta[3] and meta[4]) then return {'GONE', KEYS[2]} end
if meta[1] ~= ARGV[1] or meta[2] ~= ARGV[2] then return {'FENCED', meta[1]} end
if tonumber(ARGV[3]) > tonumber(meta[3]) then return {'GAP', meta[3], meta[4]} end
return {'OK', redis.call('XTRIM', KEYS[1], 'MINID', ARGV[3] .. '-0')}
