package caddymodule

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/decision"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/sketch"
)

var groupings = map[string]sketch.Grouping{"": sketch.ByKey, "ip": sketch.ByAddress, "/24": sketch.By24, "/16": sketch.By16}

// noteSender counts whose request a zone has decided about. It is on the path of every
// request: of many, it counts a sample. Where nothing needs it, now is zero.
func (l *liveCounts) noteSender(o *decision.Outcome, d decision.Decision, now time.Time) {
	refused, weight := d == decision.Refused || d == decision.ShadowRefused, 0
	if !refused {
		if weight = l.recent.AdmittedWeight(rand.Uint32); weight == 0 {
			return
		}
	}
	if now.IsZero() {
		now = time.Now()
	}
	if refused {
		weight = l.recent.RefusedWeight(rand.Uint32, now)
	}
	if weight > 0 {
		l.recent.Add(refused, o.Key, o.ClientIP(), weight, now)
	}
}

// A topInput says who is counted.
type topInput struct {
	Zone string `json:"zone,omitempty"` // Default: all
	By   string `json:"by,omitempty"`   // ip, /24 or /16. Default: the keys of the zones
}

// A topZone is who made the most requests of a zone, about in the last minute.
type topZone struct {
	Zone     string   `json:"zone"`
	Mode     string   `json:"mode"` // as in the status
	Group    string   `json:"group,omitempty"`
	Requests int      `json:"requests"` // refused ones included
	Refused  int      `json:"refused"`  // by enforcement and shadow
	Seconds  float64  `json:"seconds"`
	Busiest  []topKey `json:"busiest"`
	Denied   []topKey `json:"most_refused"`
}

// A topKey is a lower bound if there are many keys. Of many requests it is an estimate.
type topKey struct {
	Key      string `json:"key"`
	Requests int    `json:"requests"` // in most_refused: that were refused
	Admitted int    `json:"admitted"`
	Refused  int    `json:"refused"`
}

const mostTop = 20

// adminTop says who made most requests.
func (a *engine) adminTop(_ context.Context, in *adminInput) (any, error) {
	var of topInput
	if err := in.decode(&of); err != nil {
		return nil, err
	}
	by, known := groupings[of.By]
	if !known {
		return nil, badRequest("invalid by %q: want ip, /24, /16, or nothing for the keys of the zones", of.By)
	}
	zones, err := a.zonesNamed(of.Zone)
	if err != nil {
		return nil, err
	}
	result, set, now := []topZone{}, a.overrides.Load(), time.Now()
	for _, z := range zones {
		s := z.live.recent.Top(by, mostTop, now)
		top := topZone{
			Zone: z.Name, Mode: z.mode(set, now), Group: z.group(set), Requests: s.Admitted + s.Refused, Refused: s.Refused, Seconds: now.Sub(s.Since).Seconds(),
			Busiest: []topKey{}, Denied: []topKey{},
		}
		for _, k := range s.Busiest {
			top.Busiest = append(top.Busiest, topKey{k.Name, k.Requests, k.Requests - k.Refused, k.Refused})
		}
		for _, k := range s.MostRefused {
			top.Denied = append(top.Denied, topKey{k.Name, k.Refused, k.Requests - k.Refused, k.Refused})
		}
		result = append(result, top)
	}
	return map[string]any{"zones": result}, nil
}
