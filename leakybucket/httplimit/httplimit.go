// Package httplimit limits the requests of a net/http server by a [leakybucket.Limiter].
//
// A request whose cost does not fit gets status 429 with a Retry-After computed from the time
// until it fits, if it ever can, and Cache-Control: no-store. While the store fails, requests
// pass, or get 503 if the limiter's options say FailClosed.
package httplimit

import (
	"cmp"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// Options say what is charged, and what is answered. The zero value charges 1 to the client's
// address.
type Options struct {
	// Key names the bucket of a request. If nil, [ByAddress]. A request with an empty key is
	// not limited.
	Key func(*http.Request) string

	// Cost returns what a request costs, in units. If nil, 1. A cost that can never fit, which is
	// one above the capacity, a negative one or NaN, is refused without Retry-After. So check the
	// ContentLength of a request before you return it: of a chunked body it is -1.
	Cost func(*http.Request) float64

	// Limit returns the limit of a request, such as that of the customer's plan. If it is nil or
	// returns the zero Limit, the limiter's own holds. With an invalid one, the request is refused
	// without Retry-After, and Log is told.
	Limit func(*http.Request) leakybucket.Limit

	// Policy is the name under which the limit is told to clients, in the fields RateLimit-Policy
	// and RateLimit of draft-ietf-httpapi-ratelimit-headers-10: q units fit at once, and leak in w
	// seconds; r are left, and there are more in t seconds. It has letters, digits, _ and - only.
	// If empty, answers have no such fields. Each of several limiters around a handler adds its own.
	Policy string

	// Refuse writes the answer to a refused request. Its headers Retry-After and
	// Cache-Control are set. If nil, a line of text with status 429.
	Refuse func(http.ResponseWriter, *http.Request, leakybucket.Result)

	// Log is told once a minute why no decision was made, such as that the store fails. If nil,
	// [slog.Default].
	Log *slog.Logger
}

const logEvery = time.Minute

// Middleware returns a function that puts the limiter in front of a handler, as routers take it.
func Middleware(limiter *leakybucket.Limiter, o Options) func(http.Handler) http.Handler {
	if o.Key == nil {
		o.Key = ByAddress
	}
	if o.Cost == nil {
		o.Cost = func(*http.Request) float64 { return 1 }
	}
	if o.Limit == nil {
		o.Limit = func(*http.Request) leakybucket.Limit { return leakybucket.Limit{} }
	}
	if o.Refuse == nil {
		o.Refuse = refuse
	}
	o.Log = cmp.Or(o.Log, slog.Default())
	m := &middleware{limiter: limiter, o: o}
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { m.serve(w, r, next) })
	}
}

type middleware struct {
	limiter *leakybucket.Limiter
	o       Options
	logged  atomic.Int64 // when, in nanoseconds since 1970
}

func (m *middleware) serve(w http.ResponseWriter, r *http.Request, next http.Handler) {
	key := m.o.Key(r)
	if key == "" {
		next.ServeHTTP(w, r)
		return
	}
	result, err := m.take(r, key)
	if err != nil && r.Context().Err() == nil { // else the client has left, or its time is over
		m.log(err, result.Fits)
	}
	if limit := result.Limit(); m.o.Policy != "" && limit.Capacity > 0 { // otherwise nothing was decided
		m.announce(w.Header(), &result, limit)
	}
	switch {
	case result.Fits:
		next.ServeHTTP(w, r)
	case result.Undecided:
		w.Header().Set("Cache-Control", "no-store")
		http.Error(w, "Try again later.", http.StatusServiceUnavailable)
	default:
		w.Header().Set("Cache-Control", "no-store")
		if result.RetryAfter > 0 {
			w.Header().Set("Retry-After", strconv.FormatInt(seconds(result.RetryAfter), 10))
		}
		m.o.Refuse(w, r, result)
	}
}

func (m *middleware) take(r *http.Request, key string) (leakybucket.Result, error) {
	cost := m.o.Cost(r)
	if limit := m.o.Limit(r); limit != (leakybucket.Limit{}) {
		return m.limiter.TakeLimit(r.Context(), key, cost, limit)
	}
	return m.limiter.Take(r.Context(), key, cost)
}

// announce tells the client of the limit: how much it may send at once, in how many seconds that
// is free again, how much of it is left, and when one unit more will be. All are rounded so that a
// client that relies on them is not refused.
func (m *middleware) announce(header http.Header, r *leakybucket.Result, limit leakybucket.Limit) {
	header.Add("RateLimit-Policy", fmt.Sprintf("%q;q=%d;w=%d", m.o.Policy, int64(limit.Capacity), max(1, seconds(limit.TimeToEmpty(limit.Capacity)))))
	left := math.Floor(r.Remaining)
	field := fmt.Sprintf("%q;r=%d", m.o.Policy, int64(left))
	if r.Level > 0 {
		more := limit.TimeToEmpty(r.Level - max(0, limit.Capacity-left-1))
		if r.RetryAfter > 0 {
			more = min(more, r.RetryAfter)
		}
		field += fmt.Sprintf(";t=%d", max(1, seconds(more)))
	}
	header.Add("RateLimit", field)
}

// seconds rounds up, so that nobody is told to come too early.
func seconds(d time.Duration) int64 { return int64(math.Ceil(d.Seconds())) }

func refuse(w http.ResponseWriter, _ *http.Request, result leakybucket.Result) {
	text := "Too many requests."
	if result.RetryAfter > 0 {
		text += fmt.Sprintf(" Try again in %ds.", seconds(result.RetryAfter))
	}
	http.Error(w, text, http.StatusTooManyRequests)
}

// log says why there was no decision, unless it did so in the last minute.
func (m *middleware) log(err error, passes bool) {
	last, now := m.logged.Load(), time.Now().UnixNano()
	if now-last < int64(logEvery) || !m.logged.CompareAndSwap(last, now) {
		return
	}
	does := "requests pass"
	if !passes {
		does = "such requests are refused"
	}
	m.o.Log.Error("deciding by a limit failed; meanwhile "+does, "error", err)
}
