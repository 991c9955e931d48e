package admin_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/admin"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/admin/wire"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/engine"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/override"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/servertest"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/sketch"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/telemetry"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/memstore"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/store"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

// ask returns the answer of a call.
func ask[T any](s *servertest.Site, call, body string) (answer T) {
	s.Helper()
	s.Admin(http.MethodPost, "/throttle/"+call, body, &answer)
	return answer
}

func TestReleaseLetsAClientBackInEverywhere(t *testing.T) {
	s := servertest.Run(t, servertest.ThreeZones)
	c, other := s.From(servertest.Someone), s.From("203.0.113.8:1")
	for _, path := range []string{"/hosts", "http://other.example/hosts"} {
		c.Passes(2, path)
		other.Passes(2, path)
	}
	c.Passes(2, "/pages")
	other.Passes(2, "/pages")
	c.Answers("/accounts", http.StatusTooManyRequests) // blocked everywhere

	// NAT64 shows an address of IPv4 as one of IPv6.
	direct, translated := ask[wire.Why](s, "why", `{"client": "203.0.113.7"}`), ask[wire.Why](s, "why", `{"client": "64:ff9b::203.0.113.7"}`)
	check.That(t, len(direct.Refusals) != 0 && len(translated.Refusals) == len(direct.Refusals), "refusals of the address by NAT64: got %+v, want %+v", translated.Refusals, direct.Refusals)
	got := ask[wire.Released](s, "release", `{"client": "203.0.113.7"}`)
	slices.Sort(got.Freed)
	check.Slices(t, got.Freed, []string{"hosts/203.0.113.7/example.com", "hosts/203.0.113.7/other.example", "pages/203.0.113.7"})
	check.That(t, got.Complete, "got %+v, want it complete", got)
	c.Answers("/accounts", http.StatusOK)
	c.Passes(2, "/pages")
	other.Answers("/hosts", http.StatusTooManyRequests)
	other.Answers("/pages", http.StatusTooManyRequests)
}

func TestWhyShowsAllBucketsOfAClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := servertest.Run(t, servertest.ThreeZones)
		c := s.From("[2001:db8::7]:1")
		c.Passes(2, "/pages")
		c.Get("/hosts") // blocked by pages
		s.Changes("/throttle/ban", `{"network": "2001:db8::/48", "for": "1h", "note": "why not"}`)
		got := ask[wire.Why](s, "why", `{"client": "2001:db8::9"}`)
		check.Assume(t, len(got.Buckets) == 1 && got.Ban != nil && got.Ban.Note == "why not", "got %+v, want one bucket and the ban", got)
		b := got.Buckets[0]
		check.That(t, b.Zone == "pages" && b.Key == "2001:db8::" && b.Fraction == 1 && b.Blocked == 600 && b.By == "zone", "got %+v, want a full bucket of pages that is blocked for 10m", b)
		c.Answers("/pages", http.StatusTooManyRequests)
	})
}

func TestWhySaysThatAZoneIsSwitchedToShadow(t *testing.T) {
	s := servertest.Run(t, servertest.ThreeZones)
	s.From(servertest.Someone).Passes(2, "/pages")
	why := func() (shadows []string) {
		for _, held := range ask[wire.Why](s, "why", `{"client": "203.0.113.7"}`).Shadows {
			shadows = append(shadows, held.Zone+" "+held.Note)
		}
		return shadows
	}
	check.Slices(t, why(), nil, "before any switch")
	s.Changes("/throttle/shadow", `{"zone": "accounts", "for": "30m"}`) // of another key
	s.Changes("/throttle/shadow", `{"zone": "pages", "for": "30m", "note": "too tight"}`)
	check.Slices(t, why(), []string{"pages too tight"}, "want the switch of the client's zone")
	s.Changes("/throttle/shadow", `{"for": "30m", "note": "panic"}`)
	check.Slices(t, why(), []string{"pages too tight", " panic"}, "want that of all zones too")
	s.Changes("/throttle/unshadow", `{"zone": "pages"}`)
	s.Changes("/throttle/unshadow", `{}`)
	check.Slices(t, why(), nil, "after the switches ended")
}

func TestThePanicSwitchLetsEverybodyInUntilItEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := servertest.Run(t, servertest.ThreeZones)
		c, banned := s.From(servertest.Someone), s.From("198.51.100.1:1")
		c.Passes(2, "/pages")
		s.Changes("/throttle/ban", `{"network": "198.51.100.0/24", "for": "2h"}`)
		banned.Answers("/pages", http.StatusTooManyRequests)
		s.Changes("/throttle/shadow", `{"for": "30m"}`)
		for range 10 {
			c.Answers("/pages", http.StatusOK)
			c.Answers("/accounts", http.StatusOK)
			banned.Answers("/pages", http.StatusOK)
		}
		<-time.After(30 * time.Minute)
		banned.Answers("/pages", http.StatusTooManyRequests)
		s.Changes("/throttle/shadow", `{"zone": "pages", "for": "30m"}`)
		s.From("203.0.113.9:1").WantStatuses("/pages", map[int]int{http.StatusOK: 10})
		banned.Answers("/pages", http.StatusTooManyRequests) // a ban is no zone's
		s.Changes("/throttle/unshadow", `{"zone": "pages"}`)
		s.From("203.0.113.10:1").Passes(2, "/pages")
	})
}

func TestABanRefusesANetworkUntilItEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := servertest.Run(t, `{
			throttle {
				exempt path /health
				zone shadowed {
					limit 100 1/s
					shadow
				}
				zone pages {
					limit 100 1/s
					match path /never
					exempt client_ip 203.0.113.99
				}
			}
		}
		http:// {
			throttle {
				zone shadowed
				zone pages
			}
			respond ok
		}`)
		s.Changes("/throttle/ban", `{"network": "203.0.113.0/24", "for": "2h"}`)
		w := s.From(servertest.Someone).Get("/")
		check.That(t, w.Code == http.StatusTooManyRequests && w.Header().Get("Retry-After") == "7200", "got %d with Retry-After %q, want 429 with 7200", w.Code, w.Header().Get("Retry-After"))
		check.Contains(t, w.Body.String(), "This site is not accepting requests from your network right now.")
		s.From(servertest.Someone).Answers("/health", http.StatusOK)
		s.From("203.0.113.99:1").Answers("/", http.StatusOK) // a zone exempts it
		s.From("203.0.112.7:1").Answers("/", http.StatusOK)
		s.From("[::ffff:203.0.113.7]:1").Answers("/", http.StatusTooManyRequests)
		<-time.After(2 * time.Hour)
		s.From(servertest.Someone).Answers("/", http.StatusOK)
		s.Changes("/throttle/ban", `{"network": "203.0.113.7", "for": "2h"}`)
		s.From(servertest.Someone).Answers("/", http.StatusTooManyRequests)
		s.Changes("/throttle/unban", `{"network": "203.0.113.7"}`)
		s.From(servertest.Someone).Answers("/", http.StatusOK)
	})
}

// A ban holds as far as a zone enforces it by its config. A switch at run time leaves it.
func TestWhySaysWhetherABanRefuses(t *testing.T) {
	const enforced, shadow = "zone pages {\nlimit 5 1/h\n}\n", "zone tried {\nlimit 5 1/h\nshadow\n}\n"
	for zones, want := range map[string]bool{enforced: true, shadow: false, enforced + shadow: true, enforced + "#\n": true} {
		s := servertest.Run(t, "http:// {\nthrottle {\n"+zones+"}\nrespond ok\n}")
		s.Changes("/throttle/ban", `{"network": "203.0.113.7"}`)
		if strings.HasSuffix(zones, "#\n") {
			s.Changes("/throttle/shadow", `{"zone": "pages"}`)
		}
		why, status := s.Why("203.0.113.7"), s.From(servertest.Someone).Get("/").Code
		check.That(t, why.Refused == want && (status == http.StatusTooManyRequests) == want, "%q: got why %v and status %d", zones, why.Refused, status)
		s.Stop()
	}
}

// TestALimitOfAKeyThatIsANetwork: the answer says whose limit it is, and what is shown can be
// pasted back. What is no key of the zone, such as another network, has no limit of its own.
func TestALimitOfAKeyThatIsANetwork(t *testing.T) {
	s := servertest.Run(t, `http:// {
		throttle /nets {
			zone nets {
				key client_ip ipv4 24
				limit 5 1/h
			}
		}
		throttle /pages pages 5 1/h
		throttle /tenants tenants header X-Plan header X-Tenant 5 1/h
		throttle /hosts hosts client_ip host 5 1/h
		respond ok
	}`)
	digest := "@sha256:" + strings.Repeat("0", 64)
	for _, step := range []struct {
		call, body string
		want       int
		network    string
	}{
		{"limit", `{"zone": "nets", "key": "203.0.113.7", "limit": "deny"}`, 200, "203.0.113.0/24"},
		{"limit", `{"zone": "nets", "key": "203.0.113.0/24", "limit": "x2", "replace": true}`, 200, "203.0.113.0/24"},
		{"unlimit", `{"zone": "nets", "key": "203.0.113.0/24"}`, 200, ""},
		{"unlimit", `{"zone": "nets", "key": "203.0.113.0/24"}`, 200, ""}, // nothing
		{"limit", `{"zone": "nets", "key": "203.0.113.0/25", "limit": "deny"}`, 400, ""},
		{"limit", `{"zone": "nets", "key": "203.0.0.0/16", "limit": "deny"}`, 400, ""},
		{"limit", `{"zone": "pages", "key": "203.0.113.0/24", "limit": "deny"}`, 400, ""},
		{"limit", `{"zone": "pages", "key": "203.0.113.7/32", "limit": "deny"}`, 200, ""},
		{"limit", `{"zone": "pages", "key": "203.0.113", "limit": "deny"}`, 400, ""},  // no address at all
		{"unlimit", `{"zone": "pages", "key": "203.0.113"}`, 200, ""},                 // nothing
		{"limit", `{"zone": "pages", "key": "invalid IP", "limit": "deny"}`, 400, ""}, // as an address that is none prints
		{"limit", `{"zone": "tenants", "key": "acme", "limit": "deny"}`, 400, ""},
		{"limit", `{"zone": "tenants", "key": "pro/acme", "limit": "deny"}`, 400, ""},
		{"limit", `{"zone": "tenants", "key": "` + digest + `", "limit": "deny"}`, 400, ""},
		{"limit", `{"zone": "tenants", "key": "` + digest + "/" + digest + `", "limit": "deny"}`, 200, ""},
		{"limit", `{"zone": "hosts", "key": "2001:db8::7/example.com", "limit": "deny"}`, 400, ""}, // the /64 is 2001:db8::
		{"limit", `{"zone": "hosts", "key": "2001:db8::/example.com", "limit": "deny"}`, 200, ""},
		{"limit", `{"zone": "hosts", "key": "@client_ip/203.0.113.7", "limit": "deny"}`, 200, ""},
		{"limit", `{"zone": "hosts", "key": "@shared", "limit": "deny"}`, 400, ""}, // it is @share
	} {
		var got struct{ Network string }
		status := s.Admin(http.MethodPost, "/throttle/"+step.call, step.body, &got)
		check.That(t, status == step.want && got.Network == step.network, "%s %s: got %d and the network %q, want %d and %q", step.call, step.body, status, got.Network, step.want, step.network)
	}
	s.From(servertest.Someone).Answers("/pages", http.StatusTooManyRequests)
	s.From(servertest.Someone).Passes(5, "/nets")
}

// TestWhyShowsWhatIsToBeSaid: an empty bucket is shown only if a request would be refused, or
// if something but the zone decides.
func TestWhyShowsWhatIsToBeSaid(t *testing.T) {
	s := servertest.Run(t, `{
		throttle {
			zone unused {
				override 203.0.113.0/24 deny
				limit 5 1/h
			}
		}
	}
	http:// {
		throttle {
			zone pages {
				match path /pages
				limit 5 1/h
			}
			zone login {
				match path /login
				limit 2 1/h
			}
			zone nets {
				match path /nets
				key client_ip ipv4 24
				limit 2 1/h
			}
			zone keys {
				match path /keys
				key header X-Api-Key missing refuse
				limit 2 1/h
			}
		}
		respond ok
	}`)
	shown := func(client, want string) {
		t.Helper()
		var zones []string
		for _, b := range s.Why(client).Buckets {
			zones = append(zones, b.Zone)
		}
		check.Equal(t, strings.Join(zones, " "), want, "%s: the buckets", client)
	}
	shown("203.0.113.7", "")
	s.From(servertest.Someone).Passes(2, "/login")
	shown("203.0.113.7", "login")
	s.Changes("/throttle/limit", `{"zone": "pages", "key": "203.0.113.7", "limit": "unlimited"}`)
	shown("203.0.113.7", "login pages")
	s.Changes("/throttle/limit", `{"zone": "pages", "key": "203.0.113.7", "limit": "deny", "replace": true}`)
	shown("203.0.113.7", "login pages")
	s.Changes("/throttle/unlimit", `{"zone": "pages", "key": "203.0.113.7"}`)

	// A code of a bucket that many clients share says so, and shows no client of its name.
	code := servertest.CodeOn(t, func() *httptest.ResponseRecorder {
		s.From("203.0.113.9:1").Passes(2, "/nets")
		return s.From("203.0.113.9:1").Get("/nets")
	}())
	got := s.Why(code)
	check.That(t, got.Refusal != nil && got.Refusal.Network == "203.0.113.0/24" && len(got.Buckets) == 1 && got.Buckets[0].Zone == "nets", "%s: got %+v, want the refusal of the network, and its bucket", code, got)
	for code, want := range map[string]string{
		code: "nets refused 203.0.113.0/24",
		servertest.CodeOn(t, s.From("203.0.113.9:1").Get("/keys")): "keys refused a request without a key",
	} {
		release := httptest.NewRequest(http.MethodPost, "/throttle/release", strings.NewReader(fmt.Sprintf(`{"client": %q}`, code)))
		release.Header.Set("Content-Type", "application/json")
		err := servertest.ServeAdmin(httptest.NewRecorder(), release)
		check.That(t, err != nil && err.Error() == code+" is a support code, not a client: zone "+want, "release of %s: got %v", code, err)
	}
	s.Changes("/throttle/release", `{"client": "203.0.113.0/24"}`)
	got = s.Why(code)
	check.That(t, len(got.Buckets) == 1 && got.Buckets[0].Level == 0, "after a release: got %+v, want the empty bucket that has refused", got.Buckets)
	s.Changes("/throttle/ban", `{"network": "203.0.113.0/28", "for": "1h"}`)
	s.From("203.0.113.99:1").Answers("/nets", http.StatusOK)
	got = s.Why("203.0.113.99")
	check.That(t, !got.Refused && s.Why("203.0.113.9").Refused, "a ban of the first addresses of the bucket: got %+v for another one, want it not refused", got)
	s.Changes("/throttle/ban", `{"network": "203.0.113.0/24", "for": "1h"}`)
	freed := ask[wire.Released](s, "release", `{"client": "203.0.113.128/25"}`)
	check.That(t, s.Why("203.0.113.0/24").Refused, "a network of which a part is banned, too: got it not refused")
	check.That(t, freed.Banned, "release of a banned network: got %+v, want it said that the ban holds", freed)
}

func TestALimitAtRunTimeIsStrongerThanTheConfig(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := servertest.RunZone(t, "pages", "limit 10 1/h\noverride 203.0.113.1 deny\noverride 203.0.113.2 20 1/h", "respond ok")
		addr := func(last string) servertest.Client { return s.From("203.0.113." + last + ":1") }
		s.Changes("/throttle/limit", `{"zone": "pages", "limit": "x0.5", "for": "1h"}`)
		for client, by := range map[string]string{"203.0.113.1": "override", "203.0.113.2": "run_time"} {
			buckets := s.Why(client).Buckets
			check.That(t, len(buckets) == 1 && buckets[0].By == by, "%s: got %+v, want the bucket by %s", client, buckets, by)
		}
		addr("3").Passes(5, "/")
		addr("2").Passes(10, "/")
		s.Changes("/throttle/limit", `{"zone": "pages", "key": "203.0.113.3", "limit": "unlimited", "for": "2h"}`)
		s.Changes("/throttle/limit", `{"zone": "pages", "key": "203.0.113.4", "limit": "deny", "for": "1h"}`)
		addr("3").WantStatuses("/", map[int]int{http.StatusOK: 30})
		addr("4").Answers("/", http.StatusTooManyRequests)
		<-time.After(time.Hour)
		addr("1").Answers("/", http.StatusTooManyRequests)
		addr("5").Passes(10, "/")
		s.Changes("/throttle/limit", `{"zone": "pages", "limit": "x0.001", "for": "1h"}`)
		addr("6").Passes(1, "/") // the capacity is never below the cost of a request
		s.Changes("/throttle/unlimit", `{"zone": "pages"}`)
		addr("7").Passes(10, "/")
	})
}

// A reload may take a zone or a key away, and not what was changed of it: it may come back.
func TestAChangeOfWhatIsGoneCanBeEnded(t *testing.T) {
	for name, next := range map[string]string{"zone": "throttle other 1 1/h", "key": "throttle pages 1 1/h {\nkey client_ip ipv4 24\n}"} {
		t.Run(name, func(t *testing.T) { endChanges(t, next) })
	}
}

func endChanges(t *testing.T, next string) {
	old := servertest.Run(t, servertest.ThreeZones)
	old.From(servertest.Someone).Passes(2, "/pages")
	old.Changes("/throttle/shadow", `{"zone": "pages"}`)
	old.Changes("/throttle/limit", `{"zone": "pages", "limit": "deny"}`)
	old.Changes("/throttle/limit", `{"zone": "pages", "key": "203.0.113.7", "limit": "deny"}`)
	s := servertest.Start(t, servertest.Run(t, "http:// {\n"+next+"\n}"))
	old.Stop()
	var held []wire.Override
	s.Admin(http.MethodGet, "/throttle/overrides", "", &held)
	check.That(t, len(held) == 3 && held[2].Key == "203.0.113.7" && held[2].Network == "", "got %+v, want the limit of the key as it was given", held)
	for _, b := range append(s.Why("203.0.113.7").Buckets, ask[wire.Buckets](s, "buckets", `{"zone": "pages"}`).Buckets...) {
		check.Equal(t, b.Key, "203.0.113.0", "a bucket that requests may use")
	}
	for _, call := range []struct{ path, body string }{
		{"/throttle/unshadow", `{"zone": "pages"}`},
		{"/throttle/unlimit", `{"zone": "pages"}`},
		{"/throttle/unlimit", `{"zone": "pages", "key": "203.0.113.7"}`},
	} {
		var got wire.Ended
		status := s.Admin(http.MethodPost, call.path, call.body, &got)
		check.That(t, status == http.StatusOK && got.Ended, "%s %s: got %d and %+v, want it ended", call.path, call.body, status, got)
		s.Admin(http.MethodPost, call.path, call.body, &got)
		check.That(t, !got.Ended, "%s %s once more: got %+v, want nothing ended", call.path, call.body, got)
	}
}

func TestBucketsAreListedFullestFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := servertest.Run(t, servertest.ThreeZones)
		for i, name := range []string{"a", "b\x1b[2J", "c"} {
			c := s.From(servertest.Someone).With("X-Account", name)
			for range 1 + i%2 {
				c.Answers("/accounts", http.StatusOK)
			}
		}
		got := ask[wire.Buckets](s, "buckets", `{"zone": "accounts", "limit": 2}`)
		check.That(t, got.Matched == 3 && len(got.Buckets) == 2 && got.Buckets[0].Key == "b%1B[2J" && got.Buckets[1].Key == "a" && got.Complete, "got %+v, want two of three, the fullest first", got)
		got = ask[wire.Buckets](s, "buckets", `{"zone": "accounts", "min_fraction": 0.9, "prefix": "c"}`)
		check.That(t, len(got.Buckets) == 0, "got %+v, want none", got.Buckets)
	})
}

// A reload that shortens blocks ends those that would last longer.
func TestABlockThatIsOverForRequestsIsListedAsOver(t *testing.T) {
	site := "http:// {\nthrottle pages 1 1/s {\nblock %s\n}\nrespond ok\n}"
	old := servertest.Run(t, fmt.Sprintf(site, "100h"))
	old.From(servertest.Someone).Passes(1, "/")
	check.Equal(t, len(ask[wire.Buckets](old, "buckets", `{"zone": "pages", "refused": true}`).Buckets), 1, "listed buckets that refuse")
	s := servertest.Start(t, servertest.Run(t, fmt.Sprintf(site, "1h")))
	old.Stop()
	listed := ask[wire.Buckets](s, "buckets", `{"zone": "pages"}`).Buckets
	why := s.Why("203.0.113.7").Buckets // after the listing: it drops such a block
	check.Assume(t, len(why) == 1 && len(listed) == 1, "got %+v and %+v, want one bucket", why, listed)
	check.Equal(t, why[0].Blocked, 0, "why: how long the bucket is blocked")
	check.Equal(t, listed[0].Blocked, 0, "listed: how long the bucket is blocked")
}

func TestTopShowsTheLastMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := servertest.Run(t, servertest.ThreeZones)
		top := func(body string) wire.TopZone {
			got := ask[wire.Top](s, "top", body)
			check.Assume(t, len(got.Zones) == 1, "got %+v, want one zone", got)
			return got.Zones[0]
		}
		s.From(servertest.Someone).Passes(2, "/pages")
		s.From("203.0.113.8:1").Passes(2, "/pages")
		s.From("198.51.100.1:1").Answers("/pages", http.StatusOK)
		<-time.After(30 * time.Second)
		network := top(`{"zone": "pages", "by": "/24"}`)
		if network.Requests != 7 || network.Refused != 2 || network.Seconds != 30 ||
			network.Busiest[0] != (wire.TopKey{Sender: sketch.Sender{Name: "203.0.113.0/24", Requests: 6, Refused: 2}}) || network.Denied[0] != (wire.TopKey{Sender: sketch.Sender{Name: "203.0.113.0/24", Requests: 6, Refused: 2}}) {
			t.Errorf("got %+v, want 6 of 7 requests and both refusals of 203.0.113.0/24", network)
		}
		keys := top(`{"zone": "pages"}`)
		if len(keys.Busiest) != 3 || keys.Busiest[0] != (wire.TopKey{Sender: sketch.Sender{Name: "203.0.113.7", Requests: 3, Refused: 1}}) || len(keys.Denied) != 2 {
			t.Errorf("got %+v, want three clients, of which two were refused", keys)
		}
		next := servertest.Run(t, servertest.ThreeZones)
		s.Stop()
		s = next
		got := top(`{"zone": "pages", "by": "ip"}`)
		check.That(t, got.Requests == 7, "after a reload: got %+v, want 7 requests", got)
		<-time.After(time.Minute)
		got = top(`{"zone": "pages"}`)
		check.That(t, got.Requests == 0 && len(got.Busiest) == 0, "after a minute: got %+v, want none", got)
	})
}

func TestStatusShowsWhatZonesDo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := servertest.Run(t, servertest.ThreeZones)
		s.Admin(http.MethodGet, "/throttle/zones", "", nil)
		synctest.Wait()
		s.From(servertest.Someone).Passes(2, "/pages")
		<-time.After(5 * time.Second)
		s.Changes("/throttle/limit", `{"zone": "hosts", "limit": "x2", "for": "1h"}`)
		s.Changes("/throttle/shadow", `{"zone": "hosts", "for": "1h"}`)
		var raw struct {
			Zones []struct {
				Zone, Mode, Limit string
				Total             map[string]float64
				PerSecond         map[string]float64 `json:"per_second"`
				Buckets           int
			}
			Store wire.StoreStatus
		}
		status := s.Admin(http.MethodGet, "/throttle/zones", "", &raw)
		check.Assume(t, status == http.StatusOK && len(raw.Zones) == 3, "got %d and %+v, want three zones", status, raw)
		hosts, pages := raw.Zones[1], raw.Zones[2]
		check.That(t, hosts.Mode == "shadow" && hosts.Limit == "x2", "hosts: got %+v, want it in shadow with x2", hosts)
		if pages.Mode != "enforcing" || pages.Total["refused"] != 1 || pages.PerSecond["admitted"] != 0.4 || pages.Buckets != 1 {
			t.Errorf("pages: got %+v, want 2 requests in 5 seconds, a refusal and a bucket", pages)
		}
	})
}

func TestStatusShowsWarningsOfTheConfig(t *testing.T) {
	s := servertest.RunZone(t, "accounts", "key header X_Account\nlimit 2 1/h", "respond ok")
	s.From(servertest.Someone).With("X-Forwarded-For", "192.0.2.1").Answers("/", http.StatusOK)
	for range 2 {
		var got struct{ Warnings []telemetry.KeptWarning }
		s.Admin(http.MethodGet, "/throttle/zones", "", &got)
		check.Assume(t, len(got.Warnings) == 2, "got %+v, want two warnings", got.Warnings)
		for i, want := range []struct{ text, zone string }{
			{"a fresh bucket with every request", "accounts"}, {"not in trusted_proxies", ""},
		} {
			w := got.Warnings[i]
			zone, _ := w.Details["zone"].(string)
			check.That(t, strings.Contains(w.Text, want.text) && zone == want.zone && !w.At.IsZero(), "got %+v, want one about %q of zone %q", w, want.text, want.zone)
		}
	}
	next := servertest.Run(t, servertest.ThreeZones)
	s.Stop()
	var got struct{ Warnings []telemetry.KeptWarning }
	if next.Admin(http.MethodGet, "/throttle/zones", "", &got); slices.ContainsFunc(got.Warnings, func(w telemetry.KeptWarning) bool {
		return !strings.Contains(w.Text, "a fresh bucket")
	}) {
		t.Errorf("after a reload: got %+v, want warnings of the config that runs alone", got.Warnings)
	}
}

func TestStatusShowsAnOutageOfTheStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := servertest.RunShared(t, "", "zone z {\nlimit 100 1/h\n}")
		store := func() (got wire.StoreStatus) {
			var status struct{ Store wire.StoreStatus }
			s.Admin(http.MethodGet, "/throttle/zones", "", &status)
			return status.Store
		}
		store()
		for range 20 {
			s.From(servertest.Someone).Get("/")
			<-time.After(time.Second)
		}
		got := store()
		check.That(t, !got.Down && !got.Failing && got.Since == nil, "got %+v, want it up", got)
		servertest.TheShared.Down.Store(true)
		s.From(servertest.Someone).Get("/")
		got = store()
		check.That(t, got.Failing && !got.Down, "after one failure: got %+v, want it failing and not down", got)
		s.From(servertest.Someone).Statuses(20, "/")
		<-time.After(20 * time.Second)
		got = store()
		check.That(t, got.Failing && got.Down && got.Since != nil && time.Since(*got.Since) >= 15*time.Second && got.Why != "", "in an outage: got %+v, want since when and why", got)
		servertest.TheShared.Locked.Store(true)
		servertest.TheShared.Down.Store(false)
		<-time.After(5 * time.Second)
		again := store()
		check.That(t, again.Down && again.Since.Equal(*got.Since) && strings.Contains(again.Why, "wrong password"), "once it refuses the password: got %+v, want the outage of before for the reason of now", again)
		servertest.TheShared.Locked.Store(false)
		<-time.After(time.Minute)
		got = store()
		check.That(t, !got.Failing && !got.Down && got.Since == nil && got.Why == "", "after an outage: got %+v, want it up", got)
	})
}

func TestTheAdminAPIRefusesBadInput(t *testing.T) {
	s := servertest.Run(t, strings.Replace(servertest.ThreeZones, "\trespond", "\tin_flight workers 3 client_ip\n\trespond", 1))
	for _, test := range []struct {
		method, path, body string
		want               int
	}{
		{"GET", "/throttle/release", "", 405},
		{"GET", "/throttle/ban", "", 405},
		{"POST", "/throttle/zones", "{}", 405},
		{"GET", "/throttle/", "", 404},
		{"GET", "/throttle/zones/", "", 404},
		{"GET", "/throttle//zones", "", 404},
		{"DELETE", "/throttle/zones", "", 405},
		{"POST", "/throttle/release", "", 400},
		{"POST", "/throttle/release", `{"client": ""}`, 400},
		{"POST", "/throttle/release", `{"all": true}`, 400},
		{"POST", "/throttle/release", `{"all": true, "zone": "pages", "client": "203.0.113.7"}`, 400},
		{"POST", "/throttle/release", `{"cleint": "x"}`, 400},
		{"POST", "/throttle/release", `{"client": "x"} {"client": "y"}`, 400},
		{"POST", "/throttle/release", `{"client": "x", "zone": "page"}`, 404},
		{"POST", "/throttle/release", `{"client": "` + strings.Repeat("x", 64<<10) + `"}`, 400},
		{"POST", "/throttle/ban", `{"network": "0.0.0.0/0", "for": "1h"}`, 400},
		{"POST", "/throttle/ban", `{"network": "203.0.113.0/24", "for": -1}`, 400},
		{"POST", "/throttle/ban", `{"network": "203.0.113.0/24", "for": 3600}`, 400},
		{"POST", "/throttle/ban", `{"network": "203.0.113.0/24", "for": "9999h"}`, 400},
		{"POST", "/throttle/ban", `{"network": "example.com", "for": "1h"}`, 400},
		{"POST", "/throttle/ban", `{"network": "::ffff:1.2.3.4/120", "for": "1h"}`, 400},
		{"POST", "/throttle/ban", `{"network": "64:ff9b::1.2.3.0/120", "for": "1h"}`, 400},
		{"POST", "/throttle/ban", `{"network": "203.0.113.0/24", "zone": "pages"}`, 400},
		{"POST", "/throttle/unban", `{"network": "203.0.113.0/24", "zone": "pages"}`, 400},
		{"POST", "/throttle/shadow", `null`, 400}, // which would be all zones, for 30 days
		{"POST", "/throttle/shadow", `{"network": "203.0.113.0/24"}`, 400},
		{"POST", "/throttle/shadow", `{"zone": "pages", "key": "203.0.113.7"}`, 400},
		{"POST", "/throttle/unshadow", `{"network": "203.0.113.0/24"}`, 400},
		{"POST", "/throttle/limit", `{"zone": "pages", "network": "203.0.113.0/24", "limit": "deny"}`, 400},
		{"POST", "/throttle/unlimit", `{"zone": "pages", "network": "203.0.113.0/24"}`, 400},
		{"POST", "/throttle/limit", `{"zone": "pages", "limit": "x0", "for": "1h"}`, 400},
		{"POST", "/throttle/limit", `{"zone": "pages", "limit": "fast", "for": "1h"}`, 400},
		{"POST", "/throttle/limit", `{"limit": "x2", "for": "1h"}`, 404},
		{"POST", "/throttle/limit", `{"zone": "workers", "limit": "x2"}`, 400}, // which is no unknown name
		{"POST", "/throttle/shadow", `{"zone": "<script>", "for": "1h"}`, 404},
		{"POST", "/throttle/buckets", `{"zone": "pages", "sort": "up"}`, 400},
		{"POST", "/throttle/buckets", `{"zone": "pages", "limit": 1001}`, 400},
		{"POST", "/throttle/buckets", `{"zone": "pages", "sort": "none"}`, 400},
		{"POST", "/throttle/top", `{"for": "1h"}`, 400},
	} {
		check.Equal(t, s.Admin(test.method, test.path, test.body, nil), test.want, "%s %s %.80s", test.method, test.path, test.body)
	}
	r := httptest.NewRequest("POST", "/throttle/release", strings.NewReader(`{"client": "x"}`))
	r.Header.Set("Content-Type", "text/plain") // which other origins may send unasked
	var api caddy.APIError
	err := servertest.ServeAdmin(httptest.NewRecorder(), r)
	check.That(t, errors.As(err, &api) && api.HTTPStatus == http.StatusUnsupportedMediaType, "a body of text/plain: got %v, want 415", err)
	for path, meant := range map[string]bool{"shadow": true, "limit": false} { // which in_flight has not
		r = httptest.NewRequest("POST", "/throttle/"+path, strings.NewReader(`{"zone": "worker"}`))
		r.Header.Set("Content-Type", "application/json")
		err = servertest.ServeAdmin(httptest.NewRecorder(), r)
		check.That(t, err != nil && strings.Contains(err.Error(), "workers") == meant, "%s of a misspelled in_flight: got %v, want it offered: %v", path, err, meant)
	}
}

// A repeatingLister gives each bucket twice, as a SCAN of Redis may.
type repeatingLister struct {
	engine.Store
	keys int
}

func (l repeatingLister) List(_ context.Context, _ store.Filter, cursor string) ([]store.Entry, string, error) {
	var all []store.Entry
	for i := range l.keys {
		all = append(all, store.Entry{Key: strconv.Itoa(i), State: leakybucket.State{Level: 1, Leak: 1e-9, At: 1}, Now: 1})
	}
	if cursor == "" {
		return all, "again", nil
	}
	return all, "", nil
}

func TestABucketThatAStoreRepeatsIsCountedOnce(t *testing.T) {
	s := servertest.Run(t, servertest.ThreeZones)
	s.Engine().Store = repeatingLister{s.Engine().Store, 3 * admin.MostListed}
	got := ask[wire.Buckets](s, "buckets", `{"zone": "accounts", "limit": 10}`)
	check.That(t, got.Matched == 3*admin.MostListed && len(got.Buckets) == 10, "got %d matched and %d listed, want %d and 10", got.Matched, len(got.Buckets), 3*admin.MostListed)
}

// TestAKeyThatATableHasCutCanBePastedBack to ask for its buckets and to empty them. A limit
// needs the whole key.
func TestAKeyThatATableHasCutCanBePastedBack(t *testing.T) {
	s := servertest.RunZone(t, "api", "key header X-Api-Key\nlimit 2 1/h", "respond ok")
	s.From("203.0.113.7:1000").With("X-Api-Key", "s3cret").Get("/")
	why := ask[wire.Why](s, "why", `{"client": "s3cret"}`)
	key := why.Buckets[0].Key
	cut := key[:20] + "…"
	s.Admin(http.MethodPost, "/throttle/why", fmt.Sprintf(`{"client": %q}`, cut), &why)
	check.That(t, len(why.Buckets) == 1 && why.Buckets[0].Key == key, "why %s: got %+v, want the bucket", cut, why.Buckets)
	check.Equal(t, s.Admin(http.MethodPost, "/throttle/limit", fmt.Sprintf(`{"zone": "api", "key": %q, "limit": "deny"}`, cut), nil), http.StatusBadRequest, "limit of %s", cut)
	for client, want := range map[string]int{"…": 0, "@sha256:…": 0} {
		freed := ask[wire.Released](s, "release", fmt.Sprintf(`{"client": %q}`, client))
		check.That(t, freed.Count == want, "release of %s: got %+v, want %d", client, freed, want)
	}
	freed := ask[wire.Released](s, "release", fmt.Sprintf(`{"client": %q}`, cut))
	check.That(t, freed.Count == 1, "release of %s: got %+v, want its bucket", cut, freed)
}

func TestTheJournalSaysWhatWasChangedAndByWhom(t *testing.T) {
	s := servertest.Run(t, servertest.ThreeZones)
	s.From(servertest.Someone).Passes(2, "/hosts")
	s.From(servertest.Someone).Passes(2, "/pages")
	for _, change := range [][2]string{
		{"ban", `{"network": "203.0.113.9", "for": "2h", "note": "a scraper"}`},
		{"unban", `{"network": "203.0.113.10"}`}, // there is none
		{"unban", `{"network": "203.0.113.9"}`},
		{"release", `{"client": "203.0.113.7"}`},
		{"release", `{"client": "203.0.113.7"}`}, // empty already
		{"limit", `{"zone": "pages", "key": "203.0.113.7", "limit": "x2", "for": "1h"}`},
		{"shadow", `{"for": "30m"}`},
	} {
		s.Changes("/throttle/"+change[0], change[1])
	}
	check.Equal(t, s.Admin(http.MethodPost, "/throttle/ban", `{"network": "0.0.0.0/0", "for": "1h"}`, nil), 400)
	var told []string
	for _, c := range journal(s) {
		ends := ""
		if c.Until != nil {
			ends = " for " + c.Until.Sub(c.At).Round(1e9).String()
		}
		told = append(told, c.Via+c.By+": "+c.Action+" "+c.Of+" "+c.Limit+c.Note+ends)
	}
	want := []string{
		"admin API: shadow all zones and bans  for 30m0s",
		"admin API: limit pages/203.0.113.7 x2 for 1h0m0s",
		"admin API: release hosts/203.0.113.7/example.com and 1 more ",
		"admin API: unban 203.0.113.9/32 ",
		"admin API: ban 203.0.113.9/32 a scraper for 2h0m0s",
	}
	check.That(t, fmt.Sprint(told) == fmt.Sprint(want), "got\n%q\nwant\n%q", told, want)

	// Caddy's remote admin endpoint has verified a certificate.
	r := httptest.NewRequest(http.MethodPost, "/throttle/unshadow", strings.NewReader(`{}`))
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set(wire.ByHeader, "mallory")
	r.TLS = &tls.ConnectionState{VerifiedChains: [][]*x509.Certificate{{{Subject: pkix.Name{CommonName: "night shift"}}}}}
	check.OK(t, servertest.ServeAdmin(httptest.NewRecorder(), r))
	last := journal(s)[0]
	check.That(t, last.Via == "remote admin" && last.By == "night shift" && last.Action == "unshadow", "got %+v, want the name of the certificate", last)
}

// A failing store fails to forget buckets of a zone.
type failing struct {
	*memstore.Store
	zone string
}

func (f failing) Reset(ctx context.Context, zone, key string, shadow bool) error {
	if zone == f.zone {
		return errors.New("the store is down")
	}
	return f.Store.Reset(ctx, zone, key, shadow)
}

func TestAReleaseThatFailsHalfwaySaysAndJournalsWhatWasDone(t *testing.T) {
	s := servertest.Run(t, servertest.ThreeZones)
	s.From(servertest.Someone).Passes(2, "/hosts")
	s.From(servertest.Someone).Passes(2, "/pages")
	s.Engine().Store = failing{s.Engine().Store.(*memstore.Store), "pages"}
	before := len(journal(s))
	var got wire.Released
	status := s.Admin(http.MethodPost, "/throttle/release", `{"client": "203.0.113.7"}`, &got)
	check.That(t, status == http.StatusOK && !got.Complete, "got %d %+v, want it released in part", status, got)
	check.Slices(t, got.Freed, []string{"hosts/203.0.113.7/example.com"}, "freed")
	check.Equal(t, got.Problem, `zone "pages": the store is down`)
	told := journal(s)
	check.That(t, len(told) == before+1 && told[0].Of == "hosts/203.0.113.7/example.com", "got %+v, want the bucket that was emptied", told)
	status = s.Admin(http.MethodPost, "/throttle/release", `{"client": "203.0.113.7"}`, nil)
	check.That(t, status == http.StatusBadGateway && len(journal(s)) == before+1, "got %d with nothing done, want 502 and no line", status)
}

func journal(s *servertest.Site) (all []override.Change) {
	s.Helper()
	s.Admin(http.MethodGet, "/throttle/journal", "", &all)
	return all
}

// TestNobodyReplacesAnothersChangeUnawares: the answer says whose it is, until when, and why.
func TestNobodyReplacesAnothersChangeUnawares(t *testing.T) {
	s := servertest.Run(t, servertest.ThreeZones)
	journal(s) // which starts the app
	askAs := func(by, path, body string, status int, parts ...string) {
		t.Helper()
		r := httptest.NewRequest(http.MethodPost, "/throttle/"+path, strings.NewReader(body))
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set(wire.ByHeader, by)
		w := httptest.NewRecorder()
		var api caddy.APIError
		if errors.As(servertest.ServeAdmin(w, r), &api) {
			http.Error(w, api.Err.Error(), api.HTTPStatus)
		}
		check.Equal(t, w.Code, status, "%s by %s: %s", path, by, w.Body)
		for _, part := range parts {
			check.Contains(t, w.Body.String(), part, "%s by %s", path, by)
		}
	}
	for _, test := range []struct{ path, first, second, ended string }{
		{"limit", `{"zone": "pages", "limit": "x0.5", "for": "8h", "note": "the database is slow"}`, `{"zone": "pages", "limit": "60 1/s", "for": "1m"%s}`, `{"zone": "pages"}`},
		{"ban", `{"network": "203.0.113.0/24", "for": "8h", "note": "the database is slow"}`, `{"network": "203.0.113.9/24", "for": "1m"%s}`, `{"network": "203.0.113.0/24"}`},
		{"shadow", `{"for": "8h", "note": "the database is slow"}`, `{"for": "1m"%s}`, `{}`},
	} {
		askAs("alice", test.path, test.first, http.StatusOK, `"by":"alice"`)
		askAs("bob", test.path, fmt.Sprintf(test.second, ""), http.StatusConflict, "by alice", `the note "the database is slow"`)
		askAs("bob", test.path, fmt.Sprintf(test.second, `, "replace": true`), http.StatusOK, `"by":"bob"`)
		askAs("carol", "un"+test.path, test.ended, http.StatusOK)
		askAs("carol", test.path, test.first, http.StatusOK)
	}
	who := ""
	for _, entry := range journal(s) {
		who += entry.By + " " + entry.Action + ", "
	}
	check.Equal(t, who, "carol shadow, carol unshadow, bob shadow, alice shadow, carol ban, carol unban, bob ban, alice ban, carol limit, carol unlimit, bob limit, alice limit, ", "the journal")
}

// namesOf are the names of the buckets, without their zones.
func namesOf(buckets []wire.Bucket) (names []string) {
	for _, b := range buckets {
		names = append(names, b.Key)
	}
	return names
}

// The requests of a key that no override lists may use another bucket, or none.
func TestWhyShowsTheBucketThatRequestsOfAnUnlistedKeyUse(t *testing.T) {
	for policy, want := range map[string][]string{
		"client_ip": nil, // it depends on the client
		"share":     {"@share"},
		"skip":      nil,
		"refuse":    {"unlisted"}, // with its verdict
	} {
		s := servertest.RunZone(t, "api", "key header X-Api-Key unlisted "+policy+" plain\nlimit 9 1/h\noverride shop 5 1/h", "respond ok")
		s.From(servertest.Someone).With("X-Api-Key", "unlisted").Get("/")
		got := ask[wire.Why](s, "why", `{"client": "unlisted"}`)
		check.Slices(t, namesOf(got.Buckets), want, "%s: the buckets", policy)
		check.Slices(t, got.Unlisted, []wire.UnlistedKey{{Zone: "api", Key: "unlisted", Policy: policy}}, "%s", policy)
		got = ask[wire.Why](s, "why", `{"client": "203.0.113.0/24"}`)
		check.That(t, !got.Refused && got.Unlisted == nil, "%s: got refused %v, and the keys %v, of a network, want neither", policy, got.Refused, got.Unlisted)
		got = ask[wire.Why](s, "why", `{"client": "shop"}`)
		names := namesOf(got.Buckets)
		check.That(t, slices.Equal(names, []string{"shop"}) && got.Unlisted == nil, "%s: got the buckets %v and %v of a listed key, want its own", policy, names, got.Unlisted)
		check.Equal(t, s.Admin(http.MethodPost, "/throttle/limit", `{"zone": "api", "key": "unlisted", "limit": "x2"}`, nil), 400, "%s: a limit of a bucket that no request uses", policy)
	}
}

// A request that is denied leaves no bucket.
func TestWhyShowsThatAWholeKeyIsDenied(t *testing.T) {
	s := servertest.Run(t, "http:// {\nthrottle {\nzone pages {\nkey client_ip method\nlimit 2 1/h\noverride 203.0.113.7 deny\n}\n}\nrespond ok\n}")
	for client, want := range map[string]string{"203.0.113.7/GET": "denied", "203.0.113.8/GET": ""} {
		why := s.Why(client)
		check.That(t, why.Refused == (want != "") && (want == "" || len(why.Buckets) == 1 && why.Buckets[0].Verdict.Reason == want), "%s: got %+v, want the reason %q", client, why, want)
	}
	s.Changes("/throttle/limit", `{"zone": "pages", "limit": "deny"}`)
	check.That(t, s.Why("203.0.113.8/GET").Refused, "in a zone that denies everybody: got it not refused")
}

// TestWhySaysWhatRequestsAreTold: the reason, and how long they must wait.
func TestWhySaysWhatRequestsAreTold(t *testing.T) {
	for options, reason := range map[string]string{
		"limit 1 1/h\nblock 10s":             "blocked", // until a request fits, which is later
		"limit 0.5 1/h\ncost 0.5\nblock 10m": "oversize",
	} {
		s := servertest.RunZone(t, reason, options+"\nrefusal retry_after fit", "respond ok")
		s.From(servertest.Someone).Passes(1, "/")
		told, _ := strconv.Atoi(s.From(servertest.Someone).Get("/").Header().Get("Retry-After"))
		v := s.Why("203.0.113.7").Buckets[0].Verdict
		check.That(t, v.Reason == reason && (reason == "oversize" || v.For > 0 && int(v.For) <= told && told-int(v.For) < 600), "%s: got %+v, want the reason %s and the wait of %d s", options, v, reason, told)
	}
}

func TestWhyTakesNoAccountForAnAddress(t *testing.T) {
	s := servertest.RunZone(t, "account", "key field log\nlimit 2 1/h", "respond ok")
	s.From("198.51.100.1:1").Passes(2, "/?log=203.0.113.7")
	got := s.Why("203.0.113.7")
	check.That(t, !got.Refused && len(got.Buckets) == 0, "got %+v, want nothing of an account that is named like the address", got)
}

// A zone that has addresses in its key has buckets beside those, for requests whose key
// is not usable.
func TestBucketsOfAnAddressAreFoundBesideTheKey(t *testing.T) {
	for name, options := range map[string]string{
		"missing_key":  "key client_ip header X-Account missing client_ip",
		"unlisted_key": "key client_ip unlisted client_ip\noverride 198.51.100.0/24 5 1/h",
	} {
		s := servertest.Run(t, "http:// {\nthrottle {\nzone "+name+" {\n"+options+"\nlimit 2 1/h\n}\n}\nrespond ok\n}")
		s.From(servertest.Someone).Passes(2, "/")
		why := ask[wire.Why](s, "why", `{"client": "203.0.113.7"}`)
		check.Slices(t, namesOf(why.Buckets), []string{"@client_ip/203.0.113.7"}, "%s: the buckets, want that of the address", name)
		freed := ask[wire.Released](s, "release", `{"client": "203.0.113.7"}`)
		check.Slices(t, freed.Freed, []string{name + "/@client_ip/203.0.113.7"}, "%s: freed, want that bucket", name)
		s.From(servertest.Someone).Passes(2, "/")
	}
}

func TestWhyKnowsTheBucketOfNamesThatNobodyTypes(t *testing.T) {
	s := servertest.RunZone(t, "account", "key field log fold wordpress\nlimit 2 1/h", "respond ok")
	s.From(servertest.Someone).Passes(2, "/?log=%3Cb%3Ealice")
	got := s.Why("<i>bob")
	check.That(t, got.Refused && len(got.Buckets) == 1 && got.Buckets[0].Key == "@odd", "got %+v, want it refused by the bucket that all such names share", got)
	s.Changes("/throttle/limit", `{"zone": "account", "key": "<i>bob", "limit": "x2"}`)
	s.Changes("/throttle/release", `{"client": "<i>bob"}`)
	s.From(servertest.Someone).Passes(4, "/?log=%3Cb%3Ealice")
}

// A plain key is given as its client sends it, or as logs show it.
func TestALimitOfAPlainKeyIsThatOfItsBucket(t *testing.T) {
	for options, texts := range map[string][]string{
		"key field user fold email plain\nlimit 2 1/h":                      {"Alice@example.com", "alice@example.com"},
		"key query user plain\nlimit 2 1/h":                                 {"shop/7", "shop%2F7"},
		"key query user plain\nlimit 2 1/h\noverride shop/7 2 2/h as shops": {"shop/7", "shop%2F7", "@as/shops"},
	} {
		for _, text := range texts {
			s := servertest.RunZone(t, "users", options, "respond ok")
			s.Changes("/throttle/limit", `{"zone": "users", "key": "`+text+`", "limit": "deny", "replace": true}`)
			s.From(servertest.Someone).Answers("/?user="+url.QueryEscape(texts[0]), http.StatusTooManyRequests)
			check.That(t, s.Why(texts[0]).Refused, "%s of %q: why got it not refused", options, text)
		}
	}
}

func TestWhyShowsASharedBucketOnce(t *testing.T) {
	for name, key := range map[string]string{"one": "header X-Key", "two": "header X-Key host"} {
		s := servertest.RunZone(t, name, "key "+key+" missing share\nlimit 2 1/h", "respond ok")
		s.From(servertest.Someone).Passes(2, "/")
		check.Slices(t, namesOf(s.Why("@share").Buckets), []string{"@share"}, "%s: the buckets", key)
	}
}

func TestWhyFindsASharedBucketByItsBareName(t *testing.T) {
	for name, key := range map[string]string{"tenants": "shop/1", "shops": "bigshop"} {
		s := servertest.RunZone(t, name, "key query user\nlimit 2 1/h\noverride "+key+" 2 1/h as bigshop", "respond ok")
		s.From(servertest.Someone).Passes(2, "/?user="+key)
		got := s.Why("bigshop")
		check.Slices(t, namesOf(got.Buckets), []string{"@as/bigshop"}, "%s: the buckets", key)
		check.That(t, got.Refused, "%s: got it not refused", key)
	}
}

func TestAReleaseInAnOutageFreesHereAlone(t *testing.T) {
	for _, nodes := range []string{"nodes 1", "nodes 3"} {
		synctest.Test(t, func(t *testing.T) {
			s := servertest.RunShared(t, nodes, "zone a {\nlimit 3 1/h\nblock 10m\n}\nzone b {\nlimit 9 1/h\n}")
			c := s.From(servertest.Someone)
			c.Statuses(5, "/")
			servertest.TheShared.Down.Store(true)
			c.WantStatuses("/", map[int]int{429: 5})
			other := s.From("203.0.113.8:1")
			other.Statuses(30, "/")
			var got wire.Released
			status := s.Admin(http.MethodPost, "/throttle/release", `{"client": "203.0.113.7"}`, &got)
			check.Slices(t, got.Freed, []string{"a/203.0.113.7"}, "freed, status %d", status)
			check.That(t, status == 200 && !got.Complete && strings.Contains(got.Problem, "release again"), "got status %d and %+v, want it freed here alone", status, got)
			c.WantStatuses("/", map[int]int{200: 1})
			why := ask[wire.Why](s, "why", `{"client": "203.0.113.7"}`)
			for _, b := range why.Buckets {
				if b.Share != (nodes == "nodes 3") || b.Fraction != b.Level/b.Capacity || b.Zone == "a" && nodes == "nodes 3" && b.Capacity != 1 {
					t.Errorf("%s: got %+v, want the limit in force", nodes, b)
				}
			}
			list := ask[wire.Buckets](s, "buckets", `{"zone": "b", "prefix": "203.0.113.7"}`)
			if len(list.Buckets) != 1 || len(why.Buckets) != 2 || list.Buckets[0].Fraction != why.Buckets[1].Fraction ||
				list.Buckets[0].EmptyIn-why.Buckets[1].EmptyIn > 1 {
				t.Errorf("got %+v in the listing and %+v why, want the same", list.Buckets, why.Buckets)
			}
			check.That(t, why.Local && list.Local, "got local %v why and %v in the listing, want both", why.Local, list.Local)
			for _, body := range []string{`{"zone": "a", "all": true}`, `{"client": "203.0.113.0/24"}`} {
				got := ask[wire.Released](s, "release", body)
				check.That(t, !got.Complete && strings.Contains(got.Problem, "the store is down"), "release %s: got %+v, want that buckets in the store stay", body, got)
			}
			servertest.TheShared.Down.Store(false)
			<-time.After(5 * time.Second)
			synctest.Wait()
			c.WantStatuses("/", map[int]int{429: 3}) // by the store, which was told nothing
			again := ask[wire.Released](s, "release", `{"client": "203.0.113.7"}`)
			check.That(t, again.Count == 2 && again.Complete, "released again: got %+v, want both buckets", again)
			c.WantStatuses("/", map[int]int{200: 3})
		})
	}
}

// TestReleaseOfANetworkAndOfAZone: all clients of it are let in, and no others.
func TestReleaseOfANetworkAndOfAZone(t *testing.T) {
	s := servertest.Run(t, `{
		throttle {
			zone each {
				limit 1 1/h
				block 10m
			}
			zone masked {
				key client_ip {
					ipv4 24
				}
				limit 1 1/h
			}
			zone pairs {
				key client_ip host
				limit 1 1/h
			}
			zone accounts {
				key header X-Account plain
				limit 1 1/h
			}
		}
	}
	http:// {
		throttle /each each
		throttle /masked masked
		throttle /pairs pairs
		throttle /accounts accounts
		respond ok
	}`)
	fill := func() {
		for n := range 150 {
			for _, path := range []string{"/each", "/each", "/pairs", "/masked"} {
				s.From(fmt.Sprintf("203.0.113.%d:1", n)).Get(path)
			}
		}
		for _, path := range []string{"/each", "/masked", "/pairs"} {
			s.From("198.51.100.1:1").Get(path)
		}
		s.From("203.0.113.7:1").With("X-Account", "alice").Get("/accounts")
	}
	released := func(body string, want int) {
		t.Helper()
		got := ask[wire.Released](s, "release", body)
		check.That(t, got.Count == want && len(got.Freed) == min(want, 100) && got.Complete, "release %s: got %d buckets, %d named, complete %v, want %d", body, got.Count, len(got.Freed), got.Complete, want)
	}
	fill()
	released(`{"client": "203.0.113.64/26"}`, 2*64+1) // of the masked zone the whole network
	fill()
	released(`{"client": "203.0.113.0/24"}`, 2*150+1)
	s.From("198.51.100.1:1").Answers("/each", http.StatusTooManyRequests)
	s.From("203.0.113.9:1").Answers("/each", http.StatusOK)
	fill()
	released(`{"client": "203.0.113.7/32", "zone": "each"}`, 1)
	released(`{"zone": "each", "all": true}`, 150)
	released(`{"zone": "accounts", "all": true}`, 1)
	s.From("198.51.100.1:1").Answers("/pairs", http.StatusTooManyRequests)

	why := ask[wire.Why](s, "why", `{"client": "203.0.113.0/24", "zone": "masked"}`)
	check.That(t, len(why.Buckets) == 1 && why.Buckets[0].Network == "203.0.113.0/24" && why.Refused, "why: got %+v, want the one bucket of the network", why)
}
