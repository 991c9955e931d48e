package swarm

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/servertest"
	"github.com/caddy-throttle/caddy-throttle/tests/internal/system"
)

// TestAtShutdownWaitingRequestsAreAnswered503AtOnce, whether they wait for their
// delay or for a slot, and even in a config that has been replaced. A body that is being received
// for throttle has the grace period, as it has in Caddy itself.
func TestAtShutdownWaitingRequestsAreAnswered503AtOnce(t *testing.T) {
	t.Parallel()
	const perProtocol, forSlots = 100, 50
	plain, secure := servertest.FreePort(t), servertest.FreePort(t)
	upstream := system.StartUpstream(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	setup := func(answer string) system.Config {
		return system.Config{Grace: "2m", Protocols: "h1 h2 h2c h3", Sites: fmt.Sprintf(`
http://:%d, https://localhost:%d {
	tls internal
	throttle /turn {
		zone turns {
			key text everybody
			limit 1000 1/m
			delay
		}
	}
	in_flight /slot slots 1 {
		wait 10m
	}
	throttle /login {
		zone log_ins {
			field pwd
			limit 5 1/h
		}
	}
	respond /turn ok
	respond /login "in"
	respond /free %s
	reverse_proxy %s
}`, plain, secure, answer, upstream.Address)}
	}
	c := system.StartCaddy(t, setup("old"))
	base, quickBase := fmt.Sprintf("http://127.0.0.1:%d", plain), fmt.Sprintf("https://localhost:%d", secure)
	quick := system.NewQUICVisitor(t, nil)
	system.Eventually(t, "a certificate", func() bool {
		_, err := quick.Try("GET", quickBase+"/free")
		return err == nil
	})
	if a := system.NewVisitor(t, "h1").Get(t, base+"/turn"); a.Status != 200 {
		t.Fatalf("the first: got %d, want 200", a.Status)
	}
	served, waited := make(chan system.Answer, 1), make(chan system.Answer, 3*perProtocol/2+forSlots)
	leave := system.NewVisitor(t, "h1").Ask(base+"/slot", served)
	system.Eventually(t, "one to have the slot", func() bool { return c.Served(t, "slots") == 1 })
	wait := func(n int, answers chan<- system.Answer) {
		for _, protocol := range system.Protocols {
			v := system.NewVisitor(t, protocol)
			v.Timeout = 0
			for range n {
				v.Ask(base+"/turn", answers)
			}
		}
		quick := system.NewQUICVisitor(t, nil)
		quick.Timeout = 0
		for range n {
			quick.Ask(quickBase+"/turn", answers)
		}
	}
	wait(perProtocol/2, waited)
	v := system.NewVisitor(t, "h2")
	for range forSlots {
		v.Ask(base+"/slot", waited)
	}
	system.Eventually(t, "half of them to wait", func() bool { return c.Waiting(t, "turns") == 3*perProtocol/2 && c.Waiting(t, "slots") == forSlots })
	c.Reload(setup("new"))
	later := make(chan system.Answer, 3*perProtocol/2)
	wait(perProtocol/2, later)
	again := system.NewVisitor(t, "h1")
	again.Timeout = 0
	system.Eventually(t, "all to wait", func() bool {
		for len(later) > 0 {
			// Caddy closes connections that were opened during a reload, without reading
			// their requests.
			a := <-later
			check.Assume(t, a.Status == 0, "got %d %s, want all to wait", a.Status, a.Body)
			again.Ask(base+"/turn", later)
		}
		return c.Waiting(t, "turns") == 3*perProtocol
	})
	login, err := net.Dial("tcp", fmt.Sprint("127.0.0.1:", plain))
	check.OK(t, err)
	defer login.Close()
	answers := bufio.NewReader(login)
	fmt.Fprint(login, "POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\nExpect: 100-continue\r\n\r\n")
	resp, err := http.ReadResponse(answers, nil)
	check.Assume(t, err == nil && resp.StatusCode == http.StatusContinue, "got %v, %v, want the body received", resp, err)
	fmt.Fprint(login, "pwd=")

	began := time.Now()
	ended := make(chan error)
	go func() { ended <- c.ShutDown() }()
	unanswered := make(map[string]int)
	for range cap(waited) + cap(later) {
		var a system.Answer
		select {
		case a = <-waited:
		case a = <-later:
		}
		switch {
		case a.Status != http.StatusServiceUnavailable:
			unanswered[fmt.Sprint(a.Status, " ", a.Body)]++
		case a.Header.Get("Retry-After") == "":
			unanswered["no Retry-After"]++
		}
	}
	answered := time.Since(began)
	fmt.Fprint(login, "right")
	resp, err = http.ReadResponse(answers, nil)
	check.That(t, err == nil && resp.StatusCode == http.StatusOK, "got %v, %v for a login that was being received, want 200", resp, err)
	leave()
	check.NoError(t, <-ended, "want Caddy to end by itself with code 0, long before the grace period of two minutes")
	t.Logf("%d answered after %v, the end after %v", cap(waited)+cap(later), answered, time.Since(began))
	check.That(t, len(unanswered) == 0, "got %v, want 503 with Retry-After for all", unanswered)
	check.Equal(t, upstream.Seen(), 1, "requests at the upstream, want that which had the slot")
}
