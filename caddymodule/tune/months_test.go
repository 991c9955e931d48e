package tune_test

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/tune/internal/accesslog"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/tune/internal/clients"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

// A month is traffic of which its maker knows who sent it.
type month struct {
	lines []combinedLine
	who   map[string]string // by address: person, office, crawler or scraper
	rng   *rand.Rand
}

// made returns a month with its people, offices, crawlers and scrapers, and so many times the
// usual people and scrapers.
func made(seed uint64, times int) *month {
	m := &month{who: make(map[string]string), rng: rand.New(rand.NewPCG(seed, 24))}
	for p := range times * (120 + int(seed%5)*40) {
		addr := fmt.Sprintf("%d.%d.%d.%d", 80+p%7, m.rng.IntN(250), m.rng.IntN(250), 1+p%250)
		for range 1 + m.rng.IntN(5) {
			m.visit(addr, "person", agentOf(p), m.day(m.rng.IntN(28))+m.hours(8, 23), 1+int(m.rng.ExpFloat64()*6))
		}
	}
	for o := range 1 + seed%3 {
		for staff := range 15 + m.rng.IntN(30) {
			for day := range 28 {
				if day%7 < 5 && m.rng.IntN(3) == 0 { // mostly in the first minutes of the day
					m.visit(fmt.Sprintf("198.51.%d.7", o), "office", agentOf(staff), m.day(day)+9*time.Hour+time.Duration(m.rng.ExpFloat64()*float64(20*time.Minute)), 1+m.rng.IntN(8))
				}
			}
		}
	}
	for n := range 3000 {
		at := m.day(0) + time.Duration(n)*13*time.Minute + m.hours(0, 1)/6
		m.add(at, fmt.Sprintf("66.249.66.%d", 1+n%2), "crawler", "Mozilla/5.0 (compatible; Googlebot/2.1; +http://www.google.com/bot.html)", fmt.Sprintf("/article/%d", m.rng.IntN(5000)))
	}
	for s := range uint64(times) * (1 + seed%4) {
		addr, agent, every := fmt.Sprintf("203.0.%d.9", s), []string{"python-requests/2.32", "Mozilla/5.0 Chrome/140"}[m.rng.IntN(2)], 500+m.rng.IntN(4000)
		at := m.day(m.rng.IntN(27)) + m.hours(0, 24)
		for n := range 3000 + m.rng.IntN(4000) {
			if at += time.Duration(m.rng.IntN(2*every)) * time.Millisecond; n%50 == 0 && m.rng.IntN(8) == 0 {
				at += m.hours(0, 12)
			}
			m.add(at, addr, "scraper", agent, fmt.Sprintf("/article/%d", n))
		}
	}
	sites[seed%uint64(len(sites))].add(m, times)
	slices.SortStableFunc(m.lines, func(a, b combinedLine) int { return cmp.Compare(a.at, b.at) })
	return m
}

// sites are what sets one month apart from the others, and how many of the requests of scrapers
// must be refused there, in tenths. Two months have each. Where people ask as fast as slow
// scrapers, these are spared, too.
var sites = []struct {
	name    string
	stopped int
	add     func(m *month, times int)
}{
	{"a school behind one address", 4, func(m *month, _ int) {
		for day := range 28 {
			for lesson := range 5 * max(0, min(1, 5-day%7)) { // a class opens the site at once
				for pupil := range 25 {
					m.visit("198.51.100.77", "office", agentOf(pupil), m.day(day)+time.Duration(8+lesson)*time.Hour+m.hours(0, 0.1), 2+m.rng.IntN(4))
				}
			}
		}
	}},
	{"a shop whose pages ask again and again", 1, func(m *month, times int) {
		for p := range times * 80 {
			addr, at := fmt.Sprintf("92.0.%d.%d", p/250, 1+p%250), m.day(m.rng.IntN(28))+m.hours(8, 23)
			m.visit(addr, "person", agentOf(p), at, 8)
			for n := range 40 + m.rng.IntN(80) { // a cart and a search field
				m.add(at+time.Duration(n)*1500*time.Millisecond, addr, "person", agentOf(p), fmt.Sprintf("/cart?ajax=%d", n))
			}
		}
	}},
	{"clients of an API", 6, func(m *month, times int) {
		for p := range times * 15 {
			for n := range 28 * 24 * 4 {
				m.add(m.day(0)+time.Duration(n)*15*time.Minute+m.hours(0, 0.1), fmt.Sprintf("93.0.0.%d", 1+p%250), "program", "okhttp/4.12.0", "/api/orders")
			}
		}
	}},
	{"news, with a peak", 6, func(m *month, times int) {
		for p := range times * 300 {
			m.visit(fmt.Sprintf("94.%d.%d.%d", p%7, p%240, 1+p%250), "person", agentOf(p), m.day(12)+20*time.Hour+time.Duration(m.rng.ExpFloat64()*float64(10*time.Minute)), 1+m.rng.IntN(4))
		}
	}},
	{"a scraper at night, with a browser that loads everything", 6, func(m *month, _ int) {
		for day := range 28 {
			for n := range 300 {
				at := m.day(day) + time.Hour + time.Duration(n)*45*time.Second
				m.add(at, "203.0.99.9", "browser", "Mozilla/5.0 Chrome/140", fmt.Sprintf("/article/%d", day*300+n))
				m.add(at, "203.0.99.9", "browser", "Mozilla/5.0 Chrome/140", fmt.Sprintf("/theme/%d.css", n%4))
			}
		}
	}},
	{"a slow swarm", 6, func(m *month, times int) {
		for n := range times * 12_000 {
			m.add(m.day(0)+m.hours(0, 28*24), fmt.Sprintf("45.%d.%d.%d", n%3, n%1500/250, 1+n%250), "swarm", "Mozilla/5.0 Chrome/139", fmt.Sprintf("/article/%d", n))
		}
	}},
}

// misjudged counts the people who do not look like people, and the others who do.
func (m *month) misjudged(t *testing.T, log string) (people, others int) {
	in := check.Must(accesslog.Open([]string{log}, accesslog.Options{}))(t)
	defer in.Close()
	var known clients.Log
	by := known.By(32, 64)
	for r, err := range in.Requests {
		check.OK(t, err)
		known.Add(r)
	}
	for addr, who := range m.who {
		robot := by.Of(netip.MustParseAddr(addr)).People() == 0
		switch person := who == "person" || who == "office"; {
		case person && robot:
			people++
		case !person && !robot:
			others++
		}
	}
	return people, others
}

func agentOf(n int) string { return fmt.Sprintf("Mozilla/5.0 (X11) Firefox/%d", 120+n%23) }

// day returns the midnight of a day of the month before all logs here.
func (m *month) day(n int) time.Duration { return time.Duration(n-28)*24*time.Hour - 8*time.Hour }

func (m *month) hours(from, to float64) time.Duration {
	return time.Duration((from + (to-from)*m.rng.Float64()) * float64(time.Hour))
}

func (m *month) add(at time.Duration, addr, kind, agent, uri string) {
	m.who[addr] = kind
	m.lines = append(m.lines, combinedLine{at, addr, "GET", uri, agent})
}

// visit has somebody read pages, now and then several at once in tabs.
func (m *month) visit(addr, kind, agent string, at time.Duration, pages int) {
	for page := range pages {
		m.add(at, addr, kind, agent, fmt.Sprintf("/article/%d", m.rng.IntN(5000)))
		for asset := range max(1, 4-page) {
			m.add(at+time.Duration(asset)*200*time.Millisecond, addr, kind, agent, fmt.Sprintf("/theme/%d.css", asset))
		}
		if m.rng.IntN(6) > 0 {
			at += 2*time.Second + time.Duration(m.rng.ExpFloat64()*float64(25*time.Second))
		}
	}
}

// TestTheLimitFoundInAMonthHoldsInIt finds a limit in each of six months, or two with -short and
// twelve with TEST_LONG, tries its lines in shadow and enforces them, and counts whom they refuse by the list of the
// month's maker.
func TestTheLimitFoundInAMonthHoldsInIt(t *testing.T) {
	withheld, times, months := 0, 1, uint64(6)
	var people, others, wrongPeople, wrongOthers int
	if os.Getenv("TEST_LONG") != "" {
		times, months = 10, 12
	}
	for seed := check.OrShort[uint64](0, 1); seed < months; seed += check.OrShort[uint64](1, 3) {
		m := made(seed, times)
		log := writeLog(t, m.lines...)
		site := sites[seed%uint64(len(sites))]
		p, o := m.misjudged(t, log)
		wrongPeople, wrongOthers = wrongPeople+p, wrongOthers+o
		for _, kind := range m.who {
			if kind == "person" || kind == "office" {
				people++
			} else {
				others++
			}
		}
		z := recommended(t, log).Zones[0]
		if z.Caddyfile == "" {
			withheld++
			t.Logf("month %d, %s: no limit: %q", seed, site.name, z.Withheld)
			continue
		}
		clients, requests := make(map[string]int), make(map[string]int)
		for _, kind := range m.who {
			clients[kind]++
		}
		for _, l := range m.lines {
			if !strings.HasSuffix(l.uri, ".css") {
				requests[m.who[l.addr]]++
			}
		}
		var tried [2]string
		for i, decision := range []string{"shadow_refused", "refused"} {
			lines := strings.Replace(z.Caddyfile, "exempt static_files", "exempt path *.css", 1)
			if decision == "refused" {
				lines = regexp.MustCompile(`\n\t*shadow[^\n]*`).ReplaceAllString(lines, "")
			}
			decisions := filepath.Join(t.TempDir(), "decisions.jsonl")
			ran(t, "replay", "--config", writeFile(t, "Caddyfile", ":80 {\n"+lines+"}\n"), "--requests", decisions, log)
			data := check.Must(os.ReadFile(decisions))(t)
			keys, refused := make(map[string]map[string]bool), make(map[string]int)
			for line := range strings.Lines(string(data)) {
				var d struct{ Key, Decision string }
				check.OK(t, json.Unmarshal([]byte(line), &d))
				if kind := m.who[d.Key]; d.Decision == decision {
					refused[kind]++
					if keys[kind] == nil {
						keys[kind] = make(map[string]bool)
					}
					keys[kind][d.Key] = true
				}
			}
			n, all := len(keys["person"])+len(keys["office"]), clients["person"]+clients["office"]
			check.That(t, n <= all/1000, "month %d, %s: got %d of %d people refused, want at most one in 1,000", seed, decision, n, all)
			n = len(keys["crawler"])
			check.That(t, n <= 0, "month %d, %s: got %d crawlers refused, want none", seed, decision, n)
			n, all = refused["scraper"], requests["scraper"]
			check.That(t, n >= all*site.stopped/10, "month %d, %s: got %d of %d requests of scrapers refused, want %d tenths of them", seed, decision, n, all, site.stopped)
			tried[i] = fmt.Sprintf("people refused %d of %d, offices %d of %d, scrapers %d of %d, their requests %d of %d", len(keys["person"]), clients["person"],
				len(keys["office"]), clients["office"], len(keys["scraper"]), clients["scraper"], refused["scraper"], requests["scraper"])
		}
		if tried[0] != tried[1] {
			t.Errorf("month %d: got in shadow %s, and enforced %s", seed, tried[0], tried[1])
		}
		best := z.Units.Best()
		t.Logf("month %d, %s: limit %v %s: %s", seed, site.name, best.Capacity, best.Leak, tried[1])
	}
	t.Logf("%d of %d people were taken for robots, and %d of %d others for people", wrongPeople, people, wrongOthers, others)
	if wrongPeople*100 > max(people, 100) || wrongOthers*100 > max(others, 100) { // in two months are few others
		t.Errorf("got %d of %d people and %d of %d others taken for what they are not, want one in 100 at most, or one", wrongPeople, people, wrongOthers, others)
	}
	check.That(t, withheld <= 1, "got no limit in %d months, want one in most", withheld)
}
