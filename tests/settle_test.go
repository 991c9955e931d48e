package tests

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

func TestASlowPageDrainsABucketByItsSeconds(t *testing.T) {
	php := phpSite(t)
	eachProtocol(t, func(t *testing.T, protocol string) {
		port := freePort(t)
		startCaddy(t, config{sites: fmt.Sprintf(`
http://:%d {
	throttle {
		zone workers {
			capacity 2
			leak 1/d
			cost 0.1
			settle seconds
		}
	}
	%s
}`, port, php.directives)})
		slow := newVisitor(t, protocol).pourUntilRefused(t, fmt.Sprintf("http://127.0.0.1:%d/slow.php?ms=500", port))
		if slow.admitted < 1 || slow.admitted > 4 {
			t.Errorf("got %d pages of half a second admitted to a bucket of 2 seconds, want 4, or fewer on a busy machine", slow.admitted)
		}
		fast := newVisitor(t, protocol).countAdmitted(t, 15, fmt.Sprintf("http://127.0.0.1:%d/slow.php?ms=0", port))
		if fast <= slow.admitted {
			t.Errorf("got %d pages of no time admitted, and %d of half a second", fast, slow.admitted)
		}
	})
}

// TestManyClientsOfOneKeyUseNoMoreWorkersThanTheLeak has twenty clients ask for
// pages that take what the cost line reserves, and adds up how long PHP worked.
func TestManyClientsOfOneKeyUseNoMoreWorkersThanTheLeak(t *testing.T) {
	php := phpSite(t)
	length := 8 * time.Second
	if os.Getenv("TEST_LONG") == "1" {
		length = time.Minute
	}
	const leak, page = 1.5, 0.2
	port := freePort(t)
	startCaddy(t, config{sites: fmt.Sprintf(`
http://:%d {
	throttle {
		zone workers {
			key text everybody
			capacity 1
			leak %v/s
			cost %v
			settle seconds
		}
	}
	%s
}`, port, leak, page, php.directives)})
	ctx, stop := context.WithTimeout(t.Context(), length)
	defer stop()
	var mu sync.Mutex
	var clients sync.WaitGroup
	worked, failed := 0.0, error(nil)
	began := time.Now()
	for n := range 20 {
		v := newVisitor(t, protocols[n%2])
		clients.Go(func() {
			for ctx.Err() == nil {
				seconds, err := v.work(fmt.Sprintf("http://127.0.0.1:%d/slow.php?ms=%d", port, int(1000*page)))
				mu.Lock()
				worked += seconds
				if err != nil {
					failed = err
				}
				mu.Unlock()
				if seconds == 0 { // refused: come back soon, as an impatient client does
					select {
					case <-time.After(20 * time.Millisecond):
					case <-ctx.Done():
					}
				}
			}
		})
	}
	clients.Wait()
	took := time.Since(began).Seconds()
	if failed != nil {
		t.Fatal(failed)
	}
	if most := 1.1*leak*took + 1; worked > most {
		t.Errorf("PHP worked %.2f s in %.2f s, want at most %.2f", worked, took, most)
	}
	if worked < 0.5*leak*took {
		t.Errorf("PHP worked %.2f s in %.2f s: more than half of what is allowed was refused", worked, took)
	}
	t.Logf("PHP worked %.2f s in %.2f s, %.3f of the leak", worked, took, worked/(leak*took))
}

// work asks for a page and returns how long it says PHP worked, or 0 if it was
// refused.
func (v *visitor) work(url string) (seconds float64, err error) {
	a, err := v.try(http.MethodGet, url)
	if err != nil || a.status == http.StatusTooManyRequests {
		return 0, err
	}
	text, ok := strings.CutPrefix(strings.TrimSpace(a.body), "worked: ")
	if !ok {
		return 0, fmt.Errorf("got status %d with %q, want how long it worked", a.status, a.body)
	}
	return strconv.ParseFloat(text, 64)
}

// settled is a site whose requests reserve 1, cost 3 if they are answered with
// 200, and nothing else.
type settled struct {
	*caddy
	config
	port int
	asks int // how often level has asked
}

func startSettled(t *testing.T, directives string) *settled {
	t.Helper()
	s := &settled{port: freePort(t)}
	s.config = config{sites: fmt.Sprintf(`
http://:%d {
	throttle {
		zone all {
			key text all
			capacity 10000
			leak 5/d
			settle status 200 3
		}
	}
	header >Level {http.throttle.level}
	%s
}`, s.port, directives)}
	s.caddy = startCaddy(t, s.config)
	return s
}

// level returns how full the bucket was before it asked, without what it paid
// itself for asking.
func (s *settled) level(t *testing.T) float64 {
	t.Helper()
	a := newVisitorFrom(t, "h1", "127.0.0.1").get(t, fmt.Sprintf("http://127.0.0.1:%d/", s.port))
	level, err := strconv.ParseFloat(a.header.Get("Level"), 64)
	if a.status != 200 || err != nil {
		t.Fatalf("got %d with Level %q: %v", a.status, a.header.Get("Level"), err)
	}
	paid := 3*float64(s.asks) + 1
	s.asks++
	return level - paid
}

func (s *settled) comesTo(t *testing.T, want float64) {
	t.Helper()
	var got float64
	eventually(t, fmt.Sprintf("a level of %v", want), func() bool {
		got = s.level(t)
		return math.Abs(got-want) < 0.01 // less than a thousandth of one request leaks in a test
	})
}

// all calls f a thousand times, a few at once.
func thousandTimes(f func(n int)) {
	var crew sync.WaitGroup
	for n := range 20 {
		crew.Go(func() {
			for i := range 50 {
				f(50*n + i)
			}
		})
	}
	crew.Wait()
}

func TestAThousandUpstreamsThatBreakOffAreSettledOnceEach(t *testing.T) {
	rack := rackSite(t)
	s := startSettled(t, rack.directives)
	crew := []*visitor{newVisitor(t, "h1"), newVisitor(t, "h2")}
	thousandTimes(func(n int) {
		if a, err := crew[n%2].try("GET", fmt.Sprintf("http://127.0.0.1:%d/broken", s.port)); err == nil {
			t.Errorf("request %d: got %d with %d bytes and no error, want one that breaks off", n, a.status, len(a.body))
		}
	})
	s.comesTo(t, 3000)
}

func TestAThousandClientsThatLeavePayWhatWasReservedOnceEach(t *testing.T) {
	rack := rackSite(t)
	s := startSettled(t, rack.directives)
	crew := []*visitor{newVisitor(t, "h1"), newVisitor(t, "h2")}
	var mu sync.Mutex
	model := 0.0
	thousandTimes(func(n int) {
		ctx, leave := context.WithTimeout(t.Context(), time.Duration(5+n%20)*time.Millisecond)
		defer leave()
		req, err := http.NewRequestWithContext(ctx, "GET", fmt.Sprintf("http://127.0.0.1:%d/slow", s.port), nil)
		if err != nil {
			t.Error(err)
			return
		}
		if _, err := crew[n%2].do(req); err == nil {
			mu.Lock()
			model += 2 // it was served in time after all, and pays for that
			mu.Unlock()
		}
	})
	// Who left before the request was on its way cost nothing; what Caddy counts
	// as decided is what was reserved.
	var admitted float64
	eventually(t, "all to be decided", func() bool {
		before := admitted
		admitted = s.metric(t, "caddy_throttle_requests_total", `zone="all"`, `decision="admitted"`)
		return admitted > 0 && admitted == before
	})
	s.comesTo(t, admitted+model)
}

func TestASettlementLandsThoughCaddyWasReloadedMeanwhile(t *testing.T) {
	php := phpSite(t)
	s := startSettled(t, php.directives)
	answered := make(chan error, 1)
	v := newVisitor(t, "h1")
	go func() {
		_, err := v.try("GET", fmt.Sprintf("http://127.0.0.1:%d/slow.php?ms=1500", s.port))
		answered <- err
	}()
	eventually(t, "the request to be charged", func() bool {
		return s.metric(t, "caddy_throttle_requests_total", `zone="all"`, `decision="admitted"`) == 1
	})
	s.reload(config{sites: strings.Replace(s.sites, "header >Level", "header >Generation 2\n\theader >Level", 1)})
	select {
	case err := <-answered:
		t.Fatalf("the request was over before the reload: %v", err)
	default:
	}
	if err := <-answered; err != nil {
		t.Fatal(err)
	}
	s.comesTo(t, 3)
}
