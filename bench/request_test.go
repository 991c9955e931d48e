package bench

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"net/url"
	"runtime"
	"runtime/debug"
	"slices"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	_ "github.com/caddyserver/caddy/v2/modules/standard"
	"golang.org/x/sys/unix"

	_ "github.com/caddy-throttle/caddy-throttle/caddymodule"
)

const (
	oneZone = `
zone pages {
	key client_ip
	limit 1000000000 1000/s
}`
	oneThatRefuses = `
zone shut {
	key client_ip
	limit 1 1/d
}`
	threeZones = `
zone pages {
	key client_ip
	limit 1000000000 1000/s
	settle seconds
}
zone guesses {
	key client_ip
	limit 1000000000 1000/s
	settle status 401 1
}
zone sites {
	key host
	limit 1000000000 1000/s
}`
)

// requests measures requests through Caddy's server and `respond`, with zones and without,
// that take turns on one processor. All of the process's time counts, the collector's
// included, but there are no sockets: with them a request takes about twice as long.
func requests(zones string) func() (attempt func() float64) {
	return func() func() float64 {
		servers := [2]*caddyhttp.Server{serverOf("throttle {\n" + zones + "\n}\nrespond ok"), serverOf("respond ok")}
		var ratios []float64
		return func() float64 {
			const rounds, part = 150, 500
			defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
			defer debug.SetGCPercent(debug.SetGCPercent(100))
			for range rounds {
				var took [2]time.Duration
				for i, server := range servers {
					began := clock(unix.CLOCK_PROCESS_CPUTIME_ID)
					for range part {
						server.ServeHTTP(discard{make(http.Header)}, newRequest())
					}
					took[i] = clock(unix.CLOCK_PROCESS_CPUTIME_ID) - began
				}
				ratios = append(ratios, float64(took[0])/float64(took[1]))
			}
			slices.Sort(ratios)
			return ratios[len(ratios)/2]
		}
	}
}

// serverOf returns the server of a site in a config that does not listen.
func serverOf(site string) *caddyhttp.Server {
	raw, _, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte("http://:80 {\n"+site+"\n}\n"), nil)
	must(err)
	var config caddy.Config
	must(json.Unmarshal(raw, &config))
	startOnce()
	ctx, err := caddy.ProvisionContext(&config)
	must(err)
	app, err := ctx.App("http")
	must(err)
	return app.(*caddyhttp.App).Servers["srv0"]
}

var requestContext = context.WithValue(context.WithValue(context.Background(), http.ServerContextKey, new(http.Server)),
	http.LocalAddrContextKey, net.Addr(&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 80}))

// newRequest returns a request as net/http makes it.
func newRequest() *http.Request {
	r := &http.Request{
		Method: http.MethodGet, URL: &url.URL{Path: "/"}, RequestURI: "/", Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: http.Header{"User-Agent": {"bench"}}, Body: http.NoBody, Host: "localhost", RemoteAddr: "127.0.0.1:12345",
	}
	return r.WithContext(requestContext)
}

// discard throws an answer away.
type discard struct{ header http.Header }

func (d discard) Header() http.Header         { return d.header }
func (d discard) Write(p []byte) (int, error) { return len(p), nil }
func (d discard) WriteHeader(int)             {}

// SetWriteDeadline is there because Caddy sets one for each write.
func (d discard) SetWriteDeadline(time.Time) error { return nil }
