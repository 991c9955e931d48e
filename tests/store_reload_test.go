package tests

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/servertest"
)

// TestReloadsKeepTheConnectionsToAStore. A reload that changes the URL ends them
// after the last request that uses them has been settled.
func TestReloadsKeepTheConnectionsToAStore(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, s *storeServer) {
		other := servertest.StartProxy(t, s.address, nil)
		finish := make(chan struct{})
		u := startUpstream(t, func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/slow" {
				<-finish
			}
			w.Header().Set("X-Cost", "7")
		})
		port := freePort(t)
		generation := func(n int, address string) config {
			return config{throttle: s.through(address) + "\nstore_timeout 30s\non_store_error deny", sites: fmt.Sprintf(`
http://:%d {
	header Generation %d
	throttle {
		zone settled {
			key text everybody
			limit 100 1/d
			settle header X-Cost
		}
	}
	reverse_proxy %s
}`, port, n, u.address)}
		}
		c := startCaddy(t, generation(0, s.address))
		url := fmt.Sprintf("http://127.0.0.1:%d/", port)
		v := newVisitor(t, "h2")
		reloaded := func(n int, address string) {
			c.reload(generation(n, address))
			eventually(t, "an answer of the new config", func() bool {
				return v.get(t, url).header.Get("Generation") == fmt.Sprint(n)
			})
		}
		v.get(t, url)
		slow := make(chan answer)
		go func() {
			a, err := newVisitor(t, "h1").try("GET", url+"slow")
			if err != nil {
				t.Errorf("the slow request: %v", err)
			}
			slow <- a
		}()
		eventually(t, "the slow request upstream", func() bool { now, _ := u.serving(); return now == 1 })
		for n := 1; n <= 10; n++ {
			reloaded(n, s.address)
			if got := s.connections(); got > mostConnections {
				t.Fatalf("reload %d: got %d connections, want at most %d", n, got, mostConnections)
			}
		}
		before := s.connections()
		reloaded(11, other.Addr)
		if got := s.connections(); got <= before {
			t.Errorf("with another URL, and a request that uses the old one: got %d connections, want more than %d", got, before)
		}
		held := s.level("settled")
		close(finish)
		if a := <-slow; a.status != 200 {
			t.Errorf("the slow request: got %d, want 200", a.status)
		}
		eventually(t, "the slow request's settlement from 1 to 7", func() bool { return near(s.level("settled"), held+6) })
		eventually(t, "the end of the old connections", func() bool { return s.connections() <= mostConnections })
		if got := c.outages(t); got != 0 {
			t.Errorf("got %d outages, want none", got)
		}
	})
}
