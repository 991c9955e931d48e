package limit_test

import (
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/servertest"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

func TestARequestCostsWhatTheFirstLineSaysThatMatches(t *testing.T) {
	s := servertest.Run(t, `http:// {
		@upload path /upload/*
		vars paid 2.5
		throttle {
			zone api {
				cost @upload 20
				cost 30 {
					method PUT
				}
				cost /search* 4
				cost {vars.paid} {
					path /paid
				}
				cost {vars.unpaid} {
					path /unpaid
				}
				cost 0 {
					path /ping
				}
				cost 7 {
					path /unpaid /none
					method DELETE
				}
				limit 1000 1/d
			}
		}
		respond {http.throttle.cost}
	}`)
	c := s.From(servertest.Someone)
	for _, test := range []struct{ method, path, want string }{
		{"GET", "/", "1"},
		{"PUT", "/", "30"},
		{"put", "/", "30"},
		{"PUT", "/search", "30"},
		{"PUT", "/upload/x", "20"},
		{"GET", "/search/x", "4"},
		{"GET", "/paid", "2.5"},
		{"GET", "/ping", "0"},
		{"DELETE", "/none", "7"},
		{"DELETE", "/unpaid", "1"}, // the first that matches has no number: 1, and no other line
	} {
		check.Equal(t, c.Send(test.method, test.path).Body.String(), test.want, "%s %s: a cost", test.method, test.path)
	}
}

// Which texts are numbers, ParseCost says.
func TestACostThatIsNoPlainDecimalNumberCountsAsOne(t *testing.T) {
	s := servertest.RunZone(t, "api", "cost {header.X-Cost}\nlimit 1000000 1000/d", "respond {http.throttle.cost}")
	for _, test := range []struct{ text, want string }{
		{"2", "2"},
		{"0.25", "0.25"},
		{"0", "0"},
		{"0." + strings.Repeat("0", 300) + "1", "0"},
		{"0.0000000001", "0"}, // too small to move the level
		{"0." + strings.Repeat("3", 5000), "0.333333"},

		{"", "1"},
		{"1e3", "1"},
	} {
		w := s.From(servertest.Someone).With("X-Cost", test.text).Get("/")
		got := w.Body.String()
		check.That(t, w.Code == http.StatusOK && got == test.want, "%.40q: got %v with a cost of %q, want 200 with %q", test.text, w.Code, got, test.want)
	}
	check.Equal(t, s.From(servertest.Someone).With("X-Cost", "2").With("X-Cost", "3").Get("/").Body.String(), "1", "two headers: a cost")
	for _, huge := range []string{"1000001", "1000000000001", strings.Repeat("9", 400), strings.Repeat("9", 10<<10)} {
		w := s.From("203.0.113.8:1").With("X-Cost", huge).Get("/")
		check.That(t, w.Code == http.StatusTooManyRequests && w.Header().Get("Retry-After") == "", "%.40q: got %v and Retry-After %q, want 429 and none", huge, w.Code, w.Header().Get("Retry-After"))
	}
	// A cost that can never fit is not charged.
	check.Equal(t, s.From("203.0.113.8:1").With("X-Cost", "1000000").Get("/").Code, http.StatusOK, "a whole capacity after oversize costs")
}

func TestRequestsThatCostNothingPassUntilTheBucketIsFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := servertest.RunZone(t, "api", "cost 0 {\npath /free\n}\nlimit 2 1/h\nrefusal retry_after fit", "respond ok")
		c := s.From(servertest.Someone)
		c.WantStatuses("/free", map[int]int{http.StatusOK: 10})
		c.Passes(2, "/")
		w := c.Get("/free")
		got := w.Header().Get("Retry-After")
		check.Assume(t, w.Code == http.StatusTooManyRequests && got == "1", "full bucket: got %v and Retry-After %q, want 429 and 1", w.Code, got)
		<-time.After(time.Second)
		check.Equal(t, c.Get("/free").Code, http.StatusOK, "a second later")
	})
}
