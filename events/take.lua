-- Hand out the first orders that nobody holds and whose weights fit, and write their leases.
--
-- KEYS  1 leases (the only key that is written)
-- ARGV  1 meta  2 work  3 orders  4 epoch  5 worker  6 version  7 exactly (0 or 1)  8 token of this call  9 most
--
-- Keys that are only read come as arguments: a user who may not write them could not name them in KEYS.
-- The same call asked again finds its own token on leases and gets the same orders again. They come before whatever has
-- become free since: an order is free again only as a new attempt, behind those that were there.

if redis.call('HGET', ARGV[1], 'epoch') ~= ARGV[4] then return {'EPOCH'} end
local version, most = tonumber(ARGV[6]), tonumber(ARGV[9])
local reply = {'OK'}
for _, prompt in ipairs(redis.call('ZRANGE', ARGV[2], 0, -1)) do
  if #reply > most then break end
  local key = 'p:' .. prompt
  local lease = redis.call('HGET', KEYS[1], key)
  local order = redis.call('HGET', ARGV[3], prompt)
  if order then
    local attempt, weights, body = string.match(order, '^(%-?%d+)|(%-?%d+)|(.*)$')
    if lease then
      local token, worker = string.match(lease, '^[^|]*|[^|]*|[^|]*|[^|]*|([^|]*)|(.*)$')
      if token == ARGV[8] and worker == ARGV[5] then table.insert(reply, body) end
    else
      local needs = tonumber(weights)
      if needs == version or (needs < version and ARGV[7] == '0') then
        local time = redis.call('TIME')
        local now = string.format('%d.%06d', tonumber(time[1]), tonumber(time[2]))
        redis.call('HSET', KEYS[1], key, table.concat({attempt, now, now, '0', ARGV[8], ARGV[5]}, '|'))
        table.insert(reply, body)
      end
    end
  end
end
return reply
