package tests

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// A hundred robots keep the first pass that they are given, and ask again and again. A
// pass that a refusal has moved is not worth more in an older copy, so newcomers get in:
// they come back when they were told to, and are served within half a minute.
func robotsThatKeepTheirFirstPassLeaveNewcomersIn(t *testing.T) {
	u := startUpstream(t, func(http.ResponseWriter, *http.Request) { time.Sleep(500 * time.Millisecond) })
	port := freePort(t)
	startCaddy(t, config{
		servers: "trusted_proxies static 127.0.0.1/32\ntrusted_proxies_strict",
		sites: fmt.Sprintf(`http://:%d {
			in_flight php 5 {
				share
			}
			reverse_proxy %s
		}`, port, u.address),
	})
	url := fmt.Sprintf("http://127.0.0.1:%d/", port)
	proxy := newVisitorFrom(t, "h1", "127.0.0.1")
	ask := func(address, cookie string) (answer, error) {
		return proxy.try("GET", url, append(opens(cookie), "X-Forwarded-For", address, "X-Forwarded-Proto", "https")...)
	}
	ctx, stop := context.WithCancel(t.Context())
	var robots, people sync.WaitGroup
	for n := range 100 {
		robots.Go(func() {
			for kept := ""; ctx.Err() == nil; {
				a, err := ask(fmt.Sprintf("10.%d.0.1", n), kept)
				if kept == "" && err == nil {
					kept = passOf(a)
				}
				sleep(ctx, 100*time.Millisecond)
			}
		})
	}
	sleep(ctx, 20*time.Second) // by then they hold passes that are valid
	var served atomic.Int64
	for n := range 30 {
		people.Go(func() {
			came, cookie := time.Now(), ""
			for time.Since(came) < 30*time.Second {
				a, err := ask(fmt.Sprintf("192.168.%d.1", n), cookie)
				if err != nil {
					return
				}
				if a.status == http.StatusOK {
					served.Add(1)
					return
				}
				if pass := passOf(a); pass != "" {
					cookie = pass
				}
				sleep(ctx, a.retryAfter(t))
			}
		})
		sleep(ctx, time.Second)
	}
	people.Wait()
	stop()
	robots.Wait()
	t.Logf("%d of 30 newcomers were served within 30 s", served.Load())
	if served.Load() < 29 {
		t.Errorf("got %d of 30 newcomers served within 30 s, want at least 29", served.Load())
	}
}

// sleep sleeps until the context ends.
func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}
