package telemetry_test

import (
	"testing"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/servertest"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/telemetry"
)

func TestFactsAreKnownFromTheFirstRequest(t *testing.T) {
	s := servertest.Run(t, `http:// {
		throttle {
			zone login {
				match path /login
				limit 10 1/h
				settle status 401 1
				exempt client_ip 203.0.113.9
			}
			zone api {
				match path /api
				key header X-Key missing skip
				limit 10 1/h
			}
		}
		respond /login 401
		respond ok
	}`)
	for range 3 {
		s.From(servertest.Someone).Get("/login")
	}
	s.From("203.0.113.9:1000").Get("/login")
	s.From("198.51.100.1:1000").Get("/login")
	s.From(servertest.Someone).Get("/api")
	s.From(servertest.Someone).With("X-Key", "a").Get("/api")
	for range 13 {
		s.From(servertest.Someone).Get("/other")
	}
	for zone, want := range map[string]telemetry.Facts{
		"login": {Requests: 20, Asked: 4, Exempt: 1, Keys: 2, Networks: 2, Charged: 4},
		"api":   {Requests: 20, Asked: 1, Keyless: 1, Keys: 1, Networks: 1},
	} {
		got := s.Engine().Zones[zone].Counts.Facts()
		got.Since = want.Since
		if got != want {
			t.Errorf("zone %s: got %+v, want %+v", zone, got, want)
		}
	}
}
