package requests

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/servertest"
	"github.com/caddy-throttle/caddy-throttle/tests/internal/system"
)

// TestWeRefuseAsHAProxysStickTablesDo sends the same requests to HAProxy with the block of
// the page about migrating, and to throttle with the Caddyfile for nginx, changed as the page
// says. Both refuse what is above a burst.
func TestWeRefuseAsHAProxysStickTablesDo(t *testing.T) {
	t.Parallel()
	system.Need(t, "haproxy", "/usr/sbin/haproxy")
	release := make(chan struct{})
	upstream := system.StartUpstream(t, func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/slow" {
			<-release
		}
	})
	haproxy, ours := servertest.FreePort(t), servertest.FreePort(t)
	block := strings.NewReplacer(":443 ssl crt /etc/haproxy/example.pem", fmt.Sprint("127.0.0.1:", haproxy), "127.0.0.1:8080", upstream.Address).
		Replace(system.SectionCode(t, "comparison.md", "### From HAProxy", "haproxy"))
	system.StartHAProxy(t, haproxy, "defaults\n\tmode http\n\ttimeout connect 5s\n\ttimeout client 60s\n\ttimeout server 60s\n"+block)
	zones := system.SectionCode(t, "comparison.md", "### From nginx", "caddyfile")
	for before, after := range map[string]string{
		"limit 60 2/s": "limit 60 60/10s", "path /wp-login.php*": "{\npath /wp-login.php*\nmethod POST\n}", "refusal status 503": "",
	} {
		check.Assume(t, strings.Contains(zones, before), "got no %q in the Caddyfile for nginx", before)
		zones = strings.Replace(zones, before, after, 1)
	}
	system.StartCaddy(t, system.Config{Sites: fmt.Sprintf("http://:%d {\n%s\nreverse_proxy %s\n}", ours, zones, upstream.Address)})
	limiters := map[string]string{"HAProxy": fmt.Sprint("http://127.0.0.1:", haproxy), "throttle": fmt.Sprint("http://127.0.0.1:", ours)}

	// count returns how many of n requests were admitted by each, one after the other.
	count := func(v *system.Visitor, method, target string, n int) (theirs, own int) {
		t.Helper()
		admitted := make(map[string]int)
		for name, url := range limiters {
			for range n {
				switch a := v.Send(t, method, url+target); a.Status {
				case http.StatusOK:
					admitted[name]++
				case http.StatusTooManyRequests:
				default:
					t.Fatalf("%s %s: got %d from %s, want 200 or 429", method, target, a.Status, name)
				}
			}
		}
		return admitted["HAProxy"], admitted["throttle"]
	}

	t.Run("logins", func(t *testing.T) {
		theirs, own := count(system.NewVisitor(t, "h1"), "POST", "/wp-login.php", 8)
		check.That(t, theirs == 5 && own == 5, "got %d of 8 logins through HAProxy and %d through throttle, want 5 of each", theirs, own)
		theirs, own = count(system.NewVisitor(t, "h1"), "GET", "/wp-login.php", 8)
		check.That(t, theirs == 8 && own == 8, "got %d of 8 forms through HAProxy and %d through throttle, want all", theirs, own)
	})

	t.Run("slots", func(t *testing.T) {
		v := system.NewVisitor(t, "h1")
		for name, url := range limiters {
			statuses := make(chan int, 6)
			var all sync.WaitGroup
			for range cap(statuses) {
				all.Go(func() {
					a, err := v.Try("GET", url+"/slow")
					check.NoError(t, err, "%s", name)
					statuses <- a.Status
				})
			}
			system.Eventually(t, "two requests to be refused", func() bool { return len(statuses) >= 2 })
			for range 4 {
				release <- struct{}{}
			}
			all.Wait()
			close(statuses)
			var got []int
			for status := range statuses {
				got = append(got, status)
			}
			slices.Sort(got)
			check.That(t, slices.Equal(got, []int{200, 200, 200, 200, 429, 429}), "got %v for six requests at once from %s, want four served and two refused", got, name)
		}
	})

	t.Run("pages", func(t *testing.T) {
		const period = 10 * time.Second
		v := system.NewVisitor(t, "h1")
		began := time.Now()
		theirs, own := count(v, "GET", "/", 70)
		leaked := int(6 * time.Since(began).Seconds())
		t.Logf("of 70 pages at once, HAProxy admits %d and throttle %d", theirs, own)
		if inTime := time.Since(began) < period; theirs != 60 && inTime || own < 60 || own > 61+leaked {
			t.Errorf("got %d of 70 pages through HAProxy and %d through throttle, want 60 of each, and what has leaked", theirs, own)
		}
	})
}
