package engine_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/engine"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/servertest"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/telemetry"
)

const (
	untrustedWarning = "not in trusted_proxies"
	looseWarning     = "without trusted_proxies_strict"
)

// A tunnel on the same machine, say, makes all visitors come from the address that is exempt.
func TestAnUntrustedPeerThatForwardsIsWarnedOfOnce(t *testing.T) {
	for _, test := range []struct{ global, header string }{
		{"", "X-Forwarded-For"},
		{"", "Forwarded"},
		{"", "Cf-Connecting-Ip"},
		{"{\nthrottle {\nexempt client_ip 203.0.113.0/24\n}\n}\n", "X-Forwarded-For"},
	} {
		s := servertest.Run(t, test.global+"http:// {\nthrottle site 100 1/s\n}")
		s.From(servertest.Someone).Get("/")
		s.Warned(t, untrustedWarning, 0)
		s.From(servertest.Someone).With(test.header, "192.0.2.1").Statuses(3, "/")
		s.Warned(t, untrustedWarning, 1)
		s.Warned(t, looseWarning, 0)
	}
}

// A site may move behind a CDN while Caddy runs.
func TestSignsOfAProxyAreLookedForAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := servertest.Start(t, servertest.Run(t, "http:// {\nthrottle site 100 1/s\n}"))
		s.Engine().Proxies.Requests.Store(engine.WatchedRequests)
		time.Sleep(2 * telemetry.SampleEvery)
		s.From(servertest.Someone).With("X-Forwarded-For", "192.0.2.1").Get("/")
		s.Warned(t, untrustedWarning, 1)
	})
}

func TestTrustWithoutStrictIsWarnedOfOnce(t *testing.T) {
	for _, test := range []struct {
		strict string
		want   int
	}{
		{"", 1},
		{"trusted_proxies_strict", 0},
	} {
		s := servertest.Run(t, `{
			servers {
				trusted_proxies static 203.0.113.0/24
				`+test.strict+`
			}
		}
		http:// {
			throttle site 100 1/s
		}`)
		s.From(servertest.Someone).With("X-Forwarded-For", "192.0.2.1").Statuses(3, "/")
		s.Warned(t, looseWarning, test.want)
		s.Warned(t, untrustedWarning, 0)
	}
}

func TestAKeyThatClientsCanMakeUpIsWarnedOfOnce(t *testing.T) {
	const text = "keyed by values that clients choose"
	zone := func(name, key string) string {
		return fmt.Sprintf("zone %s {\nkey %s\nlimit 5 1/s\n}\n", name, key)
	}
	for _, test := range []struct {
		zones string
		want  int
	}{
		{zone("a", "header X-Api-Key"), 1},
		{zone("a", "cookie session"), 1},
		{zone("a", "query token"), 1},
		{zone("a", "field log fold wordpress"), 1},
		{zone("a", "basic_user"), 1},
		{zone("a", "basic_user client_ip"), 1},
		{zone("a", "host header X-Api-Key"), 1},
		{zone("a", "{header.X-Api-Key}"), 1},
		{zone("a", "x-{cookie.session}"), 1},
		{zone("a", "{query.token}"), 1},
		{zone("a", "{vars.tenant}"), 0},
		{zone("a", "{header.X-Api-Key} {client_ip}"), 1},
		{zone("a", "header X-Api-Key") + zone("b", "cookie session"), 2},
		{zone("a", "header X-Api-Key client_ip"), 1},
		{zone("a", "client_ip {path}"), 1},
		{zone("a", "client_ip method"), 1}, // PHP serves a page to GET1, GET2 and so on
		{zone("a", "client_ip {http.request.orig_method}"), 1},
		{zone("a", "{hostport}"), 1},
		{zone("a", "client_ip x-{port}"), 1},
		{zone("a", "{uri}"), 1},
		{zone("a", "client_ip x-{method}"), 1},
		{zone("a", "header X-Api-Key unlisted refuse\noverride some 60 1/s"), 0},
		{zone("a", "header X-Api-Key") + zone("b", "client_ip"), 0},
		{zone("a", "host"), 0},
		{zone("a", "client_ip"), 0},
	} {
		s := servertest.Run(t, "http:// {\nthrottle {\n"+test.zones+"}\n}")
		s.Warned(t, text, test.want)
		s.Stop()
	}
	s := servertest.Run(t, "{\nthrottle {\n"+zone("a", "header X-Api-Key")+"}\n}\nhttp:// {\nthrottle /one a\nthrottle /two a\n}")
	s.Warned(t, text, 1)
}

func TestAnOverrideThatCannotPayACostIsWarnedOfOnce(t *testing.T) {
	const zone = `zone api {
		override 203.0.113.7 2 1/s
		override 203.0.113.8 5 1/s
		cost 3 {
			method POST
		}
		limit 10 1/s
	}`
	s := servertest.Run(t, "http:// {\nthrottle /one {\n"+zone+"\n}\nthrottle /two {\n"+zone+"\n}\n}")
	s.Warned(t, "the capacity of an override is less than some requests cost", 1)
}

func TestRequestsWithoutAnAddressAreWarnedOfOnce(t *testing.T) {
	s := servertest.Run(t, `http:// {
		throttle site 3 1/h
		respond ok
	}`)
	s.From("@").Passes(3, "/")
	s.From("").Passes(0, "/")
	s.Warned(t, "without a client address", 1)
}

// The memory outlives the config that created it, and that config's log.
func TestAFullMemoryIsWarnedOfInTheLogOfTheConfigThatRuns(t *testing.T) {
	const text = "the memory store is full"
	synctest.Test(t, func(t *testing.T) {
		const config = `{
			throttle {
				store memory {
					max_buckets 1
				}
			}
		}
		http:// {
			throttle site 5 1/h
		}`
		old := servertest.Run(t, config)
		servertest.Start(t, old)
		next := servertest.Run(t, config)
		servertest.Start(t, next)
		old.Stop()
		next.From("203.0.113.1:1").Get("/")
		next.From("203.0.113.2:1").Get("/")
		<-time.After(time.Hour)
		synctest.Wait()
		old.Warned(t, text, 0)
		next.Warned(t, text, 1)
	})
}
