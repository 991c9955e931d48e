// Package httplimit limits the requests of a net/http server by a [leakybucket.Limiter].
//
// A request whose cost does not fit gets status 429 with a Retry-After computed from the time
// until it fits, and Cache-Control: no-store. If the store fails, requests pass.
package httplimit

import (
	"fmt"
	"log/slog"
	"math"
	"net/http"
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

	// Cost returns what a request costs, in units. If nil, 1.
	Cost func(*http.Request) float64

	// FailClosed answers 503 while the store fails, instead of passing all requests.
	FailClosed bool

	// Refuse writes the answer to a refused request. Its headers Retry-After and
	// Cache-Control are set. If nil, a line of text with status 429.
	Refuse func(http.ResponseWriter, *http.Request, leakybucket.Result)

	// Log is told once a minute why the store fails. If nil, [slog.Default].
	Log *slog.Logger
}

const logEvery = time.Minute

// New returns a handler that passes to next what the limiter admits.
func New(limiter *leakybucket.Limiter, o Options, next http.Handler) http.Handler {
	if o.Key == nil {
		o.Key = ByAddress
	}
	if o.Cost == nil {
		o.Cost = func(*http.Request) float64 { return 1 }
	}
	if o.Refuse == nil {
		o.Refuse = refuse
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	return &handler{limiter: limiter, o: o, next: next}
}

type handler struct {
	limiter *leakybucket.Limiter
	o       Options
	next    http.Handler
	logged  atomic.Int64 // when, in nanoseconds since 1970
}

func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	key := h.o.Key(r)
	if key == "" {
		h.next.ServeHTTP(w, r)
		return
	}
	result, err := h.limiter.Take(r.Context(), key, h.o.Cost(r))
	if err != nil {
		h.log(err)
		result.Fits = !h.o.FailClosed
	}
	switch {
	case result.Fits:
		h.next.ServeHTTP(w, r)
	case result.Undecided:
		w.Header().Set("Cache-Control", "no-store")
		http.Error(w, "Try again later.", http.StatusServiceUnavailable)
	default:
		w.Header().Set("Cache-Control", "no-store")
		if result.RetryAfter > 0 {
			w.Header().Set("Retry-After", fmt.Sprint(seconds(result.RetryAfter)))
		}
		h.o.Refuse(w, r, result)
	}
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

// log says why the store failed, unless it did so in the last minute.
func (h *handler) log(err error) {
	last, now := h.logged.Load(), time.Now().UnixNano()
	if now-last < int64(logEvery) || !h.logged.CompareAndSwap(last, now) {
		return
	}
	does := "requests pass"
	if h.o.FailClosed {
		does = "requests are answered 503"
	}
	h.o.Log.Error("asking the store of a limit failed; meanwhile "+does, "error", err)
}
