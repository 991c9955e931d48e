package engine

import (
	"context"
	"sync"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyevents"
)

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
var _ caddyevents.Handler = exitHandler{}
