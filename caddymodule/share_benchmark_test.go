package caddymodule

import (
	"context"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
)

// slotsHandler returns the handler of one zone with slots.
func slotsHandler(t testing.TB, name, options string) *Handler {
	s := run(t, "{\nthrottle {\nzone "+name+" {\nkey host\nin_flight 5\n"+options+"\n}\n}\n}\nhttp:// {\nthrottle "+name+"\n}")
	h := &Handler{Zone: []*Zone{{Name: name}}}
	if err := h.Provision(s.ctx); err != nil {
		t.Fatal(err)
	}
	return h
}

// overInFlight returns what share adds to an admitted request with nobody waiting.
// Requests are handled in parts that take turns. Of the parts the first quartile
// counts, because other work on the machine can only make a part longer.
func overInFlight(t testing.TB, parts int) (share, inFlight time.Duration) {
	const part = 64
	handlers := []func(http.ResponseWriter, *http.Request){
		throttled(slotsHandler(t, "plain", "max_wait 5s")), throttled(slotsHandler(t, "shared", "share")),
	}
	ctx, cancel := context.WithCancel(context.Background()) // as a server gives each request
	defer cancel()
	raw := httptest.NewRequest(http.MethodGet, "http://example.com/", nil).WithContext(ctx)
	w := &discard{header: make(http.Header)}
	requests := make([]*http.Request, part)
	var took [2][]time.Duration
	for range parts {
		for i, handle := range handlers {
			for j := range requests {
				requests[j] = caddyhttp.PrepareRequest(raw, caddy.NewReplacer(), w, server)
			}
			began := time.Now()
			for _, r := range requests {
				handle(w, r)
			}
			took[i] = append(took[i], time.Since(began)/part)
		}
	}
	for i := range took {
		slices.Sort(took[i])
	}
	return took[1][parts/4], took[0][parts/4]
}

func BenchmarkShareOverInFlight(b *testing.B) {
	for b.Loop() {
		share, inFlight := overInFlight(b, 2000)
		b.ReportMetric(float64(inFlight.Nanoseconds()), "in_flight-ns")
		b.ReportMetric(float64((share - inFlight).Nanoseconds()), "more-ns")
	}
}
