package redisstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

const (
	// One call takes no more requests than this, so that it does not keep the
	// server from others for long: each costs it some microseconds.
	mostRequests = 64

	// What arrives while a call is in flight shares the next one. A second one
	// leaves beside it when it has enough requests, so that the server need not wait while
	// we read what it has said; sooner, it would make both smaller and everybody
	// slower. Others leave when they would be full, so that a slow network does
	// not bound how many are answered.
	enough      = mostRequests / 2
	mostFlights = 4
)

// A request is what one caller asks of one script.
type request struct {
	keys []string
	args []string // two for each key

	done  chan struct{}
	reply reply // once done is closed
}

// A reply is what a script says of one request.
type reply struct {
	at   leakybucket.Instant
	line string
	err  error
}

// A lane is where requests wait that may share a call: they are for the same
// script and, in a cluster, the same slot. Nobody waits for others to come: a
// call leaves as soon as there is something to ask and nothing in flight.
type lane struct {
	script *script
	slot   uint16
}

// traffic is what waits and flies in a lane.
type traffic struct {
	waiting []*request
	flights int
}

// lanes run the requests of all callers. The zero value with call set is ready.
type lanes struct {
	// call runs a script once, for all requests in the lane.
	call func(l lane, keys, args []string) (string, error)
	// now returns what the scripts are told about the time.
	now func() string

	mu      sync.Mutex
	busy    map[lane]*traffic
	serials uint64
}

// run fills in the reply to a request, or returns an error when ctx ends before.
// Then the request was not executed if it was still waiting, and may have been
// otherwise.
func (ls *lanes) run(ctx context.Context, l lane, r *request) error {
	r.done = make(chan struct{})
	ls.mu.Lock()
	t := ls.busy[l]
	if t == nil {
		if ls.busy == nil {
			ls.busy = make(map[lane]*traffic)
		}
		t = new(traffic)
		ls.busy[l] = t
	}
	t.waiting = append(t.waiting, r)
	if n := len(t.waiting); t.flights == 0 || t.flights == 1 && n >= enough || t.flights < mostFlights && n >= mostRequests {
		t.flights++
		go ls.fly(l, t)
	}
	ls.mu.Unlock()

	select {
	case <-r.done:
		return r.reply.err
	case <-ctx.Done():
		ls.withdraw(t, r)
		return fmt.Errorf("waiting for redis: %w", ctx.Err())
	}
}

// withdraw takes back a request that nobody waits for any more, if it was not
// sent.
func (ls *lanes) withdraw(t *traffic, r *request) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if i := slices.Index(t.waiting, r); i >= 0 {
		t.waiting = slices.Delete(t.waiting, i, i+1)
	}
}

// fly makes calls until nothing waits. No caller's context ends it, since others
// share the call; the connection's timeouts do.
func (ls *lanes) fly(l lane, t *traffic) {
	var batch []*request
	var keys, args []string
	for {
		var serial string
		if batch, serial = ls.next(l, t, batch[:0]); len(batch) == 0 {
			return
		}
		keys, args = keys[:0], append(args[:0], serial, ls.now())
		for _, r := range batch {
			keys, args = append(keys, r.keys...), append(args, r.args...)
		}
		text, err := ls.call(l, keys, args)
		deliver(batch, serial, text, err)
		clear(batch)
	}
}

// next takes the requests off that share the next call. When there are none, the
// flight is over.
func (ls *lanes) next(l lane, t *traffic, batch []*request) (_ []*request, serial string) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	n := min(len(t.waiting), mostRequests)
	if n == 0 {
		if t.flights--; t.flights == 0 {
			delete(ls.busy, l)
		}
		return nil, ""
	}
	batch = append(batch, t.waiting[:n]...)
	t.waiting = slices.Delete(t.waiting, 0, n)
	ls.serials++
	return batch, strconv.FormatUint(ls.serials, 36)
}

// deliver gives each request of a call its line of the reply.
func deliver(batch []*request, serial, text string, err error) {
	lines := strings.Split(text, "\n")
	var at leakybucket.Instant
	if err == nil {
		at, err = parseHead(lines, serial, len(batch))
	}
	for i, r := range batch {
		if err != nil {
			r.reply.err = err
		} else {
			r.reply = reply{at: at, line: lines[i+1]}
		}
		close(r.done)
	}
}

// parseHead returns the instant of a reply that is one to this call.
func parseHead(lines []string, serial string, requests int) (leakybucket.Instant, error) {
	name, instant, _ := strings.Cut(lines[0], " ")
	if name != serial || len(lines) != requests+1 {
		return 0, errGarbage
	}
	at, err := strconv.ParseInt(instant, 10, 64)
	if err != nil || at <= 0 {
		return 0, errGarbage
	}
	return leakybucket.Instant(at), nil
}

// errGarbage is all that is said of a reply that cannot be one: it may hold
// anything.
var errGarbage = errors.New("the reply makes no sense: is this a Redis, and is nothing between us that changes what it says?")
