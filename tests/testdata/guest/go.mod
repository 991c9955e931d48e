module example.com/guest

go 1.26.0

require (
	github.com/caddy-throttle/caddy-throttle v0.1.0
	github.com/caddyserver/caddy/v2 v2.11.9
)
