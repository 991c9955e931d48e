package tests

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"
)

// A heldSite is a zone with share in front of an upstream that holds requests.
type heldSite struct {
	*caddy
	upstream *heldUpstream
	url      string
	site     func(throttle string) config
}

// startHeldSite starts a site with global options and zones.
func startHeldSite(t *testing.T, global, throttle string) *heldSite {
	t.Helper()
	port, u := freePort(t), startHeldUpstream(t)
	s := &heldSite{upstream: u, url: fmt.Sprintf("http://127.0.0.1:%d/", port), site: func(throttle string) config {
		return config{throttle: global, sites: fmt.Sprintf("http://:%d {\n%s\nreverse_proxy %s\n}", port, throttle, u.address)}
	}}
	s.caddy = startCaddy(t, s.site(throttle))
	return s
}

// slots is an in_flight in which requests may wait for long, which is more than a busy machine
// needs.
func slots(name string, n int) string {
	return block(fmt.Sprintf("in_flight %s %d", name, n), "wait 10m\nshare") + "\n"
}

// queue lets so many clients wait for their turn.
func (s *heldSite) queue(t *testing.T, zone string, n int) chan answer {
	t.Helper()
	answers := make(chan answer, n)
	for i := range n {
		newVisitor(t, "h1").ask(s.url+"hold", answers)
		eventually(t, "one more to wait", func() bool { return s.waiting(t, zone) == i+1 })
	}
	return answers
}

// wantServed wants all that waited to be served once the upstream lets them go.
func (s *heldSite) wantServed(t *testing.T, answers chan answer) {
	t.Helper()
	for range cap(answers) {
		eventually(t, "an answer", func() bool {
			if len(answers) == 0 {
				s.upstream.release()
			}
			return len(answers) > 0
		})
		if a := <-answers; a.status != http.StatusOK {
			t.Errorf("got %d for one that waited, want 200", a.status)
		}
	}
}

func (s *heldSite) wantIdle(t *testing.T, zone string) {
	t.Helper()
	eventually(t, "all slots to be free", func() bool { return s.served(t, zone) == 0 && s.waiting(t, zone) == 0 })
}

func TestAReloadNeverLosesThoseWhoWaitForTheirTurn(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		before, after string
		atOnce        int64 // how many of two that wait get their slots by the reload alone
	}{
		"raised":  {slots("php", 1), slots("php", 3), 2},
		"lowered": {slots("php", 2), slots("php", 1), 0},
		"removed": {slots("php", 1), "", 0},
		"renamed": {slots("php", 1), slots("fpm", 1), 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := startHeldSite(t, "", test.before)
			s.upstream.hold(t, s.url)
			held := int64(1)
			if name == "lowered" {
				s.upstream.hold(t, s.url)
				held++
			}
			answers := s.queue(t, "php", 2)
			s.reload(s.site(test.after))
			eventually(t, "those to be served for whom there are slots", func() bool { return s.upstream.holds.Load() == held+test.atOnce })
			if name == "removed" {
				if a := newVisitor(t, "h1").get(t, s.url+"other"); a.status != http.StatusOK {
					t.Errorf("got %d without the zone, want 200", a.status)
				}
			}
			s.wantServed(t, answers)
			s.upstream.release()
			s.wantIdle(t, "php")
		})
	}
}

func TestShadowAtRunTimeLetsNobodyWaitForASlot(t *testing.T) {
	t.Parallel()
	s := startHeldSite(t, "", slots("php", 1))
	s.upstream.hold(t, s.url)
	s.throttle("shadow", "--all", "--for", "1h")
	s.upstream.hold(t, s.url)
	s.throttle("unshadow", "--all")
	s.wantServed(t, s.queue(t, "php", 1))
	s.upstream.release()
	s.wantIdle(t, "php")
}

// A client that a bucket refuses or that is exempt takes no slot, and is told so at once
// while all slots are taken.
func TestOtherZonesDecideBesideAFullZoneWithShare(t *testing.T) {
	t.Parallel()
	s := startHeldSite(t, "exempt path /exempt", slots("php", 1)+`
	throttle {
		zone buckets {
			match path /bucket
			limit 1 1/h
			block 1h
		}
		zone seconds {
			match path /hold
			limit 100 1/h
			settle seconds
		}
	}`)
	v := newVisitor(t, "h1")
	if a := v.get(t, s.url+"bucket"); a.status != http.StatusOK {
		t.Fatalf("got %d, want the first one served", a.status)
	}
	s.upstream.hold(t, s.url)
	answers := s.queue(t, "php", 1)
	for range 2 { // over the limit, and blocked
		if a := v.get(t, s.url+"bucket"); a.status != http.StatusTooManyRequests {
			t.Errorf("got %d, want 429 without a wait", a.status)
		}
	}
	if a := newVisitor(t, "h1").get(t, s.url+"exempt"); a.status != http.StatusOK {
		t.Errorf("got %d, want 200 without a slot", a.status)
	}
	if served, waiting := s.served(t, "php"), s.waiting(t, "php"); served != 1 || waiting != 1 {
		t.Errorf("got %d served and %d waiting, want one of each as before", served, waiting)
	}
	s.wantServed(t, answers)
	s.upstream.release()
	s.wantIdle(t, "php")
}

// A store that is slow, and then frozen, belongs to a bucket beside.
func TestAStoreInTroubleKeepsNoSlotOfAZoneWithShare(t *testing.T) {
	t.Parallel()
	redis := startRedis(t)
	network := startToxics(t, redis.address)
	s := startHeldSite(t, redis.through(network.address), slots("php", 2)+block("throttle", block("zone buckets", "limit 1000 1000/s")))
	s.waitForStore(t, redis)
	v := newVisitor(t, "h1")
	check := func(state string) {
		t.Helper()
		for range 5 {
			if a := v.get(t, s.url); a.status != http.StatusOK {
				t.Errorf("%s: got %d, want 200", state, a.status)
			}
		}
		s.wantIdle(t, "php")
		s.upstream.hold(t, s.url)
		s.upstream.hold(t, s.url)
		answers := s.queue(t, "php", 2)
		s.wantServed(t, answers)
		s.upstream.release()
		s.wantIdle(t, "php")
	}
	check("well")
	cure := network.poison("latency", `"latency": 100`)
	check("slow")
	cure()
	thaw := redis.freeze()
	check("frozen")
	thaw()
	check("back")
}

// startTwoShared starts a site with a zone for all requests in one handler, and a zone for
// those below /second/ in another one. Clients may say that they use HTTPS.
func startTwoShared(t *testing.T, all, below string) (first, second *heldSite) {
	t.Helper()
	port, u := freePort(t), startHeldUpstream(t)
	first = &heldSite{upstream: u, url: fmt.Sprintf("http://127.0.0.1:%d/", port), site: func(more string) config {
		return config{
			servers: "trusted_proxies static 127.0.0.0/8\ntrusted_proxies_strict",
			sites: fmt.Sprintf("http://:%d {\nroute {\n%s\n%s\nuri strip_prefix /second\nreverse_proxy %s\n}\n%s\n}",
				port, all, below, u.address, more),
		}
	}}
	first.caddy = startCaddy(t, first.site(""))
	return first, &heldSite{caddy: first.caddy, upstream: u, url: first.url + "second/"}
}

// A request keeps the slot of the first handler while it waits in the second one, whatever the
// names of their zones.
func TestARequestTakesItsTurnsInTwoHandlers(t *testing.T) {
	t.Parallel()
	for _, zone := range []string{"all", "site"} {
		t.Run(zone, func(t *testing.T) {
			t.Parallel()
			s, second := startTwoShared(t, slots(zone, 2), slots("/second/* second", 1))
			becomes := func(what string, want ...int) {
				t.Helper()
				eventually(t, what, func() bool {
					return slices.Equal(want, []int{s.served(t, zone), s.waiting(t, zone), s.served(t, "second"), s.waiting(t, "second")})
				})
			}
			second.upstream.hold(t, second.url)
			becomes("a request to hold both slots", 1, 0, 1, 0)
			left, other := make(chan answer, 1), make(chan answer, 1)
			leave := newVisitor(t, "h2").ask(second.url+"hold", left)
			becomes("one to wait with a slot", 2, 0, 1, 1)
			newVisitor(t, "h1").ask(s.url, other)
			becomes("another one to wait for that", 2, 1, 1, 1)
			leave()
			if a := <-other; a.status != http.StatusOK {
				t.Errorf("got %d, want 200 by the slot of the one that has left the second row", a.status)
			}
			<-left
			becomes("nothing left of the client that has left", 1, 0, 1, 0)

			answers := second.queue(t, "second", 1)
			s.reload(s.site("# changed"))
			second.wantServed(t, answers)
			s.upstream.release()
			becomes("all slots to be free", 0, 0, 0, 0)
		})
	}
}

// The first handler gives its slot back at once, and takes no refusal for a quick request.
func TestARefusalInTheSecondHandlerCountsForNothingInTheFirst(t *testing.T) {
	t.Parallel()
	for name, below := range map[string]string{
		"row":    "in_flight /second/* second 1 {\nwait 200ms\nshare\n}",
		"bucket": "throttle /second/* second 1 1/d",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, second := startTwoShared(t, slots("site", 2), below)
			second.upstream.hold(t, second.url)
			v := newVisitor(t, "h1")
			v.get(t, second.url) // fills the bucket
			free := func() bool { return s.served(t, "site") == 1 }
			eventually(t, "the slot to come back", free)
			before := s.metric(t, "caddy_throttle_slot_mean_seconds", `zone="site"`)
			for range 20 {
				if a := v.get(t, second.url); a.status != http.StatusServiceUnavailable && a.status != http.StatusTooManyRequests {
					t.Fatalf("got %d, want a refusal", a.status)
				}
				eventually(t, "the slot to come back", free)
			}
			if mean := s.metric(t, "caddy_throttle_slot_mean_seconds", `zone="site"`); mean != before {
				t.Errorf("got a mean of %v s after 20 refusals, want %v as before", mean, before)
			}
			if a := v.get(t, s.url); a.status != http.StatusOK {
				t.Errorf("got %d, want 200 by the other slot", a.status)
			}
			s.upstream.release()
			s.wantIdle(t, "site")
		})
	}
}

// Each zone has a cookie and ranks of its own.
func TestPassesOfTwoHandlersStandSideBySide(t *testing.T) {
	t.Parallel()
	s, second := startTwoShared(t, "in_flight site 2 {\nwait 200ms\nshare\n}", "in_flight /second/* second 1 {\nwait 200ms\nshare\n}")
	v := newVisitor(t, "h1")
	browse := func(url, cookies string) answer {
		return v.get(t, url, append(opens(cookies), "X-Forwarded-Proto", "https", "X-Forwarded-For", "192.0.2.1")...)
	}
	second.upstream.hold(t, second.url)
	inner := browse(second.url, "")
	s.upstream.hold(t, s.url)
	outer := browse(second.url, passOf(inner))
	asked := time.Now()
	for zone, a := range map[string]answer{"second": inner, "site": outer} {
		if pass := passOf(a); a.status != http.StatusServiceUnavailable || !strings.HasPrefix(pass, "__Host-throttle-"+zone+"=") || len(a.header["Set-Cookie"]) != 1 {
			t.Fatalf("got %d and the cookies %q, want 503 and a pass of %s", a.status, a.header["Set-Cookie"], zone)
		}
	}
	s.upstream.release()
	s.wantIdle(t, "site")
	time.Sleep(time.Until(asked.Add(max(inner.retryAfter(t), outer.retryAfter(t)) + 100*time.Millisecond))) // its clock is the machine's
	if a := browse(second.url, passOf(inner)+"; "+passOf(outer)); a.status != http.StatusOK {
		t.Errorf("got %d with both passes, want 200", a.status)
	}
	for _, zone := range []string{"site", "second"} {
		if got := s.metric(t, "caddy_throttle_requests_total", `zone="`+zone+`"`, `rank="returned"`, `decision="admitted"`); got != 1 {
			t.Errorf("got %v who have returned to %s, want 1", got, zone)
		}
	}
}

// A client that does not read holds the slot of neither zone.
func TestSlotsOfTwoHandlersEndWithTheUpstreamsAnswer(t *testing.T) {
	t.Parallel()
	u := startUpstream(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, largeAnswer) })
	port := freePort(t)
	c := startCaddy(t, config{protocols: "h1 h2 h3", sites: fmt.Sprintf("https://localhost:%d {\ntls internal\nroute {\nrespond /ready 204\n%s\n%s\nreverse_proxy %s\n}\n}",
		port, slots("all", 1), slots("second", 1), u.address)})
	v, url := newNarrowVisitor(t), fmt.Sprintf("https://localhost:%d/", port)
	eventually(t, "a certificate", func() bool {
		_, err := v.try("GET", url+"ready")
		return err == nil
	})
	for range 2 {
		resp, err := v.Get(url)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		eventually(t, "both slots to be free", func() bool { return c.served(t, "all")+c.served(t, "second") == 0 })
		defer func() {
			if body, err := io.ReadAll(resp.Body); err != nil || string(body) != largeAnswer {
				t.Errorf("got %d bytes, %v, want all of it", len(body), err)
			}
		}()
	}
}

// PHP never works on more requests than there are slots, and on none that holds no slot,
// whatever the clients do.
func TestSlotsAreTheWorkersThatPHPHasBusy(t *testing.T) {
	t.Parallel()
	root, socket := startSwarmPHP(t)
	port := freePort(t)
	const slots = swarmWorkers - 1 // one is for the status
	c := startCaddy(t, config{servers: "trusted_proxies static 127.0.0.0/8", sites: fmt.Sprintf(`http://:%d {
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
	watcher := newVisitor(t, "h1")
	working := func() int {
		var status struct {
			Active int `json:"active processes"`
		}
		if err := json.Unmarshal([]byte(watcher.get(t, url+"/fpm-status?json").body), &status); err != nil {
			t.Fatal(err)
		}
		return status.Active - 1
	}
	answers := make(chan answer, 24)
	for i := range cap(answers) {
		leave := newVisitor(t, []string{"h1", "h2"}[i%2]).ask(fmt.Sprintf("%s/page.php?ms=%d", url, 600+100*(i%3)), answers)
		if i%3 != 0 { // most hang up, at any time
			time.AfterFunc(time.Duration(i*40)*time.Millisecond, leave)
		}
	}
	agreed := 0
	for len(answers) < cap(answers) || c.served(t, "php") > 0 {
		before, at, after := c.served(t, "php"), working(), c.served(t, "php")
		if at > slots {
			t.Fatalf("got %d workers busy, want %d at most", at, slots)
		}
		if before == after && before == at && at == slots {
			agreed++
		}
	}
	if agreed == 0 {
		t.Errorf("got no moment with all %d slots taken and as many workers busy", slots)
	}
	eventually(t, "no worker to be busy", func() bool { return working() == 0 && c.served(t, "php") == 0 })
}
