package caddymodule

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

const (
	onErrorLocal = "local"
	onErrorAllow = "allow"
	onErrorDeny  = "deny"

	defaultStoreTimeout = 50 * time.Millisecond

	mostNodes = 1000

	// comeBack is what clients are told that are refused because there is no
	// store: nobody knows, and most outages are over in seconds.
	comeBack = 5 * time.Second
)

var storePolicies = []string{onErrorLocal, onErrorAllow, onErrorDeny}

// provisionOutage checks what is to be done when the store does not answer, and
// prepares for it.
func (a *App) provisionOutage(ctx caddy.Context) error {
	if a.OnStoreError == "" {
		a.OnStoreError = onErrorLocal
	}
	if !slices.Contains(storePolicies, a.OnStoreError) {
		return fmt.Errorf("invalid on_store_error %q: want local, allow or deny", a.OnStoreError)
	}
	if a.StoreTimeout == 0 {
		a.StoreTimeout = caddy.Duration(defaultStoreTimeout)
	}
	if a.StoreTimeout < 0 {
		return fmt.Errorf("invalid store_timeout %v: want a duration above 0, such as 50ms", time.Duration(a.StoreTimeout))
	}
	if a.Nodes == 0 {
		a.Nodes = 1
	}
	if a.Nodes < 0 || a.Nodes > mostNodes {
		return fmt.Errorf("invalid nodes %d: want the number of Caddys that share the store", a.Nodes)
	}
	a.remote, _ = a.store.(*Remote)
	if a.remote == nil {
		if a.Nodes > 1 {
			a.logger.Warn("nodes has no meaning with a store that is not shared: every Caddy has buckets of its own")
		}
		return nil
	}
	memory, err := ctx.LoadModuleByID("throttle.stores.memory", nil)
	if err != nil {
		return fmt.Errorf("loading the memory to fall back on: %w", err)
	}
	a.local = memory.(*Memory).memory.Store
	return nil
}

// policy returns what the zone does when the store does not answer.
func (z *Zone) policy() string {
	if z.OnStoreError != "" {
		return z.OnStoreError
	}
	return z.shared.app.OnStoreError
}

// ask asks the store that all nodes share, and does without it if it does not
// answer in time.
func (a *App) ask(q *question) error {
	q.store, q.nodes = a.store, 1
	if a.remote == nil {
		return a.store.Take(q.r.Context(), q.charges, q.decisions)
	}
	if q.spent >= time.Duration(a.StoreTimeout) {
		return a.doWithout(q) // which is no fault of the store's
	}
	ctx, end := a.inTime(q.r.Context(), &q.spent, 0)
	err := a.remote.Take(ctx, q.charges, q.decisions)
	end()
	if err != nil {
		return a.doWithout(q)
	}
	a.remember(q)
	return nil
}

// inTime returns a context for a call of the store: for what a request has not
// spent of store_timeout yet, and at least for some time. That a client leaves is
// no reason to break a call off, nor a sign that the store is down. The function
// must be called when the call has ended.
func (a *App) inTime(ctx context.Context, spent *time.Duration, least time.Duration) (context.Context, func()) {
	start := time.Now()
	left := max(least, time.Duration(a.StoreTimeout)-*spent)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), left)
	return ctx, func() {
		cancel()
		*spent += time.Since(start)
	}
}

// doWithout decides by the zones' policies. Zones that deny refuse the request,
// those that allow are skipped, and the rest is one take of this node's own.
func (a *App) doWithout(q *question) error {
	kept := 0
	for i, z := range q.zones {
		z.shared.without.Inc()
		switch z.policy() {
		case onErrorDeny:
			c := &q.charges[i]
			q.verdict(outcome{zone: z, shadow: c.Shadow, key: c.Key, limit: c.Limit, cost: c.Cost, reason: noStore})
		case onErrorLocal:
			q.zones[kept], q.charges[kept] = z, z.share(q.charges[i], a.Nodes)
			kept++
		}
	}
	if q.refused {
		kept = 0
	}
	q.zones, q.charges, q.decisions = q.zones[:kept], q.charges[:kept], q.decisions[:kept]
	q.store, q.nodes = a.local, a.Nodes
	err := a.local.Take(q.r.Context(), q.charges, q.decisions)
	for i := range q.charges {
		if err == nil && q.decisions[i].Poured {
			a.remote.owed.note(&q.charges[i], &q.decisions[i])
		}
	}
	return err
}

// share returns a charge as one of several nodes makes it that cannot agree: to
// a bucket that holds and leaks its share, and at least what a request may cost.
func (z *Zone) share(c leakybucket.Charge, nodes int) leakybucket.Charge {
	if nodes == 1 {
		return c
	}
	n := float64(nodes)
	c.Limit.Capacity = max(c.Limit.Capacity/n, min(z.dearest, c.Limit.Capacity))
	c.Limit.Leak /= n
	c.Debt /= n
	if c.Ceiling > 0 {
		c.Ceiling = c.Limit.Ceiling(c.Cost, z.undelayed(nodes), time.Duration(z.MaxWait))
	}
	return c
}

// undelayed returns how full a bucket may be without delaying anybody.
func (z *Zone) undelayed(nodes int) float64 { return *z.Delay / float64(nodes) }

// remember keeps what was last seen of the shared buckets, so that an outage is
// no amnesty.
func (a *App) remember(q *question) {
	for i, z := range q.zones {
		if z.policy() != onErrorLocal {
			continue
		}
		c, d := z.share(q.charges[i], a.Nodes), &q.decisions[i]
		if a.remote.owed.some.Load() {
			a.repay(q, i, &c)
		}
		level := d.Level
		if d.Poured {
			level += c.Cost
		}
		state := leakybucket.State{Level: level / float64(a.Nodes), At: a.local.Now(), Leak: c.Limit.Leak}
		if d.BlockedUntil != 0 {
			state.BlockedUntil, state.Step = state.At.Add(d.BlockedUntil.Sub(d.At)), d.Step
		}
		a.local.Put(&c, state)
	}
}

// settle corrects charges in the store that took them. A store that was slow to
// take them gets some time all the same: what is not settled stays wrong.
func (a *App) settle(ctx context.Context, store leakybucket.Store, spent time.Duration, settlements []leakybucket.Settlement) error {
	if store != leakybucket.Store(a.remote) {
		return store.Settle(context.WithoutCancel(ctx), settlements)
	}
	return a.settleRemote(ctx, spent, settlements)
}

func (a *App) settleRemote(ctx context.Context, spent time.Duration, settlements []leakybucket.Settlement) error {
	ctx, end := a.inTime(ctx, &spent, time.Duration(a.StoreTimeout)/5)
	defer end()
	err := a.remote.Settle(ctx, settlements)
	if err == nil {
		a.rememberMore(settlements)
	}
	return err
}

// rememberMore pours into what is remembered of the shared buckets what has been
// settled upwards. What was given back shows the next time they are asked.
func (a *App) rememberMore(settlements []leakybucket.Settlement) {
	for _, s := range settlements {
		z := a.shared[s.Charge.Zone].zone
		if s.Diff > 0 && !s.Cancel && z.policy() == onErrorLocal {
			s.Charge, s.Diff = z.share(s.Charge, a.Nodes), s.Diff/float64(a.Nodes)
			_ = a.local.Settle(context.Background(), []leakybucket.Settlement{s}) // fails for no key that Put has kept
		}
	}
}

// takeOne asks for one charge, beside a request's own.
func (a *App) takeOne(s *subject, c leakybucket.Charge) (leakybucket.Decision, error) {
	if s.spent >= time.Duration(a.StoreTimeout) {
		return leakybucket.Decision{}, errDown
	}
	ctx, end := a.inTime(s.r.Context(), &s.spent, 0)
	defer end()
	var d [1]leakybucket.Decision
	err := a.store.Take(ctx, []leakybucket.Charge{c}, d[:])
	return d[0], err
}
