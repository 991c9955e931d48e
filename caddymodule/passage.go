package caddymodule

import (
	"math"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"
)

// A passage is what throttle did with a request, in all handlers it came by.
type passage struct {
	outcomes []outcome
	deciding int
	counted  int        // how many of them have been
	status   int        // to refuse with, if not the zone's
	bill     *bill      // of the innermost handler that is serving it, if it has one
	room     [3]outcome // for most requests enough
}

// passageVar is not a name that users give variables.
const passageVar = "throttle.passage"

// passageOf returns what earlier handlers decided, or nil.
func passageOf(r *http.Request) *passage {
	p, _ := caddyhttp.GetVar(r.Context(), passageVar).(*passage)
	return p
}

// newPassage makes a passage and tells the request's placeholders and access
// log of it. Neither computes anything before it is asked.
func newPassage(r *http.Request) *passage {
	p := new(passage)
	p.outcomes = p.room[:0]
	ctx := r.Context()
	caddyhttp.SetVar(ctx, passageVar, p)
	if repl, ok := ctx.Value(caddy.ReplacerCtxKey).(*caddy.Replacer); ok {
		repl.Map(p.placeholder)
	}
	if server, _ := ctx.Value(caddyhttp.ServerCtxKey).(*caddyhttp.Server); server != nil && server.Logs != nil {
		if extra, ok := ctx.Value(caddyhttp.ExtraLogFieldsCtxKey).(*caddyhttp.ExtraLogFields); ok {
			extra.Add(zap.Object("throttle", p))
		}
	}
	return p
}

// charged reports whether a zone has decided about the request already.
func (p *passage) charged(zone string) bool {
	if p == nil {
		return false
	}
	for i := range p.outcomes {
		if p.outcomes[i].zone.Name == zone {
			return true
		}
	}
	return false
}

// add takes note of an outcome.
func (p *passage) add(o outcome) {
	if o.zone.RetryJitter > 0 {
		o.jitter = rand.Float64() * float64(o.zone.RetryJitter) / 100
	}
	p.outcomes = append(p.outcomes, o)
	if last := len(p.outcomes) - 1; last > 0 && p.outcomes[last].stronger(&p.outcomes[p.deciding]) {
		p.deciding = last
	}
}

// decide finds the deciding outcome anew, after one has changed.
func (p *passage) decide() {
	p.deciding = 0
	for i := range p.outcomes {
		if p.outcomes[i].stronger(&p.outcomes[p.deciding]) {
			p.deciding = i
		}
	}
}

// overrule turns the i-th outcome into a refusal, of a request that was let in
// and did not get to the next handler. Those beside it from first on that fit
// count as if they had not been asked.
func (p *passage) overrule(first, i int, why reason) {
	o := &p.outcomes[i]
	o.decision, o.reason, o.poured = refused, why, 0
	kept := p.outcomes[:first]
	for _, o := range p.outcomes[first:] {
		if o.reason != none {
			kept = append(kept, o)
		}
	}
	p.outcomes = kept
	p.decide()
}

// delayed notes that the request of the i-th outcome has waited for a slot.
func (p *passage) delayed(i int, by time.Duration) {
	p.outcomes[i].decision, p.outcomes[i].delay = delayed, by
	p.decide()
}

// count counts the outcomes that are new.
func (p *passage) count() {
	for ; p.counted < len(p.outcomes); p.counted++ {
		o := &p.outcomes[p.counted]
		o.zone.decided[o.decision][o.reason].Inc()
		if o.reason != none {
			o.zone.shared.refusals[o.decision].note(o)
		}
	}
}

// blocked reports whether an enforced zone of a name, or any if it is "", has
// found the client blocked.
func (p *passage) blocked(zone string) bool {
	if p == nil {
		return false
	}
	for i := range p.outcomes {
		o := &p.outcomes[i]
		if o.block > 0 && !o.shadow && (zone == "" || zone == o.zone.Name) {
			return true
		}
	}
	return false
}

// decisive returns the outcome that decides about the request.
func (p *passage) decisive() *outcome { return &p.outcomes[p.deciding] }

// wholeSeconds is how durations are told to clients: rounded up, so that who
// waits that long does not come too early, and never 0, which some clients
// take for "at once".
func wholeSeconds(d time.Duration) int64 {
	return max(1, int64(math.Ceil(d.Seconds())))
}
