package system

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/servertest"
)

// An InspectedSite is a site with zones, and the inspector beside it on a port of its
// own.
type InspectedSite struct {
	*Caddy
	URL       string
	Inspector string // with a user who may change things
	Looker    string // with one who may not
}

// In returns the same site for a subtest.
func (s InspectedSite) In(t *testing.T) *InspectedSite {
	running := *s.Caddy
	running.T = t
	s.Caddy = &running
	return &s
}

// Alice may look, with the password secret.
const Alice = "alice $2a$04$eDXNeXgikNveTaV.vPS.O.TUci7Sw7.RQIR0Pj.98bmWXb56MWbSW"

// StartInspected starts such a site, with global options of throttle.
func StartInspected(t *testing.T, options string) *InspectedSite {
	t.Helper()
	port, inspector, looker := servertest.FreePort(t), servertest.FreePort(t), servertest.FreePort(t)
	c := StartCaddy(t, Config{Throttle: options, Servers: "trusted_proxies static 127.0.0.0/8\ntrusted_proxies_strict", Sites: fmt.Sprintf(`
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
}`, port, inspector, Alice, looker)})
	return &InspectedSite{
		c, fmt.Sprintf("http://127.0.0.1:%d", port),
		fmt.Sprintf("http://alice:secret@127.0.0.1:%d/", inspector), fmt.Sprintf("http://alice:secret@127.0.0.1:%d/", looker),
	}
}

// Status sends a request of a client, and returns the Status of the answer.
func (s *InspectedSite) Status(client, target string) int {
	s.T.Helper()
	req, err := http.NewRequest("GET", s.URL+target, nil)
	if err != nil {
		s.T.Fatal(err)
	}
	req.Header.Set("X-Forwarded-For", client)
	resp := Surely(s.T, req)
	resp.Body.Close()
	return resp.StatusCode
}

func (s *InspectedSite) Send(client, target string, n int) {
	s.T.Helper()
	for range n {
		s.Status(client, target)
	}
}
