package commands

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/servertest"
	"github.com/caddy-throttle/caddy-throttle/tests/internal/system"
)

// An inspectedSite is a site with zones, and the inspector beside it on a port of its
// own.
type inspectedSite struct {
	*system.Caddy
	url       string
	inspector string // with a user who may change things
	looker    string // with one who may not
}

// in returns the same site for a subtest.
func (s inspectedSite) in(t *testing.T) *inspectedSite {
	running := *s.Caddy
	running.T = t
	s.Caddy = &running
	return &s
}

// startInspected starts such a site, with global options of throttle.
func startInspected(t *testing.T, options string) *inspectedSite {
	t.Helper()
	port, inspector, looker := servertest.FreePort(t), servertest.FreePort(t), servertest.FreePort(t)
	c := system.StartCaddy(t, system.Config{Throttle: options, Servers: "trusted_proxies static 127.0.0.0/8\ntrusted_proxies_strict", Sites: fmt.Sprintf(`
http://:%d {
	throttle {
		zone pages {
			limit 60 6/m
		}
		zone login {
			match path /login
			limit 3 3/h
			block 1h
		}
		zone accounts {
			match path /api
			key query who plain
			limit 10 1/h
		}
		zone search {
			match path /search
			limit 5 1/h
			shadow
		}
	}
	respond ok
}
http://127.0.0.1:%d {
	basic_auth {
		%s
	}
	throttle_inspector {
		allow_changes
	}
}
http://127.0.0.1:%d {
	basic_auth {
		%[3]s
	}
	throttle_inspector
}`, port, inspector, system.Alice, looker)})
	return &inspectedSite{
		c, fmt.Sprintf("http://127.0.0.1:%d", port),
		fmt.Sprintf("http://alice:secret@127.0.0.1:%d/", inspector), fmt.Sprintf("http://alice:secret@127.0.0.1:%d/", looker),
	}
}

// status sends a request of a client, and returns the status of the answer.
func (s *inspectedSite) status(client, target string) int {
	s.T.Helper()
	req, err := http.NewRequest("GET", s.url+target, nil)
	check.OK(s.T, err)
	req.Header.Set("X-Forwarded-For", client)
	resp := system.Surely(s.T, req)
	resp.Body.Close()
	return resp.StatusCode
}

func (s *inspectedSite) send(client, target string, n int) {
	s.T.Helper()
	for range n {
		s.status(client, target)
	}
}
