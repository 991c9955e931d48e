package caddymodule

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/decision"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/topk"
	bucketkey "github.com/caddy-throttle/caddy-throttle/leakybucket/key"
)

// A watch counts whose requests a zone decides about, for as long as an administrator
// looks. A zone without one pays for it with one atomic load.
type watch struct {
	by grouping

	mu               sync.Mutex
	poured, refused  topk.Counter
	requests, denied int
}

// watchedKeys is how many keys a watch counts at once.
const watchedKeys = 256

// A grouping is what requests are counted by. The zero value is the keys of buckets.
type grouping struct{ ipv4, ipv6 int }

var groupings = map[string]grouping{"": {}, "ip": {32, 64}, "/24": {24, 48}, "/16": {16, 32}}

func (w *watch) note(o *decision.Outcome) {
	key := o.Key
	if w.by != (grouping{}) {
		addr := o.ClientIP()
		if !addr.IsValid() {
			return
		}
		key = bucketkey.ClientPrefix(addr, w.by.ipv4, w.by.ipv6).String()
	}
	d := o.Decision()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.requests++
	w.poured.Add(key)
	if d == decision.Refused || d == decision.ShadowRefused {
		w.denied++
		w.refused.Add(key)
	}
}

// A topInput says what to watch.
type topInput struct {
	Zone string         `json:"zone,omitempty"` // Default: all
	By   string         `json:"by,omitempty"`   // ip, /24 or /16. Default: the keys of the zones
	For  caddy.Duration `json:"for,omitempty"`  // up to 60s. Default: 5s
}

// A topZone is who made the most requests of a zone.
type topZone struct {
	Zone     string   `json:"zone"`
	Requests int      `json:"requests"`
	Refused  int      `json:"refused"` // by enforcement and shadow
	Seconds  float64  `json:"seconds"`
	Busiest  []topKey `json:"busiest"`
	Denied   []topKey `json:"most_refused"`
}

// A topKey is a lower bound if there are many keys.
type topKey struct {
	Key      string `json:"key"`
	Requests int    `json:"requests"`
}

const (
	mostTop = 20

	// mostWatched is how long clients may be watched by one call.
	mostWatched = time.Minute
)

var errWatched = errors.New("another call watches the zone: wait until it has ended")

func topKeys(c *topk.Counter) []topKey {
	keys := []topKey{}
	for _, k := range c.Top(mostTop) {
		if k.AtLeast > 0 {
			keys = append(keys, topKey{k.Key, k.AtLeast})
		}
	}
	return keys
}

// adminTop watches zones for a while. A zone that another call watches is busy.
func (a *App) adminTop(ctx context.Context, in *adminInput) (any, error) {
	of := topInput{For: caddy.Duration(5 * time.Second)}
	if err := in.decode(&of); err != nil {
		return nil, err
	}
	by, known := groupings[of.By]
	if !known {
		return nil, badRequest("invalid by %q: want ip, /24, /16, or nothing for the keys of the zones", of.By)
	}
	if length := time.Duration(of.For); length <= 0 || length > mostWatched {
		return nil, badRequest("invalid duration %v: want more than 0 and at most %v", length, mostWatched)
	}
	zones, err := a.zonesNamed(of.Zone)
	if err != nil {
		return nil, err
	}
	began := time.Now()
	watches := make([]*watch, len(zones))
	for i, z := range zones {
		w := &watch{by: by, poured: topk.Counter{Size: watchedKeys}, refused: topk.Counter{Size: watchedKeys}}
		if !z.live.watch.CompareAndSwap(nil, w) {
			return nil, caddy.APIError{HTTPStatus: http.StatusConflict, Err: errWatched}
		}
		watches[i] = w
		defer z.live.watch.CompareAndSwap(w, nil)
	}
	timer := time.NewTimer(time.Duration(of.For))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
	result := []topZone{}
	for i, z := range zones {
		w := watches[i]
		w.mu.Lock()
		result = append(result, topZone{
			Zone: z.Name, Requests: w.requests, Refused: w.denied, Seconds: time.Since(began).Seconds(),
			Busiest: topKeys(&w.poured), Denied: topKeys(&w.refused),
		})
		w.mu.Unlock()
	}
	return map[string]any{"zones": result}, nil
}
