package limit

import (
	"context"
	"net/http"
	"slices"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/body"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/override"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/record"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// A Directive is a handler as decisions know it.
type Directive struct {
	Zones  []*Zone
	Server *Server // in whose routes the handler is; nil outside of the HTTP app

	Announces bool // responses get the rate-limit headers
	Follows   bool // a zone has more to do with requests that were admitted, or shows its verdicts
}

// A Server is what handlers know of the server that they are in, and of the routes there that one
// request may take.
type Server struct {
	*caddyhttp.Server
	Guards int  // handlers of throttle and in_flight that it may pass
	Shown  bool // the config may show verdicts by placeholders, or matches by them

	ErrorRoutes bool // it may have some, also within other routes
}

// Shares reports whether a request may pass several handlers of throttle and in_flight.
func (s *Server) Shares() bool { return s == nil || s.Guards > 1 }

func (s *Server) shown() bool { return s == nil || s.Shown }

// An Env is what lies outside of a request and the zones of its handler. Its methods are
// called by many goroutines.
type Env interface {
	// Overrides are what was changed at run time: bans, limits and switches.
	Overrides() *override.Set

	// Exempts reports whether no zone is to charge the request. It is asked first.
	Exempts(*Subject) (bool, error)

	// Everywhere returns the zones whose blocks hold everywhere, or nil if none runs.
	Everywhere() []*Zone

	// ConfirmedBlock returns the block that runs now for a charge. KnownBlock returns one only if it
	// makes it unnecessary to ask the store.
	ConfirmedBlock(ctx context.Context, now time.Time, c *leakybucket.Charge) (RunningBlock, bool)
	KnownBlock(now time.Time, c *leakybucket.Charge) (RunningBlock, bool)

	// Effective leaves a charge as Take would leave it now.
	Effective(*leakybucket.Charge)

	// Take asks the store. If that fails, the request passes.
	Take(ctx context.Context, charges []leakybucket.Charge, decisions []leakybucket.Decision) error

	// Correct has the store correct charges, if there are any.
	Correct(due []leakybucket.Settlement)

	// Bodies is where bodies are received.
	Bodies() *body.Store

	// NoAddress is called if a key needed the client's address and there was none.
	NoAddress()
}

// A RunningBlock is a block that is known to run.
type RunningBlock struct {
	Until time.Time
	Seen  time.Time // when Level was so
	Level float64   // of the bucket, in units
}

// Decide finds out what the zones of a handler do about a request now; a zero time stands for
// the time when it is needed. failed is the error of the handler's own matcher.
//
// The zones' claims are taken together. Those that need the body are a second batch: it is
// received once the first has been poured, so that a client that is refused uploads nothing.
//
// The Verdict is nil if nobody needs to know more of a request that is admitted, or that no
// zone charges. Otherwise it is also published to placeholders and the access log. It holds the
// body that was received, and must be closed. The error is that of a zone's matcher, or
// [body.ErrTimeout] or [body.ErrLeft] of a body that breaks off; then nothing stays charged,
// unless part of the body lies in a file.
func Decide(r *http.Request, now time.Time, failed error, d *Directive, env Env) (v *Verdict, err error) {
	a := newAsking(r, now, d, env)
	if err = a.claim(failed); err == nil {
		if a.take(0); len(a.later) > 0 && !a.refused {
			v, err = a.decideLater()
		} else {
			v = a.conclude()
		}
	}
	a.release()
	return v, err
}

// decideLater takes the claims that need the body, and concludes. If there is no verdict to hold
// the body, as after a panic, what is held of it is given back; an error route may read it before.
func (a *asking) decideLater() (v *Verdict, err error) {
	defer func() {
		if v == nil {
			(&Verdict{body: a.Body}).Close(a.Request, err)
		}
	}()
	if err = a.takeLater(); err != nil {
		return nil, err
	}
	return a.conclude(), nil
}

// take asks the store about the charges from one on. An enforced charge is not asked about if an
// enforced zone refuses, and a shadow charge not if any does: a refused request must not be
// charged by other zones. If even the memory store fails, the zones count as if they had not
// been asked, and the request passes.
func (a *asking) take(from int) {
	claims, charges, decisions := a.claims[from:], a.charges[from:], a.decisions[from:]
	n := 0
	for i := range claims {
		cl, shadow := &claims[i], charges[i].Shadow
		if cl.asked = cl.refusal == None && !a.refused && (!shadow || !a.ends); cl.asked {
			n++
		}
	}
	switch {
	case n == 0:
		return
	case n < len(claims):
		if !a.takeSome(claims, charges, decisions) {
			return
		}
	case a.env.Take(a.Request.Context(), charges, decisions) != nil:
		drop(claims, decisions)
		return
	}
	for i := range claims {
		if claims[i].asked && !decisions[i].Fits {
			a.ends = true
			a.refused = a.refused || !charges[i].Shadow
		}
	}
}

// takeSome asks about those charges that are to be asked about.
func (a *asking) takeSome(claims []claim, charges []leakybucket.Charge, decisions []leakybucket.Decision) bool {
	var some []leakybucket.Charge
	for i := range claims {
		if claims[i].asked {
			some = append(some, charges[i])
		}
	}
	answers := make([]leakybucket.Decision, len(some))
	if a.env.Take(a.Request.Context(), some, answers) != nil {
		drop(claims, decisions)
		return false
	}
	for i := range claims {
		if claims[i].asked {
			charges[i], decisions[i] = some[0], answers[0] // a stand-in for a shared store may have changed the charge
			some, answers = some[1:], answers[1:]
		}
	}
	return true
}

// drop makes claims count as if the store had not been asked.
func drop(claims []claim, decisions []leakybucket.Decision) {
	for i := range claims {
		if claims[i].asked {
			claims[i].asked, decisions[i] = false, leakybucket.Decision{}
		}
	}
}

// takeLater receives the body, and takes the claims that need it. If they refuse, or there is no
// whole body, what was poured before is given back, unless part of the body went into a file:
// reading it was work.
func (a *asking) takeLater() (err error) {
	first, ended, whole := len(a.claims), a.ends, false
	defer func() {
		if !whole {
			a.giveBack(first, false) // also if a matcher or the store panics
		}
	}()
	most := a.later[0].MaxBody()
	for _, z := range a.later {
		if one := z.MaxBody(); one == 0 || one > most && most > 0 {
			most = one
		}
	}
	a.received = true
	if err = a.Receive(a.env.Bodies(), most); err != nil {
		return err
	}
	for _, z := range a.later {
		if err = a.claimFor(z); err == nil {
			continue
		}
		if err = a.fail(z, err); err != nil {
			return err
		}
	}
	for i := first; ended && i < len(a.claims); i++ {
		if a.charges[i].Shadow {
			a.claims[i].refusal = None // enforcement would not have come to it
		}
	}
	a.take(first)
	if whole = true; a.refused || a.ends && !ended {
		a.giveBack(first, !a.refused)
	}
	return nil
}

// giveBack gives back what the first so many claims have poured, unless part of the body went
// into a file. If only those in shadow give back, the request goes on, and a verdict that corrects
// charges does it with them, in one call of the store.
func (a *asking) giveBack(first int, onlyShadow bool) {
	if a.Body.InFile() {
		return
	}
	var due []leakybucket.Settlement
	for i := range first {
		if c, d := &a.charges[i], &a.decisions[i]; d.Poured && (c.Shadow || !onlyShadow) {
			due = append(due, givenBack(a.claims[i].zone, c, d))
			d.Poured = false
		}
	}
	if onlyShadow && slices.ContainsFunc(a.claims, func(c claim) bool { return c.zone.Settle != nil || len(c.zone.Refund) > 0 }) {
		a.due = due
		return
	}
	a.env.Correct(due)
}

// conclude counts a request that is admitted, or returns the verdict if somebody needs one.
func (a *asking) conclude() *Verdict {
	if a.NoAddress {
		a.env.NoAddress()
	}
	shares := a.Server.Shares()
	counted := !a.ends && !shares && !a.wanted()
	for i := range a.claims {
		cl, d := &a.claims[i], &a.decisions[i]
		if d.Local || d.Undecided {
			cl.zone.Reporter.FellBack()
		}
		if counted && cl.asked && !d.Undecided {
			cl.zone.Reporter.Admitted(&a.charges[i], d, a.Request)
		}
	}
	if counted {
		return nil
	}
	v, n := newVerdict(len(a.claims)), 0
	for i := range a.claims {
		v.Outcomes = v.Outcomes[:n+1]
		if o := &v.Outcomes[n]; !a.outcome(o, i) {
			*o, v.Outcomes = Outcome{}, v.Outcomes[:n]
			continue
		}
		n++
	}
	v.static, v.due, v.body = a.static, a.due, a.Body
	if shares {
		v.note(a.Request)
	}
	if len(v.Outcomes)+len(v.static) > 0 {
		v.publish(a)
	} else if a.Server.shown() && a.Replacer() != nil {
		a.Replacer().Map(placeholdersOf(a.Request.Context()))
	}
	if len(v.Outcomes)+len(v.static) == 0 && a.Body == nil {
		return nil
	}
	return v
}

// wanted reports whether somebody wants to know what became of a request that is admitted.
func (a *asking) wanted() bool {
	return a.Follows || a.Announces || a.Body != nil || a.static != nil || a.Server.shown() || a.Server.logs(a.Request)
}

// decided reports whether a zone has decided about a request in an earlier handler.
func decided(r *http.Request, z *Zone) bool {
	found := record.Find(r.Context())
	return found != nil && found.HasCharged(z.Name)
}
