package engine

import (
	"context"
	"time"

	"go.uber.org/zap"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/body"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/stores"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/telemetry"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/sharedstore"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/store"
)

// UseMemory makes a store in memory the store.
func (e *Engine) UseMemory(m *stores.MemoryUse) {
	m.Restored = e.restored
	e.Memory, e.Store = m, m.Memory.Store
}

// UseShared makes a shared store the store.
func (e *Engine) UseShared(s *stores.SharedStore) {
	// The shared store is the one that lasts.
	e.Memory = &stores.MemoryUse{MaxBuckets: stores.DefaultMaxBuckets, Every: stores.DefaultSnapshotInterval, Logger: e.Logger, Memory: s.Memory}
	e.Shared, e.Store = s, s.With(sharedstore.Options{Timeout: time.Duration(e.app.StoreTimeout), Nodes: e.app.Nodes, Zone: e.zoneFallback})
}

// zoneFallback returns the fallback of a zone.
func (e *Engine) zoneFallback(name string) sharedstore.ZoneOptions {
	if z := e.Zones[name]; z != nil {
		return sharedstore.ZoneOptions{Policy: z.policy, MaxCost: z.MostCost}
	}
	return sharedstore.ZoneOptions{}
}

// Correct implements limit.Env. If the store fails, the charges stay as they were reserved.
func (e *Engine) Correct(due []leakybucket.Settlement) {
	if len(due) == 0 {
		return
	}
	// The client's leaving must not keep it from paying. A shared store tells its observer
	// itself.
	if err := e.Store.Settle(context.Background(), due); err != nil && e.Shared == nil {
		for i := range due {
			e.Unsettled(due[i].Charge.Zone)
		}
		e.Logger.Error("settling; the reservations stay", zap.Error(err))
	}
}

// A Store is one in memory, or a shared one. Either knows blocks without asking another one.
type Store interface {
	leakybucket.Store
	store.Resetter
	store.Lister
	AnyBlock() bool
	MayBlock(zone, key string) bool
	Known(*leakybucket.Charge) (d leakybucket.Decision, current bool)
}

// AnyBlock reports, without a lock, whether any block may be known.
func (e *Engine) AnyBlock() bool { return e.Store.AnyBlock() }

// ConfirmedBlock implements limit.Env. If a block is not current, a shared store may have ended it.
func (e *Engine) ConfirmedBlock(ctx context.Context, c *leakybucket.Charge) (block leakybucket.Decision, runs bool) {
	block, current := e.Store.Known(c)
	if block.BlockedUntil != 0 && !current {
		e.Store.(*sharedstore.Store).Confirm(ctx, c)
		block, _ = e.Store.Known(c)
	}
	return block, block.BlockedUntil != 0
}

// Take implements limit.Env.
func (e *Engine) Take(ctx context.Context, charges []leakybucket.Charge, decisions []leakybucket.Decision) error {
	err := e.Store.Take(ctx, charges, decisions)
	if err != nil {
		e.Logger.Error("asking the store; the request passes", zap.Error(err))
	}
	return err
}

// Bodies implements limit.Env.
func (e *Engine) Bodies() *body.Store { return e.Control.Bodies }

// KnownBlock implements limit.Env. Only a shared store takes longer to ask.
func (e *Engine) KnownBlock(c *leakybucket.Charge) (block leakybucket.Decision, runs bool) {
	if e.Shared == nil {
		return block, false
	}
	block, current := e.Store.Known(c)
	return block, current && block.BlockedUntil != 0
}

// Effective implements limit.Env.
func (e *Engine) Effective(c *leakybucket.Charge) {
	if shared, can := e.Store.(*sharedstore.Store); can {
		shared.Effective(c)
	}
}

// restored sets the limit and the block of a bucket that was saved. It returns false if this config
// has not its zone.
func (e *Engine) restored(c *leakybucket.Charge, saved leakybucket.State) (known bool) {
	z, known := e.Zones[c.Zone]
	if known {
		z.Restored(c, &saved)
	}
	return known
}

// Down implements sharedstore.Observer.
func (e *Engine) Down(err error) {
	name := e.Shared.Name
	telemetry.StoreOutages.WithLabelValues(name).Inc()
	e.Logger.Error("the store is down; until it is up again, zones fall back as their on_store_error says", zap.String("store", name), zap.Error(err))
	e.emit("throttle_store_down", map[string]any{"store": name, "error": err.Error()})
}

// Up implements sharedstore.Observer.
func (e *Engine) Up(after time.Duration) {
	name := e.Shared.Name
	e.Logger.Info("the store is up again", zap.String("store", name), zap.Duration("down_for", after))
	e.emit("throttle_store_up", map[string]any{"store": name, "seconds": after.Seconds()})
}

// Failed implements sharedstore.Observer.
func (e *Engine) Failed(what string, err error) {
	e.Logger.Error(what, zap.String("store", e.Shared.Name), zap.Error(err))
}

// Errors implements sharedstore.Observer.
func (e *Engine) Errors() {
	telemetry.StoreErrors.WithLabelValues(e.Shared.Name).Inc()
}

// Unsettled implements sharedstore.Observer: it counts charges of a zone that stay as they were
// reserved.
func (e *Engine) Unsettled(zone string) {
	if z := e.Zones[zone]; z != nil {
		z.Counts.Unsettled()
	}
}

// Warned implements sharedstore.Observer.
func (e *Engine) Warned(text string) { e.Warner.Warn(text, zap.String("store", e.Shared.Name)) }

// emit emits an event of Caddy's.
func (e *Engine) emit(event string, data map[string]any) { e.subscribers.Emit(e.Ctx, event, data) }
