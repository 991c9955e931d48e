module github.com/caddy-throttle/caddy-throttle/leakybucket/sharedstore

go 1.25.0

require (
	github.com/caddy-throttle/caddy-throttle/leakybucket v0.1.0
	github.com/sony/gobreaker/v2 v2.4.0
)

replace github.com/caddy-throttle/caddy-throttle/leakybucket => ..
