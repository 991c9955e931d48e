package swarm

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/servertest"
	"github.com/caddy-throttle/caddy-throttle/tests/internal/system"
)

// PHP never works on more requests than there are slots, and on none that holds no slot,
// whatever the clients do.
func TestSlotsAreTheWorkersThatPHPHasBusy(t *testing.T) {
	t.Parallel()
	root, socket := startSwarmPHP(t)
	port := servertest.FreePort(t)
	const slots = swarmWorkers - 1 // one is for the status
	c := system.StartCaddy(t, system.Config{Servers: "trusted_proxies static 127.0.0.0/8", Sites: fmt.Sprintf(`http://:%d {
		handle /fpm-status {
			reverse_proxy unix/%s {
				transport fastcgi {
					split /fpm-status
				}
			}
		}
		handle {
			in_flight php %d {
				wait 40s
				share
			}
			root * %s
			php_fastcgi unix/%[2]s
		}
	}`, port, socket, slots, root)})
	url := fmt.Sprintf("http://127.0.0.1:%d", port)
	watcher := system.NewVisitor(t, "h1")
	working := func() int {
		var status struct {
			Active int `json:"active processes"`
		}
		check.OK(t, json.Unmarshal([]byte(watcher.Get(t, url+"/fpm-status?json").Body), &status))
		return status.Active - 1
	}
	answers := make(chan system.Answer, 24)
	for i := range cap(answers) {
		leave := system.NewVisitor(t, []string{"h1", "h2"}[i%2]).Ask(fmt.Sprintf("%s/page.php?ms=%d", url, 600+100*(i%3)), answers)
		if i%3 != 0 { // most hang up, at any time
			time.AfterFunc(time.Duration(i*40)*time.Millisecond, leave)
		}
	}
	agreed := 0
	for len(answers) < cap(answers) || c.Served(t, "php") > 0 {
		before, at, after := c.Served(t, "php"), working(), c.Served(t, "php")
		check.Assume(t, at <= slots, "got %d workers busy, want %d at most", at, slots)
		if before == after && before == at && at == slots {
			agreed++
		}
	}
	check.That(t, agreed != 0, "got no moment with all %d slots taken and as many workers busy", slots)
	system.Eventually(t, "no worker to be busy", func() bool { return working() == 0 && c.Served(t, "php") == 0 })
}
