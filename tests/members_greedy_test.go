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

// Accounts that always ask for more, eight times at once each, leave a tenth of the slot
// time to those who are not logged in: with five slots and pages of half a second that is
// a page a second.
func greedyMembersLeaveNewcomersIn(accounts int) func(*testing.T) {
	return func(t *testing.T) {
		if accounts > 2 && !long() {
			t.Skip("SKIPPED: one more crowd; TEST_LONG=1 runs it")
		}
		served, byMembers := newcomersBesideMembers(t, accounts)
		t.Logf("%d of 30 newcomers were served within 30 s, and %v requests of members", served, byMembers)
		if served < 27 {
			t.Errorf("got %d of 30 newcomers served within 30 s, want at least 27", served)
		}
		if byMembers < 100 {
			t.Errorf("got %v requests of members served, want the slots full of them", byMembers)
		}
	}
}

// newcomersBesideMembers lets 30 newcomers come, one in 0.7 seconds, while accounts in
// networks of their own have eight connections each. It returns how many newcomers were
// served within half a minute, and how many requests of members.
func newcomersBesideMembers(t *testing.T, accounts int) (newcomers int64, byMembers float64) {
	u := startUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		if user := r.URL.Query().Get("user"); user != "" {
			w.Header().Set("Set-Cookie", "wordpress_logged_in_0="+user+"|1999999999|0; Path=/; Secure; HttpOnly")
			return
		}
		time.Sleep(500 * time.Millisecond)
	})
	port := freePort(t)
	c := startCaddy(t, config{
		servers: "trusted_proxies static 127.0.0.1/32\ntrusted_proxies_strict",
		sites: fmt.Sprintf(`http://:%d {
			in_flight php 5 {
				share
				rank member issued wordpress_logged_in_*
			}
			reverse_proxy %s
		}`, port, u.address),
	})
	url := fmt.Sprintf("http://127.0.0.1:%d/", port)
	proxy := newVisitorFrom(t, "h1", "127.0.0.1")
	ask := func(path, address, cookie string) (answer, error) {
		return proxy.try("GET", url+path, append(opens(cookie), "X-Forwarded-For", address, "X-Forwarded-Proto", "https")...)
	}
	ctx, stop := context.WithCancel(t.Context())
	var members, people sync.WaitGroup
	defer members.Wait()
	defer stop()
	for n := range accounts {
		address, user := fmt.Sprintf("10.%d.0.1", n), fmt.Sprint("user", n)
		a, err := ask("?user="+user, address, "")
		if err != nil || passOf(a) == "" {
			t.Fatalf("got %d, %v and no pass at the log-in, want one", a.status, err)
		}
		cookie := "wordpress_logged_in_0=" + user + "|1999999999|0; " + passOf(a)
		for range 8 {
			members.Go(func() {
				for ctx.Err() == nil {
					if a, err := ask("", address, cookie); err != nil || a.status != http.StatusOK {
						sleep(ctx, 100*time.Millisecond)
					}
				}
			})
		}
	}
	var served atomic.Int64
	for n := range 30 {
		sleep(ctx, 700*time.Millisecond)
		people.Go(func() {
			for came, cookie := time.Now(), ""; time.Since(came) < 30*time.Second; {
				a, err := ask("", fmt.Sprintf("192.168.%d.1", n), cookie)
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
	}
	people.Wait()
	return served.Load(), c.ranked(t, "member")
}
