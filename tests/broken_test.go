package tests

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"sync"
	"testing"
	"time"
)

// settledByHeader reserves 1 and lets the application correct it. Under /level
// nothing is charged in the end, and the application is left alone.
const settledByHeader = `
http://:%d {
	%s
	header >Level {http.throttle.level}
	header /level X-Cost 0
	respond /level ok
	throttle {
		zone settled {
			key text everybody
			limit %d 1/d
			settle header X-Cost
		}
	}
	%s
}`

// level returns the level of settledByHeader's bucket, even soon after a reload.
func (v *visitor) level(t *testing.T, port int) float64 {
	t.Helper()
	var a answer
	eventually(t, "an answer", func() bool {
		var err error
		a, err = v.try("GET", fmt.Sprintf("http://127.0.0.1:%d/level", port))
		return err == nil
	})
	level, err := strconv.ParseFloat(a.header.Get("Level"), 64)
	if a.status != 200 || err != nil {
		t.Fatalf("got %d and level %q, want a number", a.status, a.header.Get("Level"))
	}
	return level - 1 // which this request has reserved
}

// TestAThousandBrokenResponsesSettleOnceEach: half of them by the upstream,
// which breaks off in the middle of the body, half by clients, which leave.
func TestAThousandBrokenResponsesSettleOnceEach(t *testing.T) {
	t.Parallel()
	rack := rackSite(t)
	for _, c := range []struct {
		name, path string
		leave      bool
		paid       float64 // for each
	}{
		{"the upstream breaks off", "/broken?cost=3", false, 3},
		{"the upstream breaks off, and it was cheap", "/broken?cost=0.25", false, 0.25},
		{"the client leaves", "/endless?cost=3", true, 3},
		{"the client leaves, and it was cheap", "/endless?cost=0.25", true, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			const each = 250 // per protocol: a thousand of either kind in all
			port, log := freePort(t), newChargeLog(t)
			caddy := startCaddy(t, config{sites: fmt.Sprintf(settledByHeader, port, log.directive, 2000, rack.directives)})
			url := fmt.Sprintf("http://127.0.0.1:%d%s", port, c.path)
			var clients sync.WaitGroup
			for _, protocol := range protocols {
				v := newVisitor(t, protocol)
				left := make(chan struct{}, each)
				for range each {
					left <- struct{}{}
				}
				close(left)
				for range 4 {
					clients.Go(func() {
						for range left {
							if err := v.breakOff(url, c.leave); err != nil {
								t.Error(err)
							}
						}
					})
				}
			}
			clients.Wait()

			lines := log.wait(t, 2*each)
			if len(lines) != 2*each {
				t.Errorf("got %d requests in the log, want %d", len(lines), 2*each)
			}
			for _, line := range lines {
				if s := line.Throttle.Settled; s == nil || *s != c.paid {
					t.Fatalf("got settled %v, want %v", s, c.paid)
				}
			}
			if got, want := newVisitor(t, "h1").level(t, port), 2*each*c.paid; !near(got, want) {
				t.Errorf("got level %v after %d requests, want %v", got, 2*each, want)
			}
			if got := caddy.metric(t, "caddy_throttle_unsettled_total"); got != 0 {
				t.Errorf("got %v unsettled, want none", got)
			}
		})
	}
}

// breakOff asks for a page whose body does not arrive whole: the upstream breaks
// off, or the client leaves after the first byte.
func (v *visitor) breakOff(url string, leave bool) error {
	ctx, hangUp := context.WithCancel(context.Background())
	defer hangUp()
	req, err := http.NewRequestWithContext(ctx, "GET", url, nil)
	if err != nil {
		return err
	}
	resp, err := v.Do(req)
	if err != nil {
		return fmt.Errorf("asking for %s: %w", url, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != 200 || resp.Header.Get("X-Cost") != "" {
		return fmt.Errorf("got %d and X-Cost %q from %s, want 200 and none", resp.StatusCode, resp.Header.Get("X-Cost"), url)
	}
	n, err := resp.Body.Read(make([]byte, 1))
	for err == nil && !leave {
		n, err = resp.Body.Read(make([]byte, 1))
	}
	switch {
	case leave && n == 0:
		return fmt.Errorf("got %w from %s before it was left, want a byte", err, url)
	case !leave && err == io.EOF:
		return fmt.Errorf("got all of %s, want it to break off", url)
	}
	return nil
}

// TestSettlementsOfRequestsInFlightSurviveReloads reloads while all of them are
// with the upstream, once with another limit.
func TestSettlementsOfRequestsInFlightSurviveReloads(t *testing.T) {
	t.Parallel()
	const requests, paid = 6, 7.0
	rack := rackSite(t)
	eachProtocol(t, func(t *testing.T, protocol string) {
		port := freePort(t)
		setup := func(capacity int) config {
			return config{sites: fmt.Sprintf(settledByHeader, port, "", capacity, rack.directives)}
		}
		c := startCaddy(t, setup(100))
		v := newVisitor(t, protocol)
		var inFlight sync.WaitGroup
		began := time.Now()
		for range requests {
			inFlight.Go(func() {
				a, err := v.try("GET", fmt.Sprintf("http://127.0.0.1:%d/slow?for=1500&cost=%v", port, paid))
				if err != nil || a.status != 200 || a.header.Get("X-Cost") != "" {
					t.Errorf("got %d, X-Cost %q and %v over a reload, want 200", a.status, a.header.Get("X-Cost"), err)
				}
			})
		}
		eventually(t, "all requests in flight", func() bool { return c.decisions(t, "settled", "admitted") == requests })
		for _, capacity := range []int{200, 300} {
			c.reload(setup(capacity))
		}
		probe := newVisitor(t, protocol)
		got := probe.level(t, port)
		// On a busy machine they may be back already.
		if time.Since(began) < time.Second && !near(got, requests) {
			t.Errorf("got level %v in between, want the %d that were reserved", got, requests)
		}
		inFlight.Wait()
		if got := probe.level(t, port); !near(got, requests*paid) {
			t.Errorf("got level %v, want %v: %d requests of %v", got, requests*paid, requests, paid)
		}
	})
}
