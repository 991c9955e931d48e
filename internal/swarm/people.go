package swarm

import (
	"fmt"
	"time"
)

// logIn returns members who have logged in before the trial begins, if there are any.
// The greedy one is none of them.
func (t *trial) logIn() (members []*client, err error) {
	t.began = time.Now()
	n := 0
	if t.Members > 0 {
		n = manyMembers
	}
	if t.Scraper > 0 || t.Exports > 0 {
		n++
	}
	for i := range n {
		member := &client{fmt.Sprintf("100.66.%d.%d", i/250, i%250+1), newJar()}
		if a := t.ask(t.ctx, member, fmt.Sprintf("/login.php?user=member%d", i), navigation, Patience); !a.ok() {
			return nil, fmt.Errorf("logging member %d in: got status %d, want 200", i, a.status)
		}
		members = append(members, member)
	}
	if n > manyMembers || t.Members == 0 && n > 0 {
		t.greedy, members = members[n-1], members[:n-1]
	}
	return members, nil
}

// session is the visit of a person: some pages, and thinking between them.
func (t *trial) session(d dice, isMember bool, members []*client) {
	pages := 1
	for !t.Once && d.chance(another) && pages < mostPages {
		pages++
	}
	t.mu.Lock()
	t.people++
	n := t.people
	t.mu.Unlock()
	kind := func(r *Result) *Count { return &r.First }
	visitor := &client{fmt.Sprintf("100.%d.%d.%d", 70+n/62500%50, n/250%250, n%250+1), newJar()}
	if isMember {
		kind = func(r *Result) *Count { return &r.Member }
		visitor = members[n%len(members)]
	}
	if d.chance(t.NAT) {
		kind = func(r *Result) *Count { return &r.NAT }
		visitor = &client{"100.65.0.1", visitor.jar}
	}
	counted := t.now() >= t.From && t.now() < t.To
	tally := func(change func(*Count)) {
		if counted {
			t.count(func(r *Result) { change(kind(r)) })
		}
	}
	tally(func(c *Count) { c.Sessions++; c.Wanted += pages })
	for range pages {
		if !counted && t.now() >= t.End {
			return
		}
		took, served := t.visit(d, visitor, tally)
		if !served {
			return
		}
		tally(func(c *Count) {
			c.Within10 += one(took <= 10*time.Second)
			c.Within30 += one(took <= Patience)
		})
		for range t.Fetches {
			took := d.service(t.Page / 5)
			t.all.Go(func() {
				a := t.page(t.ctx, visitor, script, perRequest, took)
				tally(func(c *Count) { c.Fetches++; c.Fetched += one(a.ok()) })
			})
		}
		if !t.sleep(d.exponential(t.Think)) {
			return
		}
	}
	tally(func(c *Count) { c.Done++ })
}

func one(is bool) int {
	if is {
		return 1
	}
	return 0
}

// visit asks for a page, again if the error page says so, and returns how long it took.
func (t *trial) visit(d dice, visitor *client, tally func(func(*Count))) (took time.Duration, served bool) {
	service, clicked := d.service(t.Page), time.Now()
	for try := 0; ; try++ {
		a := t.page(t.ctx, visitor, navigation, perRequest, service)
		tally(func(c *Count) { c.Requests++; c.Served += one(a.ok()); c.Refused += one(!a.ok()) })
		if a.ok() {
			return time.Since(clicked), true
		}
		wait := time.Duration(0)
		switch {
		case t.Once:
			return 0, false
		case a.status != 0 && (a.refresh || t.site.Reloads) && try < reloads && d.chance(obey):
			wait = a.retry
			if wait == 0 || !a.refresh {
				wait = max(wait, 5*time.Second) + time.Duration(d.Float64()*float64(5*time.Second))
			}
		case try == 0 && d.chance(comeBack):
			wait = 5*time.Second + time.Duration(d.Float64()*float64(10*time.Second))
		default:
			return 0, false
		}
		if time.Since(clicked)+wait > Patience || !t.sleep(wait) {
			return 0, false
		}
	}
}
