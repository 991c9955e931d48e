package caddymodule

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyevents"
	"github.com/prometheus/client_golang/prometheus"
)

// running has an entry for each zone that a config uses. It outlives configs:
// requests of the last one are served while those of the next one come, and
// what was counted stays until the last config that has the zone goes.
var running = caddy.NewUsagePool()

// A runningZone is what all configs that have a zone of a name share.
type runningZone struct {
	name             string
	enforced, shadow room

	// Whether any of them can let requests wait, or hold slots.
	waits, slots atomic.Bool
}

// joinZone finds the zone of a name, or makes it.
func joinZone(name string) (*runningZone, error) {
	found, _, err := running.LoadOrNew(name, func() (caddy.Destructor, error) {
		return &runningZone{name: name}, nil
	})
	if err != nil {
		return nil, err
	}
	return found.(*runningZone), nil
}

// Destruct forgets what was counted.
func (z *runningZone) Destruct() error {
	for _, counts := range []*prometheus.MetricVec{requests.MetricVec, unsettled.MetricVec, blocksBegun.MetricVec, withoutStore.MetricVec} {
		counts.DeletePartialMatch(prometheus.Labels{"zone": z.name})
	}
	return nil
}

// exiting is closed when the process is about to end: then nobody waits any
// longer, so that Caddy need not wait for them.
var (
	exiting = make(chan struct{})
	exit    = sync.OnceFunc(func() { close(exiting) })
)

// watchExit sees to it that waiters are let go. Caddy stops the HTTP server before
// or after this app, in no order, and waits for its requests; but first of all it
// emits an event.
func watchExit(ctx caddy.Context) error {
	events, err := ctx.App("events")
	if err != nil {
		return err
	}
	return events.(*caddyevents.App).On("stopping", exitHandler{})
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
	_ caddy.Destructor    = (*runningZone)(nil)
	_ caddyevents.Handler = exitHandler{}
)
