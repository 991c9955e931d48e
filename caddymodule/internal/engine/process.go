package engine

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyevents"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/admission"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/blocked"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/body"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/config"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/override"
	clientpass "github.com/caddy-throttle/caddy-throttle/caddymodule/internal/pass"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/settlement"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/sketch"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/stores"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/supportcode"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/telemetry"
)

const (
	blocksKey   = "blocks"
	signingKey  = "signing keys"
	controlKey  = "control"
	CrawlersKey = "crawlers"
)

// RequestBuffers bounds what is held of the bodies of all requests together, for
// in_flight ... buffer and to find out keys and costs. There is one, since there is one
// memory, whatever configs are running.
var RequestBuffers = body.NewMemory(config.MostBuffered)

// A liveZone holds the queues, the slots, the meter and the figures of a zone name. All
// configs with that name share it, because requests of the last config are still served
// during a reload. Each config has a runningZone of its own.
type liveZone struct {
	telemetry.Figures
	name                string
	Enforced, Simulated admission.Zone
	Meter               settlement.Meter
	Passes              *clientpass.Memory

	mu      sync.Mutex
	configs []*Zone // zones of configs that have started and not stopped
}

func LiveZoneKey(name string) string { return "zone " + name }

func JoinZone(name string) (*liveZone, error) {
	return stores.Join(LiveZoneKey(name), func() (*liveZone, error) {
		l := &liveZone{name: name, Passes: clientpass.NewMemory()}
		l.Busiest = sketch.Recent{Span: busiestFor / 4, Whole: true}
		l.Enforced.Name, l.Simulated.Name = name, name
		l.Slots = &l.Enforced
		l.Enforced.Released = l.Released
		return l, nil
	})
}

// Start adds the zone of a config that has started.
func (l *liveZone) Start(z *Zone) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.configs = append(l.configs, z)
	l.setLimits(z)
}

// setLimits sets what requests do not bring with them, and the limits of those who wait.
// The caller holds the lock.
func (l *liveZone) setLimits(z *Zone) {
	l.Enforced.SetWarmUp(z.WarmUp)
	l.Simulated.SetWarmUp(z.WarmUp)
	if z.InFlight > 0 {
		l.Enforced.SetLimits(z.InFlight, z.MaxWait, z.MaxWaiting)
		l.Simulated.SetLimits(z.InFlight, z.MaxWait, z.MaxWaiting)
	}
}

// Stop removes the zone of a config that has stopped. If it was the newest, because a part
// of its config could not start, the one before it goes on.
func (l *liveZone) Stop(z *Zone) {
	l.mu.Lock()
	defer l.mu.Unlock()
	newest := len(l.configs) > 0 && l.configs[len(l.configs)-1] == z
	l.configs = slices.DeleteFunc(l.configs, func(other *Zone) bool { return other == z })
	if n := len(l.configs); newest && n > 0 {
		l.setLimits(l.configs[n-1])
	}
}

// has reports whether requests may wait in the zone, and whether it has slots and
// buckets, by any config that has started.
func (l *liveZone) has() (waits, slots, buckets bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, z := range l.configs {
		enforced := z.Shadow == 0
		waits = waits || enforced && z.LetsWait()
		slots = slots || enforced && z.InFlight > 0
		buckets = buckets || !z.Bucketless()
	}
	return waits, slots, buckets
}

// overrideFile returns that of the newest config that has started, or nil.
func (l *liveZone) overrideFile() *overrideFile {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.configs) == 0 {
		return nil
	}
	return l.configs[len(l.configs)-1].File
}

// takesTurns reports whether a config that has started enforces share.
func (l *liveZone) takesTurns() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.ContainsFunc(l.configs, func(z *Zone) bool { return z.Share != nil && z.Shadow == 0 })
}

// Destruct deletes the zone's series.
func (l *liveZone) Destruct() error {
	for _, counts := range []*prometheus.MetricVec{telemetry.Requests.MetricVec, telemetry.Passes.MetricVec, telemetry.TurnSeconds.MetricVec, telemetry.SlotSeconds.MetricVec, telemetry.Unsettled.MetricVec, telemetry.BlocksBegun.MetricVec, telemetry.WithoutStore.MetricVec, telemetry.RefusedPeople.MetricVec, telemetry.Delays.MetricVec} {
		counts.DeletePartialMatch(prometheus.Labels{"zone": l.name})
	}
	return nil
}

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

func (c *control) Start(a *Engine) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.apps = append(c.apps, a)
	newestApp.Store(a)
}

func (c *control) Stop(a *Engine) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.apps = slices.DeleteFunc(c.apps, func(other *Engine) bool { return other == a })
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

// SharedBlocks is the known blocks of all configs.
type SharedBlocks struct{ *blocked.Buckets }

// Destruct implements caddy.Destructor.
func (*SharedBlocks) Destruct() error { return nil }

// exiting is closed when the process is about to end. Then waiting requests are
// refused, so that Caddy does not wait for them.
var (
	exiting = make(chan struct{})
	exit    = sync.OnceFunc(func() { close(exiting) })
)

// watchExit subscribes to the event that Caddy emits before it stops anything. Apps
// stop in no order, and stopping the HTTP server waits for its requests. It returns the
// app that emits events.
func watchExit(ctx caddy.Context) (*caddyevents.App, error) {
	app, err := ctx.App("events")
	if err != nil {
		return nil, err
	}
	events := app.(*caddyevents.App)
	return events, events.On("stopping", exitHandler{})
}

type exitHandler struct{}

// Handle implements caddyevents.Handler.
func (exitHandler) Handle(context.Context, caddy.Event) error {
	if caddy.Exiting() {
		exit()
	}
	return nil
}

// Interface guards
var (
	_ caddy.Destructor    = (*liveZone)(nil)
	_ caddy.Destructor    = (*SharedBlocks)(nil)
	_ caddy.Destructor    = (*control)(nil)
	_ caddyevents.Handler = exitHandler{}
)

// busiestFor is for how long keys are remembered as the busiest ones, at most. A quarter of
// that ends at once.
const busiestFor = 10 * time.Minute
