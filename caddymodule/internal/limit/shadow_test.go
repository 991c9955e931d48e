package limit_test

import (
	"crypto/tls"
	"net/http"
	"strings"
	"testing"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/servertest"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

func TestAShadowZoneRefusesNothingAndSaysWhatItWouldHaveDone(t *testing.T) {
	s := servertest.Run(t, `http:// {
		throttle {
			zone site {
				limit 2 1/h
				shadow
			}
		}
		respond "{http.throttle.decision} {http.throttle.reason} {http.throttle.retry_after}"
	}`)
	c := s.From(servertest.Someone)
	for i, want := range []string{"admitted  ", "admitted  ", "shadow_refused capacity 7200", "shadow_refused capacity 7200"} {
		w := c.Get("/")
		got := w.Body.String()
		check.That(t, w.Code == http.StatusOK && got == want, "request %d: got %v with %q, want 200 with %q", i+1, w.Code, got, want)
		check.Equal(t, w.Header().Get("Retry-After"), "", "request %d: Retry-After", i+1)
	}
}

func TestShadowOfAllZonesRefusesForNoReason(t *testing.T) {
	s := servertest.Run(t, "{\nthrottle {\nshadow\n}\n}\nhttp:// {"+strings.ReplaceAll(servertest.EveryReason, "SHADOW", "")+"}")
	refusesNothing(t, s)
}

func TestShadowOfAZoneRefusesForNoReason(t *testing.T) {
	s := servertest.Run(t, "http:// {"+strings.ReplaceAll(servertest.EveryReason, "SHADOW", "shadow")+"}")
	refusesNothing(t, s)
}

func refusesNothing(t *testing.T, s *servertest.Site) {
	c := s.From(servertest.Someone).With("X-Cost", "2")
	c.Get("/capacity")
	for _, reason := range []string{"capacity", "denied", "oversize", "missing_key"} {
		w := c.Get("/" + reason)
		got := w.Body.String()
		check.That(t, w.Code == http.StatusOK && got == reason, "got %v for reason %q, want 200 for %q", w.Code, got, reason)
	}
}

func TestWithoutShadowEveryReasonRefuses(t *testing.T) {
	s := servertest.Run(t, "http:// {"+strings.ReplaceAll(servertest.EveryReason, "SHADOW", "")+"}")
	c := s.From(servertest.Someone).With("X-Cost", "2")
	c.Get("/capacity")
	for _, path := range []string{"/capacity", "/denied", "/oversize", "/missing_key"} {
		check.Equal(t, c.Get(path).Code, http.StatusTooManyRequests, "%s", path)
	}
}

func TestAShadowZoneStandsInNobodysWay(t *testing.T) {
	s := servertest.Run(t, `{
		throttle {
			zone tried {
				limit 3 1/h
				shadow
			}
			zone enforced {
				limit 5 1/h
			}
		}
	}
	http:// {
		throttle /both {
			zone tried
			zone enforced
		}
		throttle /tried tried
		respond "{http.throttle.zone} {http.throttle.decision}"
	}`)
	c := s.From(servertest.Someone)
	c.Passes(5, "/both")
	zone := s.Counts(t)["tried"]
	check.Equal(t, zone["admitted"], 3.0, "admitted in shadow")
	// Two while it alone was full, and one more while both were.
	check.Equal(t, zone["shadow_refused capacity"], 3.0, "refused in shadow")
}

func TestARequestThatAShadowZoneWouldBanIsChargedInOtherZones(t *testing.T) {
	s := servertest.Run(t, `http:// {
		throttle {
			zone tried {
				override 203.0.113.0/24 deny
				limit 5 1/h
				shadow
			}
			zone enforced {
				limit 3 1/h
			}
		}
		respond {http.throttle.reason}
	}`)
	c := s.From(servertest.Someone)
	check.Equal(t, c.Get("/").Body.String(), "denied", "reason")
	c.Passes(2, "/")
}

func TestARequestThatIsRefusedPoursNothingInShadowEither(t *testing.T) {
	s := servertest.Run(t, `{
		throttle {
			zone tried {
				limit 3 1/h
				shadow
			}
		}
	}
	http:// {
		throttle /both {
			zone tried
			zone enforced {
				limit 1 1/h
			}
		}
		throttle /tried tried
		respond {http.throttle.decision}
	}`)
	c := s.From(servertest.Someone)
	c.Passes(1, "/both")
	for range 10 {
		c.Get("/both")
	}
	for i, want := range []string{"admitted", "admitted", "shadow_refused"} {
		check.Equal(t, c.Get("/tried").Body.String(), want, "request %d", i+1)
	}
	check.Equal(t, s.Counts(t)["tried"]["admitted"], 3.0, "admitted in shadow")
}

func TestClientsDoNotPayForTheirRequestsInShadow(t *testing.T) {
	const zone = `http:// {
		throttle {
			zone tuned {
				limit 3 1/h
				SHADOW
			}
		}
		respond ok
	}`
	tried := servertest.Run(t, strings.ReplaceAll(zone, "SHADOW", "shadow"))
	for range 10 {
		tried.From(servertest.Someone).Get("/")
	}
	servertest.Run(t, strings.ReplaceAll(zone, "SHADOW", "")).From(servertest.Someone).Passes(3, "/")
}

// A matcher fails on addresses that may be forged, in early data.
func TestAMatcherThatFailsRefusesNothingInShadow(t *testing.T) {
	const fails = `
		match {
			remote_ip 203.0.113.0/24
		}`
	for _, test := range []struct {
		name, global, zone string
		want               int
	}{
		{"enforced zone", "", fails, http.StatusTooEarly},
		{"shadow zone", "", fails + "\nshadow", http.StatusOK},
		{"all in shadow", "shadow", fails, http.StatusOK},
		{"exempt, enforced", "exempt {\nremote_ip 192.0.2.0/24\n}", "", http.StatusTooEarly},
		{"exempt, shadow zone", "exempt {\nremote_ip 192.0.2.0/24\n}", "shadow", http.StatusOK},
		{"exempt, all in shadow", "shadow\nexempt {\nremote_ip 192.0.2.0/24\n}", "", http.StatusOK},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := servertest.Run(t, "{\nthrottle {\n"+test.global+"\n}\n}\nhttp:// {\nthrottle {\nzone site {\n"+test.zone+"\nlimit 5 1/s\n}\n}\nrespond ok\n}")
			r := servertest.Request(servertest.Someone, servertest.Site0)
			r.TLS = &tls.ConnectionState{HandshakeComplete: false}
			check.Equal(t, s.Do(r).Code, test.want)
		})
	}
}
