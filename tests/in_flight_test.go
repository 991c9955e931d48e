package tests

import (
	"fmt"
	"testing"
	"time"
)

// TestPHPKeepsItsSlotWhileItWorksForAClientThatLeft: a client that hangs up at
// once must not occupy one worker after the other.
func TestPHPKeepsItsSlotWhileItWorksForAClientThatLeft(t *testing.T) {
	t.Parallel()
	port := freePort(t)
	c := startCaddy(t, config{sites: fmt.Sprintf("http://:%d {\n in_flight workers 1 client_ip\n %s\n}", port, phpSite(t).directives)})
	const page = time.Second
	url := fmt.Sprintf("http://127.0.0.1:%d/slow.php?for=%d", port, page.Milliseconds())
	v := newVisitor(t, "h2")
	var held time.Duration
	for range stalls {
		began, answers := time.Now(), make(chan answer, 1)
		leave := v.ask(url, answers)
		eventually(t, "the slot to be held", func() bool { return c.served(t, "workers") == 1 })
		time.Sleep(page / 4) // on a machine that is too busy for that, PHP has not been asked yet
		leave()
		<-answers
		eventually(t, "the slot to be free", func() bool { return c.served(t, "workers") == 0 })
		if held = time.Since(began); held >= page {
			return
		}
	}
	t.Errorf("got the slot back after %v, want it held for the %v that PHP worked", held, page)
}
