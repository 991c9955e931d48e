package caddymodule

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyevents"
	"go.uber.org/zap"
)

// grumbleEvery is how often errors of single requests are logged.
const grumbleEvery = time.Minute

// grumble logs an error, unless one was not long ago.
func (r *Remote) grumble(what string, err error) {
	app, now := r.speaker(), time.Now()
	r.mu.Lock()
	due := app != nil && now.Sub(r.grumbled) >= grumbleEvery
	if due {
		r.grumbled = now
	}
	r.mu.Unlock()
	if due {
		app.logger.Error(what, zap.String("store", r.name), zap.Error(err))
	}
}

// review warns of servers that are set up so that limits cannot hold, once they
// answer.
func (r *Remote) review(ctx context.Context, reviewer Reviewer) {
	const again = 5 * time.Second
	for ctx.Err() == nil {
		within, done := context.WithTimeout(ctx, again)
		warnings, err := reviewer.Check(within)
		if err != nil {
			<-within.Done()
		}
		done()
		for _, warning := range warnings {
			caddy.Log().Named("throttle").Warn(warning, zap.String("store", r.name))
		}
		if err == nil {
			return
		}
	}
}

// changed says, once each, that the store is down and that it is up again.
func (r *Remote) changed(down bool, err error, after time.Duration) {
	event, up := "throttle_store_up", 1.0
	if down {
		event, up = "throttle_store_down", 0
		storeOutages.WithLabelValues(r.name).Inc()
	}
	storeUp.WithLabelValues(r.name).Set(up)
	r.mu.Lock()
	r.vague = down && errors.Is(err, context.DeadlineExceeded)
	r.mu.Unlock()
	app := r.speaker()
	if app == nil {
		return
	}
	data := map[string]any{"store": r.name}
	if down {
		data["error"] = err.Error()
		app.logger.Error("the store is down; zones go by their on_store_error until it is up again", zap.String("store", r.name), zap.Error(err))
	} else {
		data["seconds"] = after.Seconds()
		app.logger.Info("the store is up again", zap.String("store", r.name), zap.Duration("down_for", after))
	}
	go app.emit(event, data) // what is subscribed may take its time
}

// speaker returns the app that speaks for the store, or nil if none has started.
// What it says it must not say with the lock held: every request needs that.
func (r *Remote) speaker() *App {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.apps) == 0 {
		return nil
	}
	return r.apps[len(r.apps)-1]
}

// follow makes an app the one that speaks for the store.
func (r *Remote) follow(a *App) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.apps = append(r.apps, a)
}

func (r *Remote) unfollow(a *App) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.apps = slices.DeleteFunc(r.apps, func(other *App) bool { return other == a })
}

// emit sends an event to those who have subscribed to it.
func (a *App) emit(name string, data map[string]any) {
	if events, err := a.ctx.App("events"); err == nil {
		events.(*caddyevents.App).Emit(a.ctx, name, data)
	}
}
