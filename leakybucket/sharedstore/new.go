package sharedstore

import (
	"log/slog"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/memstore"
)

// New returns a store around a remote one, for a program that has one. It connects now,
// without waiting for it. Until [Store.Close] it owns the remote store. During outages it
// keeps this node's buckets in a memory of its own. observer is told of outages and errors,
// and may be nil: see [Log].
//
// A program whose options change while it runs makes a [Backend] and a Store for each of them.
func New(remote leakybucket.Store, o Options, observer Observer) *Store {
	b := NewBackend("", remote, memstore.New(memstore.Options{}))
	if observer == nil {
		observer = Log(slog.New(slog.DiscardHandler))
	}
	b.Attach(observer)
	return b.With(o)
}

// Close is [Backend.Close], for stores that [New] returned.
func (s *Store) Close() { s.backend.Close() }

// Log returns an observer that writes to a log.
func Log(to *slog.Logger) Observer { return logger{to} }

type logger struct{ to *slog.Logger }

func (l logger) Down(err error) {
	l.to.Error("the store is down; until it is up again, this process decides by itself", "error", err)
}

func (l logger) Up(after time.Duration) { l.to.Info("the store is up again", "after", after) }

func (l logger) Failed(what string, err error) { l.to.Warn(what, "error", err) }

func (l logger) Errors() {}

func (l logger) Unsettled(zone string) {
	l.to.Warn("settlements are lost, so their buckets keep what was reserved", "zone", zone)
}

func (l logger) Warned(text string) { l.to.Warn(text) }
