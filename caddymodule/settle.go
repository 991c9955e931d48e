package caddymodule

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// Settle says how a charge is corrected once the response is known. What the
// cost lines say is then a reservation.
type Settle struct {
	// What a request really cost: `seconds`, the time until the upstream's
	// headers; `bytes`, how much was sent; `header`, a number that the upstream
	// sends; `status`, a cost for some answers and nothing for others. Required.
	Source string `json:"source,omitempty"`

	// How many bytes cost 1, such as `1MiB`. Required for bytes.
	Unit string `json:"unit,omitempty"`

	// The header that says the cost. The client never sees it. Required for
	// header.
	Name string `json:"name,omitempty"`

	// The answers that cost something, such as `401` or `4xx`. Required for
	// status.
	Status []string `json:"status,omitempty"`

	// What they cost. Required for status.
	Cost float64 `json:"cost,omitempty"`

	// Reserve nothing: a request only asks whether it would fit, and the
	// response is charged. What is in flight together may then overshoot.
	After bool `json:"after,omitempty"`

	unit   float64
	ranges []statusRange
}

// A statusRange is a status, or a class of them.
type statusRange struct{ first, last int }

var (
	statusCode = regexp.MustCompile(`^[1-5](xx|[0-9][0-9])$`)
	headerName = regexp.MustCompile("^[A-Za-z0-9!#$%&'*+.^_`|~-]+$")
)

func (s *Settle) compile() (err error) {
	for _, field := range []struct {
		source, name string
		given        bool
	}{
		{"bytes", "unit", s.Unit != ""},
		{"header", "name", s.Name != ""},
		{"status", "status", len(s.Status) > 0},
		{"status", "cost", s.Cost != 0},
	} {
		if field.given != (s.Source == field.source) {
			return fmt.Errorf("settle %s: the %s is missing or misplaced: want settle seconds, bytes <unit>, header <Name> or status <code|class>... <n>", s.Source, field.name)
		}
	}
	switch s.Source {
	case "seconds":
	case "bytes":
		s.unit, err = parseUnit(s.Unit)
	case "header":
		if !headerName.MatchString(s.Name) {
			err = fmt.Errorf("invalid header name %q: want letters, digits and hyphens, such as X-Cost", s.Name)
		}
		s.Name = http.CanonicalHeaderKey(s.Name)
	case "status":
		s.ranges = nil
		for _, code := range s.Status {
			if !statusCode.MatchString(code) {
				return fmt.Errorf("invalid status %q: want a code such as 401 or a class such as 4xx", code)
			}
			first, _ := strconv.Atoi(strings.ReplaceAll(code, "x", "0"))
			last, _ := strconv.Atoi(strings.ReplaceAll(code, "x", "9"))
			s.ranges = append(s.ranges, statusRange{first, last})
		}
		if !(s.Cost > 0 && s.Cost <= 1e12) {
			err = fmt.Errorf("invalid cost %v: want a number above 0", s.Cost)
		}
	default:
		err = fmt.Errorf("unknown source %q: want seconds, bytes <unit>, header <Name> or status <code|class>... <n>", s.Source)
	}
	return err
}

func (z *Zone) compileSettle() error {
	if z.Settle == nil {
		z.about("debt", 0)
		if z.Debt != nil {
			return fmt.Errorf("debt %v has no meaning: the zone does not settle", *z.Debt)
		}
		return nil
	}
	z.about("settle", 0)
	if err := z.Settle.compile(); err != nil {
		return fmt.Errorf("parsing settle: %w", err)
	}
	z.about("debt", 0)
	if err := z.limit.ValidateDebt(z.debt(z.limit)); err != nil {
		return err
	}
	z.about("cost", 0)
	if !z.Settle.After && slices.Contains(z.constants(), 0) {
		return errors.New("cost 0 reserves nothing, so that any number of requests get in before the first is settled: want a cost, or settle ... after")
	}
	return nil
}

// debt returns how far above the capacity a settlement may lift a bucket.
func (z *Zone) debt(limit leakybucket.Limit) float64 {
	switch {
	case z.Settle == nil:
		return 0
	case z.Debt != nil:
		return *z.Debt
	}
	return limit.Capacity
}

// A bill is what is open while a request is served: charges that the response
// will correct. It stands between the handlers behind and the client, to see
// what it needs of the response.
type bill struct {
	caddyhttp.ResponseWriterWrapper
	handler *Handler
	passage *passage // nil if nothing was charged
	outer   *bill    // of the handler that this one is within, if there is one
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
	if err := b.handler.app.store.Settle(context.WithoutCancel(r.Context()), due); err != nil {
		b.handler.app.logger.Error("settling; the reservations stay", zap.Error(err))
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

func (s *Settle) matches(status int) bool {
	return slices.ContainsFunc(s.ranges, func(r statusRange) bool { return r.first <= status && status <= r.last })
}

// Interface guards
var (
	_ http.ResponseWriter = (*bill)(nil)
	_ io.ReaderFrom       = (*bill)(nil)
)
