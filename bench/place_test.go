package bench

import (
	"flag"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"golang.org/x/sys/unix"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/servertest"
)

var (
	placed      = flag.String("place", ".", "which rows TestInPlace measures, as a regular expression")
	placeRounds = flag.Int("place.rounds", 5, "how many rounds TestInPlace measures")
)

// measuredRequests are those of one run, after others that warm it up.
const measuredRequests, warmingRequests = 50_000, 3_000

func init() {
	caddy.RegisterModule(new(outerProbe))
	caddy.RegisterModule(new(innerProbe))
	httpcaddyfile.RegisterHandlerDirective("outer_probe", func(httpcaddyfile.Helper) (caddyhttp.MiddlewareHandler, error) { return new(outerProbe), nil })
	httpcaddyfile.RegisterHandlerDirective("inner_probe", func(httpcaddyfile.Helper) (caddyhttp.MiddlewareHandler, error) { return new(innerProbe), nil })
}

// within is how long the inner probe's next handler took. One variable will do, as all
// requests are served on one processor: a handler is hardly ever interrupted, and the median
// does not see it.
var within time.Duration

// placeRun receives what the outer probe measures; nil while nothing is.
var placeRun atomic.Pointer[probed]

var probesBegan = time.Now()

// An outerProbe stands before a limiter, and an innerProbe behind it.
type (
	outerProbe struct{}
	innerProbe struct{}
)

func (*outerProbe) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "http.handlers.outer_probe", New: func() caddy.Module { return new(outerProbe) }}
}

func (*innerProbe) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "http.handlers.inner_probe", New: func() caddy.Module { return new(innerProbe) }}
}

func (*outerProbe) ServeHTTP(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	within = 0
	began := time.Since(probesBegan)
	err := next.ServeHTTP(w, r)
	took := time.Since(probesBegan) - began
	if run := placeRun.Load(); run != nil {
		run.add(took, took-within)
	}
	return err
}

func (*innerProbe) ServeHTTP(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	began := time.Since(probesBegan)
	err := next.ServeHTTP(w, r)
	within = time.Since(probesBegan) - began
	return err
}

// A probed run has the times of requests: of all that is behind the outer probe, and of that
// without what is behind the inner one.
type probed struct {
	n            atomic.Int64
	warm, full   chan struct{}
	whole, apart [measuredRequests]time.Duration
}

func (p *probed) add(whole, apart time.Duration) {
	n := p.n.Add(1) - 1 - warmingRequests
	if 0 <= n && n < measuredRequests {
		p.whole[n], p.apart[n] = whole, apart
	}
	switch n {
	case 0:
		close(p.warm)
	case measuredRequests:
		close(p.full)
	}
}

// A placement is what one site costs a request.
type placement struct {
	apart, whole float64 // microseconds between the probes, and behind the outer one; medians
	processor    float64 // microseconds of the process
	allocations  float64
}

// place loads a site with wrk until enough requests were measured.
func place(t *testing.T, wrk []string) placement {
	t.Helper()
	run := &probed{warm: make(chan struct{}), full: make(chan struct{})}
	placeRun.Store(run)
	defer placeRun.Store(nil)
	load := exec.Command(wrk[0], wrk[1:]...)
	check.OK(t, load.Start())
	defer func() {
		_ = load.Process.Kill()
		_ = load.Wait()
	}()
	var before, after runtime.MemStats
	await(t, run.warm)
	began := clock(unix.CLOCK_PROCESS_CPUTIME_ID)
	runtime.ReadMemStats(&before)
	await(t, run.full)
	runtime.ReadMemStats(&after)
	used := clock(unix.CLOCK_PROCESS_CPUTIME_ID) - began
	p := placement{apart: medianMicroseconds(run.apart[:]), whole: medianMicroseconds(run.whole[:])}
	p.processor = used.Seconds() * 1e6 / measuredRequests
	p.allocations = float64(after.Mallocs-before.Mallocs) / measuredRequests
	return p
}

func await(t *testing.T, done chan struct{}) {
	t.Helper()
	select {
	case <-done:
	case <-time.After(time.Minute):
		t.Fatal("wrk sends too few requests")
	}
}

func medianMicroseconds(all []time.Duration) float64 {
	slices.Sort(all)
	return float64(all[len(all)/2]) / 1000
}

// A placedSite is one with a limiter, or without one, to which others are compared.
type placedSite struct {
	limiter string // the directive
	log     bool
	keys    bool // wrk sends headerKeys values of a header
	on      []string
	got     []placement
}

// TestInPlace measures what limiters cost a request in Caddy's server: the time between a
// handler that stands before the limiter and one behind it. So the caches are as cold as
// in life, but what the server does beside does not count. Sites take turns; what a row shows
// is the median of the rounds, over a site without a limiter in the same round.
func TestInPlace(t *testing.T) {
	if os.Getenv("TEST_LONG") != "1" {
		t.Skip("SKIPPED: measures for minutes; set TEST_LONG=1")
	}
	if _, err := exec.LookPath("wrk"); err != nil {
		t.Fatal("this needs wrk")
	}
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	three := func(zone func(string, string, bool) string, name, address string) string {
		return zone(name+"a", address, false) + zone(name+"h", "{http.request.host}", false) + zone(name+"m", "{http.request.method}", false)
	}
	none, logged, keyed := &placedSite{}, &placedSite{log: true}, &placedSite{keys: true}
	rows := []struct {
		work         string
		whole        bool // counts what is behind the limiter, too
		none         *placedSite
		ours, theirs *placedSite // the latter may be nil
	}{
		{
			"one zone, client_ip", false, none,
			&placedSite{limiter: "throttle {\n" + ours("one", "client_ip", false) + "}"},
			&placedSite{limiter: "rate_limit {\n" + theirs("one", "{remote_host}", false) + "}"},
		},
		{
			"three zones: client_ip, host, method", false, none,
			&placedSite{limiter: "throttle {\n" + three(ours, "three", "client_ip") + "}"},
			&placedSite{limiter: "rate_limit {\n" + three(theirs, "three", "{remote_host}") + "}"},
		},
		{
			"100,000 keys by header", false, keyed,
			&placedSite{keys: true, limiter: "throttle {\nzone keys {\nkey header X-Key plain\nlimit 1000000 1/s\n}\n}"},
			&placedSite{keys: true, limiter: "rate_limit {\nzone keys {\nkey {http.request.header.X-Key}\nevents 10\nwindow 1ms\n}\n}"},
		},
		{
			"refused, the whole answer", false, none,
			&placedSite{limiter: "throttle {\n" + ours("shut", "client_ip", true) + "}"},
			&placedSite{limiter: "rate_limit {\n" + theirs("shut", "{remote_host}", true) + "}"},
		},
		{
			"settle status, with what writing takes longer", true, none,
			&placedSite{limiter: "throttle {\nzone settled {\nlimit 1000000000 1000/s\nsettle status 401 1\n}\n}"},
			nil,
		},
		{
			"in_flight 100, with what writing takes longer", true, none,
			&placedSite{limiter: "in_flight slots 100"},
			nil,
		},
		{
			"in_flight 100 with share, likewise", true, none,
			&placedSite{limiter: "in_flight shared 100 {\nshare\n}"},
			nil,
		},
		{
			"one zone, with the access log on", false, logged,
			&placedSite{log: true, limiter: "throttle {\n" + ours("logged", "client_ip", false) + "}"},
			&placedSite{log: true, limiter: "rate_limit {\n" + theirs("logged", "{remote_host}", false) + "}"},
		},
	}
	wanted := check.Must(regexp.Compile(*placed))(t)
	var sites []*placedSite
	for _, row := range rows {
		for _, site := range []*placedSite{row.none, row.ours, row.theirs} {
			if site != nil && wanted.MatchString(row.work) && !slices.Contains(sites, site) {
				sites = append(sites, site)
			}
		}
	}
	serveSites(t, sites)
	for range *placeRounds {
		for _, site := range sites {
			site.got = append(site.got, place(t, site.on))
		}
	}
	table := "| work | throttle, µs | caddy-ratelimit, µs | ratio | allocations | theirs | processor time, µs | theirs |\n|---|---|---|---|---|---|---|---|\n"
	for _, row := range rows {
		if len(row.ours.got) == 0 {
			continue
		}
		cost := func(p *placement) float64 { return p.apart }
		if row.whole {
			cost = func(p *placement) float64 { return p.whole }
		}
		us := row.ours.over(row.none, cost)
		if row.theirs == nil {
			table += fmt.Sprintf("| %s | %.2f | | | %.1f | | %.1f | |\n", row.work, us.cost, us.allocations, us.processor)
			continue
		}
		them := row.theirs.over(row.none, cost)
		table += fmt.Sprintf("| %s | %.2f | %.2f | %.2f | %.1f | %.1f | %.1f | %.1f |\n",
			row.work, us.cost, them.cost, us.cost/them.cost, us.allocations, them.allocations, us.processor, them.processor)
	}
	t.Log("\n" + table)
}

// An excess is what a site costs more than one without a limiter, in microseconds.
type excess struct{ cost, processor, allocations float64 }

// over returns the medians of all rounds.
func (s *placedSite) over(none *placedSite, cost func(*placement) float64) excess {
	median := func(of func(*placement) float64) float64 {
		var all []float64
		for i := range s.got {
			all = append(all, of(&s.got[i])-of(&none.got[i]))
		}
		slices.Sort(all)
		return all[len(all)/2]
	}
	return excess{
		cost: median(cost), processor: median(func(p *placement) float64 { return p.processor }),
		allocations: median(func(p *placement) float64 { return p.allocations }) - 1, // which Caddy makes for any handler
	}
}

// serveSites has Caddy serve the sites, each on a port of its own, until the test ends, and
// says how wrk loads each. All keys have come once before the first run.
func serveSites(t *testing.T, sites []*placedSite) {
	t.Helper()
	for _, dir := range []string{"HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME"} {
		t.Setenv(dir, t.TempDir())
	}
	caddyfile := "{\nadmin off\npersist_config off\nmetrics\nlog {\noutput discard\n}\nthrottle {\nstore memory {\nsnapshot off\n}\n}\n}\n"
	for _, site := range sites {
		port, log := servertest.FreePort(t), ""
		if site.log {
			log = "log {\noutput discard\n}\n"
		}
		caddyfile += fmt.Sprintf("http://:%d {\n%sroute {\nouter_probe\n%s\ninner_probe\nrespond \"ok\"\n}\n}\n", port, log, site.limiter)
		site.on = []string{"wrk", "--threads", "1", "--connections", fmt.Sprint(connections), "--duration", "10m", fmt.Sprintf("http://127.0.0.1:%d/", port)}
	}
	config, _, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte(caddyfile), nil)
	must(err)
	must(caddy.Load(config, false))
	t.Cleanup(func() { must(caddy.Stop()) })
	script := t.TempDir() + "/keys.lua"
	must(os.WriteFile(script, fmt.Appendf(nil, keysScript, headerKeys), 0o600))
	for _, site := range sites {
		if site.keys {
			site.on = slices.Insert(site.on, 1, "--script", script)
			for range 6 {
				place(t, site.on)
			}
		}
	}
}
