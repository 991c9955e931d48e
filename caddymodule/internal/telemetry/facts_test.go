package telemetry_test

import (
	"io"
	"net/http"
	"net/url"
	"reflect"
	"strings"
	"testing"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/servertest"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/telemetry"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
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
	s.From(servertest.Someone).Statuses(3, "/login")
	s.From("203.0.113.9:1000").Get("/login")
	s.From("198.51.100.1:1000").Get("/login")
	s.From(servertest.Someone).Get("/api")
	s.From(servertest.Someone).With("X-Key", "a").Get("/api")
	s.From(servertest.Someone).Statuses(13, "/other")
	for zone, want := range map[string]telemetry.Facts{
		"login": {Requests: 20, Asked: 4, Exempt: 1, Keys: 2, Networks: 2, Charged: 4},
		"api":   {Requests: 20, Asked: 1, Keyless: 1, Keys: 1, Networks: 1},
	} {
		got := s.Engine().Zones[zone].Counts.Facts()
		got.Since = want.Since
		check.That(t, reflect.DeepEqual(got, want), "zone %s: got %+v, want %+v", zone, got, want)
	}
}

// Facts of a zone that refunds: the statuses, also those that no client sees, and its devices.
func TestFactsOfRefunds(t *testing.T) {
	s := servertest.NewLoginSite(t, t.TempDir(), `zone account {
		field pwd
		key field log
		limit 100 1/h
		refund cookie wordpress_logged_in_*
		trust_devices wordpress_logged_in_*
	}
	zone shy {
		key field log
		limit 100 1/h
		refund status 418
	}
	zone first {
		limit 100 1/h
		settle status 302 1
	}`)
	facts := func(zone string) telemetry.Facts { return s.Engine().Zones[zone].Counts.Facts() }
	if got := facts("account"); got.Responses == nil || len(got.Responses) > 0 || got.Devices == nil {
		t.Errorf("got %+v before the first request, want no responses and no devices", got)
	}
	for _, password := range []string{"wrong", "wrong", "right", "broken", "implicit"} {
		form := url.Values{"log": {"alice"}, "pwd": {password}}.Encode()
		r := servertest.Request(servertest.Someone, "https://example.com/login", "Content-Type", "application/x-www-form-urlencoded")
		r.Method, r.Body, r.ContentLength = http.MethodPost, io.NopCloser(strings.NewReader(form)), int64(len(form))
		s.Do(r)
	}
	devices, statuses := uint64(2), map[int]uint64{200: 3, 302: 1, 502: 1}
	for zone, want := range map[string]telemetry.Facts{
		"account": {Requests: 5, Asked: 5, Keys: 1, Networks: 1, Charged: 3, Refunded: 2, Responses: statuses, Devices: &devices},
		"shy":     {Requests: 5, Asked: 5, Keys: 1, Networks: 1, Charged: 5, Responses: statuses},
		"first":   {Requests: 5, Asked: 5, Keys: 1, Networks: 1, Charged: 1, Refunded: 4},
	} {
		got := facts(zone)
		got.Since = want.Since
		check.That(t, reflect.DeepEqual(got, want), "zone %s: got %+v, want %+v", zone, got, want)
	}
}
