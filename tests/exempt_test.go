package tests

import (
	"fmt"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

var assetLinks = regexp.MustCompile(`(?:href|src)="(/assets/[^"]+)"`)

// TestAPageWithEightyAssetsLoads in a zone that holds ten pages, because static
// files and preflight requests are exempt, in the zone or for all zones.
func TestAPageWithEightyAssetsLoads(t *testing.T) {
	t.Parallel()
	const exempt = "exempt {\n path *.css *.js *.svg\n }\n exempt {\n method OPTIONS\n }\n"
	php := phpSite(t)
	for _, c := range []struct{ name, global, zone string }{
		{"zone", "", exempt},
		{"global", exempt, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			port := freePort(t)
			startCaddy(t, config{throttle: c.global, sites: fmt.Sprintf(`
http://:%d {
	throttle {
		zone pages {
			%s
			limit 10 1/d
		}
	}
	%s
}`, port, c.zone, php.directives)})
			base := fmt.Sprintf("http://127.0.0.1:%d", port)
			eachProtocol(t, func(t *testing.T, protocol string) { loadPage(t, newVisitor(t, protocol), base) })
		})
	}
}

// loadPage asks for the page and all it links to, as a browser does.
func loadPage(t *testing.T, v *visitor, base string) {
	page := v.get(t, base+"/")
	if page.status != 200 || !strings.Contains(page.body, "executed: index.php") {
		t.Fatalf("got %d %q, want the page", page.status, page.body)
	}
	links := assetLinks.FindAllStringSubmatch(page.body, -1)
	if len(links) != 80 {
		t.Fatalf("got %d assets in the page, want 80", len(links))
	}
	var wg sync.WaitGroup
	var missing atomic.Int64
	connections := make(chan struct{}, 6)
	for _, link := range links {
		wg.Go(func() {
			connections <- struct{}{}
			defer func() { <-connections }()
			a, err := v.try("GET", base+link[1])
			if err != nil || a.status != 200 || a.body == "" {
				missing.Add(1)
			}
		})
	}
	wg.Wait()
	if n := missing.Load(); n != 0 {
		t.Errorf("got %d of 80 assets that did not load, want none", n)
	}
	for range 20 {
		if a := v.send(t, "OPTIONS", base+"/"); a.status != 200 {
			t.Fatalf("got %d for OPTIONS, want 200", a.status)
		}
	}
	if got := v.countAdmitted(t, 20, base+"/"); got != 9 {
		t.Errorf("got %d more pages admitted, want the 9 that the capacity of 10 left", got)
	}
	if a := v.get(t, base+"/assets/app.js"); a.status != 200 {
		t.Errorf("got %d for an asset of a visitor that is refused, want 200", a.status)
	}
}
