-- The controller's side of leases: write or refresh one, or end some. Fenced like an append.
--
-- KEYS  1 meta  2 leases
-- ARGV  1 epoch  2 nonce  then 'put', key, number, worker   or   'end', keys...

local meta = redis.call('HMGET', KEYS[1], 'epoch', 'nonce')
if not (meta[1] and meta[2]) then return {'GONE', KEYS[1]} end
if meta[1] ~= ARGV[1] or meta[2] ~= ARGV[2] then return {'FENCED', meta[1]} end
if ARGV[3] == 'end' then
  for i = 4, #ARGV do redis.call('HDEL', KEYS[2], ARGV[i]) end
  return {'OK'}
end
local time = redis.call('TIME')
local now = string.format('%d.%06d', tonumber(time[1]), tonumber(time[2]))
local lease = redis.call('HGET', KEYS[2], ARGV[4])
local number, began, done, token, worker
if lease then number, began, done, token, worker = string.match(lease, '^([^|]*)|([^|]*)|[^|]*|([^|]*)|([^|]*)|(.*)$') end
if number ~= ARGV[5] or worker ~= ARGV[6] then
  number, began, done, token, worker = ARGV[5], now, '0', '', ARGV[6]
end
redis.call('HSET', KEYS[2], ARGV[4], table.concat({number, began, now, done, token, worker}, '|'))
return {'OK'}
