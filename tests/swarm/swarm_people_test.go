package swarm

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/internal/swarm"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/servertest"
	"github.com/caddy-throttle/caddy-throttle/tests/internal/system"
)

// turns are the options of in_flight in docs/under-a-swarm.md, for a site of WordPress.
const turnsOptions = "exempt static_files\nshare\nrank member issued wordpress_logged_in_*"

// What the rows of the table are called.
const (
	turnsName = "share and ranks"
	reloading = ", page reloads"
)

func turns() holder { return caddyBefore(turnsName, swarmWorkers, turnsOptions) }

// with returns a traffic with one more change.
func (o onslaught) with(name string, change func(*swarm.Scenario)) onslaught {
	return onslaught{name, func(s *swarm.Scenario) { o.change(s); change(s) }}
}

func onslaughtOf(times float64, name string) onslaught {
	return onslaught{fmt.Sprintf("x%g, %s", times, name), swarmOf(times)}
}

// pool lets the robots be so many, of which a share keeps cookies.
func pool(robots, addresses int, cookies float64) func(*swarm.Scenario) {
	return func(s *swarm.Scenario) { s.Pool, s.Addresses, s.Cookies = robots, addresses, cookies }
}

func freshSwarm(times float64) onslaught { return onslaughtOf(times, "fresh addresses") }

// A demand is the least share that must be served, if it is above zero, and the most
// that may be wasted.
type demand struct{ members, first, nat, fetches, sessions, utilisation, wasted float64 }

// swarmTrial is a row of the table.
type swarmTrial struct {
	onslaught
	slots int // swarmWorkers if zero
	demand
	short bool // tried in every run
}

func swarmTrials() []swarmTrial {
	one := func(s *swarm.Scenario) { pool(2000, 1, 1)(s) }
	trials := []swarmTrial{
		{onslaught: freshSwarm(1), demand: demand{members: 0.99, first: 0.98}},
		{onslaught: freshSwarm(2), demand: demand{members: 0.99, first: 0.95, utilisation: 0.90}},
		{onslaught: freshSwarm(10), demand: demand{members: 0.99, first: 0.95, utilisation: 0.90}, short: true},
		{onslaught: onslaughtOf(10, "").with("x10, 2,000 passes minted by one address", one), demand: demand{first: 0.93}, short: true},
		{onslaught: onslaughtOf(10, "").with("x10, one pass shared by 2,000 addresses", func(s *swarm.Scenario) {
			pool(2000, 0, 1)(s)
			s.SharedPass = true
		}), demand: demand{first: 0.93}, short: true},
		{onslaught: onslaughtOf(10, "").with("x10, 10 % of 2,000 robots have farmed passes", func(s *swarm.Scenario) {
			pool(2000, 0, 0.1)(s)
			s.Farmed = true
		}), demand: demand{first: 0.93}},
		{onslaught: onslaughtOf(10, "").with("x10, 10 % of 2,000 robots keep cookies", pool(2000, 0, 0.1)), demand: demand{first: 0.90}},
		{onslaught: onslaughtOf(2, "").with("x2, 50 % of 2,000 robots keep cookies", pool(2000, 0, 0.5)), demand: demand{first: 0.94}},
		{onslaught: onslaughtOf(10, "").with("x10, 200 robots keep cookies", pool(200, 0, 1)), demand: demand{first: 0.68}},
		{onslaught: onslaughtOf(10, "").with("x10, 2,000 robots keep cookies", pool(2000, 0, 1))}, // the limit of it all
		{onslaught: onslaughtOf(2, "").with("x2, five exports of a minute by a member", func(s *swarm.Scenario) {
			s.Exports, s.Export = 5, time.Minute
		}), demand: demand{members: 0.98, first: 0.93}},
		{onslaught: onslaughtOf(2, "").with("x2, a logged-in scraper", func(s *swarm.Scenario) { s.Scraper = 10 }), demand: demand{members: 0.98, first: 0.70}},
		{onslaught: onslaughtOf(2, "").with("x2, pages of eight requests", func(s *swarm.Scenario) { s.Fetches = 7 }), demand: demand{fetches: 0.92}},
		{
			onslaught: onslaught{"x2, people only", func(s *swarm.Scenario) { s.Flash = 1.7 * float64(s.Workers) }},
			demand:    demand{sessions: 0.48, wasted: 0.03},
		},
		{onslaught: onslaughtOf(2, "").with("x2, 30 % on one NAT, half of the robots keep cookies", func(s *swarm.Scenario) {
			pool(2000, 0, 0.5)(s)
			s.NAT = 0.3
		}), demand: demand{nat: 0.82}},
	}
	for _, slots := range []int{2, 3, 10, 20} {
		trials = append(trials, swarmTrial{
			onslaught: onslaughtOf(10, fmt.Sprintf("in_flight %d", slots)),
			slots:     slots, demand: demand{first: 0.93},
		})
	}
	return trials
}

// TestPeopleGetInUnderASwarm tries the rows of the table in bench/README.md. The
// long form makes the demands of the page. The short form tries some rows all at once
// for less than a minute, and demands only that people get in much better than when they
// are served in the order of arrival: the machine may be busy.
func TestPeopleGetInUnderASwarm(t *testing.T) {
	if !system.Long() {
		t.Parallel()
		tryInShort(t)
		return
	}
	form := longSwarm(t)
	for _, trial := range swarmTrials() {
		t.Run(trial.name, func(t *testing.T) {
			t.Parallel()
			row := form.try(t, trial.onslaught, turnsName, func(t *testing.T) swarm.Site {
				site, _ := startSwarmCaddy(t, cmp.Or(trial.slots, swarmWorkers), turnsOptions)
				return site
			})
			for _, d := range trial.of(row) {
				check.That(t, d.met(), "%s: got %s %%, want %.0f %%", d.what, swarm.Percent(d.got), 100*d.want)
			}
		})
	}
}

// A demanded share is one thing that a row is held to.
type demanded struct {
	what      string
	got, want float64
	sessions  int  // that were counted; zero if it is no share of them
	most      bool // not the least
}

// met allows for chance: two standard errors of a share of so many sessions.
func (d demanded) met() bool {
	chance := 0.
	if d.sessions > 0 {
		chance = 2 * math.Sqrt(d.want*(1-d.want)/float64(d.sessions))
	}
	if d.most {
		return d.got <= d.want
	}
	return d.got >= d.want-chance
}

// of returns what is demanded of a row.
func (d demand) of(row *swarm.Row) (all []demanded) {
	for _, one := range []demanded{
		{"members", row.Member.Share(), d.members, row.Member.Sessions, false},
		{"new visitors", row.First.Share(), d.first, row.First.Sessions, false},
		{"people on the NAT", row.NAT.Share(), d.nat, row.NAT.Sessions, false},
		{"further requests", row.First.FetchShare(), d.fetches, row.First.Sessions, false},
		{"whole sessions", row.First.Completed(), d.sessions, row.First.Sessions, false},
		{"workers used", row.Utilised(), d.utilisation, 0, false},
		{"wasted work", row.Waste(), d.wasted, 0, true},
	} {
		if one.want > 0 {
			all = append(all, one)
		}
	}
	return all
}

// What the short form demands: so much more than in the order of arrival, unless many
// get in anyway because a busy machine sends too few robots.
const (
	muchBetter = 0.15
	goodEnough = 0.6
)

const (
	// enoughTime is how busy the workers must be for the short form to demand anything. On
	// a starved machine they are not.
	enoughTime = 0.6

	// shortTrial is how long the short form may take at most.
	shortTrial = 46 * time.Second
)

// tryInShort starts all sites before the first trial.
func tryInShort(t *testing.T) {
	type shortRow struct {
		onslaught
		swarm.Row
		site swarm.Site
		err  error
	}
	add := func(h holder, what onslaught) *shortRow {
		return &shortRow{onslaught: what, Row: swarm.Row{Traffic: what.name, Site: h.name, Trials: 1}, site: h.start(t)}
	}
	fifo := add(caddyBefore("first come, first served", swarmWorkers, fifoOptions), freshSwarm(10))
	rows := []*shortRow{fifo}
	for _, trial := range swarmTrials() {
		if trial.short {
			rows = append(rows, add(turns(), trial.onslaught))
		}
	}
	ctx, end := context.WithTimeout(t.Context(), shortTrial)
	defer end()
	var all sync.WaitGroup
	for _, row := range rows {
		all.Go(func() {
			s := scenario(1)
			row.change(&s)
			row.Lasted = s.End
			row.Result, row.err = swarm.Run(ctx, row.site, s)
		})
	}
	all.Wait()
	for _, row := range rows {
		switch {
		case row.Result == nil && ctx.Err() != nil:
			t.Logf("the machine is starved, and nothing is demanded: the members did not log in within %v", shortTrial)
			return
		case row.err != nil && ctx.Err() == nil:
			t.Fatalf("%s: %v", row.Traffic, row.err)
		}
		t.Logf("\n%s", swarm.Table([]swarm.Row{row.Row})) // what is cut short counts as not served
	}
	for _, row := range rows[1:] {
		if got := min(fifo.Utilisation, row.Utilisation); got < enoughTime {
			t.Logf("the machine is starved, and nothing is demanded of %s: the workers were busy for %.0f %% of the time, want %.0f %%", row.Traffic, 100*got, 100*enoughTime)
			continue
		}
		for who, shares := range map[string][2]float64{
			"newcomers": {row.First.Share(), fifo.First.Share()}, "members": {row.Member.Share(), fifo.Member.Share()},
		} {
			if got, other := shares[0], shares[1]; got < min(other+muchBetter, goodEnough) {
				t.Errorf("%s: %.0f %% of the pages of %s were served, and %.0f %% in the order of arrival", row.Traffic, 100*got, who, 100*other)
			}
		}
	}
}

// TestNoSlotIsLostUnderASwarm: while robots and people come, clients hang up, the config
// is loaded again with other numbers, and a handler fails. Then all slots are free, and
// as many pages as there are workers are served at once.
func TestNoSlotIsLostUnderASwarm(t *testing.T) {
	t.Parallel()
	root, socket := startSwarmPHP(t)
	port := servertest.FreePort(t)
	site := func(slots int) system.Config {
		return system.Config{Servers: "trusted_proxies static 127.0.0.0/8", Sites: fmt.Sprintf(`http://:%d {
	root * %s
	route {
		in_flight php %d {
			share
			rank member issued wordpress_logged_in_*
		}
		error /broken 500
		abort /panics
		php_fastcgi unix/%s
	}
}`, port, root, slots, socket)}
	}
	running := system.StartCaddy(t, site(swarmWorkers))
	url := fmt.Sprintf("http://127.0.0.1:%d", port)

	ctx, end := context.WithCancel(t.Context())
	var all sync.WaitGroup
	all.Go(func() {
		s := scenario(1)
		swarmOf(4)(&s)
		s.Members = 0 // a login may be lost by a reload
		s.From, s.To, s.End = 0, 6*time.Second, 6*time.Second
		if _, err := swarm.Run(ctx, swarm.Site{URL: url}, s); err != nil && ctx.Err() == nil {
			t.Error(err)
		}
	})
	v := system.NewVisitor(t, "h1")
	for i := range 3 {
		for j := range 30 {
			all.Go(func() {
				impatient, leave := context.WithTimeout(ctx, time.Duration(20*j)*time.Millisecond)
				defer leave()
				path := "/page.php?ms=400"
				switch j % 5 {
				case 0:
					path = "/broken"
				case 1:
					path = "/panics" // which is how Caddy hangs up
				}
				r, err := http.NewRequestWithContext(impatient, http.MethodGet, url+path, nil)
				if err != nil {
					t.Error(err)
					return
				}
				r.Header.Set("X-Forwarded-For", fmt.Sprintf("103.0.%d.%d", i, j))
				if response, err := v.Do(r); err == nil {
					response.Body.Close()
				}
			})
		}
		status, message := running.Load(site(swarmWorkers - 1 - i%2).Caddyfile(running.Admin))
		check.Assume(t, status == 200, "reloading: got %d: %s", status, message)
	}
	time.Sleep(2 * time.Second) // of the swarm, after the last reload
	status, message := running.Load(site(swarmWorkers).Caddyfile(running.Admin))
	check.Assume(t, status == 200, "reloading: got %d: %s", status, message)
	end()
	all.Wait()
	system.Eventually(t, "all slots to be free", func() bool { return running.Served(t, "php") == 0 })
	for range system.Stalls {
		answers, served := make(chan system.Answer, swarmWorkers), 0
		for i := range swarmWorkers {
			system.NewVisitorFrom(t, "h1", fmt.Sprintf("127.9.9.%d", i+1)).Ask(url+"/page.php?ms=3000", answers)
		}
		for range swarmWorkers {
			if a := <-answers; a.Status == http.StatusOK {
				served++
			}
		}
		system.Eventually(t, "all slots to be free", func() bool { return running.Served(t, "php") == 0 })
		if served == swarmWorkers {
			return
		}
		t.Logf("once more, after %d pages of %d", served, swarmWorkers) // a reload may still close connections
	}
	t.Error("not all slots serve pages")
}
