package tests

import (
	"context"
	"fmt"
	"net/http"
	"testing"
	"time"
)

// visitors of one kind, and where they go.
type kindOfVisitor struct {
	name  string
	visit func(t *testing.T) *visitor
	base  string
}

// startForAll runs a site that every protocol can visit.
func startForAll(t *testing.T, directives string) (*caddy, []kindOfVisitor) {
	t.Helper()
	plain, secure := freePort(t), freePort(t)
	c := startCaddy(t, config{
		sites:     fmt.Sprintf("http://:%d, https://localhost:%d {\n tls internal\n %s\n}", plain, secure, directives),
		protocols: "h1 h2 h2c h3",
	})
	quick := func(t *testing.T) *visitor { return newQUICVisitor(t, nil) }
	kinds := []kindOfVisitor{
		{"h1", func(t *testing.T) *visitor { return newVisitor(t, "h1") }, fmt.Sprintf("http://127.0.0.1:%d/", plain)},
		{"h2", func(t *testing.T) *visitor { return newVisitor(t, "h2") }, fmt.Sprintf("http://127.0.0.1:%d/", plain)},
		{"h3", quick, fmt.Sprintf("https://localhost:%d/", secure)},
	}
	v := quick(t)
	eventually(t, "a certificate", func() bool {
		_, err := v.try("GET", kinds[2].base+"free")
		return err == nil
	})
	return c, kinds
}

// ask sends a request in the background until it is told to leave, and sends the
// answer to the channel.
func (v *visitor) ask(url string, answers chan<- answer) (leave context.CancelFunc) {
	ctx, leave := context.WithCancel(context.Background())
	go func() {
		defer leave()
		req, err := http.NewRequestWithContext(ctx, "GET", url, nil)
		if err != nil {
			answers <- answer{body: err.Error()}
			return
		}
		a, err := v.do(req)
		if err != nil {
			a.body = err.Error()
		}
		answers <- a
	}()
	return leave
}

// known is how long Caddy may take to notice that a client has left, on a machine that does
// nothing else: asserted with TEST_LONG=1.
const known = 100 * time.Millisecond

// TestAClientThatLeavesMakesRoomAtOnce for others to wait, whichever protocol
// they speak.
func TestAClientThatLeavesMakesRoomAtOnce(t *testing.T) {
	t.Parallel()
	const most = 40
	c, kinds := startForAll(t, `
	header >Reason {http.throttle.reason}
	throttle {
		zone hall {
			exempt {
				path /free
			}
			key query key
			limit 500 1/m
			delay queue 40
		}
	}
	respond ok`)
	for _, kind := range kinds {
		t.Run(kind.name, func(t *testing.T) {
			v := kind.visit(t)
			url := kind.base + "?key=" + kind.name
			if a := v.get(t, url); a.status != 200 {
				t.Fatalf("the first: got %d, want 200", a.status)
			}
			answers := make(chan answer, 10*stalls*most)
			var waiting []context.CancelFunc
			fill := func() {
				for len(waiting) < most {
					waiting = append(waiting, v.ask(url, answers))
				}
				eventually(t, "the hall to be full", func() bool { return c.waiting(t, "hall") == most })
			}
			var took time.Duration
			for range stalls {
				fill()
				began := time.Now()
				for _, leave := range waiting[most/2:] {
					leave()
				}
				waiting = waiting[:most/2]
				eventually(t, "half of the hall", func() bool { return c.waiting(t, "hall") <= most/2 })
				if took = time.Since(began); took <= known || !long() {
					break
				}
			}
			t.Logf("half of %d who waited had made room after %v", most, took)
			if long() && took > known {
				t.Errorf("got room after %v, want it after %v", took, known)
			}
			fill()
			a := v.get(t, url)
			if reason := a.header.Get("Reason"); a.status != 429 || reason != "waiting" {
				t.Errorf("one too many: got %d for the reason %q, want 429 for waiting", a.status, reason)
			} else {
				a.retryAfter(t)
			}
			for _, leave := range waiting {
				leave()
			}
			eventually(t, "an empty hall", func() bool { return c.waiting(t, "hall") == 0 })
		})
	}
}

// TestAClientThatLeavesWhileServedKeepsItsSlot until the upstream is done: PHP works on.
func TestAClientThatLeavesWhileServedKeepsItsSlot(t *testing.T) {
	t.Parallel()
	done := make(chan struct{})
	upstream := startUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("id") == "stays" {
			<-done
		}
	})
	c, kinds := startForAll(t, `
	in_flight workers 1 query key {
		exempt path /free
		wait 10m
	}
	reverse_proxy `+upstream.address)
	for _, kind := range kinds {
		t.Run(kind.name, func(t *testing.T) {
			v := kind.visit(t)
			url := kind.base + "?key=" + kind.name + "&id="
			answers, next := make(chan answer, 1), make(chan answer, 1)
			leave := v.ask(url+"stays", answers)
			eventually(t, "the first to be served", func() bool { return c.served(t, "workers") == 1 })
			v.ask(url+"waits", next)
			eventually(t, "the second to wait", func() bool { return c.waiting(t, "workers") == 1 })
			leave()
			<-answers
			if got := c.served(t, "workers"); got != 1 {
				t.Errorf("got %d slots held after the client had left, want that of its request", got)
			}
			done <- struct{}{}
			if a := <-next; a.status != 200 {
				t.Errorf("the second: got %d %s, want 200", a.status, a.body)
			}
			eventually(t, "no slot to be held", func() bool { return c.served(t, "workers") == 0 })
		})
	}
}
