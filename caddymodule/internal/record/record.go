// Package record is what the handlers of throttle and in_flight that a request passes share:
// those around learn what happened within. It knows neither of them. Begin with [Of].
package record

import (
	"context"
	"net/http"
	"time"

	"github.com/caddyserver/caddy/v2"
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
	charged [4]string // room for the first of them

	// Account is whom the request names to zones, if it names anybody. Several says that it names, or may name,
	// several.
	Account string
	Several bool

	// Hidden are the response headers that throttle keeps from clients, in the handlers around
	// the one that runs.
	Hidden []string

	// Slots are the names of the in_flight whose slots the request holds.
	Slots []string
	room  [1]string // of Slots, for most requests

	// Client is done when the client leaves. It is nil while the request's own context is.
	Client context.Context

	// Waited is for how long in_flight has received the request's body, and let it wait for
	// slots: no time in which the upstream has worked on it.
	Waited time.Duration
}

// recordVar is the variable with the record. No user would choose its name.
const recordVar = "throttle.record"

// Find returns the record of the request with a context, or nil if it has none yet.
func Find(ctx context.Context) *Record {
	record, _ := caddyhttp.GetVar(ctx, recordVar).(*Record)
	return record
}

// Of returns the record of a request, which the first call makes.
func Of(r *http.Request) *Record {
	vars, _ := r.Context().Value(caddyhttp.VarsCtxKey).(map[string]any)
	return In(vars)
}

// Begin makes an empty Record that of a request.
func (record *Record) Begin() *Record {
	record.Charged, record.Slots = record.charged[:0], record.room[:0]
	return record
}

// Name notes whom the request names. Whoever logs in by one form may send the fields of another form, too, with
// somebody else's name.
func (record *Record) Name(account string) {
	record.Several = record.Several || record.Account != "" && account != record.Account
	record.Account = account
}

// Share puts the record into the variables of its request, where [In] finds it.
func (record *Record) Share(vars map[string]any) {
	vars[recordVar] = record
}

// In returns the record in the variables of a request.
func In(vars map[string]any) *Record {
	record, _ := vars[recordVar].(*Record)
	if record == nil {
		record = new(Record).Begin()
		record.Share(vars)
	}
	return record
}

// Asked returns how long the last upstream took that a proxy has asked for this request, or nil if none
// was asked. It tells by another value that one was asked meanwhile, as by forward_auth. A nil Record
// is that of a request that nothing further in can refuse.
func (record *Record) Asked(r *http.Request) (took any) {
	if repl, ok := r.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer); ok && record != nil {
		took, _ = repl.Get("http.reverse_proxy.upstream.latency")
	}
	return took
}

// RefusedUnasked reports whether the request was refused within, and no upstream was asked since
// [Record.Asked] returned asked.
func (record *Record) RefusedUnasked(r *http.Request, asked any) bool {
	return record != nil && record.Refused && record.Asked(r) == asked
}

// ClientOf returns the context that is done when the client of a request leaves. The record may be
// nil.
func (record *Record) ClientOf(r *http.Request) context.Context {
	if record != nil && record.Client != nil {
		return record.Client
	}
	return r.Context()
}
