package limit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

type handler func(w http.ResponseWriter, r *http.Request) error

func (h handler) ServeHTTP(w http.ResponseWriter, r *http.Request) error { return h(w, r) }

var limit = leakybucket.Limit{Capacity: 1000, Leak: 1}

// says is an upstream that answers with a status and headers.
func says(status int, headers ...string) handler {
	return func(w http.ResponseWriter, _ *http.Request) error {
		for i := 0; i < len(headers); i += 2 {
			w.Header().Add(headers[i], headers[i+1])
		}
		w.WriteHeader(status)
		return nil
	}
}

// takes is an upstream that thinks before it sends headers, and again before it
// sends the rest.
func takes(headers, rest time.Duration) handler {
	return func(w http.ResponseWriter, _ *http.Request) error {
		time.Sleep(headers)
		w.WriteHeader(http.StatusOK)
		time.Sleep(rest)
		_, err := w.Write(make([]byte, 3000))
		return err
	}
}

func fails(after time.Duration, err error) handler {
	return func(http.ResponseWriter, *http.Request) error {
		time.Sleep(after)
		return err
	}
}

// observe serves a request, and recovers from what the upstream panics with.
func observe(w http.ResponseWriter, r *http.Request, rule *Settle, next handler) (o *Observer, panicked any) {
	o = &Observer{Headers: []string{rule.Name}, Timed: true}
	defer func() { panicked = recover() }()
	_ = o.Serve(w, r, next)
	return o, nil
}

var (
	seconds  = &Settle{Source: BySeconds}
	kilobyte = &Settle{Source: ByBytes, bytes: 1000}
	header   = &Settle{Source: ByHeader, Name: "X-Cost"}
)

func statuses(cost float64, texts ...string) *Settle {
	r := &Settle{Source: ByStatus, Cost: cost}
	for _, text := range texts {
		s, err := parseStatus(text)
		if err != nil {
			panic(err)
		}
		r.codes = append(r.codes, s)
	}
	return r
}

func TestTheResponseTellsWhatARequestCost(t *testing.T) {
	notFound := caddyhttp.HandlerError{StatusCode: http.StatusNotFound, Err: errors.New("no such file")}
	nothing := handler(func(http.ResponseWriter, *http.Request) error { return nil })
	panics := func(next handler) handler {
		return func(w http.ResponseWriter, r *http.Request) error {
			_ = next(w, r)
			panic(http.ErrAbortHandler)
		}
	}
	const unknown = -1
	for _, test := range []struct {
		about    string
		rule     *Settle
		reserved float64
		next     handler
		want     float64
	}{
		{"time until the headers, up", seconds, 1, takes(9*time.Second, 0), 9},
		{"time until the headers, down", seconds, 2, takes(500*time.Millisecond, 0), 0.5},
		{"the body takes long", seconds, 1, takes(3*time.Second, time.Minute), 3},
		{"no headers, and soon", seconds, 2, fails(time.Second, notFound), 2},
		{"no headers, and late", seconds, 2, fails(5*time.Second, notFound), 5},
		{"nothing is written", seconds, 2, fails(3*time.Second, nil), 3},
		{"seconds after", seconds, 0, takes(9*time.Second, 0), 9},
		{"no headers, after", seconds, 0, fails(4*time.Second, notFound), 4},
		{"a tunnel's time", seconds, 2, says(101), unknown},
		{"a panic before the headers", seconds, 2, panics(nothing), 2},

		{"bytes, up", kilobyte, 1, takes(0, 0), 3},
		{"bytes, down", kilobyte, 10, takes(0, 0), 3},
		{"part of a unit", &Settle{Source: ByBytes, bytes: 1e6}, 1, takes(0, 0), 0.003},
		{"no bytes", kilobyte, 1, nothing, 0},
		{"an error's size", kilobyte, 1, fails(0, notFound), unknown},
		{"a tunnel's size", kilobyte, 2, says(101), unknown},
		{"a panic's size", kilobyte, 2, panics(nothing), unknown},

		{"a header, up", header, 1, says(200, "X-Cost", "7.5"), 7.5},
		{"a header, down", header, 5, says(500, "X-Cost", "0.25"), 0.25},
		{"a header of 0", header, 5, says(200, "X-Cost", "0"), 0},
		{"a header after", header, 0, says(200, "X-Cost", "7"), 7},
		{"a header of a redirect", header, 0, says(302, "X-Cost", "7"), 7},
		{"as many digits as there are", header, 2, says(200, "X-Cost", "2.000000"), 2},
		{"NaN", header, 2, says(200, "X-Cost", "NaN"), unknown},
		{"negative", header, 2, says(200, "X-Cost", "-5"), unknown},
		{"an exponent", header, 2, says(200, "X-Cost", "1e400"), unknown},
		{"infinite", header, 2, says(200, "X-Cost", "Inf"), unknown},
		{"hexadecimal", header, 2, says(200, "X-Cost", "0x5"), unknown},
		{"a list", header, 2, says(200, "X-Cost", "1,2"), unknown},
		{"empty", header, 2, says(200, "X-Cost", ""), unknown},
		{"twice", header, 2, says(200, "X-Cost", "5", "X-Cost", "5"), unknown},
		{"missing", header, 2, says(200), unknown},
		{"an error", header, 2, fails(0, io.EOF), unknown},
		{"a tunnel's header", header, 2, says(101, "X-Cost", "50"), unknown},
		{"a panic after a header, up", header, 1, panics(says(200, "X-Cost", "3")), 3},
		{"a panic after a header, down", header, 5, panics(says(200, "X-Cost", "3")), 3},
		{"beyond the arithmetic", header, 1, says(200, "X-Cost", "1"+fmt.Sprintf("%0400d", 0)), 1e12},
		{"too small to count", header, 1, says(200, "X-Cost", "0.0000000001"), 0},

		{"a status, up", statuses(5, "401", "422"), 1, says(422), 5},
		{"a status, down", statuses(5, "401"), 8, says(401), 5},
		{"another status", statuses(5, "401"), 8, says(200), 0},
		{"a class", statuses(3, "4xx", "5xx"), 1, says(503), 3},
		{"another class", statuses(3, "4xx"), 1, says(500), 0},
		{"a status after", statuses(1, "200"), 0, says(200), 1},
		{"another status after", statuses(1, "200"), 0, says(302), 0},
		{"nothing written is a 200", statuses(1, "200"), 0, nothing, 1},
		{"a body without a status is a 200", statuses(1, "200"), 0, takes(0, 0), 1},
		{"an error's status", statuses(3, "404"), 0, fails(0, notFound), 3},
		{"another error's status", statuses(3, "401"), 8, fails(0, notFound), 0},
		{"a wrapped error's status", statuses(3, "404"), 0, fails(0, fmt.Errorf("serving: %w", notFound)), 3},
		{"an error without a status", statuses(3, "500"), 0, fails(0, io.ErrUnexpectedEOF), 3},
		{"a tunnel's status", statuses(3, "101"), 0, says(101), 3},
		{"a tunnel's class", statuses(2, "1xx"), 2, says(101), 2},
		{"a panic's status", statuses(7, "2xx", "5xx"), 2, panics(nothing), unknown},
		{"only the first status", statuses(1, "200"), 0, func(w http.ResponseWriter, _ *http.Request) error {
			w.WriteHeader(http.StatusEarlyHints)
			w.WriteHeader(http.StatusOK)
			w.WriteHeader(http.StatusNotFound)
			return nil
		}, 1},
	} {
		t.Run(test.about, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o, _ := observe(httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil), test.rule, test.next)
				want, wantKnown := test.want, true
				if want == unknown {
					want, wantKnown = test.reserved, false
				}
				got, known := test.rule.Actual(o, limit, test.reserved)
				check.That(t, math.Abs(got-want) <= 1e-9 && known == wantKnown, "got %v, known %v; want %v, %v", got, known, want, wantKnown)
			})
		})
	}
}

func TestAClientThatLeavesNeverPaysLess(t *testing.T) {
	for _, test := range []struct {
		about    string
		rule     *Settle
		cost     string
		reserved float64
		want     float64
	}{
		{"a small cost", header, "0.25", 2, 2},
		{"a large cost", header, "5", 2, 5},
		{"no cost", header, "nonsense", 2, 2},
		{"a short time", seconds, "", 2, 2},
		{"few bytes", kilobyte, "", 2, 2},
		{"another status", statuses(5, "401"), "", 2, 2},
		{"nothing reserved", header, "0.25", 0, 0.25},
	} {
		for name, next := range map[string]handler{
			"headers":    says(200, "X-Cost", test.cost),
			"an error":   fails(0, caddyhttp.HandlerError{StatusCode: 404}),
			"no headers": fails(0, nil),
		} {
			ctx, leave := context.WithCancel(t.Context())
			o, _ := observe(httptest.NewRecorder(), httptest.NewRequestWithContext(ctx, "GET", "/", nil), test.rule, func(w http.ResponseWriter, r *http.Request) error {
				leave()
				return next(w, r)
			})
			got, _ := test.rule.Actual(o, limit, test.reserved)
			if name == "headers" && got != test.want || got < test.reserved {
				t.Errorf("%s, %s: got %v, want %v", test.about, name, got, test.want)
			}
		}
	}
}

func TestStatusesAreCodesAndClasses(t *testing.T) {
	for text, want := range map[string]int{"401": 401, "4xx": 4, "599": 599, "1xx": 1} {
		got, err := parseStatus(text)
		check.That(t, got == want && err == nil, "%q: got %v, %v, want %v", text, got, err, want)
	}
	for _, text := range []string{"", "4", "40", "4x", "40x", "4XX", "600", "099", "4011", "4xx "} {
		got, err := parseStatus(text)
		check.That(t, err != nil, "%q: got %v, want an error", text, got)
	}
}
