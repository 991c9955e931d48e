package tests

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
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

// A guest is one request of the crowd.
type guest struct {
	id, key string
	ctx     context.Context
	leave   context.CancelFunc
	left    time.Time // zero if it stayed
	answer  answer
	err     error
}

// patientKey is a key whose second request would wait for an hour.
const patientKey = "patient"

// TestOfTenThousandWaitingClientsHalfLeave: clients that stay are served one after the
// other, requests of clients that leave never reach the upstream, and no state of either is
// left. Without TEST_LONG=1 there are a thousand clients, and nothing is asserted that a
// stall of the machine could change: neither who overtakes whom between Caddy and the
// upstream, nor how soon Caddy learns that a client has left.
func TestOfTenThousandWaitingClientsHalfLeave(t *testing.T) {
	keys, perKey, spacing := 200, 50, 800*time.Millisecond
	if !long() {
		t.Parallel()
		keys, spacing = 20, 100*time.Millisecond
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
				override %s %d 1/h
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
}`, port, perKey, 1/spacing.Seconds(), patientKey, perKey, (keys+1)*perKey, upstream.address)})
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

	seen := upstream.sightings()[seenBefore:]
	checkGuests(t, guests, seen)
	checkTurns(t, guests, seen, spacing)
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

// leavers returns half of the guests, of those who are still waiting. All of the patient key
// are among them.
func leavers(guests []*guest, seen []sighting) []*guest {
	served := make(map[string]bool)
	for _, s := range seen {
		served[s.id] = true
	}
	waiting := slices.DeleteFunc(slices.Clone(guests), func(g *guest) bool { return served[g.id] })
	slices.SortStableFunc(waiting, func(a, b *guest) int {
		return cmp.Compare(strings.Index(b.key, patientKey), strings.Index(a.key, patientKey))
	})
	return waiting[:min(len(waiting), len(guests)/2)]
}

// inviteGuests returns that many guests for each key, and as many of the patient key, in
// random order.
func inviteGuests(keys, perKey int) []*guest {
	var guests []*guest
	for k := range keys + 1 {
		key := strconv.Itoa(k)
		if k == keys {
			key = patientKey
		}
		for n := range perKey {
			g := &guest{id: fmt.Sprintf("%s-%d", key, n), key: key}
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

// hasLeft reports whether it left before it was answered.
func (g *guest) hasLeft() bool { return !g.left.IsZero() && errors.Is(g.err, context.Canceled) }

// checkGuests checks that all who stayed were served, and that who left while it waited was not.
func checkGuests(t *testing.T, guests []*guest, seen []sighting) {
	t.Helper()
	byID := make(map[string]*guest)
	gone := 0
	for _, g := range guests {
		byID[g.id] = g
		switch {
		case g.hasLeft():
			gone++
		case g.err != nil || g.answer.status != 200:
			t.Errorf("%s: got %d, %v, want 200", g.id, g.answer.status, g.err)
		}
	}
	disturbed, patient, latest := 0, 0, time.Duration(0)
	for _, s := range seen {
		g := byID[s.id]
		if g == nil {
			t.Fatalf("got the request %q at the upstream, want one of the guests'", s.id)
		}
		if g.key == patientKey {
			patient++
		}
		if g.hasLeft() {
			disturbed++
			latest = max(latest, s.at.Sub(g.left))
		}
	}
	t.Logf("%d of %d left; %d of these had reached the upstream, the latest %v after leaving", gone, len(guests), disturbed, latest)
	if patient > 1 {
		t.Errorf("got %d at the upstream of whom all but one left, want 1", patient)
	}
	if gone <= disturbed {
		t.Errorf("got %d who left while they waited, want some", gone-disturbed)
	}
	if long() && latest > known {
		t.Errorf("got a request at the upstream %v after its client had left, want at most %v", latest, known)
	}
}

// checkTurns checks that the requests of one key reached the upstream in turns: none before
// the end of its wait, and together no faster than the limit allows, however late each may be.
// With TEST_LONG=1 none overtakes another either.
func checkTurns(t *testing.T, guests []*guest, seen []sighting, spacing time.Duration) {
	t.Helper()
	keys := make(map[string]string)
	for _, g := range guests {
		keys[g.id] = g.key
	}
	type turn struct{ arrived, due, at time.Time }
	turns := make(map[string][]turn)
	for _, s := range seen {
		if keys[s.id] == patientKey {
			continue
		}
		arrived, err := strconv.ParseInt(s.req.Get("Arrived"), 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		delay, err := strconv.ParseFloat(s.req.Get("Delay"), 64)
		if err != nil {
			t.Fatal(err)
		}
		next := turn{arrived: time.UnixMilli(arrived), at: s.at}
		next.due = next.arrived.Add(time.Duration(delay * float64(time.Second)))
		turns[keys[s.id]] = append(turns[keys[s.id]], next)
	}
	early, fast, inversions := 0, 0, 0
	for _, of := range turns {
		slices.SortFunc(of, func(a, b turn) int { return a.at.Compare(b.at) })
		first := slices.MinFunc(of, func(a, b turn) int { return a.arrived.Compare(b.arrived) }).arrived
		last := turn{}
		for n, this := range of {
			const rounding = time.Millisecond
			if this.at.Before(this.due.Add(-rounding)) {
				early++
			}
			if this.at.Before(first.Add(time.Duration(n)*spacing - rounding)) {
				fast++
			}
			// After a stall of the machine, requests are passed on in quick succession and may
			// overtake each other.
			if this.due.Before(last.due.Add(-spacing/2)) && this.at.Sub(last.at) > spacing/4 {
				inversions++
			}
			if this.due.After(last.due) {
				last = this
			}
		}
	}
	if early > 0 || fast > 0 {
		t.Errorf("got %d before the end of their wait and %d faster than the limit allows, want none", early, fast)
	}
	if long() && inversions > 0 {
		t.Errorf("got %d that overtook others of their key, want none", inversions)
	}
}
