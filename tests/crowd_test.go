package tests

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"
)

// waiting returns how many requests of a zone wait.
func (c *caddy) waiting(t *testing.T, zone string) int {
	t.Helper()
	return int(c.metric(t, "caddy_throttle_waiting", `zone="`+zone+`"`))
}

// served returns how many requests of a zone hold a slot.
func (c *caddy) served(t *testing.T, zone string) int {
	t.Helper()
	return int(c.metric(t, "caddy_throttle_in_flight", `zone="`+zone+`"`))
}

var goroutineCount = regexp.MustCompile(`goroutine profile: total (\d+)`)

func (c *caddy) goroutines(t *testing.T) int {
	t.Helper()
	_, profile := c.askAdmin("GET", "/debug/pprof/goroutine?debug=1", "")
	found := goroutineCount.FindStringSubmatch(profile)
	if found == nil {
		t.Fatalf("got %.200s, want a profile of goroutines", profile)
	}
	n, err := strconv.Atoi(found[1])
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// known is how long Caddy may take to notice that a client has left.
const known = 100 * time.Millisecond

// A guest is one request of the crowd.
type guest struct {
	id, key string
	ctx     context.Context
	leave   context.CancelFunc
	left    time.Time // zero if it stayed
	answer  answer
	err     error
}

// TestOfTenThousandWaitingClientsHalfLeave: clients that stay are served in
// arrival order, requests of clients that leave never reach the upstream, and no
// state of either is left. Without TEST_LONG=1 there are a thousand clients, and
// stalls of a busy machine are forgiven.
func TestOfTenThousandWaitingClientsHalfLeave(t *testing.T) {
	keys, perKey, spacing := 200, 50, 800*time.Millisecond
	late := lateness{leave: known, turn: spacing / 2, sight: spacing / 4}
	if os.Getenv("TEST_LONG") != "1" {
		t.Parallel()
		keys, perKey, spacing = 20, 50, 100*time.Millisecond
		late = lateness{leave: 3 * time.Second, turn: 10 * spacing, sight: 2 * spacing}
	}
	port := freePort(t)
	upstream := startUpstream(t, nil)
	c := startCaddy(t, config{sites: fmt.Sprintf(`
http://:%d {
	route {
		request_header Arrived {time.now.unix_ms}
		throttle {
			zone crowd {
				key query key
				limit %d %v/s
				delay queue %d
			}
		}
		reverse_proxy %s {
			header_up Delay {http.throttle.delay}
			transport http {
				keepalive off
			}
		}
	}
}`, port, perKey, 1/spacing.Seconds(), keys*perKey, upstream.address)})
	url := fmt.Sprintf("http://127.0.0.1:%d/", port)
	newVisitor(t, "h1").get(t, url+"?key=nobody") // what starts with the first request, starts before
	before := c.goroutines(t)

	guests := inviteGuests(keys, perKey)
	visitors := make([]*visitor, (len(guests)+199)/200)
	for i := range visitors {
		visitors[i] = newVisitor(t, "h2")
		visitors[i].Timeout = 5 * time.Minute
		visitors[i].get(t, url+"?key=nobody"+strconv.Itoa(i)) // opens the connection
	}
	seenBefore := len(upstream.sightings())
	var all sync.WaitGroup
	for i, g := range guests {
		all.Go(func() { g.visit(visitors[i%len(visitors)], url) })
		if i%10 == 0 {
			time.Sleep(5 * time.Millisecond) // a stampede would say more about the scheduler
		}
	}
	eventually(t, "all to be waiting or served", func() bool {
		return c.waiting(t, "crowd")+len(upstream.sightings())-seenBefore >= len(guests)
	})
	for i, g := range leavers(guests, upstream.sightings()) {
		g.left = time.Now()
		g.leave()
		if i%10 == 0 {
			time.Sleep(5 * time.Millisecond)
		}
	}
	all.Wait()

	checkGuests(t, guests, upstream.sightings()[seenBefore:], late)
	eventually(t, "nobody to be waiting", func() bool { return c.waiting(t, "crowd") == 0 })
	if got := c.decisions(t, "crowd", "refused"); got != 0 {
		t.Errorf("got %d refused, want none", got)
	}
	for _, v := range visitors {
		v.CloseIdleConnections()
	}
	after := 0
	eventually(t, fmt.Sprintf("the %d goroutines that were there before", before), func() bool {
		after = c.goroutines(t)
		return after <= before+5
	})
	t.Logf("%d goroutines before, %d after", before, after)
}

// leavers returns half of the guests, all of them still waiting if there are
// enough.
func leavers(guests []*guest, seen []sighting) []*guest {
	served := make(map[string]bool)
	for _, s := range seen {
		served[s.id] = true
	}
	waiting := slices.DeleteFunc(slices.Clone(guests), func(g *guest) bool { return served[g.id] })
	return waiting[:min(len(waiting), len(guests)/2)]
}

// inviteGuests returns that many guests for each key, in random order.
func inviteGuests(keys, perKey int) []*guest {
	var guests []*guest
	for k := range keys {
		for n := range perKey {
			g := &guest{id: fmt.Sprintf("%d-%d", k, n), key: strconv.Itoa(k)}
			g.ctx, g.leave = context.WithCancel(context.Background())
			guests = append(guests, g)
		}
	}
	rand.Shuffle(len(guests), func(i, j int) { guests[i], guests[j] = guests[j], guests[i] })
	return guests
}

func (g *guest) visit(v *visitor, url string) {
	defer g.leave()
	req, err := http.NewRequestWithContext(g.ctx, "GET", fmt.Sprintf("%s?key=%s&id=%s", url, g.key, g.id), nil)
	if err != nil {
		g.err = err
		return
	}
	g.answer, g.err = v.do(req)
}

// lateness is how late a request may be on a busy machine.
type lateness struct {
	leave time.Duration // from leaving until that is known
	turn  time.Duration // from arriving until the turn is fixed
	sight time.Duration // from the end of the wait to the upstream
}

// checkGuests checks the answer to each guest.
func checkGuests(t *testing.T, guests []*guest, seen []sighting, forgiven lateness) {
	t.Helper()
	byID := make(map[string]*guest)
	gone := 0
	for _, g := range guests {
		byID[g.id] = g
		left := errors.Is(g.err, context.Canceled)
		switch {
		case left && !g.left.IsZero():
			gone++
		case g.err != nil || g.answer.status != 200:
			t.Errorf("%s: got %d, %v, want 200", g.id, g.answer.status, g.err)
		}
	}

	type turn struct {
		due time.Duration // since 1970
		at  time.Time
	}
	last := make(map[string]turn)
	disturbed, inversions, latest := 0, 0, time.Duration(0)
	for _, s := range seen {
		g := byID[s.id]
		if g == nil {
			t.Fatalf("got the request %q at the upstream, want one of the guests'", s.id)
		}
		if !g.left.IsZero() && errors.Is(g.err, context.Canceled) {
			disturbed++
			latest = max(latest, s.at.Sub(g.left))
		}
		arrived, err := strconv.ParseInt(s.req.Get("Arrived"), 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		delay, err := strconv.ParseFloat(s.req.Get("Delay"), 64)
		if err != nil {
			t.Fatal(err)
		}
		now := turn{time.Duration(arrived)*time.Millisecond + time.Duration(delay*float64(time.Second)), s.at}
		// After a stall of the machine, requests are passed on in quick
		// succession and may overtake each other.
		if before := last[g.key]; now.due < before.due-forgiven.turn && now.at.Sub(before.at) > forgiven.sight {
			inversions++
		}
		if now.due > last[g.key].due {
			last[g.key] = now
		}
	}
	t.Logf("%d of %d left; %d of these had reached the upstream, the latest %v after leaving", gone, len(guests), disturbed, latest)
	if latest > forgiven.leave {
		t.Errorf("got a request at the upstream %v after its client had left, want at most %v", latest, forgiven.leave)
	}
	if inversions > 0 {
		t.Errorf("got %d that overtook others of their key, want none", inversions)
	}
	if gone == 0 || gone-disturbed == 0 {
		t.Errorf("got %d who left while they waited, want some", gone-disturbed)
	}
}
