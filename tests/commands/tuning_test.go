package commands

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/servertest"
	"github.com/caddy-throttle/caddy-throttle/tests/internal/chromium"
	"github.com/caddy-throttle/caddy-throttle/tests/internal/system"
)

// TestABrowserReportsThatAShadowZoneWouldHaveRefusedItsPage has a person at a PHP page
// and a robot that runs no script.
func TestABrowserReportsThatAShadowZoneWouldHaveRefusedItsPage(t *testing.T) {
	t.Parallel()
	browser := chromium.StartBrowser(t)
	s := system.PHPSite(t)
	port := servertest.FreePort(t)
	c := system.StartCaddy(t, system.Config{Sites: fmt.Sprintf(`
http://:%d {
	throttle_seen /throttle-seen
	throttle {
		zone pages {
			limit 2 1/d
			shadow server_timing
		}
	}
	%s
}`, port, s.Directives)})
	url := fmt.Sprintf("http://127.0.0.1:%d/tuned.php", port)
	people := func() int { return int(c.Metric(t, "caddy_throttle_refused_people_total", `zone="pages"`)) }

	robot := system.NewVisitor(t, "h1")
	for range 10 {
		check.Need(t, robot.Get(t, url).Status, 200, "want 200 from a zone in shadow")
	}
	b := chromium.NewTab(t, browser, "en", "light", chromium.Desktop, 800)
	for n, want := range []string{"marks:", "marks:", "marks: pages", "marks: pages"} {
		b.Open(fmt.Sprintf("%s?n=%d", url, n))
		system.Eventually(t, want, func() bool { return chromium.Eval[string](b, "document.title") == want })
	}
	system.Eventually(t, "one person in the metric", func() bool { return people() == 1 })
	check.Equal(t, int(c.Metric(t, "caddy_throttle_refused_keys", `zone="pages"`)), 2, "refused keys, want the person's and the robot's")
	// The robot was marked last a while ago, and may send one report for itself.
	for range 5 {
		robot.Send(t, "POST", fmt.Sprintf("http://127.0.0.1:%d/throttle-seen", port))
	}
	check.Equal(t, people(), 1, "people after reports that name no zone")
}

// recommendation is what tests read of `caddy throttle recommend --json`.
type recommendation struct {
	Zones []struct {
		Keys      int
		Caddyfile string
		Limit     struct {
			Recommended int
			Points      []struct {
				Leak            string
				Capacity        float64
				RefusedKeys     int     `json:"refused_keys"`
				RefusedRequests int     `json:"refused_requests"`
				RefusedLoad     float64 `json:"refused_load_share"`
			}
		}
	}
}

func throttleCommand(t *testing.T, args ...string) string {
	t.Helper()
	cmd := system.CaddyCommand(t, append([]string{"throttle"}, args...)...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	check.Assume(t, err == nil, "caddy throttle %v: %v\n%s", args, err, stderr.String())
	return string(out)
}

// visitSite sends what people and scrapers send, and returns how many requests of each
// were refused.
func visitSite(t *testing.T, site string, people, scrapers []*system.Visitor) (peopleRefused, scrapersRefused int64) {
	var all sync.WaitGroup
	var refused [2]atomic.Int64
	get := func(v *system.Visitor, kind int, path string) {
		a, err := v.Try("GET", site+path)
		switch {
		case err != nil:
			t.Errorf("%s: %v", path, err)
		case a.Status == 429:
			refused[kind].Add(1)
		case a.Status != 200:
			t.Errorf("%s: got %d, want 200 or 429", path, a.Status)
		}
	}
	for i, v := range people {
		all.Go(func() {
			for page := range 1 + i%3 {
				get(v, 0, fmt.Sprintf("/?page=%d", page))
				for n := range 6 {
					get(v, 0, fmt.Sprintf("/assets/style.css?n=%d", n))
				}
				time.Sleep(300 * time.Millisecond) // they read
			}
		})
	}
	for _, v := range scrapers {
		all.Go(func() {
			for n := range 150 {
				get(v, 1, fmt.Sprintf("/?article=%d", n))
			}
		})
	}
	all.Wait()
	return refused[0].Load(), refused[1].Load()
}

// TestWhatIsRecommendedFromItsOwnLogRefusesScrapersAndNobodyElse runs a PHP site in
// shadow, recommends a limit from its access log, and enforces that.
func TestWhatIsRecommendedFromItsOwnLogRefusesScrapersAndNobodyElse(t *testing.T) {
	t.Parallel()
	s := system.PHPSite(t)
	port, file := servertest.FreePort(t), filepath.Join(t.TempDir(), "access.log")
	site := func(throttle string) system.Config {
		return system.Config{Sites: fmt.Sprintf(`
http://:%d {
	log {
		output file %s
	}
	%s
	%s
}`, port, file, s.Directives, throttle)}
	}
	c := system.StartCaddy(t, site(`throttle {
		zone pages {
			exempt static_files
			limit 1 1/h
			shadow
		}
	}`))
	url := fmt.Sprintf("http://127.0.0.1:%d", port)
	visitors := func(n int) (all []*system.Visitor) {
		for range n {
			all = append(all, system.NewVisitor(t, "h1"))
		}
		return all
	}
	people, scrapers, began := visitors(20), visitors(3), time.Now()
	peopleInShadow, scrapersInShadow := visitSite(t, url, people, scrapers)
	took := time.Since(began)
	check.Need(t, peopleInShadow+scrapersInShadow, 0, "refused in shadow")
	sent := 0
	for i := range people {
		sent += (1 + i%3) * 7
	}
	sent += len(scrapers) * 150
	system.Eventually(t, "all lines in the access log", func() bool {
		data, _ := os.ReadFile(file)
		return strings.Count(string(data), "\n") == sent
	})

	var found recommendation
	out := throttleCommand(t, "recommend", "--spare", "100", "--json", fiveDaysOf(t, file))
	err := json.Unmarshal([]byte(out), &found)
	check.Assume(t, err == nil && len(found.Zones) == 1, "got %d zones, %v, want one\n%s", len(found.Zones), err, out)
	z := found.Zones[0]
	best := z.Limit.Points[z.Limit.Recommended]
	if z.Keys != 23 || best.RefusedKeys != 3 || best.Capacity < 20 {
		t.Errorf("got %d clients, %d of them refused with a capacity of %v, want 23, the 3 scrapers, and 20 at least\n%s", z.Keys, best.RefusedKeys, best.Capacity, out)
	}

	// What throttle decided in shadow is in the log, and the summary counts as the metric.
	summary := throttleCommand(t, "summary", "--json", file)
	var sum struct {
		Zones []struct {
			Zone      string
			Decisions map[string]int
		}
	}
	err = json.Unmarshal([]byte(summary), &sum)
	check.Assume(t, err == nil && len(sum.Zones) == 1, "got %v, %v, want one zone\n%s", sum, err, summary)
	for _, decision := range []string{"admitted", "shadow_refused"} {
		got, want := sum.Zones[0].Decisions[decision], c.Decisions(t, "pages", decision)
		check.That(t, got == want && want != 0, "got %d %s in the summary, want %d as the metric, and some", got, decision, want)
	}

	lines := slices.DeleteFunc(strings.Split(z.Caddyfile, "\n"), func(line string) bool {
		return strings.HasPrefix(strings.TrimSpace(line), "shadow")
	})
	c.Reload(site(strings.Join(lines, "\n")))
	limit := check.Must(leakybucket.ParseLimit(fmt.Sprint(best.Capacity, " ", best.Leak)))(t)
	refusals := func(took time.Duration, refused float64, what string) { // of 150 pages for each
		most := float64(len(scrapers)) * (150 - math.Floor(limit.Capacity))
		least := most - float64(len(scrapers))*(1+limit.Leak*took.Seconds())
		check.That(t, refused >= least && refused <= most, "got %v requests of scrapers %s, want %v to %v", refused, what, least, most)
	}
	refusals(took, float64(best.RefusedRequests)/5, "to be refused, as was foretold")
	began = time.Now()
	peopleRefused, scrapersRefused := visitSite(t, url, people, scrapers)
	check.That(t, peopleRefused == 0, "got %d requests of people refused by what was recommended, want none\n%s", peopleRefused, out)
	refusals(time.Since(began), float64(scrapersRefused), "refused")
}

// fiveDaysOf returns a log in which the same day has come five times, as a browser's: a day
// alone is too little to recommend from.
func fiveDaysOf(t *testing.T, file string) string {
	t.Helper()
	data := check.Must(os.ReadFile(file))(t)
	var b strings.Builder
	for day := range 5 {
		for line := range strings.Lines(string(data)) {
			found := regexp.MustCompile(`"ts":([0-9.]+)`).FindStringSubmatch(line)
			at := check.Must(strconv.ParseFloat(found[1], 64))(t)
			line = strings.Replace(line, found[0], fmt.Sprintf(`"ts":%f`, at+float64(day-4)*24*3600), 1)
			b.WriteString(strings.ReplaceAll(line, "Go-http-client/1.1", "Mozilla/5.0"))
		}
	}
	return system.WriteFile(t, "five-days.log", b.String())
}
