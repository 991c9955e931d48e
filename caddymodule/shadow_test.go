package caddymodule

import (
	"crypto/tls"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestAShadowZoneRefusesNothingAndSaysWhatItWouldHaveDone(t *testing.T) {
	s := run(t, `http:// {
		throttle {
			zone site {
				limit 2 1/h
				shadow
			}
		}
		respond "{http.throttle.decision} {http.throttle.reason} {http.throttle.retry_after}"
	}`)
	c := s.from(someone)
	for i, want := range []string{"admitted  ", "admitted  ", "shadow_refused capacity 7200", "shadow_refused capacity 7200"} {
		w := c.get("/")
		if got := w.Body.String(); w.Code != http.StatusOK || got != want {
			t.Errorf("request %d: got %v with %q, want 200 with %q", i+1, w.Code, got, want)
		}
		if got := w.Header().Get("Retry-After"); got != "" {
			t.Errorf("request %d: got Retry-After %q, want none", i+1, got)
		}
	}
}

// everyReason has a path for every reason to refuse.
const everyReason = `
	throttle /capacity {
		zone full {
			limit 1 1/d
			SHADOW
		}
	}
	throttle /denied {
		zone denied {
			override 203.0.113.0/24 deny
			limit 1 1/d
			SHADOW
		}
	}
	throttle /oversize {
		zone oversize {
			cost {header.X-Cost}
			limit 1 1/d
			SHADOW
		}
	}
	throttle /missing_key {
		zone keyless {
			key header X-Api-Key missing refuse
			refusal error
			limit 1 1/d
			SHADOW
		}
	}
	respond {http.throttle.reason}
	handle_errors {
		respond {err.status_code}
	}
`

func TestShadowOfAllZonesRefusesForNoReason(t *testing.T) {
	s := run(t, "{\nthrottle {\nshadow\n}\n}\nhttp:// {"+strings.ReplaceAll(everyReason, "SHADOW", "")+"}")
	refusesNothing(t, s)
}

func TestShadowOfAZoneRefusesForNoReason(t *testing.T) {
	s := run(t, "http:// {"+strings.ReplaceAll(everyReason, "SHADOW", "shadow")+"}")
	refusesNothing(t, s)
}

func refusesNothing(t *testing.T, s *site) {
	c := s.from(someone).with("X-Cost", "2")
	c.get("/capacity")
	for _, reason := range []string{"capacity", "denied", "oversize", "missing_key"} {
		w := c.get("/" + reason)
		if got := w.Body.String(); w.Code != http.StatusOK || got != reason {
			t.Errorf("got %v for reason %q, want 200 for %q", w.Code, got, reason)
		}
	}
}

func TestWithoutShadowEveryReasonRefuses(t *testing.T) {
	s := run(t, "http:// {"+strings.ReplaceAll(everyReason, "SHADOW", "")+"}")
	c := s.from(someone).with("X-Cost", "2")
	c.get("/capacity")
	for _, path := range []string{"/capacity", "/denied", "/oversize", "/missing_key"} {
		if got := c.get(path).Code; got != http.StatusTooManyRequests {
			t.Errorf("%s: got %v, want 429", path, got)
		}
	}
}

func TestAShadowZoneStandsInNobodysWay(t *testing.T) {
	s := run(t, `{
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
	c := s.from(someone)
	c.passes(5, "/both")
	zone := s.counts(t)["tried"]
	if got, want := zone["admitted"], 3.0; got != want {
		t.Errorf("admitted in shadow: got %v, want %v", got, want)
	}
	// Two while it alone was full, and one more while both were.
	if got, want := zone["shadow_refused capacity"], 3.0; got != want {
		t.Errorf("refused in shadow: got %v, want %v", got, want)
	}
}

func TestARequestThatAShadowZoneWouldBanIsChargedInOtherZones(t *testing.T) {
	s := run(t, `http:// {
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
	c := s.from(someone)
	if got := c.get("/").Body.String(); got != "denied" {
		t.Errorf("got reason %q, want denied", got)
	}
	c.passes(2, "/")
}

func TestARequestThatIsRefusedPoursNothingInShadowEither(t *testing.T) {
	s := run(t, `{
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
	c := s.from(someone)
	c.passes(1, "/both")
	for range 10 {
		c.get("/both")
	}
	for i, want := range []string{"admitted", "admitted", "shadow_refused"} {
		if got := c.get("/tried").Body.String(); got != want {
			t.Errorf("request %d: got %q, want %q", i+1, got, want)
		}
	}
	if got, want := s.counts(t)["tried"]["admitted"], 3.0; got != want {
		t.Errorf("admitted in shadow: got %v, want %v", got, want)
	}
}

func TestShadowCountsWhatEnforcementWouldDecide(t *testing.T) {
	traffic := func(t *testing.T, shadow string) (counted map[string]float64) {
		synctest.Test(t, func(t *testing.T) {
			s := run(t, `http:// {
				throttle {
					zone compared {
						limit 4 1/s
						`+shadow+`
					}
				}
				respond ok
			}`)
			for i := range 200 {
				c := s.from([]string{"203.0.113.1:1", "203.0.113.2:1", "203.0.113.2:2"}[i%3])
				c.get("/")
				time.Sleep(time.Duration(i*i%700) * time.Millisecond)
			}
			counted = s.counts(t)["compared"]
		})
		return counted
	}
	enforced, shadow := traffic(t, ""), traffic(t, "shadow")
	if enforced["admitted"] == 0 || enforced["refused capacity"] == 0 {
		t.Fatalf("got %v, want some admitted and some refused", enforced)
	}
	if shadow["admitted"] != enforced["admitted"] || shadow["shadow_refused capacity"] != enforced["refused capacity"] {
		t.Errorf("got %v in shadow, want what was enforced: %v", shadow, enforced)
	}
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
	tried := run(t, strings.ReplaceAll(zone, "SHADOW", "shadow"))
	for range 10 {
		tried.from(someone).get("/")
	}
	run(t, strings.ReplaceAll(zone, "SHADOW", "")).from(someone).passes(3, "/")
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
			s := run(t, "{\nthrottle {\n"+test.global+"\n}\n}\nhttp:// {\nthrottle {\nzone site {\n"+test.zone+"\nlimit 5 1/s\n}\n}\nrespond ok\n}")
			r := request(someone, site0)
			r.TLS = &tls.ConnectionState{HandshakeComplete: false}
			if got := s.do(r).Code; got != test.want {
				t.Errorf("got %v, want %v", got, test.want)
			}
		})
	}
}
