-- Takes events out of a tenant's bucket: posthaste::gcra::take, word by word, on this server's clock.
-- Lua computes with doubles as Rust does, and '%.17g' keeps each of their bits, so both agree on every number.
-- A row that holds no number is an error of this tenant alone. The key is gone when the bucket is full again.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local interval, burst, cost = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local room = burst * interval
local kept = tonumber(redis.call('GET', KEYS[1]) or now)
local tat = math.min(math.max(now, kept), now + room)
local function left()
  return math.max(math.floor((room - (tat - now) + 1) / interval), 0)
end
local function keep()
  redis.call('SET', KEYS[1], string.format('%.17g', tat), 'PX', math.ceil(math.max(tat - now, 0) / 1000))
end
local wait = tat + cost * interval - now - room
if wait > 1 then
  if kept > tat then
    keep()
  end
  return {0, math.ceil(wait), math.ceil(math.max(tat + interval - now - room, 0)), left()}
end
tat = tat + cost * interval
keep()
return {1, left(), math.ceil(math.max(tat - now, 0))}
