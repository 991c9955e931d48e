package telemetry

import (
	"math/rand/v2"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/decision"
)

// noteSender counts whose request a zone has decided about. It is on the path of every
// request: of many, it counts a sample. Where nothing needs it, now is zero.
func (l *Figures) noteSender(o *decision.Outcome, d decision.Decision, now time.Time) {
	refused, weight := d == decision.Refused || d == decision.ShadowRefused, 0
	if !refused {
		if weight = l.Recent.AdmittedWeight(rand.Uint32); weight == 0 {
			return
		}
	}
	if now.IsZero() {
		now = time.Now()
	}
	if refused {
		weight = l.Recent.RefusedWeight(rand.Uint32, now)
	}
	if weight > 0 {
		l.Recent.Add(refused, o.Key, o.ClientIP(), weight, now)
	}
}
