module github.com/caddy-throttle/caddy-throttle/leakybucket

go 1.25
