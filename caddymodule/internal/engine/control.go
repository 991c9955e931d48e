package engine

import (
	"slices"
	"sync"
	"sync/atomic"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/override"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/stores"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/supportcode"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/telemetry"
)

const controlKey = "control"

// A control is how the admin API reaches what runs, and what it has changed there.
// It outlives configs: a reload must not lift a ban, nor forget a support code.
type control struct {
	Overrides override.Table
	Journal   override.Journal
	Changing  sync.Mutex       // held over a change of overrides and its line in the journal
	Refusals  supportcode.Ring // the last ones
	Rates     telemetry.Rates
	stopped   chan struct{} // closed when no config uses it any more

	mu   sync.Mutex
	apps []*Engine // of configs that have started and not stopped, oldest first
}

func joinControl() (*control, error) {
	return stores.Join(controlKey, func() (*control, error) {
		c := &control{stopped: make(chan struct{})}
		go c.Rates.Run(c.stopped)
		return c, nil
	})
}

// newestApp is the last of the apps in the control, or nil. Listeners read it, for which a
// lock at each connection and packet would cost too much.
var newestApp atomic.Pointer[Engine]

func (c *control) Start(e *Engine) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.apps = append(c.apps, e)
	newestApp.Store(e)
}

func (c *control) Stop(e *Engine) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.apps = slices.DeleteFunc(c.apps, func(other *Engine) bool { return other == e })
	if n := len(c.apps); n > 0 {
		newestApp.Store(c.apps[n-1])
	} else {
		newestApp.Store(nil)
	}
}

// RunningApp returns the app of the config that runs, or nil. Its stores stay open
// until the caller has called the function that is returned.
func RunningApp() (a *Engine, release func()) {
	stores.Process.Range(func(_, value any) bool {
		c, ok := value.(*control)
		if !ok {
			return true
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		if n := len(c.apps); n > 0 {
			a = c.apps[n-1]
			a.hold()
			release = a.release
		}
		return false
	})
	return a, release
}

// Destruct ends the goroutine.
func (c *control) Destruct() error {
	close(c.stopped)
	return nil
}

// Interface guards
var _ caddy.Destructor = (*control)(nil)
