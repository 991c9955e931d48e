// Package record is what the handlers of throttle and in_flight that a request passes share:
// those around learn what happened within. It knows neither of them. Begin with [Of].
package record

import (
	"context"
	"net/http"
	"slices"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
)

// A Record is of one request, whatever routes it takes, error routes too. One goroutine at a
// time uses it.
type Record struct {
	// Refused says that a handler within has refused the request, or has failed before it
	// passed it on, or that the client left while it waited there. Then the handlers around
	// give back what they have charged. Error routes do not set it.
	Refused bool

	// Charged are the names of the zones that have decided about the request.
	Charged []string
	room    [4]string // for the first of them

	// Slots are the names of the in_flight whose slots the request holds.
	Slots []string

	// Client is done when the client leaves. It is nil while the request's own context is.
	Client context.Context
}

// recordVar is the variable with the record. No user would choose its name.
const recordVar = "throttle.record"

// Find returns the record of a request, or nil if it has none yet.
func Find(r *http.Request) *Record {
	record, _ := caddyhttp.GetVar(r.Context(), recordVar).(*Record)
	return record
}

// Of returns the record of a request, which the first call makes. Without the variables of
// Caddy, each call makes another one.
func Of(r *http.Request) *Record {
	record := Find(r)
	if record == nil {
		record = new(Record)
		caddyhttp.SetVar(r.Context(), recordVar, record)
	}
	return record
}

// ClientOf returns the context that is done when the client of a request leaves.
func ClientOf(r *http.Request) context.Context {
	if record := Find(r); record != nil && record.Client != nil {
		return record.Client
	}
	return r.Context()
}

// SetRefused sets Refused. A nil Record is that of a request that passes no other handler.
func (r *Record) SetRefused(refused bool) {
	if r != nil {
		r.Refused = refused
	}
}

// Charge adds a zone to those that have decided.
func (r *Record) Charge(zone string) {
	if r.Charged == nil {
		r.Charged = r.room[:0]
	}
	r.Charged = append(r.Charged, zone)
}

// HasCharged reports whether a zone has decided.
func (r *Record) HasCharged(zone string) bool { return slices.Contains(r.Charged, zone) }
