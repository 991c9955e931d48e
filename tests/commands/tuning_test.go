package commands

import (
	"fmt"
	"testing"

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
}`, port, system.PHPSite(t))})
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
