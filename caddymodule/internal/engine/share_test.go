package engine_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/admin/wire"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/config"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/decision"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/engine"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/inflight/fairqueue"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/override"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/rule"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/servertest"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/telemetry"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// wantTurns checks how long requests waited, in seconds. A refused request is -1.
func wantTurns(t *testing.T, visits []*servertest.Visit, want ...float64) {
	t.Helper()
	for i, v := range visits {
		got := v.Waited.Round(time.Millisecond).Seconds()
		switch {
		case !v.Ended:
			got = -2
		case v.Code == http.StatusServiceUnavailable:
			got = -1
		}
		if got != want[i] {
			t.Errorf("request %d: got %v, want %v", i+1, got, want[i])
		}
	}
}

// newShareZone is the site of a zone with share, whose clients have the ranks that the
// header X-Rank says.
func newShareZone(t *testing.T, options string, takes time.Duration) *servertest.FuncSite {
	s := servertest.NewWaitZone(t, options, takes)
	rankByHeader(s, "waits")
	return s
}

func rankByHeader(s *servertest.FuncSite, zone string) {
	s.App.Engine().Zones[zone].Ranks.Fixed = func(subject *rule.Subject) rule.Standing {
		header := subject.Request.Header
		standing := rule.Standing{Rank: fairqueue.First, Pass: header.Get("X-Pass"), Member: header.Get("X-Member")}
		for rank := fairqueue.Member; rank < fairqueue.First; rank++ {
			if rank.String() == header.Get("X-Rank") {
				standing.Rank, standing.Why = rank, "header"
			}
		}
		return standing
	}
}

func TestClientsTakeTurnsForTheSlotsOfTheWholeZone(t *testing.T) {
	servertest.InBubble(t, func(t *testing.T) {
		s := newShareZone(t, "in_flight 2 {\n\tshare\n}", 200*time.Millisecond)
		for range 60 { // the mean learns how long requests take
			s.Visit(servertest.Office, "/")
			servertest.Sleep(time.Second)
		}
		greedy := s.Visits(4, servertest.Office, "/")
		others := []*servertest.Visit{s.Visit(servertest.Visitor, "/")}
		servertest.Sleep(time.Minute)
		// Half the slots are for others: one of two, while they wait.
		wantTurns(t, greedy, 0, .2, .4, .6)
		wantTurns(t, others, 0)
		servertest.WantEmpty(t, "waits")
	})
}

func TestWhoseTurnWouldComeTooLateIsRefusedAtOnce(t *testing.T) {
	servertest.InBubble(t, func(t *testing.T) {
		s := newShareZone(t, "in_flight 1 wait 3s {\n\tshare\n}", 2*time.Second)
		var visits []*servertest.Visit
		for i := range 6 {
			visits = append(visits, s.Visit("203.0.113."+strconv.Itoa(i), "/"))
		}
		if v := visits[4]; !v.Ended || v.Code != http.StatusServiceUnavailable {
			t.Fatalf("got %d, ended %v, want 503 at once", v.Code, v.Ended)
		}
		seconds, _ := strconv.Atoi(visits[4].Header().Get("Retry-After"))
		if seconds < 5 || seconds > 10 {
			t.Errorf("got Retry-After %d, want from 5 to 10", seconds)
		}
		member := s.Visit("203.0.113.9", "/", "X-Rank", "member", "X-Member", "ann")
		servertest.Sleep(time.Minute)
		wantTurns(t, append(visits, member), 0, -1, -1, -1, -1, -1, 2)
		servertest.WantCounts(t, "waits", map[string]float64{"admitted first": 1, "delayed member": 1, "refused first timeout": 3, "refused first wait": 2})
		servertest.WantEmpty(t, "waits")
	})
}

func TestHigherRanksGoFirstAndAreDisplacedLast(t *testing.T) {
	servertest.InBubble(t, func(t *testing.T) {
		s := newShareZone(t, "in_flight 1 queue 2 {\n\tshare\n}", 100*time.Millisecond)
		for range 200 { // the mean falls to a tenth of a second
			s.Visit(servertest.Office, "/")
			servertest.Sleep(time.Second)
		}
		come := func(address, rank string) *servertest.Visit { return s.Visit(address, "/", "X-Rank", rank) }
		visits := []*servertest.Visit{
			come("203.0.113.1", "first"), come("203.0.113.2", "first"), come("203.0.113.3", "crawler"),
			come("203.0.113.4", "returned"), come("203.0.113.5", "member"), come("203.0.113.6", "crawler"),
		}
		servertest.Sleep(time.Minute)
		// Two may wait: the newcomer goes for the one with a pass, the crawler for the
		// member, and the last crawler finds two that go before it.
		wantTurns(t, visits, 0, -1, -1, .2, .1, -1)
		servertest.WantEmpty(t, "waits")
	})
}

func TestAnEarlyRefusalAsksNoStore(t *testing.T) {
	servertest.InBubble(t, func(t *testing.T) {
		s := servertest.NewWaitSite(t, "throttle {\nzone waits {\nin_flight 1 wait 1s {\n\tshare\n}\n}\nzone beside {\nlimit 100 1/d\n}\n}", 2*time.Second)
		visits := []*servertest.Visit{s.Visit("203.0.113.1", "/"), s.Visit("203.0.113.2", "/")}
		servertest.Sleep(1500 * time.Millisecond)
		visits = append(visits, s.Visit("203.0.113.3", "/"))
		store := &countingStore{Store: s.App.Engine().Store}
		s.App.Engine().Store = store
		refused := s.Visit("203.0.113.4", "/")
		if !refused.Ended || refused.Code != http.StatusServiceUnavailable || store.calls != 0 {
			t.Errorf("got %d, ended %v, and %d calls of the store, want 503 at once and none", refused.Code, refused.Ended, store.calls)
		}
		servertest.Sleep(time.Minute)
		wantTurns(t, visits, 0, -1, .5)
		servertest.WantCounts(t, "waits", map[string]float64{"admitted first": 1, "delayed first": 1, "refused first timeout": 1, "refused first wait": 1})
		servertest.WantEmpty(t, "waits", "beside")
	})
}

// countingStore counts calls.
type countingStore struct {
	leakybucket.Store
	calls int
}

func (s *countingStore) Take(ctx context.Context, charges []leakybucket.Charge, decisions []leakybucket.Decision) error {
	s.calls++
	return s.Store.Take(ctx, charges, decisions)
}

func (s *countingStore) Settle(ctx context.Context, settlements []leakybucket.Settlement) error {
	s.calls++
	return s.Store.Settle(ctx, settlements)
}

// withSlots returns another config, whose zone of that name has so many slots.
func withSlots(s *servertest.FuncSite, zone string, n int) *engine.Engine {
	z := s.App.Engine().Zones[zone]
	other := *z.Rule
	other.InFlight = n
	zones := map[string]*engine.Zone{zone: {Zone: &decision.Zone{Rule: &other, Enforced: z.Enforced, Simulated: z.Simulated}}}
	return &engine.Engine{Zones: zones, Control: s.App.Engine().Control}
}

func TestSlotsAndTurnsSurviveAReload(t *testing.T) {
	servertest.InBubble(t, func(t *testing.T) {
		s := newShareZone(t, "in_flight 1 wait 8s {\n\tshare\n}", 4*time.Second)
		visits := []*servertest.Visit{
			s.Visit("203.0.113.1", "/", "X-Rank", "member"), s.Visit("203.0.113.2", "/", "X-Rank", "member"),
			s.Visit("203.0.113.3", "/", "X-Rank", "member"),
		}
		servertest.Sleep(time.Second)
		// A new config with more slots starts: those who wait get them at once.
		servertest.StartZones(t, withSlots(s, "waits", 2))
		servertest.Quiet()
		servertest.Sleep(time.Second)
		if !visits[1].Reached {
			t.Error("got it waiting, want it served when there are more slots")
		}
		// And one with fewer: both keep theirs, and nobody gets one until one is left.
		servertest.StartZones(t, withSlots(s, "waits", 1))
		servertest.Sleep(time.Minute)
		wantTurns(t, visits, 0, 1, 5)
		servertest.WantEmpty(t, "waits")
	})
}

// shownSlots is what the status of the zone with share shows.
func shownSlots(s *servertest.FuncSite) *wire.Slots {
	s.Helper()
	var status wire.Status
	servertest.AskAdmin(s, s.App.Engine(), http.MethodGet, "/throttle/zones", "", &status)
	return status.Zones[0].Share
}

// Caddy stops the apps of a config that could not start as a whole, and the last one runs on.
func TestAConfigThatFailsToStartLeavesNoSlotsBehind(t *testing.T) {
	servertest.InBubble(t, func(t *testing.T) {
		s := newShareZone(t, "in_flight 9 {\n\tshare\n}", time.Second)
		servertest.StartZones(s, s.App.Engine())
		failed := withSlots(s, "waits", 3)
		slots := func() int { return s.App.Engine().Zones["waits"].Enforced.Load().Slots }
		s.Visit("203.0.113.1", "/")
		failed.Control.Start(failed)
		if got := slots(); got != 3 {
			t.Errorf("got %d slots of the config that has just started, want 3", got)
		}
		failed.Control.Stop(failed)
		if got := slots(); got != 9 {
			t.Errorf("got %d slots after that config has failed to start, want all nine", got)
		}
		servertest.Sleep(time.Hour)
	})
}

func TestTheAccessLogTellsOfTurns(t *testing.T) {
	servertest.InBubble(t, func(t *testing.T) {
		s := newShareZone(t, "in_flight 1 {\n\tshare\n}", 500*time.Millisecond)
		visits := []*servertest.Visit{
			s.Visit("203.0.113.1", "/"),
			s.Visit("203.0.113.2", "/", "X-Rank", "member", "X-Member", "ann"),
			s.Visit("203.0.113.3", "/", "X-Rank", "returned", "X-Pass", "1"),
		}
		servertest.Sleep(time.Minute)
		for i, want := range []string{
			`{"decision":"admitted","key":"all","rank":"first","seconds":0.5,"zone":"waits"}`,
			`{"ahead":0,"decision":"delayed","delay":0.5,"key":"all","predicted":1,"rank":"member","seconds":0.5,"why":"header","zone":"waits"}`,
			`{"ahead":1,"decision":"delayed","delay":1,"key":"all","predicted":2,"rank":"returned","seconds":0.5,"why":"header","zone":"waits"}`,
		} {
			if got := loggedFields(t, visits[i].Verdict); got != want {
				t.Errorf("request %d: got %s, want %s", i+1, got, want)
			}
		}
	})
}

// loggedFields returns the fields of the access log.
func loggedFields(t *testing.T, res *decision.Verdict) string {
	t.Helper()
	fields := zapcore.NewMapObjectEncoder()
	if err := res.MarshalLogObject(fields); err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(fields.Fields)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestMetricsAndTheStatusTellOfTurns(t *testing.T) {
	servertest.InBubble(t, func(t *testing.T) {
		s := newShareZone(t, "in_flight 1 wait 2s {\n\tshare\n}", 500*time.Millisecond)
		come := func(n int, rank string) *servertest.Visit {
			return s.Visit("203.0.113."+strconv.Itoa(n), "/", "X-Rank", rank, "X-Member", "ann")
		}
		visits := []*servertest.Visit{come(1, "first"), come(2, "member"), come(3, "returned"), come(4, "crawler"), come(5, "crawler")}
		servertest.StartZones(s, s.App.Engine())
		got := shownSlots(s)
		if got.Busy != 1 || got.Slots != 1 || got.MeanSeconds != 1 {
			t.Errorf("got %+v, want one slot of one busy, and a mean of a second", got)
		}
		want := []wire.SlotRow{{Rank: "member", Waiting: 1, Ahead: 0}, {Rank: "returned", Waiting: 1, Ahead: 1}, {Rank: "crawler", Waiting: 0, Ahead: 2}, {Rank: "first", Waiting: 0, Ahead: 2}}
		if rows := shownSlots(s).Rows; !slices.Equal(rows, want) {
			t.Errorf("got rows %v, want %v", rows, want)
		}
		if got := servertest.Counted(t, engine.Slots, "waits"); got["member"] != 1 || got["returned"] != 1 || got["slot_mean_seconds"] != 1 {
			t.Errorf("got gauges %v, want one waiting of either rank, and a mean of a second", got)
		}
		servertest.Sleep(time.Minute)
		wantTurns(t, visits, 0, .5, 1, -1, -1)
		servertest.WantCounts(t, "waits", map[string]float64{"admitted first": 1, "delayed member": 1, "delayed returned": 1, "refused crawler wait": 2})
		if keys := s.App.Engine().Zones["waits"].State.Refused.Estimate(); keys != 2 {
			t.Errorf("got %d refused keys, want the two clients", keys)
		}
		if got := servertest.Counted(t, telemetry.SlotSeconds, "waits"); got["member"] != .5 || got["first"] != .5 {
			t.Errorf("got slot seconds %v, want half a second of each rank", got)
		}
		wantTop := []wire.BusyKey{{Key: "203.0.113.1", Seconds: .5}, {Key: "203.0.113.3", Seconds: .5}, {Key: "@member/ann", Seconds: .5}}
		if top := shownSlots(s).Top; !slices.Equal(top, wantTop) {
			t.Errorf("got the busiest keys %v, want %v", top, wantTop)
		}
		servertest.Sleep(time.Hour)
		if top := shownSlots(s).Top; len(top) != 0 {
			t.Errorf("got the busiest keys %v after an hour, want none", top)
		}
	})
}

func TestALineAMinuteTellsHowFullAZoneIs(t *testing.T) {
	servertest.InBubble(t, func(t *testing.T) {
		s := newShareZone(t, "in_flight 2 {\n\tshare\n}", time.Second)
		core, logs := observer.New(zapcore.InfoLevel)
		s.App.Engine().Zones["waits"].Counts.Logger = zap.New(core)
		for i := range 40 { // 120 seconds, more than two can do
			for j := range 9 {
				rank := ""
				if j < 2 {
					rank = "returned"
				}
				s.Visit("203.0.113."+strconv.Itoa(9*i+j), "/", "X-Rank", rank, "X-Pass", rank)
			}
			servertest.Sleep(3 * time.Second)
		}
		servertest.Sleep(time.Hour)
		var lines []string
		for _, line := range logs.All() {
			if strings.Contains(line.Message, " full: ") {
				lines = append(lines, line.Message)
			}
		}
		if len(lines) < 2 || len(lines) > 4 {
			t.Fatalf("got %d lines of two minutes of load and an hour of none: %q", len(lines), lines)
		}
		want := regexp.MustCompile(`^waits full: 2/2 busy, [1-9]\d* wait, mean 1\.0 s, \d+ % of refusals had no pass$`)
		if !want.MatchString(lines[0]) {
			t.Errorf("got %q, want it to match %v", lines[0], want)
		}
	})
}

func TestAClientThatHangsUpDoesNotFreeItsSlot(t *testing.T) {
	for _, when := range []string{"before the headers", "after the headers", "as an upgrade"} {
		servertest.InBubble(t, func(t *testing.T) {
			s := newShareZone(t, "in_flight 1 {\n\tshare\n}", 0)
			s.Serve = func(w http.ResponseWriter, r *http.Request) error {
				if when == "after the headers" {
					_, _ = w.Write([]byte("the beginning"))
				}
				select {
				case <-time.After(900 * time.Millisecond):
				case <-r.Context().Done():
				}
				_, err := w.Write([]byte("the end"))
				return err
			}
			var headers []string
			if when == "as an upgrade" {
				headers = []string{"Connection", "Upgrade", "Upgrade", "websocket"}
			}
			gone := s.Visit("203.0.113.1", "/", headers...)
			servertest.Sleep(100 * time.Millisecond)
			gone.Leave()
			next := s.Visit("203.0.113.2", "/")
			servertest.Sleep(0)
			if next.Reached {
				t.Errorf("%s: got the slot free when its client had left, want it held until the upstream's end", when)
			}
			servertest.Sleep(time.Minute)
			wantTurns(t, []*servertest.Visit{next}, .8)
			if held := loggedFields(t, gone.Verdict); !strings.Contains(held, `"seconds":0.9`) {
				t.Errorf("%s: got %s, want the slot held for 0.9 s", when, held)
			}
			servertest.WantEmpty(t, "waits")
		})
	}
}

func TestAClientThatLeavesTheRowIsNotServed(t *testing.T) {
	servertest.InBubble(t, func(t *testing.T) {
		s := newShareZone(t, "in_flight 1 {\n\tshare\n}", 900*time.Millisecond)
		before := servedWaits(t, "waits", "first")
		s.Visit("203.0.113.1", "/")
		left := s.Visit("203.0.113.2", "/")
		left.Leave()
		servertest.Sleep(time.Minute)
		servertest.WantGone(t, left)
		if got := servedWaits(t, "waits", "first") - before; got != 1 {
			t.Errorf("got the waits of %d served requests, want 1", got)
		}
		servertest.WantEmpty(t, "waits")
	})
}

// servedWaits returns how many waits a zone's histogram has counted of a rank.
func servedWaits(t *testing.T, zone, rank string) uint64 {
	t.Helper()
	var waits dto.Metric
	if err := telemetry.TurnSeconds.WithLabelValues(zone, rank).(prometheus.Metric).Write(&waits); err != nil {
		t.Fatal(err)
	}
	return waits.GetHistogram().GetSampleCount()
}

func TestBodiesOfRequestsThatWaitAreBounded(t *testing.T) {
	servertest.InBubble(t, func(t *testing.T) {
		s := servertest.NewWaitSite(t, "throttle {\nzone waits {\nin_flight 1 {\n\tshare\n}\n}\nzone names {\nkey form log\nlimit 100 1/s\n}\n}", 900*time.Millisecond)
		login := func(n int) *servertest.Visit {
			r := httptest.NewRequest(http.MethodPost, "http://example.com/", strings.NewReader("log=ann"))
			r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
			r.RemoteAddr = "203.0.113." + strconv.Itoa(n) + ":1"
			return s.Come(r)
		}
		used := engine.RequestBuffers.Used()
		visits := []*servertest.Visit{login(1), login(2)}
		if got, want := engine.RequestBuffers.Used()-used, int64(2*len("log=ann+")); got != want {
			t.Errorf("got %d bytes held, want %d, since the upstream has read neither", got, want)
		}
		servertest.Sleep(time.Minute)
		rest := config.MostBuffered - engine.RequestBuffers.Used()
		if !engine.RequestBuffers.Reserve(rest) {
			t.Fatal("got no memory, want what is left")
		}
		visits = append(visits, login(3))
		engine.RequestBuffers.Return(rest)
		visits = append(visits, login(4))
		servertest.Sleep(time.Minute)
		wantTurns(t, visits, 0, .9, 0, .9) // the third is unread
		if got := engine.RequestBuffers.Used(); got != used {
			t.Errorf("got %d bytes still held, want %d", got, used)
		}
		servertest.WantEmpty(t, "waits", "names")
	})
}

// A refused client uploads nothing.
func TestAnEarlyRefusalReadsNoBody(t *testing.T) {
	for reader, zones := range map[string]string{
		"key form log":   "zone waits {\nin_flight 1 wait 1s {\n\tshare\n}\n}\nzone names {\nkey form log\nlimit 100 1/s\n}",
		"request_buffer": "zone waits {\nin_flight 1 wait 1s buffer 1MiB {\n\tshare\n}\n}",
	} {
		servertest.InBubble(t, func(t *testing.T) {
			s := servertest.NewWaitSite(t, "throttle {\n"+zones+"\n}", 5*time.Second)
			s.Visit("203.0.113.1", "/")
			s.Visit("203.0.113.2", "/")
			v := s.Come(uploadSlowly("/"))
			if !v.Ended || v.Code != http.StatusServiceUnavailable || v.Waited != 0 {
				t.Errorf("%s: got %d after %v, ended %v, want 503 at once", reader, v.Code, v.Waited, v.Ended)
			}
			servertest.Sleep(time.Minute)
			servertest.WantEmpty(t, "waits", "names")
		})
	}
}

// By the seconds that requests take, a zone in shadow would refuse nearly all of them:
// they wait in the upstream's own queue.
func TestAShadowOfSharedSlotsDoesNotCountTheUpstreamsQueue(t *testing.T) {
	refused := make(map[string]float64)
	for _, mode := range []string{"shadow", ""} {
		servertest.InBubble(t, func(t *testing.T) {
			s := servertest.NewWaitZone(t, "in_flight 1 {\n\tshare\n}\n"+mode, 0)
			worker := make(chan struct{}, 1)
			s.Serve = func(http.ResponseWriter, *http.Request) error {
				worker <- struct{}{}
				<-time.After(100 * time.Millisecond)
				<-worker
				return nil
			}
			for i := range 1000 { // in shadow, some twenty wait at the upstream all the time
				s.Visit(fmt.Sprintf("10.0.%d.%d", i/200, i%200), "/")
				if i >= 20 {
					servertest.Sleep(110 * time.Millisecond)
				}
			}
			servertest.Sleep(time.Minute)
			refused[mode] = servertest.RefusedOf(t, "waits") / 10
			servertest.WantEmpty(t, "waits")
		})
	}
	if shadow, truth := refused["shadow"], refused[""]; math.Abs(shadow-truth) > 5 {
		t.Errorf("got %v %% refused in shadow, and %v %% enforced, want about the same", shadow, truth)
	}
}

// A proxy takes its call back when the client leaves, while the upstream works on. In
// shadow nobody sees for how long.
func TestAShadowOfSharedSlotsKnowsThatTheUpstreamWorksOnWhenClientsLeave(t *testing.T) {
	for proxy, left := range map[string]func(http.ResponseWriter) error{
		"answers": func(w http.ResponseWriter) error { w.WriteHeader(499); return nil },
		"fails":   func(http.ResponseWriter) error { return caddyhttp.Error(499, context.Canceled) },
	} {
		refused := make(map[string]float64)
		for _, mode := range []string{"shadow", ""} {
			servertest.InBubble(t, func(t *testing.T) {
				s := servertest.NewWaitZone(t, "in_flight 1 wait 1s {\n\tshare\n}\n"+mode, 0)
				worker := make(chan struct{}, 1)
				s.Serve = func(w http.ResponseWriter, r *http.Request) error {
					done := make(chan struct{})
					go func() {
						worker <- struct{}{}
						<-time.After(time.Second)
						<-worker
						close(done)
					}()
					select {
					case <-done:
						return nil
					case <-r.Context().Done():
						return left(w)
					}
				}
				var visits []*servertest.Visit
				for i := range 400 {
					visits = append(visits, s.Visit(fmt.Sprintf("10.0.%d.%d", i/200, i%200), "/"))
					servertest.Sleep(700 * time.Millisecond)
					if i >= 5 {
						visits[i-5].Leave()
						servertest.Sleep(0)
					}
				}
				servertest.Sleep(time.Hour)
				refused[mode] = servertest.RefusedOf(t, "waits") / 4
				servertest.WantEmpty(t, "waits")
			})
		}
		if shadow, truth := refused["shadow"], refused[""]; math.Abs(shadow-truth) > 5 {
			t.Errorf("the proxy %s: got %v %% refused in shadow, and %v %% enforced, want about the same", proxy, shadow, truth)
		}
	}
}

// A client that waits in a handler within, and leaves, never reaches the upstream.
func TestAShadowOfSharedSlotsDoesNotWorkForThoseWhoLeaveFurtherIn(t *testing.T) {
	servertest.InBubble(t, func(t *testing.T) {
		s := servertest.NewWaitSite(t, "throttle {\nzone waits {\nin_flight 2 {\n\tshare\n}\nshadow\n}\n}\nthrottle {\nzone within {\nkey host\nin_flight 1 wait 5s\n}\n}", time.Minute)
		s.Visit(servertest.Office, "/")
		servertest.Sleep(2 * time.Minute) // so long do requests take
		s.Visit(servertest.Office, "/")
		impatient := s.Visit("203.0.113.2", "/")
		servertest.Sleep(time.Second)
		impatient.Leave()
		servertest.Sleep(10 * time.Second)
		s.Visit("203.0.113.3", "/")
		if n := servertest.RefusedOf(t, "waits"); n > 0 {
			t.Errorf("got %v refused in shadow, want a slot for the last one", n)
		}
		servertest.Sleep(time.Hour)
		servertest.WantEmpty(t, "waits", "within")
	})
}

// An upstream gets nothing to work on from an upload that breaks off.
func TestAShadowOfSharedSlotsDoesNotWorkOnHalfARequest(t *testing.T) {
	for _, whole := range []bool{false, true} {
		servertest.InBubble(t, func(t *testing.T) {
			s := servertest.NewWaitZone(t, "in_flight 1 wait 1s {\n\tshare\n}\nshadow", time.Minute)
			s.Visit(servertest.Office, "/")
			servertest.Sleep(2 * time.Minute) // so long do requests take
			s.Serve = func(_ http.ResponseWriter, r *http.Request) error {
				if _, err := io.ReadAll(r.Body); err == nil {
					<-r.Context().Done()
				}
				return caddyhttp.Error(499, context.Canceled)
			}
			v, body := upload(s, "203.0.113.2", "/")
			if whole {
				body.Close()
			}
			servertest.Sleep(time.Second)
			v.Leave()
			_ = body.CloseWithError(context.Canceled)
			servertest.Sleep(10 * time.Second)
			last := s.Visit("203.0.113.3", "/")
			if got := servertest.RefusedOf(t, "waits") > 0; got != whole {
				t.Errorf("whole %v: got the slot taken: %v, want it only by an upload that has ended", whole, got)
			}
			last.Leave()
			servertest.Sleep(time.Hour)
			servertest.WantEmpty(t, "waits")
		})
	}
}

// In shadow the upstream works on them all the same. Once it has ended, the zone must know
// that the upstream works for one request at a time again.
func TestAShadowOfSharedSlotsKnowsWhenThoseEndWhomItWouldRefuse(t *testing.T) {
	servertest.InBubble(t, func(t *testing.T) {
		s := servertest.NewWaitZone(t, "in_flight 1 {\n\tshare\n}\nshadow", 0)
		s.Serve = func(http.ResponseWriter, *http.Request) error { <-time.After(time.Second); return nil }
		for i := range 50 {
			s.Visit(fmt.Sprintf("10.0.0.%d", i), "/")
		}
		servertest.Sleep(time.Minute)
		refused := servertest.RefusedOf(t, "waits")
		if refused < 40 {
			t.Fatalf("got %v refused in shadow, want most of 50", refused)
		}
		for range 200 {
			s.Visit(servertest.Office, "/")
			servertest.Sleep(2 * time.Second)
		}
		if mean := s.App.Engine().Zones["waits"].State.Simulated.Load().Mean; mean < 900*time.Millisecond || mean > 1100*time.Millisecond {
			t.Errorf("got a mean of %v, want 1s", mean)
		}
		servertest.WantEmpty(t, "waits")
	})
}

func TestAShadowOfSharedSlotsDoesNotLearnFromAnUpstreamThatFails(t *testing.T) {
	for name, fail := range map[string]func(http.ResponseWriter) error{
		"status": func(w http.ResponseWriter) error { w.WriteHeader(http.StatusGatewayTimeout); return nil },
		"error": func(http.ResponseWriter) error {
			return caddyhttp.Error(http.StatusBadGateway, errors.New("no upstream"))
		},
	} {
		servertest.InBubble(t, func(t *testing.T) {
			s := servertest.NewWaitZone(t, "in_flight 1 {\n\tshare\n}\nshadow", 0)
			s.Serve = func(w http.ResponseWriter, _ *http.Request) error {
				<-time.After(30 * time.Second)
				return fail(w)
			}
			s.Visit(servertest.Office, "/")
			servertest.Sleep(time.Minute)
			if mean := s.App.Engine().Zones["waits"].State.Simulated.Load().Mean; mean != time.Second {
				t.Errorf("%s: got a mean of %v, want 1s as before", name, mean)
			}
			s.Serve = func(http.ResponseWriter, *http.Request) error { <-time.After(30 * time.Second); return nil }
			s.Visit(servertest.Office, "/")
			servertest.Sleep(time.Minute)
			if mean := s.App.Engine().Zones["waits"].State.Simulated.Load().Mean; mean != 1180*time.Millisecond {
				t.Errorf("%s: got a mean of %v, want 1.18s of a request that took 30", name, mean)
			}
			servertest.WantEmpty(t, "waits")
		})
	}
}

// The upstream never sees a request that a handler within refuses.
func TestAShadowOfSharedSlotsDoesNotLearnFromARefusalFurtherIn(t *testing.T) {
	for name, within := range map[string]string{"bucket": "limit 1 1/d\nkey host", "row": "in_flight 1 wait 5s"} {
		servertest.InBubble(t, func(t *testing.T) {
			s := servertest.NewWaitSite(t, "throttle {\nzone waits {\nin_flight 5 {\nshare\n}\nshadow\n}\n}\nthrottle {\nzone within {\n"+within+"\n}\n}", 0)
			s.Serve = func(http.ResponseWriter, *http.Request) error { <-time.After(time.Minute); return nil }
			s.Visit(servertest.Office, "/")
			refused := s.Visit(servertest.Office, "/")
			servertest.Sleep(30 * time.Second)
			if mean := s.App.Engine().Zones["waits"].State.Simulated.Load().Mean; refused.Code < 400 || mean != time.Second {
				t.Errorf("%s: got %d, and a mean of %v, want it refused and 1s as before", name, refused.Code, mean)
			}
			servertest.Sleep(time.Hour)
			servertest.WantEmpty(t, "waits", "within")
		})
	}
}

func TestTheSwitchToShadowLetsThoseThroughWhoWait(t *testing.T) {
	for _, zone := range []string{"", "waits"} {
		servertest.InBubble(t, func(t *testing.T) {
			s := newShareZone(t, "in_flight 1 {\n\tshare\n}", 900*time.Millisecond)
			visits := []*servertest.Visit{s.Visit("203.0.113.1", "/"), s.Visit("203.0.113.2", "/"), s.Visit("203.0.113.3", "/", "X-Rank", "member")}
			servertest.Sleep(100 * time.Millisecond)
			shadow(s, zone)
			visits = append(visits, s.Visit("203.0.113.4", "/"))
			servertest.Sleep(time.Minute)
			wantTurns(t, visits, 0, .1, .1, 0)
			servertest.WantEmpty(t, "waits")
		})
	}
}

// shadow switches a zone to shadow until the test ends.
func shadow(s *servertest.FuncSite, zone string) {
	s.Helper()
	s.App.Engine().Control.Changes.Table.Apply(time.Now(), override.NewShadow(zone, override.Span{Since: time.Now(), Until: time.Now().Add(time.Hour)}))
	s.Cleanup(func() {
		s.App.Engine().Control.Changes.Table.Apply(time.Now(), override.Entry{Name: override.Name{Kind: override.OfShadow, Zone: zone}, Ended: true})
	})
	servertest.Sleep(0)
}

// A request of two zones still needs the slot of the one that is not in shadow.
func TestTheSwitchOfOneZoneLeavesThoseWhoWaitInAnother(t *testing.T) {
	servertest.InBubble(t, func(t *testing.T) {
		s := servertest.NewWaitSite(t, `throttle {
			zone first {
				key host
				in_flight 1 wait 10s
			}
			zone waits {
				in_flight 1 wait 10s
			}
		}`, 900*time.Millisecond)
		visits := []*servertest.Visit{s.Visit(servertest.Office, "/"), s.Visit(servertest.Office, "/")}
		servertest.Sleep(100 * time.Millisecond)
		shadow(s, "first")
		servertest.Sleep(100 * time.Millisecond)
		if visits[1].Ended {
			t.Error("got it served, want it to wait for the slot of the other zone")
		}
		shadow(s, "waits")
		servertest.Sleep(time.Minute)
		wantTurns(t, visits, 0, .2)
		servertest.WantEmpty(t, "first", "waits")
	})
}

func TestTheSwitchOfAZoneEndsItsDelays(t *testing.T) {
	servertest.InBubble(t, func(t *testing.T) {
		s := servertest.NewWaitZone(t, "limit 3 1/m\ndelay wait 2h", 0)
		visits := []*servertest.Visit{s.Visit(servertest.Office, "/"), s.Visit(servertest.Office, "/")}
		servertest.Sleep(time.Second)
		shadow(s, "waits")
		servertest.Sleep(0)
		wantTurns(t, visits, 0, 1)
		servertest.WantEmpty(t, "waits")
	})
}
