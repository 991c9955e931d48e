package engine

import (
	"time"

	"go.uber.org/zap"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/stores"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/telemetry"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// savedLimits returns a function that sets the limit, the debt and the block of a
// bucket that was saved, and returns false if no zone of this config has such buckets.
// A bucket that leaked as an override says has the limit of that override.
func (e *Engine) savedLimits() func(*leakybucket.Charge, leakybucket.State) bool {
	zones := make(map[string]map[float64]leakybucket.Charge) // by the leak; that of the zone itself also by 0
	for name, z := range e.Zones {
		byLeak := make(map[float64]leakybucket.Charge)
		for i, c := range z.Limits() {
			if i == 0 {
				byLeak[0] = c
			}
			if c.Limit.Capacity > byLeak[c.Limit.Leak].Limit.Capacity {
				byLeak[c.Limit.Leak] = c
			}
		}
		zones[name] = byLeak
	}
	return func(c *leakybucket.Charge, saved leakybucket.State) bool {
		byLeak, known := zones[c.Zone]
		limit, listed := byLeak[saved.Leak]
		if !listed {
			limit = byLeak[0]
		}
		c.Limit, c.Debt, c.Block = limit.Limit, limit.Debt, limit.Block
		return known
	}
}

// A storeObserver logs and counts the outages and errors of a shared store, and
// emits events about them.
type storeObserver struct{ app *Engine }

// Down implements sharedstore.Observer.
func (o *storeObserver) Down(err error) {
	name := o.app.Shared.Name
	telemetry.StoreOutages.WithLabelValues(name).Inc()
	o.app.Shared.Outage.Store(&stores.Outage{Since: time.Now(), Why: err.Error()})
	o.app.Logger.Error("the store is down; until it is up again, zones fall back as their on_store_error says", zap.String("store", name), zap.Error(err))
	o.app.emit(telemetry.Event{Name: "throttle_store_down", Data: map[string]any{"store": name, "error": err.Error()}})
}

// Up implements sharedstore.Observer.
func (o *storeObserver) Up(after time.Duration) {
	name := o.app.Shared.Name
	o.app.Shared.Outage.Store(nil)
	o.app.Logger.Info("the store is up again", zap.String("store", name), zap.Duration("down_for", after))
	o.app.emit(telemetry.Event{Name: "throttle_store_up", Data: map[string]any{"store": name, "seconds": after.Seconds()}})
}

// Failed implements sharedstore.Observer.
func (o *storeObserver) Failed(what string, err error) {
	o.app.Logger.Error(what, zap.String("store", o.app.Shared.Name), zap.Error(err))
}

// Errors implements sharedstore.Observer.
func (o *storeObserver) Errors(calls int) {
	telemetry.StoreErrors.WithLabelValues(o.app.Shared.Name).Add(float64(calls))
}

// Unsettled implements sharedstore.Observer.
func (o *storeObserver) Unsettled(zone string, charges int) { o.app.unsettled(zone, charges) }

// Warned implements sharedstore.Observer.
func (o *storeObserver) Warned(text string) {
	o.app.Warner.Warn(text, zap.String("store", o.app.Shared.Name))
}

// subscriptions returns what somebody subscribes to. Caddy takes no subscription after
// its configuration was provisioned, so no request comes before the last one.
func (e *Engine) subscriptions() telemetry.Subscriptions {
	return telemetry.Subscriptions{
		Blocks: e.subscribers.ShouldEmit(telemetry.EventBlocked),
		Keys:   e.subscribers.ShouldEmit(telemetry.EventOverflow) || e.subscribers.ShouldEmit(telemetry.EventRecovered),
	}
}

// emit emits an event of Caddy's.
func (a *Engine) emit(e telemetry.Event) {
	a.subscribers.Emit(a.Ctx, e.Name, e.Data)
}
