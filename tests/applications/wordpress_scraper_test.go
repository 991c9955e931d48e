package applications

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
	"github.com/caddy-throttle/caddy-throttle/tests/internal/system"
)

// wordPressServesAPersonBesideAScraper: one address asks for pages over 40 connections, and a
// person opens one every two seconds, first in shadow and then enforced. SCRAPER_CSV names the
// file that docs/pictures draws:
//
//	TEST_LONG=1 SCRAPER_CSV=../docs/pictures/scraper.csv go test -run TestWordPress/a_scraper ./tests/applications
func wordPressServesAPersonBesideAScraper(t *testing.T) {
	if !system.Long() {
		t.Skip("it takes minutes: set TEST_LONG=1")
	}
	const length, arrives = 60, 10 // in seconds
	workers := "\tin_flight workers 3 client_ip {\n\t\texempt static_files\n\t\twait 30s\n\t}\n"
	var rows strings.Builder
	rows.WriteString("limits,who,second,pages,seconds\n")
	for _, limits := range []string{"shadow", "enforced"} {
		changes := []string{"\tthrottle {\n", "\tthrottle {\n\t\tshadow\n"}
		if limits == "enforced" {
			changes = []string{"\tthrottle {\n", workers + "\tthrottle {\n"}
		}
		s := startFirst(t, changes...)
		s.Must(system.Request{Address: "192.0.2.9", Target: "/kettle-3/"}) // PHP compiles WordPress once
		began := time.Now()
		pages := make([]int, length) // of the scraper, by second
		total := 0
		var mu sync.Mutex
		var all sync.WaitGroup
		for connection := range 40 {
			all.Go(func() {
				time.Sleep(arrives * time.Second)
				for i := connection; time.Since(began) < length*time.Second; i += 40 {
					a, err := s.Do(system.Request{Address: "198.51.100.1", Target: fmt.Sprintf("/?x=%d", i)})
					mu.Lock()
					if second := int(time.Since(began).Seconds()); err == nil && a.Status == 200 {
						total++
						if second < length {
							pages[second]++
						}
					}
					mu.Unlock()
					if a.Status == 429 {
						time.Sleep(250 * time.Millisecond)
					}
				}
			})
		}
		tick := time.NewTicker(2 * time.Second)
		for second := 0; second < length; second += 2 {
			all.Go(func() {
				sent := time.Now()
				a, err := s.Do(system.Request{Address: "192.0.2.1", Target: "/kettle-3/"})
				mu.Lock()
				defer mu.Unlock()
				check.That(t, err == nil && a.Status == 200, "%s: the person got %d and %v, want 200", limits, a.Status, err)
				fmt.Fprintf(&rows, "%s,person,%d,1,%.2f\n", limits, second, time.Since(sent).Seconds())
			})
			<-tick.C
		}
		tick.Stop()
		all.Wait()
		if most := int(pagesCapacity+pagesLeak*time.Since(began).Seconds()) + 1; limits == "enforced" && total > most {
			t.Errorf("the scraper got %d pages, want %d at most", total, most)
		}
		for second, n := range pages {
			fmt.Fprintf(&rows, "%s,scraper,%d,%d,\n", limits, second, n)
		}
		check.NoError(t, s.ShutDown())
	}
	t.Logf("\n%s", &rows)
	if file := os.Getenv("SCRAPER_CSV"); file != "" {
		check.NoError(t, os.WriteFile(file, []byte(rows.String()), 0o644))
	}
}
