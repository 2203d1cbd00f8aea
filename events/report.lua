-- Put a result into the stream and mark its lease done. A lease that is done already has its result in the stream.
--
-- KEYS  1 results  2 leases
-- ARGV  1 body  2 lease key ('' for none)  3 attempt  4 worker

local lease = ARGV[2] ~= '' and redis.call('HGET', KEYS[2], ARGV[2])
local number, began, refreshed, done, token, worker
if lease then
  number, began, refreshed, done, token, worker = string.match(lease, '^([^|]*)|([^|]*)|([^|]*)|([^|]*)|([^|]*)|(.*)$')
end
local held = number == ARGV[3] and worker == ARGV[4]
if held and done == '1' then return {'TWICE'} end
redis.call('XADD', KEYS[1], '*', 'm', ARGV[1])
if held then redis.call('HSET', KEYS[2], ARGV[2], table.concat({number, began, refreshed, '1', token, worker}, '|')) end
return {'OK'}
