module github.com/caddy-throttle/caddy-throttle/leakybucket/memcachedstore

go 1.25.0

require (
	github.com/bradfitz/gomemcache v0.0.0-20260422231931-4d751bb6e37c
	github.com/caddy-throttle/caddy-throttle/leakybucket v0.1.0
)

replace github.com/caddy-throttle/caddy-throttle/leakybucket => ..
