package caddymodule

import (
	"errors"
	"io"
	"net/http"
	"slices"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// A bill is what is open while a request is served: charges that the response
// will correct. It stands between the handlers behind and the client, to see
// what it needs of the response.
type bill struct {
	caddyhttp.ResponseWriterWrapper
	handler *Handler
	store   leakybucket.Store // that took the charges
	spent   time.Duration     // waiting for it
	passage *passage          // nil if nothing was charged
	outer   *bill             // of the handler that this one is within, if there is one
	items   []billItem
	charges []leakybucket.Settlement // as many as items
	rooms   struct {
		items   [2]billItem
		charges [2]leakybucket.Settlement
	}

	began    time.Time
	headers  time.Duration // until the response's headers, if there are any
	status   int           // 0 before there are headers
	bytes    int64         // of the body
	returned bool          // the next handler did not panic
}

type billItem struct {
	zone    *Zone
	outcome int    // which of the passage's
	header  string // what the upstream says it cost
}

func (b *bill) add(z *Zone, c leakybucket.Charge, d leakybucket.Decision, outcome int) {
	if b.items == nil {
		b.items, b.charges = b.rooms.items[:0], b.rooms.charges[:0]
	}
	b.items = append(b.items, billItem{zone: z, outcome: outcome})
	b.charges = append(b.charges, leakybucket.Settlement{Charge: c, Was: d})
}

// drop takes the item of an outcome off again.
func (b *bill) drop(outcome int) {
	if b == nil {
		return
	}
	for i := range b.items {
		if b.items[i].outcome == outcome {
			b.items, b.charges = slices.Delete(b.items, i, i+1), slices.Delete(b.charges, i, i+1)
			return
		}
	}
}

// serve calls the next handler and settles when that is done, whatever happens.
func (b *bill) serve(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) (err error) {
	b.ResponseWriter = w
	b.began = time.Now()
	if b.passage != nil {
		b.outer, b.passage.bill = b.passage.bill, b
	}
	defer func() { b.settle(r, err) }()
	err = next.ServeHTTP(b, r)
	b.returned = true
	return err
}

// WriteHeader implements http.ResponseWriter.
func (b *bill) WriteHeader(status int) {
	if b.status == 0 && (status >= 200 || status == http.StatusSwitchingProtocols) {
		b.status, b.headers = status, time.Since(b.began)
	}
	b.readHeaders()
	b.ResponseWriter.WriteHeader(status)
}

// readHeaders reads what the upstream says the request cost, also for handlers
// around this one, and removes it: the client is not told.
func (b *bill) readHeaders() {
	header := b.Header()
	for bill := b; bill != nil; bill = bill.outer {
		for i := range bill.items {
			item := &bill.items[i]
			if values := header[item.zone.Settle.Name]; len(values) > 0 {
				item.header = single(values)
			}
		}
	}
	for _, name := range b.handler.strip {
		delete(header, name)
	}
}

// Write implements http.ResponseWriter.
func (b *bill) Write(p []byte) (int, error) {
	b.implicitHeader()
	n, err := b.ResponseWriter.Write(p)
	b.bytes += int64(n)
	return n, err
}

// ReadFrom implements io.ReaderFrom, so that files are still sent by the kernel.
func (b *bill) ReadFrom(r io.Reader) (int64, error) {
	b.implicitHeader()
	n, err := b.ResponseWriterWrapper.ReadFrom(r)
	b.bytes += n
	return n, err
}

// FlushError lets http.ResponseController flush, which sends headers too.
func (b *bill) FlushError() error {
	b.implicitHeader()
	return http.NewResponseController(b.ResponseWriter).Flush()
}

func (b *bill) implicitHeader() {
	if b.status == 0 {
		b.WriteHeader(http.StatusOK)
	}
}

// settle corrects every charge, once.
func (b *bill) settle(r *http.Request, served error) {
	b.readHeaders() // what is written after us: headers if there were none yet, and trailers
	if b.passage != nil {
		b.passage.bill = b.outer
	}
	left := r.Context().Err() != nil
	due := b.charges[:0] // in place, behind what has been read
	for i := range b.items {
		item, s := &b.items[i], b.charges[i]
		reserved := 0.0
		if s.Was.Poured {
			reserved = s.Charge.Cost
		}
		cost, known := b.costOf(item, reserved, served)
		if !known {
			item.zone.shared.unsettled.Inc()
			cost = reserved
		}
		if cost = s.Charge.Limit.Cost(cost); left {
			cost = max(cost, reserved) // leaving must never pay
		}
		b.passage.outcomes[item.outcome].settle(cost)
		if s.Diff = cost - reserved; s.Diff != 0 {
			due = append(due, s)
		}
	}
	if len(due) == 0 {
		return
	}
	// The client's leaving must not keep it from paying.
	app := b.handler.app
	err := app.settle(r.Context(), b.store, b.spent, due)
	if err == nil {
		return
	}
	for i := range due {
		app.shared[due[i].Charge.Zone].unsettled.Inc()
	}
	if b.store != leakybucket.Store(app.remote) { // which says so itself
		app.logger.Error("settling; the reservations stay", zap.Error(err))
	}
}

// costOf returns what a request really cost, and false if that is not known.
func (b *bill) costOf(item *billItem, reserved float64, served error) (cost float64, known bool) {
	s := item.zone.Settle
	answered := b.status != 0 || b.returned && served == nil
	switch {
	case s.Source == "status":
		status := b.finalStatus(served)
		if s.matches(status) {
			return s.Cost, true
		}
		return 0, status != 0
	case b.status == http.StatusSwitchingProtocols:
		return 0, false // a tunnel says nothing about the work that opened it
	case s.Source == "seconds" && b.status == 0:
		return max(time.Since(b.began).Seconds(), reserved), true
	case s.Source == "seconds":
		return b.headers.Seconds(), true
	case !answered:
		return 0, false
	case s.Source == "bytes":
		return float64(b.bytes) / s.unit, true
	default:
		return leakybucket.ParseCost(item.header)
	}
}

// finalStatus returns the status that the client gets, or 0 if it is not known.
// An error's status is sent by error routes, after us.
func (b *bill) finalStatus(served error) int {
	switch {
	case b.status != 0:
		return b.status
	case !b.returned:
		return 0
	case served == nil:
		return http.StatusOK
	}
	var failed caddyhttp.HandlerError
	if errors.As(served, &failed) && failed.StatusCode != 0 {
		return failed.StatusCode
	}
	return http.StatusInternalServerError
}

// Interface guards
var (
	_ http.ResponseWriter = (*bill)(nil)
	_ io.ReaderFrom       = (*bill)(nil)
)
