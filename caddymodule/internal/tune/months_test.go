package tune_test

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// A month is traffic of which its maker knows who sent it.
type month struct {
	lines []combinedLine
	who   map[string]string // by address: person, office, crawler or scraper
	rng   *rand.Rand
}

// made returns a month with its people, offices, crawlers and scrapers, and so many times the
// usual people.
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
	for s := range 1 + seed%4 {
		addr, agent, every := fmt.Sprintf("203.0.%d.9", s), []string{"python-requests/2.32", "Mozilla/5.0 Chrome/140"}[m.rng.IntN(2)], 500+m.rng.IntN(4000)
		at := m.day(m.rng.IntN(27)) + m.hours(0, 24)
		for n := range 3000 + m.rng.IntN(4000) {
			if at += time.Duration(m.rng.IntN(2*every)) * time.Millisecond; n%50 == 0 && m.rng.IntN(8) == 0 {
				at += m.hours(0, 12)
			}
			m.add(at, addr, "scraper", agent, fmt.Sprintf("/article/%d", n))
		}
	}
	slices.SortStableFunc(m.lines, func(a, b combinedLine) int { return cmp.Compare(a.at, b.at) })
	return m
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

// TestTheLimitFoundInAMonthHoldsInIt finds a limit in each of twelve months, tries its lines in
// shadow and enforces them, and counts whom they refuse by the list of the month's maker.
func TestTheLimitFoundInAMonthHoldsInIt(t *testing.T) {
	withheld, times, wrong, all := 0, 1, 0, 0
	if os.Getenv("TEST_LONG") != "" {
		times = 10
	}
	for seed := range uint64(12) {
		m := made(seed, times)
		log := writeLog(t, m.lines...)
		z := recommended(t, log).Zones[0]
		if z.Caddyfile == "" {
			withheld++
			t.Logf("month %d: no limit: %q", seed, z.Withheld)
			continue
		}
		clients, requests := make(map[string]int), make(map[string]int)
		for _, kind := range m.who {
			clients[kind]++
		}
		all += len(m.who)
		wrong += int(math.Abs(float64(z.PeopleKeys - clients["person"] - clients["office"])))
		for _, l := range m.lines {
			if !strings.HasSuffix(l.uri, ".css") {
				requests[m.who[l.addr]]++
			}
		}
		var tried [2]string
		for i, decision := range []string{"shadow_refused", "refused"} {
			lines := strings.Replace(z.Caddyfile, "exempt static_files", "exempt path "+assetPaths, 1)
			if decision == "refused" {
				lines = regexp.MustCompile(`\n\t*shadow[^\n]*`).ReplaceAllString(lines, "")
			}
			decisions := filepath.Join(t.TempDir(), "decisions.jsonl")
			ran(t, "replay", "--config", writeFile(t, "Caddyfile", ":80 {\n"+lines+"}\n"), "--requests", decisions, log)
			data, err := os.ReadFile(decisions)
			if err != nil {
				t.Fatal(err)
			}
			keys, refused := make(map[string]map[string]bool), make(map[string]int)
			for line := range strings.Lines(string(data)) {
				var d struct{ Key, Decision string }
				if err := json.Unmarshal([]byte(line), &d); err != nil {
					t.Fatal(err)
				}
				if kind := m.who[d.Key]; d.Decision == decision {
					refused[kind]++
					if keys[kind] == nil {
						keys[kind] = make(map[string]bool)
					}
					keys[kind][d.Key] = true
				}
			}
			if n, all := len(keys["person"])+len(keys["office"]), clients["person"]+clients["office"]; n > all/1000 {
				t.Errorf("month %d, %s: got %d of %d people refused, want at most one in 1,000", seed, decision, n, all)
			}
			if n := len(keys["crawler"]); n > 0 {
				t.Errorf("month %d, %s: got %d crawlers refused, want none", seed, decision, n)
			}
			if n, all := refused["scraper"], requests["scraper"]; n < all*6/10 {
				t.Errorf("month %d, %s: got %d of %d requests of scrapers refused, want most of them", seed, decision, n, all)
			}
			tried[i] = fmt.Sprintf("people refused %d of %d, offices %d of %d, scrapers %d of %d, their requests %d of %d", len(keys["person"]), clients["person"],
				len(keys["office"]), clients["office"], len(keys["scraper"]), clients["scraper"], refused["scraper"], requests["scraper"])
		}
		if tried[0] != tried[1] {
			t.Errorf("month %d: got in shadow %s, and enforced %s", seed, tried[0], tried[1])
		}
		best := z.Units.Best()
		t.Logf("month %d: limit %v %s: %s", seed, best.Capacity, best.Leak, tried[1])
	}
	t.Logf("%d of %d clients taken for what they are not", wrong, all)
	if wrong*100 > all {
		t.Errorf("got %d of %d clients taken for what they are not, want one in 100 at most", wrong, all)
	}
	if withheld > 1 {
		t.Errorf("got no limit in %d of 12 months, want one in most", withheld)
	}
}
