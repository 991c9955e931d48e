package inflight_test

import (
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/admin/wire"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/override"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/servertest"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

// TestShadow counts on arrival what would be done, and holds nothing up. Who waits when it is
// switched to at run time waits on.
func TestShadow(t *testing.T) {
	const shadow = "in_flight php 1 {\nwait 1m\nqueue 1\nshadow\n}\n"
	onSite(t, shadow+shadow, time.Second, func(t *testing.T, s *servertest.FuncSite) {
		visits := []*servertest.Visit{s.Visit(client(1), "/"), s.Visit(client(2), "/"), s.Visit(client(3), "/")}
		servertest.Sleep(time.Minute)
		wantWaits(t, visits, 0, 0, 0)
		servertest.WantCounts(t, "php", map[string]float64{"admitted": 1, "shadow_delayed": 1, "shadow_refused": 1})
	})
	onSite(t, "in_flight php 1 {\nwait 1m\n}", 10*time.Second, func(t *testing.T, s *servertest.FuncSite) {
		visits := s.Visits(2, client(1), "/")
		now := time.Now()
		s.Engine().Control.Changes.Table.Apply(now, override.Entry{Name: override.Name{Kind: override.OfShadow, Zone: "php"}, Span: override.Span{Since: now, Until: now.Add(5 * time.Second)}})
		visits = append(visits, s.Visit(client(1), "/"))
		servertest.Sleep(6 * time.Second)
		visits = append(visits, s.Visit(client(1), "/")) // the switch is over
		servertest.Sleep(time.Minute)
		wantWaits(t, visits, 0, 10, 0, 14)
		servertest.WantCounts(t, "php", map[string]float64{"admitted": 2, "delayed": 2})
	})
}

// TestReload: requests that wait keep their places, and have the slots of the next config.
func TestReload(t *testing.T) {
	servertest.InBubble(t, func(t *testing.T) {
		const site = "in_flight php %d {\nwait 1m\n}"
		before := servertest.NewWaitSite(t, fmt.Sprintf(site, 1), 10*time.Second)
		visits := before.Visits(3, client(1), "/")
		servertest.Sleep(time.Second)
		after := servertest.NewWaitSite(t, fmt.Sprintf(site, 2), 10*time.Second)
		visits = append(visits, after.Visit(client(2), "/"))
		servertest.Sleep(time.Minute)
		wantWaits(t, visits, 0, 1, 10, 10)
		wantIdle(t, after)
	})
}

// TestRefusedFurtherIn: the zones around give back what they have charged, and a slot that was
// taken in vain is free.
func TestRefusedFurtherIn(t *testing.T) {
	const around, within, slot = "throttle {\nzone around {\nlimit 100 1/d\n}\n}\n", "throttle {\nzone within {\nlimit 1 1/d\n}\n}\n", "in_flight php 1 {\nbuffer 1KiB\n"
	tooLong := func(s *servertest.FuncSite) { s.Come(long(client(1), "/", 2<<10)) }
	for name, test := range map[string]struct {
		directives     string
		also           func(*servertest.FuncSite)
		around, within float64
	}{
		"no slot is free":        {around + slot + "}", nil, 1, 0},
		"a body is too long":     {around + slot + "}", tooLong, 1, 0},
		"a matcher panics":       {around + "in_flight php 1 {\nexempt test_panics exempt\n}", func(s *servertest.FuncSite) { s.Visit(client(1), "/panics/exempt") }, 1, 0},
		"its client leaves":      {around + slot + "wait 1m\n}", func(s *servertest.FuncSite) { s.Visit(client(1), "/").Leave() }, 2, 0},
		"a zone within the slot": {strings.Replace(slot, "1", "2", 1) + "}\n" + within, nil, 0, 1},
		"a zone within both":     {around + slot + "wait 1m\n}\n" + within, nil, 1, 1},
		"throttle around both":   {around + within + slot + "}", nil, 1, 1},
		"an error is caught":     {around + "test_catches {\nroute {\n" + slot + "refusal error\n}\nsettle_upstream\n}\n}\nin_flight own 1", nil, 1, 0},
	} {
		t.Run(name, func(t *testing.T) {
			onSite(t, test.directives, 10*time.Second, func(t *testing.T, s *servertest.FuncSite) {
				s.Visits(2, client(1), "/")
				if test.also != nil {
					test.also(s)
				}
				servertest.Sleep(time.Minute)
				for zone, want := range map[string]float64{"around": test.around, "within": test.within} {
					got := s.Fullness(zone, client(1), 100, 1./86400, false)
					check.That(t, math.Abs(got-want) <= .01, "got level %v of zone %s, want %v", got, zone, want)
				}
			})
		})
	}
}

// TestSettledSeconds are those of the upstream: neither the queue nor the client's upload counts.
func TestSettledSeconds(t *testing.T) {
	const zone, slots = "throttle {\nzone seconds {\nlimit 1000 1/d\nsettle seconds\n}\n}\n", "in_flight %s 1 {\nwait 5m\n}\n"
	for name, test := range map[string]struct {
		directives string
		want       float64
	}{
		"around":         {zone + fmt.Sprintf(slots, "php"), 30},
		"around two":     {zone + fmt.Sprintf(slots, "site") + fmt.Sprintf(slots, "php"), 30},
		"within":         {fmt.Sprintf(slots, "php") + zone, 30},
		"between":        {fmt.Sprintf(slots, "site") + zone + fmt.Sprintf(slots, "php"), 30},
		"without a slot": {zone, 30 + 20},
	} {
		t.Run(name, func(t *testing.T) {
			onSite(t, test.directives, 0, func(t *testing.T, s *servertest.FuncSite) {
				s.Serve = func(w http.ResponseWriter, r *http.Request) error {
					_, _ = r.Body.Read(make([]byte, 10))
					<-time.After(10 * time.Second)
					w.WriteHeader(http.StatusOK)
					return nil
				}
				r, send := upload(client(1), "/", 4)
				s.Come(r)
				s.Visits(2, client(1), "/")
				servertest.Sleep(20 * time.Second)
				_, _ = send.Write([]byte("body"))
				send.Close()
				servertest.Sleep(10 * time.Minute)
				got := s.Fullness("seconds", client(1), 1000, 1./86400, false)
				check.That(t, math.Abs(got-test.want) <= .1, "got %v seconds charged, want %v", got, test.want)
			})
		})
	}
}

// TestPlaceholders {http.in_flight.*} in an error route, and at an upstream.
func TestPlaceholders(t *testing.T) {
	text := ""
	for name := range strings.FieldsSeq("name key decision reason waited rank retry_after message support_code") {
		text += "{http.in_flight." + name + "}|"
	}
	directives := "in_flight php 1 client_ip {\nwait 3s\nrefusal {\nerror\nmessage busy\ncode off\n}\n}\nsettle_upstream\n}\nhandle_errors {\nroute {\nrespond \"" + text + "\" 503"
	onSite(t, directives, 0, func(t *testing.T, s *servertest.FuncSite) {
		got, takes := "", time.Second
		s.Serve = func(_ http.ResponseWriter, r *http.Request) error {
			got = r.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer).ReplaceAll(text, "")
			<-time.After(takes)
			return nil
		}
		s.Visits(2, client(1), "/")
		servertest.Sleep(time.Minute)
		check.Equal(t, got, "php|203.0.1.7|delayed||1|||busy||", "after a wait")
		takes = time.Minute
		refused := s.Visits(2, client(1), "/")[1]
		servertest.Sleep(time.Hour)
		check.Equal(t, refused.Body.String(), "php|203.0.1.7|refused|timeout|3||1|busy||", "after a refusal")
	})
}

// TestStatus is what the admin API tells.
func TestStatus(t *testing.T) {
	for options, want := range map[string]string{
		"client_ip {\nwait 1m\n}": "enforcing: 3 of 1 slots, 1 of 250 waiting",
		"{\nshare\nwait 1m\n}":    "enforcing: 1 of 1 slots, 3 of 250 waiting",
		"{\nshadow\n}":            "shadow: 4 of 1 slots, 0 of 0 waiting",
	} {
		onSite(t, "in_flight php 1 "+options, time.Second, func(t *testing.T, s *servertest.FuncSite) {
			for _, n := range []int{1, 2, 3, 1} {
				s.Visit(client(n), "/")
			}
			var status wire.Status
			servertest.AskAdmin(t, s.Engine(), http.MethodGet, "/throttle/zones", "", &status)
			f := status.InFlight[0]
			check.Equal(t, fmt.Sprintf("%s: %d of %d slots, %d of %d waiting", f.Mode, f.Running, f.Slots, f.Waiting, f.Queue), want, "%s", options)
			servertest.Sleep(time.Minute)
		})
	}
}

// TestConfigErrors of JSON that no Caddyfile gives.
func TestConfigErrors(t *testing.T) {
	const php = `{"handler":"in_flight","name":"php","slots":5`
	for _, test := range []struct {
		global string
		http   []string
		want   string
	}{
		{"", []string{`{"handler":"in_flight"}`}, `in_flight`},
		{"", []string{`{"handler":"in_flight","name":"php"}`}, `unknown in_flight "php"`},
		{"", []string{php + `,"wait":-1}`}, `wait`},
		{"", []string{php + `,"queue":10}`}, `queue has no meaning without wait`},
		{"", []string{php + `,"share":[{"source":"client_ip"}],"key":[{"source":"client_ip"}]}`}, `share and a key exclude each other`},
		{"", []string{php + `,"rank":[{"rank":"king"}],"share":[{"source":"client_ip"}]}`}, `king`},
		{"", []string{php + `,"limit":"5 1/s"}`}, `limit`},
		{"", []string{php + `}`, php + `,"wait":1000000000}`}, `in_flight "php" is defined twice, and differently`},
		{"", []string{php + `}`, `{"handler":"throttle","zone":[{"name":"php","limit":"5 1/s"}]}`}, `"php" is the name of a zone and of an in_flight`},
		{`{"in_flight":[null]}`, nil, `an in_flight is null`},
	} {
		apps := map[string]string{"http": servertest.WithHandlers(test.http...)}
		if test.global != "" {
			apps["throttle"] = test.global
		}
		err := servertest.Provision(t, apps)
		check.That(t, err != nil && strings.Contains(err.Error(), test.want), "%s%v: got %v, want an error with %q", test.global, test.http, err, test.want)
	}
}

// TestIncludes: parts of a page need no other slot than that.
func TestIncludes(t *testing.T) {
	for _, directives := range []string{"in_flight php 1\ntemplates", "templates\nin_flight php 1"} {
		onSite(t, directives, 0, func(t *testing.T, s *servertest.FuncSite) {
			s.Serve = func(w http.ResponseWriter, r *http.Request) error {
				w.Header().Set("Content-Type", "text/html")
				text := `a page with {{httpInclude "/part"}}`
				if r.URL.Path == "/part" {
					text = "a part"
				}
				_, err := w.Write([]byte(text))
				return err
			}
			v := s.Visit(client(1), "/page")
			servertest.Sleep(time.Minute)
			got := v.Body.String()
			check.That(t, v.Code == http.StatusOK && got == "a page with a part", "%s: got %d %q", directives, v.Code, got)
		})
	}
}

// A deadlined client is cut off when a deadline of the server's is over.
type deadlined struct {
	*httptest.ResponseRecorder
	body  *io.PipeWriter
	timer *time.Timer
}

func (d *deadlined) SetReadDeadline(at time.Time) error {
	d.timer.Stop()
	if !at.IsZero() {
		d.timer = time.AfterFunc(time.Until(at), func() { d.body.CloseWithError(os.ErrDeadlineExceeded) })
	}
	return nil
}

// TestCutOff: bodies that come too slowly for Caddy's timeouts, and at the end of the process all
// that wait or are being received. Who is served has the time that the upstream takes.
func TestCutOff(t *testing.T) {
	for name, test := range map[string]struct {
		exits  bool
		status int
		after  time.Duration
		counts map[string]float64
	}{
		"by a timeout": {false, http.StatusRequestTimeout, time.Minute, map[string]float64{"admitted": 1, "delayed": 1, "refused timeout": 1}},
		"at the end":   {true, http.StatusServiceUnavailable, time.Second, map[string]float64{"admitted": 1, "refused queue_full": 2}},
	} {
		t.Run(name, func(t *testing.T) {
			onSite(t, "in_flight php 1 {\nwait 1h\n}", 10*time.Second, func(t *testing.T, s *servertest.FuncSite) {
				visits := []*servertest.Visit{s.Visit(client(1), "/"), s.Visit(client(2), "/")}
				r, send := upload(client(3), "/", -1)
				w := &deadlined{httptest.NewRecorder(), send, time.NewTimer(0)}
				began, took := time.Now(), make(chan time.Duration, 1)
				go func() {
					s.ServeHTTP(w, r)
					took <- time.Since(began)
				}()
				_, _ = send.Write([]byte("some"))
				servertest.Sleep(time.Second)
				if test.exits {
					s.Exit()
				}
				got := <-took
				check.That(t, got == test.after && w.Code == test.status, "got %d after %v, want %d after %v", w.Code, got, test.status, test.after)
				servertest.Sleep(time.Minute)
				if test.exits {
					wantWaits(t, visits, 0, -1)
					wantRefused(t, visits[1], http.StatusServiceUnavailable, "1")
				} else {
					wantWaits(t, visits, 0, 10)
				}
				servertest.WantCounts(t, "php", test.counts)
			})
		})
	}
}

// TestLoggedMean: without share, nobody measures for how long slots are held.
func TestLoggedMean(t *testing.T) {
	for options, want := range map[string]bool{"wait 1s": false, "share": true} {
		s := servertest.Run(t, "http:// {\nin_flight php 1 {\nbuffer 1KiB\n"+options+"\n}\nrespond ok\n}")
		check.Equal(t, s.Do(long(client(1), "/", 2000)).Code, http.StatusRequestEntityTooLarge)
		s.Stop()
		lines := s.Logs.Lines(t, "in_flight refused requests")
		check.Assume(t, len(lines) == 1, "%s: got %v, want a line", options, lines)
		_, got := lines[0]["mean_seconds"]
		check.Equal(t, got, want, "%s: mean_seconds in %v", options, lines[0])
	}
}
