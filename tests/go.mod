module github.com/caddy-throttle/caddy-throttle/tests

go 1.26.0

require (
	github.com/caddy-throttle/caddy-throttle v0.1.0
	github.com/caddy-throttle/caddy-throttle/leakybucket v0.1.0
	github.com/chromedp/cdproto v0.159.0
	github.com/chromedp/chromedp v0.22.1
	github.com/quic-go/quic-go v0.63.0
	google.golang.org/grpc v1.83.2
)

require (
	github.com/go-json-experiment/json v0.0.0-20260213210345-44df1a37e875 // indirect
	github.com/quic-go/qpack v0.6.0 // indirect
	golang.org/x/crypto v0.57.0 // indirect
	golang.org/x/net v0.60.0 // indirect
	golang.org/x/sys v0.48.0 // indirect
	golang.org/x/text v0.42.0 // indirect
	google.golang.org/genproto/googleapis/rpc v0.0.0-20260921155816-b14227669459 // indirect
	google.golang.org/protobuf v1.36.12 // indirect
)

replace (
	github.com/caddy-throttle/caddy-throttle => ../
	github.com/caddy-throttle/caddy-throttle/leakybucket => ../leakybucket
	github.com/caddy-throttle/caddy-throttle/leakybucket/memcachedstore => ../leakybucket/memcachedstore
	github.com/caddy-throttle/caddy-throttle/leakybucket/pgstore => ../leakybucket/pgstore
	github.com/caddy-throttle/caddy-throttle/leakybucket/redisstore => ../leakybucket/redisstore
	github.com/caddy-throttle/caddy-throttle/leakybucket/sharedstore => ../leakybucket/sharedstore
)
