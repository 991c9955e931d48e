package tests

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"sync/atomic"
	"testing"
	"time"
)

// TestAClientThatObeysRetryAfterComesBackAndOneThatHammersStaysOut: the first
// never climbs the ladder, however often it overflows. The other one must stay
// away for longer and longer.
func TestAClientThatObeysRetryAfterComesBackAndOneThatHammersStaysOut(t *testing.T) {
	t.Parallel()
	for _, protocol := range protocols {
		port := freePort(t)
		c := startCaddy(t, config{sites: fmt.Sprintf(`
http://:%d {
	header >Reason {http.throttle.reason}
	header >Blocked {http.throttle.blocked}
	throttle {
		zone ladder {
			limit 2 4/s
			block 1s 2s 3s
			refusal retry_after fit
		}
	}
	respond ok
}`, port)})
		url := fmt.Sprintf("http://127.0.0.1:%d/", port)

		var began atomic.Int64 // blocks, as they were told
		t.Run("obeys/"+protocol, func(t *testing.T) {
			t.Parallel()
			var err error
			for range stalls {
				if err = obey(t, newVisitor(t, protocol), url, &began); err == nil {
					return
				}
				t.Logf("once more, after: %v", err)
			}
			t.Error(err)
		})
		t.Run("hammers/"+protocol, func(t *testing.T) {
			t.Parallel()
			want := []string{"1", "2", "3"}
			var told []string
			for range stalls {
				v := newVisitor(t, protocol)
				told = nil
				for since := time.Now(); len(told) < len(want) && time.Since(since) < startTime; {
					a := v.get(t, url)
					if a.status != 429 || a.header.Get("Reason") == "blocked" {
						continue // let in, or nothing new
					}
					began.Add(1)
					told = append(told, a.header.Get("Retry-After"))
				}
				if slices.Equal(told, want) {
					return
				}
				t.Logf("once more, after blocks of %v seconds", told) // a stall of a second is a rest
			}
			t.Errorf("got blocks of %v seconds, want %v", told, want)
		})
		t.Cleanup(func() {
			if got := c.metric(t, "caddy_throttle_blocks_total", `zone="ladder"`, `decision="refused"`); got != float64(began.Load()) {
				t.Errorf("got %v blocks, want the %d that began", got, began.Load())
			}
		})
	}
}

// obey overflows twice, and waits each time for as long as it is told. It returns an
// error where a stall of the machine may be the reason.
func obey(t *testing.T, v *visitor, url string, began *atomic.Int64) error {
	for range 2 {
		b := v.pourUntilRefused(t, url)
		began.Add(1)
		if b.refused.header.Get("Blocked") != "true" || b.refused.header.Get("Reason") != "capacity" {
			t.Errorf("got blocked %s for %s, want a block that begins", b.refused.header.Get("Blocked"), b.refused.header.Get("Reason"))
		}
		a := v.get(t, url)
		if a.header.Get("Reason") == "capacity" {
			began.Add(1)
		}
		if a.status != 429 || a.header.Get("Reason") != "blocked" {
			return fmt.Errorf("got %d for %s, want 429 for blocked", a.status, a.header.Get("Reason"))
		}
		wait := b.refused.retryAfter(t)
		if wait > 2*time.Second {
			t.Errorf("got Retry-After %v, want the first step's second, or 2 where its end is near", wait)
		}
		time.Sleep(wait)
		for n := range 5 {
			if a := v.get(t, url); a.status != 200 {
				t.Fatalf("request %d after waiting %v: got %d, want 200", n+1, wait, a.status)
			}
			time.Sleep(250 * time.Millisecond) // the leak
		}
	}
	return nil
}

// TestAClientThatIsBlockedEverywhereIsOutOfAllSites, over all protocols and
// reloads. Sites without throttle still serve it.
func TestAClientThatIsBlockedEverywhereIsOutOfAllSites(t *testing.T) {
	t.Parallel()
	login, shop, free, secure := freePort(t), freePort(t), freePort(t), freePort(t)
	office := newVisitor(t, "h1")
	setup := func(generation int) config {
		return config{
			protocols: "h1 h2 h2c h3",
			throttle: fmt.Sprintf(`
			exempt {
				client_ip %s
			}
			exempt {
				path /certificate
			}`, office.address),
			sites: fmt.Sprintf(`
http://:%d {
	throttle /login {
		zone login {
			limit 2 1/s
			block 2m everywhere
		}
	}
	respond ok
}
http://:%d {
	throttle pages client_ip 100 10/s
	respond ok
}
http://:%d {
	respond "ok %d"
}
https://localhost:%d {
	tls internal
	throttle secure client_ip 100 10/s
	respond ok
}`, login, shop, free, generation, secure),
		}
	}
	c := startCaddy(t, setup(0))
	url := func(port int, path string) string { return fmt.Sprintf("http://127.0.0.1:%d/%s", port, path) }
	quick := newQUICVisitor(t, nil)
	eventually(t, "a certificate", func() bool {
		_, err := quick.try("GET", fmt.Sprintf("https://localhost:%d/certificate", secure))
		return err == nil
	})

	guesser, reader := newVisitorFrom(t, "h1", "127.0.0.1"), newVisitor(t, "h2")
	if a := quick.get(t, fmt.Sprintf("https://localhost:%d/", secure)); a.status != 200 {
		t.Fatalf("HTTP/3 before the block: got %d, want 200", a.status)
	}
	guesser.pourUntilRefused(t, url(login, "login"))
	for range 10 {
		if a := office.get(t, url(login, "login")); a.status != 200 {
			t.Errorf("the office: got %d, want 200", a.status)
		}
	}
	check := func(when string) {
		t.Helper()
		for _, visit := range []struct {
			who, where string
			v          *visitor
			url        string
			status     int
		}{
			{"the guesser", "the login", guesser, url(login, "login"), 429},
			{"the guesser", "what no zone is about", guesser, url(login, "page"), 200},
			{"the guesser", "another site", guesser, url(shop, ""), 429},
			{"the guesser", "a site without throttle", guesser, url(free, ""), 200},
			{"the guesser", "HTTP/3", quick, fmt.Sprintf("https://localhost:%d/", secure), 429},
			{"somebody else", "the login", reader, url(login, "login"), 200},
			{"somebody else", "another site", reader, url(shop, ""), 200},
			{"the office", "another site", office, url(shop, ""), 200},
		} {
			a := visit.v.get(t, visit.url)
			if a.status != visit.status {
				t.Errorf("%s: %s at %s: got %d, want %d", when, visit.who, visit.where, a.status, visit.status)
			}
			if visit.status == 429 && a.status == 429 {
				checkRefusal(t, a)
				if wait := a.retryAfter(t); wait < 20*time.Second || wait > 121*time.Second {
					t.Errorf("%s: %s at %s: got Retry-After %v, want the rest of two minutes", when, visit.who, visit.where, wait)
				}
			}
		}
	}
	check("before reloads")
	for n := range 2 {
		c.reload(setup(n + 1))
	}
	check("after reloads")
	if got := c.metric(t, "caddy_throttle_blocks_total", `zone="login"`); got != 1 {
		t.Errorf("got %v blocks, want 1", got)
	}
}

// TestThrottleBlockedLetsASiteAnswerTheBlockedItself: by hanging up, in an error
// route, or before throttle runs.
func TestThrottleBlockedLetsASiteAnswerTheBlockedItself(t *testing.T) {
	t.Parallel()
	behind, before := freePort(t), freePort(t)
	c := startCaddy(t, config{sites: fmt.Sprintf(`
http://:%d {
	throttle {
		zone guesses {
			limit 3 1/m
			block 1m
			refusal error
		}
		zone pages {
			limit 8 1/m
			refusal error
		}
	}
	handle_errors {
		@blocked throttle_blocked guesses
		abort @blocked
		respond "{http.throttle.zone} {http.throttle.blocked}"
	}
	respond ok
}
http://:%d {
	route {
		@out throttle_blocked
		respond @out "stay away" 403
		throttle /login {
			zone entrance {
				limit 3 1/s
				block 8s
				refusal retry_after fit
			}
		}
		respond ok
	}
}`, behind, before)})

	eachProtocol(t, func(t *testing.T, protocol string) {
		t.Run("in an error route", func(t *testing.T) {
			v := newVisitor(t, protocol)
			url := fmt.Sprintf("http://127.0.0.1:%d/", behind)
			if got := v.countAdmitted(t, 3, url); got != 3 {
				t.Fatalf("got %d admitted, want the capacity of 3", got)
			}
			for range 2 {
				if a, err := v.try("GET", url); err == nil {
					t.Errorf("got %d %s, want the connection or the stream to break off", a.status, a.body)
				} else if !errors.Is(err, io.EOF) && protocol == "h1" {
					t.Errorf("got %v, want the end of the connection", err)
				}
			}
		})
		t.Run("before throttle", func(t *testing.T) {
			v := newVisitor(t, protocol)
			base := fmt.Sprintf("http://127.0.0.1:%d/", before)
			b := v.pourUntilRefused(t, base+"login")
			for _, path := range []string{"login", "page"} {
				if a := v.get(t, base+path); a.status != 403 || a.body != "stay away" {
					t.Errorf("blocked, at %s: got %d %q, want 403 from the site", path, a.status, a.body)
				}
			}
			if a := newVisitor(t, protocol).get(t, base+"login"); a.status != 200 {
				t.Errorf("somebody else: got %d, want 200", a.status)
			}
			time.Sleep(b.refused.retryAfter(t))
			if a := v.get(t, base+"login"); a.status != 200 {
				t.Errorf("after Retry-After: got %d %q, want 200", a.status, a.body)
			}
		})
	})
	t.Cleanup(func() {
		if got := c.metric(t, "caddy_throttle_blocks_total", `zone="guesses"`); got != 2 {
			t.Errorf("got %v blocks, want one for each protocol", got)
		}
		// Or more: a client may ask again when a connection that it has used ends.
		if got := c.metric(t, "caddy_throttle_requests_total", `zone="guesses"`, `reason="blocked"`); got < 2 {
			t.Errorf("got %v refused for a block, want one for each protocol at least", got)
		}
	})
}
