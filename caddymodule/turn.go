package caddymodule

import (
	"bufio"
	"context"
	"errors"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// A turn is what lies between a request that was let in and the next handler: a
// wait until what is before it has leaked, and slots among the requests that
// are served at the same time. If it does not get there, everything that was
// poured for it is given back.
type turn struct {
	handler *Handler
	store   leakybucket.Store // that took the charges
	spent   time.Duration     // waiting for it
	passage *passage
	bill    *bill
	first   int       // of the passage's outcomes: which are this handler's
	asked   time.Time // when the store decided
	gone    bool      // the client left
	slots   []slot
	charges []leakybucket.Settlement // that were poured
	room    [1]slot                  // for most requests enough
}

// A slot is one that a request takes, or has taken.
type slot struct {
	zone    *Zone
	key     string
	shadow  bool
	taken   bool
	lacking bool // there was none
}

// room returns where the requests of a zone are, or where they would be if they
// were not shadows.
func (z *Zone) room(shadow bool) *room {
	if shadow {
		return &z.shared.running.shadow
	}
	return &z.shared.running.enforced
}

func (s *slot) room() *room { return s.zone.room(s.shadow) }

// take takes the slot if it is free.
func (s *slot) take() bool {
	s.taken = s.room().take(s.key, s.zone.InFlight)
	s.lacking = !s.taken
	return s.taken
}

func (s *slot) release() {
	if s.taken {
		s.taken = false
		s.room().release(s.key)
	}
}

// come waits until it is the request's turn, and takes its slots. If that is not
// to be, the passage says refused afterwards, or the client is gone.
func (t *turn) come(ctx context.Context) {
	t.pretend()
	if longest := t.longest(); longest >= 0 && !t.wait(ctx, longest) {
		t.giveBack(t.charges)
		return
	}
	for i := range t.slots {
		if s := &t.slots[i]; !s.shadow && !s.taken && !t.takeSlot(ctx, s) {
			t.end()
			t.giveBack(t.charges)
			return
		}
	}
}

// longest returns the outcome that lets the request wait longest, or -1.
func (t *turn) longest() int {
	found := -1
	for i := t.first; i < len(t.passage.outcomes); i++ {
		o := &t.passage.outcomes[i]
		if o.decision == delayed && (found < 0 || o.delay > t.passage.outcomes[found].delay) {
			found = i
		}
	}
	return found
}

// wait waits in the row of an outcome's key. It reports whether the turn came.
func (t *turn) wait(ctx context.Context, i int) bool {
	o := &t.passage.outcomes[i]
	room := o.zone.room(false)
	if !room.enter(o.zone.MaxWaiting) {
		t.passage.overrule(t.first, i, waiting)
		return false
	}
	defer room.leave()
	w := room.queue(o.key, o.at.Add(o.delay))
	defer room.unqueue(o.key, w)
	timer := time.NewTimer(time.Until(t.asked.Add(o.delay)))
	defer timer.Stop()
	for timer, ready := timer.C, w.ready; timer != nil || ready != nil; {
		select {
		case <-timer:
			timer = nil
		case <-ready:
			ready = nil
		case <-ctx.Done():
			t.gone = true
			return false
		case <-t.handler.app.exiting:
			t.passage.status = http.StatusServiceUnavailable
			t.passage.overrule(t.first, i, waiting)
			return false
		}
	}
	t.gone = ctx.Err() != nil // both at once: who is gone is not served
	return !t.gone
}

// takeSlot takes a slot that is enforced, and waits for it where that is
// allowed. It reports whether it has got it.
func (t *turn) takeSlot(ctx context.Context, s *slot) bool {
	room, z := s.room(), s.zone
	o := t.outcomeOf(z)
	if !z.bucketless() || z.MaxWait == 0 {
		if !s.take() {
			t.passage.overrule(t.first, o, inFlight)
		}
		return s.taken
	}
	if !room.enter(z.MaxWaiting) {
		if !s.take() {
			t.passage.overrule(t.first, o, waiting)
		}
		return s.taken
	}
	defer room.leave()
	w := &waiter{n: z.InFlight, ready: make(chan struct{})}
	if s.taken = room.takeOrQueue(s.key, z.InFlight, w); s.taken {
		return true
	}
	began := time.Now()
	timer := time.NewTimer(time.Duration(z.MaxWait))
	defer timer.Stop()
	select {
	case <-w.ready:
		s.taken = true
	case <-timer.C:
		s.taken = !room.giveUp(s.key, w)
		if !s.taken {
			t.passage.overrule(t.first, o, inFlight)
		}
	case <-ctx.Done():
		t.gone = true
		s.taken = !room.giveUp(s.key, w) // to be released
		return false
	case <-t.handler.app.exiting:
		s.taken = !room.giveUp(s.key, w)
		t.passage.status = http.StatusServiceUnavailable
		t.passage.overrule(t.first, o, waiting)
		return false
	}
	if !s.taken {
		return false
	}
	t.passage.delayed(o, time.Since(began))
	t.gone = ctx.Err() != nil // both at once, as in wait
	return !t.gone
}

func (t *turn) outcomeOf(z *Zone) int {
	for i := t.first; i < len(t.passage.outcomes); i++ {
		if t.passage.outcomes[i].zone == z {
			return i
		}
	}
	return -1
}

// pretend does for shadows what would be done if they were enforced, except that
// nobody waits and nobody is refused.
func (t *turn) pretend() {
	for i := t.first; i < len(t.passage.outcomes); i++ {
		o := &t.passage.outcomes[i]
		if o.decision != shadowDelayed {
			continue
		}
		if room := o.zone.room(true); room.enter(o.zone.MaxWaiting) {
			time.AfterFunc(o.delay, room.leave)
		} else {
			t.refuseShadow(i, waiting)
		}
	}
	for i := range t.slots {
		s := &t.slots[i]
		if !s.shadow || s.lacking {
			continue
		}
		o := t.outcomeOf(s.zone)
		switch {
		case t.passage.outcomes[o].decision == shadowRefused:
			s.release() // it would have gone no further
		case s.taken || s.take():
		case s.zone.bucketless() && s.zone.MaxWait > 0:
			t.passage.outcomes[o].decision = shadowDelayed // for how long, nobody knows
		default:
			t.refuseShadow(o, inFlight)
		}
	}
}

// refuseShadow notes that a shadow would have refused after all, and gives back
// what was poured into its bucket.
func (t *turn) refuseShadow(i int, why reason) {
	o := &t.passage.outcomes[i]
	o.decision, o.reason, o.poured = shadowRefused, why, 0
	t.passage.decide()
	t.bill.drop(i)
	isOf := func(s leakybucket.Settlement) bool { return s.Charge.Zone == o.zone.Name }
	if of := slices.IndexFunc(t.charges, isOf); of >= 0 {
		t.giveBack(t.charges[of : of+1])
		t.charges = slices.Delete(t.charges, of, of+1)
	}
}

// giveBack cancels charges. That the client has left must not keep it from that.
func (t *turn) giveBack(charges []leakybucket.Settlement) {
	if len(charges) == 0 {
		return
	}
	for i := range charges {
		charges[i].Cancel = true
	}
	if err := t.handler.app.settle(context.Background(), t.store, t.spent, charges); err != nil && !errors.Is(err, errDown) {
		t.handler.app.logger.Error("giving back what requests were charged that were not served; it stays poured", zap.Error(err))
	}
}

// end gives the slots back, once.
func (t *turn) end() {
	for i := range t.slots {
		t.slots[i].release()
	}
}

// left reports whether the client left before its turn came.
func (t *turn) left() bool { return t != nil && t.gone }

// watch sees to it that a connection that becomes a tunnel, such as a
// WebSocket's, keeps no slot: it may last for days.
func (t *turn) watch(w http.ResponseWriter, r *http.Request) http.ResponseWriter {
	connect := r.ProtoMajor >= 2 && r.Method == http.MethodConnect
	if len(t.slots) == 0 || !connect && r.Header["Upgrade"] == nil {
		return w
	}
	return &tunnelWriter{ResponseWriterWrapper: caddyhttp.ResponseWriterWrapper{ResponseWriter: w}, turn: t, connect: connect}
}

type tunnelWriter struct {
	caddyhttp.ResponseWriterWrapper
	turn    *turn
	connect bool // HTTP/2 and 3 say 200 where HTTP/1 says 101
}

// WriteHeader implements http.ResponseWriter.
func (w *tunnelWriter) WriteHeader(status int) {
	if status == http.StatusSwitchingProtocols || w.connect && status >= 200 && status < 300 {
		w.turn.end()
	}
	w.ResponseWriterWrapper.WriteHeader(status)
}

// Hijack implements http.Hijacker, for handlers that write the 101 themselves.
func (w *tunnelWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	w.turn.end()
	return http.NewResponseController(w.ResponseWriter).Hijack()
}

// byZone orders slots, so that no two requests wait for each other's.
func byZone(a, b slot) int { return strings.Compare(a.zone.Name, b.zone.Name) }

// Interface guards
var (
	_ http.ResponseWriter = (*tunnelWriter)(nil)
	_ http.Hijacker       = (*tunnelWriter)(nil)
)
