package tests

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"
)

// TestRequestsThatWaitThroughReloadsAreServedInOrder: requests that come after
// the reloads wait behind those that came before.
func TestRequestsThatWaitThroughReloadsAreServedInOrder(t *testing.T) {
	t.Parallel()
	const perProtocol, leak, reloads, latecomers = 80, 20, 3, 10 // they take eight seconds
	port := freePort(t)
	upstream := startUpstream(t, nil)
	generation := func(n int) config {
		return config{sites: fmt.Sprintf(`
http://:%d {
	header Generation %d
	throttle {
		zone turns {
			key text everybody
			limit 300 %d/s
			delay
		}
	}
	reverse_proxy %s
}`, port, n, leak, upstream.address)}
	}
	c := startCaddy(t, generation(0))
	url := fmt.Sprintf("http://127.0.0.1:%d/?id=", port)
	began := time.Now()
	answers, asked := make(chan answer, 1000), 0
	for _, protocol := range protocols {
		v := newVisitor(t, protocol)
		for range perProtocol {
			v.ask(url+fmt.Sprint("early", asked), answers)
			asked++
		}
	}
	eventually(t, "all to be waiting or served", func() bool {
		return c.waiting(t, "turns")+len(upstream.sightings()) >= asked
	})
	for n := 1; n <= reloads; n++ {
		c.reload(generation(n))
	}
	if got := c.waiting(t, "turns"); got == 0 {
		t.Error("got nobody who waited through the reloads, want most of them")
	}
	late := newVisitor(t, "h1")
	eventually(t, "the last generation to answer", func() bool {
		asked++
		a, err := late.try("GET", url+fmt.Sprint("probe", asked))
		answers <- answer{status: a.status}
		return err == nil && a.header.Get("Generation") == fmt.Sprint(reloads)
	})
	if early := time.Duration(2*perProtocol-1) * time.Second / leak; time.Since(began) < early {
		t.Errorf("got one who came last served after %v, want the others before, who take %v", time.Since(began), early)
	}
	for range latecomers {
		late.ask(url+fmt.Sprint("late", asked), answers)
		asked++
	}
	for range asked {
		if a := <-answers; a.status != 200 {
			t.Errorf("got %d %s, want 200 for everybody", a.status, a.body)
		}
	}

	seen := upstream.sightings()
	ids := make(map[string]bool)
	for i, s := range seen {
		ids[s.id] = true
		if most := 1 + leak*s.at.Sub(began).Seconds() + 1e-3; float64(i+1) > most {
			t.Errorf("got %d at the upstream after %v, want at most %v", i+1, s.at.Sub(began), most)
		}
	}
	if len(ids) != asked || len(seen) != asked {
		t.Errorf("got %d requests at the upstream, %d different ones, want the %d that were asked", len(seen), len(ids), asked)
	}
	eventually(t, "nobody to be waiting", func() bool { return c.waiting(t, "turns") == 0 })
}

// TestAtShutdownWaitingRequestsAreAnswered503AtOnce, whether they wait for their
// delay or for a slot, and even in a config that has been replaced.
func TestAtShutdownWaitingRequestsAreAnswered503AtOnce(t *testing.T) {
	t.Parallel()
	const perProtocol, forSlots = 100, 50
	plain, secure := freePort(t), freePort(t)
	upstream := startUpstream(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	setup := func(name string) config {
		return config{grace: "2m", protocols: "h1 h2 h2c h3", sites: fmt.Sprintf(`
http://:%d, https://localhost:%d {
	tls internal
	header Generation %s
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
	respond /turn ok
	respond /free ok
	reverse_proxy %s
}`, plain, secure, name, upstream.address)}
	}
	c := startCaddy(t, setup("old"))
	base, quickBase := fmt.Sprintf("http://127.0.0.1:%d", plain), fmt.Sprintf("https://localhost:%d", secure)
	quick := newQUICVisitor(t, nil)
	eventually(t, "a certificate", func() bool {
		_, err := quick.try("GET", quickBase+"/free")
		return err == nil
	})
	if a := newVisitor(t, "h1").get(t, base+"/turn"); a.status != 200 {
		t.Fatalf("the first: got %d, want 200", a.status)
	}
	served, waited := make(chan answer, 1), make(chan answer, 3*perProtocol+forSlots)
	leave := newVisitor(t, "h1").ask(base+"/slot", served)
	eventually(t, "one to have the slot", func() bool { return c.served(t, "slots") == 1 })
	wait := func(n int) {
		for _, protocol := range protocols {
			v := newVisitor(t, protocol)
			v.Timeout = 0
			for range n {
				v.ask(base+"/turn", waited)
			}
		}
		quick := newQUICVisitor(t, nil)
		quick.Timeout = 0
		for range n {
			quick.ask(quickBase+"/turn", waited)
		}
	}
	wait(perProtocol / 2)
	v := newVisitor(t, "h2")
	for range forSlots {
		v.ask(base+"/slot", waited)
	}
	eventually(t, "half of them to wait", func() bool { return c.waiting(t, "turns") == 3*perProtocol/2 && c.waiting(t, "slots") == forSlots })
	c.reload(setup("new"))
	wait(perProtocol / 2)
	eventually(t, "all to wait", func() bool { return c.waiting(t, "turns") == 3*perProtocol })

	began := time.Now()
	ended := make(chan error)
	go func() { ended <- c.shutDown() }()
	unanswered := make(map[string]int)
	for range cap(waited) {
		a := <-waited
		switch {
		case a.status != http.StatusServiceUnavailable:
			unanswered[fmt.Sprint(a.status, " ", a.body)]++
		case a.header.Get("Retry-After") == "":
			unanswered["no Retry-After"]++
		}
	}
	answered := time.Since(began)
	leave()
	if err := <-ended; err != nil {
		t.Errorf("got %v from caddy, want it to end by itself with code 0, long before the grace period of two minutes", err)
	}
	t.Logf("%d answered after %v, the end after %v", cap(waited), answered, time.Since(began))
	if len(unanswered) > 0 {
		t.Errorf("got %v, want 503 with Retry-After for all", unanswered)
	}
	if seen := len(upstream.sightings()); seen != 1 {
		t.Errorf("got %d requests at the upstream, want the 1 that had the slot", seen)
	}
}

// TestAThousandThatBreakOffLoseNoSlot: the upstream closes the connection before
// it answers, or while it does, and Caddy's proxy panics. Or a handler aborts,
// which is a panic, too.
func TestAThousandThatBreakOffLoseNoSlot(t *testing.T) {
	t.Parallel()
	const slots, each = 4, 250
	for _, c := range []struct{ name, directives string }{
		{"before the answer", "reverse_proxy %s"},
		{"in the middle of the answer", "reverse_proxy %s"},
		{"by abort", "@other not path /stay\n abort @other\n reverse_proxy %s"},
		{"in an error route", "reverse_proxy %s\n handle_errors {\n abort\n }"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			upstream := startUpstream(t, func(w http.ResponseWriter, r *http.Request) {
				switch {
				case r.URL.Path == "/stay":
					<-r.Context().Done()
					return
				case c.name == "in the middle of the answer":
					w.Header().Set("Content-Length", "1000")
					fmt.Fprint(w, "x")
					_ = http.NewResponseController(w).Flush()
				}
				panic(http.ErrAbortHandler)
			})
			port := freePort(t)
			caddy := startCaddy(t, config{sites: fmt.Sprintf(`
http://:%d {
	in_flight slots %d {
		wait 30s
	}
	%s
}`, port, slots, fmt.Sprintf(c.directives, upstream.address))})
			base := fmt.Sprintf("http://127.0.0.1:%d", port)
			var all sync.WaitGroup
			for n := range 4 {
				v := newVisitor(t, protocols[n%2])
				all.Go(func() {
					for range each {
						if a, err := v.try("GET", base+"/"); err == nil && a.status != 502 {
							t.Errorf("got %d, want it to break off", a.status)
						}
					}
				})
			}
			all.Wait()
			eventually(t, "no slot to be held", func() bool { return caddy.served(t, "slots") == 0 && caddy.waiting(t, "slots") == 0 })
			v := newVisitor(t, "h2")
			stay := make(chan answer, slots+1)
			var leave []context.CancelFunc
			for range slots + 1 {
				leave = append(leave, v.ask(base+"/stay", stay))
			}
			eventually(t, "all slots to be held and one to wait", func() bool {
				now, _ := upstream.serving()
				return caddy.served(t, "slots") == slots && caddy.waiting(t, "slots") == 1 && now == slots
			})
			for _, leave := range leave {
				leave()
			}
			if _, most := upstream.serving(); most != slots {
				t.Errorf("got %d at the upstream at once, want %d", most, slots)
			}
		})
	}
}
