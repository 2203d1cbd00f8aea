-- Refresh a worker's leases; answer the keys that are gone or somebody else's.
--
-- KEYS  1 leases
-- ARGV  1 worker  then key, number each

local time = redis.call('TIME')
local now = string.format('%d.%06d', tonumber(time[1]), tonumber(time[2]))
local gone = {}
for i = 2, #ARGV, 2 do
  local lease = redis.call('HGET', KEYS[1], ARGV[i])
  local number, began, done, token, worker
  if lease then number, began, done, token, worker = string.match(lease, '^([^|]*)|([^|]*)|[^|]*|([^|]*)|([^|]*)|(.*)$') end
  if number == ARGV[i + 1] and worker == ARGV[1] then
    redis.call('HSET', KEYS[1], ARGV[i], table.concat({number, began, now, done, token, worker}, '|'))
  else
    gone[#gone + 1] = ARGV[i]
  end
end
return gone
