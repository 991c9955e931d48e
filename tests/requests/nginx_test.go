package requests

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/servertest"
	"github.com/caddy-throttle/caddy-throttle/tests/internal/system"
)

// A likeNginx is a limit in nginx's words and in ours, and the decisions of both
// about the same requests. nginx's burst does not count the request that fits at
// once.
type likeNginx struct {
	name   string
	zones  string // limit_req_zone, in nginx's http block
	limits string // limit_req, in its location
	ours   string // zones of a throttle block
	trace  []arrivals
}

// arrivals are requests that come at one time after the first, with their waits
// in any order.
type arrivals struct {
	at    time.Duration
	waits []time.Duration
}

const (
	ms     = time.Millisecond
	refuse = time.Duration(-1) // instead of a wait
)

// If there are several limits, both charge a request to all of them or to none,
// and let it wait for the longest. They differ by design in two cases. If a
// waiting client leaves, we give its charge back. If one of two limits in a dry
// run would refuse, nginx charges neither; we charge the other one, as if the
// first did not exist.
var likeNginxCases = []likeNginx{
	{
		name:   "no burst",
		zones:  "limit_req_zone $binary_remote_addr zone=plain:1m rate=4r/s;",
		limits: "limit_req zone=plain;",
		ours:   "zone plain {\n limit 1 4/s\n }",
		trace: []arrivals{
			{0, []time.Duration{0, refuse, refuse}},
			{375 * ms, []time.Duration{0}},
			{500 * ms, []time.Duration{refuse}},
			{750 * ms, []time.Duration{0, refuse}},
		},
	},
	{
		name:   "burst without delay",
		zones:  "limit_req_zone $binary_remote_addr zone=nodelay:1m rate=4r/s;",
		limits: "limit_req zone=nodelay burst=5 nodelay;",
		ours:   "zone nodelay {\n limit 6 4/s\n }",
		trace: []arrivals{
			{0, []time.Duration{0, 0, 0, 0, 0, 0, refuse, refuse}},
			{625 * ms, []time.Duration{0, 0, refuse}},
			{875 * ms, []time.Duration{0, refuse}},
		},
	},
	{
		name:   "burst with delay",
		zones:  "limit_req_zone $binary_remote_addr zone=delay:1m rate=4r/s;",
		limits: "limit_req zone=delay burst=5;",
		ours:   "zone delay {\n limit 6 4/s\n delay\n }",
		trace: []arrivals{
			{0, []time.Duration{0, 250 * ms, 500 * ms, 750 * ms, 1000 * ms, 1250 * ms, refuse, refuse}},
			{625 * ms, []time.Duration{875 * ms, 1125 * ms, refuse}},
		},
	},
	{
		name:   "burst of five at one a second",
		zones:  "limit_req_zone $binary_remote_addr zone=reference:1m rate=1r/s;",
		limits: "limit_req zone=reference burst=5;",
		ours:   "zone reference {\n limit 6 1/s\n delay\n }",
		trace: []arrivals{
			{0, []time.Duration{0, 1000 * ms, 2000 * ms, 3000 * ms, 4000 * ms, 5000 * ms, refuse}},
		},
	},
	{
		name:   "delay after three",
		zones:  "limit_req_zone $binary_remote_addr zone=later:1m rate=4r/s;",
		limits: "limit_req zone=later burst=5 delay=3;",
		ours:   "zone later {\n limit 6 4/s\n delay 3\n }",
		trace: []arrivals{
			{0, []time.Duration{0, 0, 0, 0, 250 * ms, 500 * ms, refuse}},
			{625 * ms, []time.Duration{125 * ms, 375 * ms, refuse}},
		},
	},
	{
		name: "two limits without delay",
		zones: `limit_req_zone $binary_remote_addr zone=tight:1m rate=8r/s;
			limit_req_zone $binary_remote_addr zone=wide:1m rate=1r/s;`,
		limits: "limit_req zone=tight burst=2 nodelay;\nlimit_req zone=wide burst=4 nodelay;",
		ours:   "zone tight {\n limit 3 8/s\n }\n zone wide {\n limit 5 1/s\n }",
		trace: []arrivals{
			{0, []time.Duration{0, 0, 0, refuse, refuse}}, // by tight
			{440 * ms, []time.Duration{0, 0, refuse}},     // by wide, which has paid for none of the refused
			{1500 * ms, []time.Duration{0, refuse}},
		},
	},
	{
		name: "two limits with delay",
		zones: `limit_req_zone $binary_remote_addr zone=fast:1m rate=8r/s;
			limit_req_zone $binary_remote_addr zone=slow:1m rate=2r/s;`,
		limits: "limit_req zone=fast burst=5;\nlimit_req zone=slow burst=4 delay=3;",
		ours:   "zone fast {\n limit 6 8/s\n delay\n }\n zone slow {\n limit 5 2/s\n delay 3\n }",
		trace: []arrivals{
			{0, []time.Duration{0, 125 * ms, 250 * ms, 375 * ms, 500 * ms, refuse}}, // slow's at 4 waits for both
			{750 * ms, []time.Duration{250 * ms, refuse}},
		},
	},
}

// closeEnough is less than any two waits differ by. How much longer one takes is asserted with
// TEST_LONG=1 only.
const closeEnough = 100 * time.Millisecond

// TestWePassDelayAndRefuseAsNginxDoes sends the same requests to both,
// at the same time.
func TestWePassDelayAndRefuseAsNginxDoes(t *testing.T) {
	t.Parallel()
	var zones, locations, sites strings.Builder
	for n, c := range likeNginxCases {
		zones.WriteString(c.zones)
		fmt.Fprintf(&locations, "location /%d {\n %s\n try_files /page =404;\n }\n", n, c.limits)
		fmt.Fprintf(&sites, "throttle /%d {\n %s\n }\n", n, c.ours)
	}
	nginx, ours := system.StartNginx(t, zones.String(), locations.String()), servertest.FreePort(t)
	system.StartCaddy(t, system.Config{Sites: fmt.Sprintf("http://:%d {\n header >Verdict {http.throttle.decision}\n %s\n respond ok\n}", ours, sites.String())})
	for n, c := range likeNginxCases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var err error
			for range system.Stalls {
				if err = c.compare(t, fmt.Sprintf("http://127.0.0.1:%d/%d", nginx, n), fmt.Sprintf("http://127.0.0.1:%d/%d", ours, n)); err == nil {
					return
				}
				t.Logf("once more, after: %v", err)
			}
			t.Error(err)
		})
	}
}

// compare plays the trace for a new client.
func (c *likeNginx) compare(t *testing.T, nginx, ours string) error {
	v := system.NewVisitor(t, "h1")
	defer v.CloseIdleConnections()
	theirs, own := make([][]visit, len(c.trace)), make([][]visit, len(c.trace))
	began := time.Now()
	var all sync.WaitGroup
	for i := range c.trace {
		all.Go(func() {
			n := len(c.trace[i].waits)
			time.Sleep(time.Until(began.Add(c.trace[i].at)))
			var both sync.WaitGroup
			both.Go(func() { theirs[i] = visitAtOnce(v, nginx, n) })
			both.Go(func() { own[i] = visitAtOnce(v, ours, n) })
			both.Wait()
		})
	}
	all.Wait()

	var errs []error
	differ := func(i, n int, what string, got, want any) {
		errs = append(errs, fmt.Errorf("at %v, request %d: got %v from %s, want %v", c.trace[i].at, n+1, got, what, want))
	}
	for i, a := range c.trace {
		for n, want := range a.waits {
			status, verdicts := 200, [2]string{"PASSED", "admitted"}
			switch {
			case want == refuse:
				status, verdicts = 429, [2]string{"REJECTED", "refused"}
			case want > 0:
				verdicts = [2]string{"DELAYED", "delayed"}
			}
			for which, got := range [2]visit{theirs[i][n], own[i][n]} {
				if got.err != nil || got.status != status || got.verdict != verdicts[which] {
					differ(i, n, [2]string{"nginx", "us"}[which], got, verdicts[which])
				}
			}
			if want == refuse {
				continue
			}
			if got := theirs[i][n].took; want-got > closeEnough || system.Long() && got-want > closeEnough {
				differ(i, n, "nginx", got, want)
			}
			if got := own[i][n].took; want-got > closeEnough || system.Long() && got-want > closeEnough {
				differ(i, n, "us", got, want)
			}
			if got, want := own[i][n].took, theirs[i][n].took; system.Long() && (got-want).Abs() > closeEnough {
				differ(i, n, "us", got, fmt.Sprint("nginx's ", want))
			}
		}
	}
	return errors.Join(errs...)
}

// A visit is how long a request took, and the decision about it.
type visit struct {
	took    time.Duration
	status  int
	verdict string
	err     error
}

// visitAtOnce asks n times at once. It returns the visits by how long they took,
// the refused ones last.
func visitAtOnce(v *system.Visitor, url string, n int) []visit {
	visits := make([]visit, n)
	var all sync.WaitGroup
	for i := range visits {
		all.Go(func() {
			began := time.Now()
			a, err := v.Try("GET", url)
			visits[i] = visit{time.Since(began), a.Status, a.Header.Get("Verdict"), err}
		})
	}
	all.Wait()
	slices.SortFunc(visits, func(a, b visit) int {
		return cmp.Or(cmp.Compare(a.status, b.status), cmp.Compare(a.took, b.took))
	})
	return visits
}
