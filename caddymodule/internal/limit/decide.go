package limit

import (
	"cmp"
	"context"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/body"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/perkey"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/record"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// A Directive is a handler as decisions know it.
type Directive struct {
	Zones  []*Zone
	Server *Server // in whose routes the handler is; nil outside of the HTTP app

	Announces bool // responses get the rate-limit headers
	Follows   bool // a zone has more to do with requests that were admitted
}

// A Server is what handlers know of the server that they are in, and of the routes there that one
// request may take.
type Server struct {
	*caddyhttp.Server
	Limiters int // handlers of throttle and in_flight that it may pass
	Features
}

// Features are what the config of some routes makes use of.
type Features struct {
	ReadsVerdicts bool // the config may show verdicts by placeholders, or matches by them
	ErrorRoutes   bool // a request may come in one
	ErrorsAsk     bool // and be sent to an upstream there
}

// Add adds those of other routes.
func (f *Features) Add(more Features) {
	f.ReadsVerdicts, f.ErrorRoutes, f.ErrorsAsk = f.ReadsVerdicts || more.ReadsVerdicts, f.ErrorRoutes || more.ErrorRoutes, f.ErrorsAsk || more.ErrorsAsk
}

// Nests reports whether a request may pass several handlers of throttle and in_flight, or one
// several times, but for once more in an error route.
func (s *Server) Nests() bool { return s == nil || s.Limiters > 1 }

// ErrorOf returns the error of a request in an error route, or nil elsewhere.
func (s *Server) ErrorOf(r *http.Request) (err error) {
	if s == nil || s.ErrorRoutes {
		err = errorOf(r)
	}
	return err
}

// errorOf is apart so that ErrorOf is inlined.
func errorOf(r *http.Request) error {
	err, _ := r.Context().Value(caddyhttp.ErrorCtxKey).(error)
	return err
}

func (s *Server) readsVerdicts() bool { return s == nil || s.ReadsVerdicts }

// An Env is what lies outside of a request and the zones of its handler. Its methods are
// called by many goroutines.
type Env interface {
	// Prepare is called first in each handler. It sets the Subject's Overrides, looks for signs of a
	// proxy, and says whether no zone is to charge the request, and of which zones a block that holds
	// everywhere may run for its client.
	Prepare(*Subject) (exempt bool, everywhere []*Zone, err error)

	// ConfirmedBlock returns the block that runs now for a charge. KnownBlock returns one only if it
	// makes it unnecessary to ask the store.
	ConfirmedBlock(context.Context, *leakybucket.Charge) (block leakybucket.Decision, runs bool)
	KnownBlock(*leakybucket.Charge) (block leakybucket.Decision, runs bool)

	// Effective leaves a charge as Take would leave it now.
	Effective(*leakybucket.Charge)

	// Take asks the store. If that fails, the request passes.
	Take(ctx context.Context, charges []leakybucket.Charge, decisions []leakybucket.Decision) error

	// Correct has the store correct charges, if there are any.
	Correct(due []leakybucket.Settlement)

	// Bodies is where bodies are received.
	Bodies() *body.Store
}

// An evaluation is a verdict of one handler about one request while it is made. Its memory comes
// from a pool, so it is for one goroutine, which calls release last, or never if something panics.
type evaluation struct {
	Subject
	*Directive
	*Verdict // nil once it was returned

	env Env

	later    []*Zone // that concern the request and need its body
	received bool    // the body was, or as much of it as may be

	// Memory, kept between requests.
	charges   []leakybucket.Charge   // that the store is asked about
	decisions []leakybucket.Decision // its answers
}

var evaluations = sync.Pool{New: func() any { return new(evaluation) }}

func newEvaluation(r *http.Request, d *Directive, env Env) *evaluation {
	a := evaluations.Get().(*evaluation)
	if a.Verdict == nil {
		a.Verdict = new(Verdict)
		a.Outcomes = a.room[:0]
	}
	a.Look(r)
	a.Directive, a.env = d, env
	return a
}

// release returns the memory to the pool. Nothing of the request stays in it.
func (a *evaluation) release() {
	clear(a.charges)
	a.charges = a.charges[:0]
	a.Subject, a.Directive, a.env, a.received, a.later = Subject{}, nil, nil, false, nil
	evaluations.Put(a)
}

// Decide finds out what the zones of a handler do about a request now. failed is the error of the
// handler's own matcher.
//
// The zones' claims are taken together. Those that need the body are a second batch: it is
// received once the first has been poured, so that a client that is refused uploads nothing.
//
// The Verdict is nil if nobody needs to know more of a request that is admitted, or that no
// zone charges. Otherwise it is also published to placeholders and the access log. It holds the
// body that was received, and must be closed. The error is that of a zone's matcher, or
// [body.ErrTimeout] or [body.ErrLeft] of a body that breaks off; then nothing stays charged,
// unless part of the body lies in a file.
func Decide(r *http.Request, failed error, d *Directive, env Env) (v *Verdict, err error) {
	a := newEvaluation(r, d, env)
	if err = a.claim(failed); err != nil {
		a.Verdict = nil
	} else if a.take(0); len(a.later) > 0 && !a.refused {
		v, err = a.decideLater()
	} else {
		v = a.conclude()
	}
	a.release()
	return v, err
}

// claim collects the claims of all zones that concern the request and need no body. Before
// them come what exempts it from all zones, bans, and blocks that hold everywhere. The error
// is that of a matcher with which the request fails.
func (a *evaluation) claim(failed error) error {
	exempt, everywhere, err := a.env.Prepare(&a.Subject)
	if err != nil { // here, since matcherError is not inlined
		failed = cmp.Or(failed, matcherError("exempt in the global options", err))
	}
	switch {
	case failed == nil && (exempt || a.Overrides != nil && a.claimBan()):
		return nil
	case !exempt:
		for _, z := range everywhere {
			a.claimBlock(z)
		}
	}
	for _, z := range a.Zones {
		if (len(a.Outcomes) > 0 || a.Server.Nests()) && a.decided(z) {
			continue
		}
		err := failed
		switch {
		case err != nil:
		case len(z.Field) > 0 && !a.CarriesAny():
			continue // before its matchers are asked
		case z.concernsAll():
			err = a.claimFor(z)
		default:
			err = a.claimOf(z)
		}
		if err != nil {
			if err = a.fail(z, err); err != nil {
				return err
			}
		}
	}
	return nil
}

// decided reports whether a zone has decided about the request already: here, or in an
// earlier handler.
func (a *evaluation) decided(z *Zone) bool {
	for i := range a.Outcomes {
		if a.Outcomes[i].Zone == z {
			return true
		}
	}
	if !a.Server.Nests() {
		return false
	}
	found := record.Find(a.Request.Context())
	return found != nil && slices.Contains(found.Charged, z.Name)
}

// claimOf lets a zone claim if it concerns the request, now or once the body is there.
func (a *evaluation) claimOf(z *Zone) error {
	concerned, exempt, err := z.Concerns(&a.Subject)
	if concerned {
		return a.claimFor(z)
	}
	if exempt {
		z.Reporter.Count(CountExempt)
	}
	return err
}

// claimFor adds the claim of a zone that concerns the request, unless it must wait for the body.
func (a *evaluation) claimFor(z *Zone) (err error) {
	waits := !a.received && a.HasBody()
	if waits && z.ReadsFields() && judged(a.Request).Method != http.MethodConnect { // that is refused anyway
		a.later = append(a.later, z)
		return nil
	}
	if len(z.Field) > 0 && !z.carries(&a.Subject) {
		return nil
	}
	k, why, skip := z.Find(&a.Subject)
	if z.Key.names {
		a.name(z, &k)
	}
	if a.Judged.Method == http.MethodConnect {
		why, skip = Connect, false
	}
	shadow := !skip && z.InShadow(a.Overrides, k.Name)
	cost, fromBody := 0.0, false
	switch {
	case skip || why != None:
	case k.Address && a.Early(): // the address may be forged
		if shadow {
			return nil
		}
		why = EarlyData
	case k.Rule == perkey.Unlimited:
		z.Reporter.Count(CountExempt)
		return nil
	case k.Rule == perkey.Denied:
		why = Denied
	default:
		if cost, fromBody, err = z.cost(&a.Subject, k.Limit); err != nil {
			return err
		}
		if a.Judged.Method == http.MethodConnect { // which only the cost has found out
			why = Connect
		}
		if waits && fromBody {
			a.later = append(a.later, z)
			return nil
		}
	}
	if k.Lacking {
		z.Reporter.Count(CountKeyless)
	}
	switch {
	case skip:
	case why != None:
		a.refuse(a.add(z, k.Name, shadow), why, 0)
	default:
		o := a.next(z)
		o.starved = a.Starved // only zones that wanted the body still claim then
		if z.Charge(&o.Charge, &k, shadow, cost); z.TrustDevices != nil || z.Block != nil {
			a.complete(o, &k)
		}
	}
	return nil
}

// name notes whom the request names to a zone.
func (a *evaluation) name(z *Zone, k *Bucket) {
	if account := z.account(&a.Subject, k); account != "" {
		record.Of(a.Request).Name(account)
	}
}

// complete makes a charge that of the client's device, with trust_devices, and a refusal by a block
// that is known to run.
func (a *evaluation) complete(o *Outcome, k *Bucket) {
	z := o.Zone
	if z.TrustDevices != nil {
		o.device = z.deviceClient(&a.Subject, k)
		o.device.noted = record.Of(a.Request)
		o.Key = deviceKey(k.Name, o.device)
	}
	if z.Block != nil {
		if block, runs := a.env.KnownBlock(&o.Charge); runs {
			a.refuseBlocked(o, block)
		}
	}
}

// next adds the claim of a zone. It is valid until the next one is added.
func (a *evaluation) next(z *Zone) *Outcome {
	n := len(a.Outcomes)
	a.Outcomes = slices.Grow(a.Outcomes, 1)[:n+1] // where all is zero
	o := &a.Outcomes[n]
	o.Zone = z
	return o
}

// add adds a claim without a limit, of which refuse makes a refusal.
func (a *evaluation) add(z *Zone, key string, shadow bool) *Outcome {
	o := a.next(z)
	o.Charge = leakybucket.Charge{Zone: z.Name, Key: key, Shadow: shadow}
	return o
}

// refuse makes a claim a refusal without asking a store, by what lasts so long.
func (a *evaluation) refuse(o *Outcome, why Reason, lasts time.Duration) {
	o.Block = lasts
	o.Refuse(why)
	a.overflows, a.refused = true, a.refused || !o.Shadow
}

// refuseBlocked makes a claim a refusal by a block that is known to run.
func (a *evaluation) refuseBlocked(o *Outcome, block leakybucket.Decision) {
	a.env.Effective(&o.Charge)
	o.Answer.Level = block.Level
	why := Blocked
	if o.Limit.Oversize(o.Cost) {
		why = Oversize
	}
	a.refuse(o, why, block.BlockedUntil.Sub(block.At))
}

// claimBan refuses a request whose client is banned, as one of the zones.
func (a *evaluation) claimBan() (refused bool) {
	now := time.Now()
	ban := a.Ban(now)
	if ban == nil || slices.ContainsFunc(a.Zones, a.decided) {
		return false
	}
	by := BannedBy(a.Zones, &a.Subject)
	if by == nil {
		return false
	}
	// The zone need not match the request.
	o := a.add(by, by.Key.Network(&a.Subject).Addr().String(), by.Shadow != nil)
	if a.refuse(o, Banned, ban.Left(now)); a.refused {
		ban.Hits.Add(1)
	}
	return a.refused
}

// BannedBy returns the zone that refuses a request whose client is banned: one that is not
// in shadow, if there is one. If a zone exempts the request, the ban does not hold, and
// BannedBy returns nil.
func BannedBy(zones []*Zone, s *Subject) (by *Zone) {
	for _, z := range zones {
		if exempt, err := z.Exempts(s); err != nil || exempt {
			return nil
		}
		if by == nil || by.Shadow != nil {
			by = z
		}
	}
	return by
}

// claimBlock refuses a request if its client is blocked by the `block ... everywhere` of a zone.
// Such a zone is keyed by the address alone and so trusts no devices.
func (a *evaluation) claimBlock(z *Zone) {
	if a.decided(z) {
		return
	}
	c, can := z.BlockedBucket(&a.Subject)
	if !can {
		return
	}
	if block, runs := a.env.ConfirmedBlock(a.Request.Context(), &c); runs {
		o := a.next(z)
		o.Charge = c
		a.refuseBlocked(o, block)
	}
}

// fail counts a request for which a matcher of a zone has failed. It returns the matcher's
// own error if the zone is enforced, so that the request fails. In shadow it fails once, as
// enforcement asks no zone after that.
func (a *evaluation) fail(z *Zone, err error) error {
	k, _, _ := z.Find(&a.Subject)
	shadow := z.InShadow(a.Overrides, k.Name)
	if !shadow || !a.overflows {
		o := a.add(z, k.Name, shadow)
		if a.refuse(o, Error, 0); !shadow {
			z.Reporter.Decided(o, a.Request, nil)
		}
	}
	z.Reporter.Failed(err, !shadow)
	if shadow {
		return nil
	}
	return err
}

// take asks the store about the claims from one on. An enforced charge is not asked about if an
// enforced zone refuses, and a shadow charge not if any does: a refused request must not be
// charged by other zones. If even the memory store fails, the zones count as if they had not
// been asked, and the request passes.
func (a *evaluation) take(from int) {
	claims := a.Outcomes[from:]
	clear(a.charges)
	a.charges = a.charges[:0]
	for i := range claims {
		o := &claims[i]
		if o.asked = o.reason == None && !a.refused && (!o.Shadow || !a.overflows); o.asked {
			a.charges = append(a.charges, o.Charge)
		}
	}
	if len(a.charges) == 0 {
		return
	}
	a.decisions = slices.Grow(a.decisions[:0], len(a.charges))[:len(a.charges)]
	err := a.env.Take(a.Request.Context(), a.charges, a.decisions)
	n := 0
	for i := range claims {
		o := &claims[i]
		if o.asked = o.asked && err == nil; !o.asked {
			continue
		}
		if c := &a.charges[n]; c.Limit != o.Limit {
			o.Charge = *c // a stand-in for a shared store has made it a share
		}
		o.Answer = a.decisions[n]
		if n++; !o.Answer.Fits {
			a.overflows, a.refused = true, a.refused || !o.Shadow
		} else if o.Zone.Delay != nil {
			o.Delay = o.Charge.Delay(&o.Answer)
		}
	}
}

// decideLater receives the body, takes the claims that need it, and concludes. If they refuse, or
// there is no whole body, what was poured before is given back, unless part of the body went into a
// file: reading it was work. If there is no verdict to hold the body, what is held of it is given
// back, too; an error route may read it before.
func (a *evaluation) decideLater() (v *Verdict, err error) {
	first, ended, whole, began := len(a.Outcomes), a.overflows, false, time.Now()
	defer func() {
		if v == nil {
			(&Verdict{body: a.Body}).Close(a.Request, err)
			a.Verdict = nil
		}
	}()
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
		return nil, err
	}
	for i := range first { // what is ahead of the request has leaked meanwhile
		a.Outcomes[i].Delay = max(0, a.Outcomes[i].Delay-time.Since(began))
	}
	for _, z := range a.later {
		if err = a.claimFor(z); err != nil {
			if err = a.fail(z, err); err != nil {
				return nil, err
			}
		}
	}
	for i := first; ended && i < len(a.Outcomes); i++ {
		if o := &a.Outcomes[i]; o.Shadow {
			o.decision, o.reason = Skipped, None // enforcement would not have come to it
		}
	}
	a.take(first)
	if whole = true; a.refused || a.overflows && !ended {
		a.giveBack(first, !a.refused)
	}
	return a.conclude(), nil
}

// giveBack gives back what the first so many claims have poured, unless part of the body went
// into a file. If only those in shadow give back, the request goes on, and the store is told when it
// settles: that may be one call.
func (a *evaluation) giveBack(first int, onlyShadow bool) {
	if a.Body.InFile() {
		return
	}
	var due []leakybucket.Settlement
	for i := range a.Outcomes[:first] {
		if o := &a.Outcomes[i]; o.Answer.Poured && (o.Shadow || !onlyShadow) {
			due = append(due, o.givenBack())
			o.Answer.Poured = false
		}
	}
	if onlyShadow {
		a.due = due
	} else {
		a.env.Correct(due)
	}
}

// conclude counts a request that is admitted, or returns the verdict if somebody needs one.
func (a *evaluation) conclude() *Verdict {
	nests := a.Server.Nests()
	logs := a.Server != nil && a.Server.Logs != nil && a.Vars[caddyhttp.LogSkipVar] != true // as far as is known
	counted := !a.overflows && !nests && !logs && !a.wanted()
	v, n := a.Verdict, 0
	for i := range v.Outcomes {
		o := &v.Outcomes[i]
		if o.Answer.Local || o.Answer.Undecided {
			o.Zone.Reporter.Count(CountFallback)
		}
		if counted {
			if o.asked && !o.Answer.Undecided {
				o.Zone.Reporter.Admitted(o, a.Request)
			}
			continue
		}
		if a.conclusion(o); o.decision != Skipped {
			v.Outcomes[n] = *o
			n++
		}
	}
	if counted {
		clear(v.Outcomes)
		v.Outcomes = v.Outcomes[:0]
		return nil
	}
	v.Outcomes = v.Outcomes[:n]
	a.Verdict, v.body = nil, a.Body
	if nests {
		v.note(a.Request)
	}
	v.publish(a, logs)
	if len(v.Outcomes) == 0 && a.Body == nil {
		return nil
	}
	return v
}

// conclusion sets what a zone decides, by the store's answer if it was asked.
func (a *evaluation) conclusion(o *Outcome) {
	d := &o.Answer
	if d.BlockedUntil != 0 {
		o.Block = d.BlockedUntil.Sub(d.At)
	}
	switch {
	case !o.asked:
	case !d.Fits:
		o.Refuse(o.overflow())
	case d.Undecided, a.refused, a.overflows && o.Shadow:
		// It is skipped.
	case o.Delay > 0 && o.Shadow:
		o.decision = ShadowDelayed
	case o.Delay > 0:
		o.decision = Delayed
	default:
		o.decision = Admitted
	}
}

// Foresee returns what the zone would decide about a request that costs 1 and is charged to a bucket
// in this state, as [Decide] would.
func (z *Zone) Foresee(k *Bucket, shadow bool, is leakybucket.Decision) (o Outcome) {
	o.Zone, o.Answer, o.decision = z, is, Admitted
	o.Block = max(0, is.BlockedUntil.Sub(is.At))
	z.Charge(&o.Charge, k, shadow, 1)
	fits := o.Block == 0 && o.Limit.WithCeiling(o.Ceiling).Fits(is.Level, 1)
	if is.Undecided {
		fits = is.Fits
	}
	switch {
	case k.Rule == perkey.Denied:
		o.Refuse(Denied)
	case k.Rule == perkey.Limited && !fits:
		o.Refuse(o.overflow())
	}
	return o
}

// wanted reports whether somebody wants to know what became of a request that is admitted, beside
// the access log.
func (a *evaluation) wanted() bool {
	return a.Follows || a.Announces || a.Body != nil || a.Server.readsVerdicts()
}
