package swarm

import (
	"fmt"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/servertest"
	"github.com/caddy-throttle/caddy-throttle/tests/internal/system"
)

// TestPHPKeepsItsSlotWhileItWorksForAClientThatLeft: a client that hangs up at
// once must not occupy one worker after the other.
func TestPHPKeepsItsSlotWhileItWorksForAClientThatLeft(t *testing.T) {
	t.Parallel()
	port := servertest.FreePort(t)
	c := system.StartCaddy(t, system.Config{Sites: fmt.Sprintf("http://:%d {\n in_flight workers 1 client_ip\n %s\n}", port, system.PHPSite(t).Directives)})
	const page = time.Second
	url := fmt.Sprintf("http://127.0.0.1:%d/slow.php?for=%d", port, page.Milliseconds())
	v := system.NewVisitor(t, "h2")
	var held time.Duration
	for range system.Stalls {
		began, answers := time.Now(), make(chan system.Answer, 1)
		leave := v.Ask(url, answers)
		system.Eventually(t, "the slot to be held", func() bool { return c.Served(t, "workers") == 1 })
		time.Sleep(page / 4) // on a machine that is too busy for that, PHP has not been asked yet
		leave()
		<-answers
		system.Eventually(t, "the slot to be free", func() bool { return c.Served(t, "workers") == 0 })
		if held = time.Since(began); held >= page {
			return
		}
	}
	t.Errorf("got the slot back after %v, want it held for the %v that PHP worked", held, page)
}
