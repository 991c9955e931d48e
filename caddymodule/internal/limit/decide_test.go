package limit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/body"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/override"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

// A fakeEnv writes down what a decision asks of it, in this order.
type fakeEnv struct {
	asked      []string
	exempt     bool
	exemptErr  error
	everywhere []*Zone
	takeErr    error
	refuses    string // a zone, or all of them: the store
	banned     *override.Set
	bodies     *body.Store
}

func (e *fakeEnv) note(what string) { e.asked = append(e.asked, what) }

func (e *fakeEnv) Prepare(s *Subject) (bool, []*Zone, error) {
	e.note("exempt")
	s.Overrides = e.banned
	return e.exempt, e.everywhere, e.exemptErr
}

func (e *fakeEnv) ConfirmedBlock(_ context.Context, c *leakybucket.Charge) (leakybucket.Decision, bool) {
	e.note("confirmed " + c.Zone + " " + c.Key)
	return leakybucket.Decision{BlockedUntil: 60e6}, true
}

func (e *fakeEnv) Effective(*leakybucket.Charge) {}

func (e *fakeEnv) KnownBlock(*leakybucket.Charge) (leakybucket.Decision, bool) {
	return leakybucket.Decision{}, false
}

func (e *fakeEnv) Take(_ context.Context, charges []leakybucket.Charge, decisions []leakybucket.Decision) error {
	what := "take"
	for i, c := range charges {
		what += " " + c.Zone + "/" + c.Key
		if c.Probe {
			what += "?"
		}
		refuses := e.refuses == "all" || e.refuses == c.Zone
		decisions[i] = leakybucket.Decision{Fits: !refuses, Poured: !refuses && !c.Probe, Local: true}
	}
	e.note(what)
	return e.takeErr
}

func (e *fakeEnv) Correct(due []leakybucket.Settlement) {
	for _, s := range due {
		e.note(fmt.Sprint("correct ", s.Charge.Zone, "/", s.Charge.Key, " ", s.Diff))
	}
}

func (e *fakeEnv) Bodies() *body.Store {
	e.note("receive")
	return e.bodies
}

// A silent Reporter counts what it must count once.
type silent struct {
	fellBack, failed int
	quiet            bool // no refusal is to be in the access log
}

func (*silent) Decided(*Outcome, *http.Request, http.Header) {}
func (s *silent) Logs(time.Time) bool                        { return !s.quiet }
func (*silent) Unlogged() uint32                             { return 0 }
func (*silent) Settled(int, bool, bool)                      {}
func (*silent) Admitted(*Outcome, *http.Request)             {}
func (s *silent) Failed(error, bool)                         { s.failed++ }
func (s *silent) Count(c Count) {
	if c == CountFallback {
		s.fellBack++
	}
}

// testZone returns a zone that is keyed by the client's address.
func testZone(t *testing.T, name string, change func(*Zone)) *Zone {
	t.Helper()
	z := &Zone{Name: name, LimitRaw: "10 1/s", Places: new(body.Shares), Reporter: new(silent)}
	if change != nil {
		change(z)
	}
	check.OK(t, z.Compile(nil))
	return z
}

// asked lets an Env see what is decided about a request from 203.0.113.7.
func asked(t *testing.T, e *fakeEnv, failed error, zones ...*Zone) (*Verdict, error) {
	t.Helper()
	r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader("[1,2,3]"))
	r.ContentLength = -1
	r = caddyhttp.PrepareRequest(r, caddy.NewReplacer(), httptest.NewRecorder(), new(caddyhttp.Server))
	caddyhttp.SetVar(r.Context(), caddyhttp.ClientIPVarKey, "203.0.113.7")
	e.bodies = body.NewStore(t.TempDir(), func(err error) { t.Error(err) })
	v, err := Decide(r, failed, &Directive{Zones: zones, Server: &Server{Server: new(caddyhttp.Server)}}, e) // which reads no verdicts
	got, failure := io.ReadAll(r.Body)
	check.That(t, string(got) == "[1,2,3]" && failure == nil, "got the body %q, %v behind the decision, want all of it", got, failure)
	if v != nil {
		v.Close(r, nil)
	}
	memory, file := e.bodies.Held()
	check.That(t, memory+file == 0, "got %d and %d bytes held, want none", memory, file)
	return v, err
}

func byBytes(z *Zone) {
	z.Cost, z.ReadBody = []Cost{{Value: "body_bytes", Unit: "1"}}, &ReadBody{Most: "1KiB"}
}

func TestADecisionAsksInOneOrderAndNothingTwice(t *testing.T) {
	wrong := errors.New("wrong")
	block := func(z *Zone) { z.Block = &Block{Everywhere: true} }
	now := time.Now()
	var bans override.Table
	bans.Apply(now, override.Entry{Name: override.Name{Kind: override.OfBan, Key: "203.0.113.0/24"}, Span: override.Span{Since: now, Until: now.Add(time.Hour)}})
	for name, test := range map[string]struct {
		env    fakeEnv
		failed error
		change func(*Zone)
		want   []string
	}{
		"charged":                       {want: []string{"exempt", "take a/203.0.113.7 b/203.0.113.7"}},
		"exempt":                        {env: fakeEnv{exempt: true}, want: []string{"exempt"}},
		"the store fails":               {env: fakeEnv{takeErr: wrong}, want: []string{"exempt", "take a/203.0.113.7 b/203.0.113.7"}},
		"the body says the cost":        {change: byBytes, want: []string{"exempt", "take a/203.0.113.7", "receive", "take b/203.0.113.7"}},
		"refused before the body":       {env: fakeEnv{refuses: "a"}, change: byBytes, want: []string{"exempt", "take a/203.0.113.7"}},
		"refused after the body":        {env: fakeEnv{refuses: "b"}, change: byBytes, want: []string{"exempt", "take a/203.0.113.7", "receive", "take b/203.0.113.7", "correct a/203.0.113.7 -1"}},
		"blocked everywhere":            {env: fakeEnv{everywhere: []*Zone{testZone(t, "site", block)}}, want: []string{"exempt", "confirmed site 203.0.113.7"}},
		"banned":                        {env: fakeEnv{banned: bans.Load()}, want: []string{"exempt"}},
		"a matcher fails":               {failed: wrong, want: []string{"exempt"}},
		"exempt, and the matcher fails": {env: fakeEnv{exempt: true, everywhere: []*Zone{testZone(t, "site", block)}}, failed: wrong, want: []string{"exempt"}},
	} {
		t.Run(name, func(t *testing.T) {
			e := test.env
			v, err := asked(t, &e, test.failed, testZone(t, "a", nil), testZone(t, "b", test.change))
			check.That(t, slices.Equal(e.asked, test.want), "asked %q, want %q", e.asked, test.want)
			check.Is(t, err, test.failed, "the error")
			refused := e.refuses != "" || e.banned != nil || len(e.everywhere) > 0 && err == nil
			check.That(t, (v != nil && v.Refused()) == refused, "got %+v, want it refused: %v", v, refused)
		})
	}
}

// What counts as a CONNECT is refused whatever its body says, so that is not received.
func TestTheBodyOfAConnectIsNotReceived(t *testing.T) {
	for name, change := range map[string]func(*Zone){
		"for a field": func(z *Zone) { z.Field = []string{"pwd"} },
		"for a cost":  byBytes,
	} {
		e := fakeEnv{bodies: body.NewStore(t.TempDir(), func(err error) { t.Error(err) })}
		r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader("pwd=1"))
		r.ContentLength = -1
		r.URL.Opaque = "x"
		r = caddyhttp.PrepareRequest(r, caddy.NewReplacer(), httptest.NewRecorder(), new(caddyhttp.Server))
		caddyhttp.SetVar(r.Context(), caddyhttp.ClientIPVarKey, "203.0.113.7")
		v := check.Must(Decide(r, nil, &Directive{Zones: []*Zone{testZone(t, "a", change)}}, &e))(t)
		check.That(t, v.Refused() && v.Outcomes[0].Reason() == Connect, "%s: got %+v, want it refused as a CONNECT", name, v)
		check.Equal(t, slices.Contains(e.asked, "receive"), false, "%s: the body was received", name)
		v.Close(r, nil)
	}
}

// A body that breaks off costs nothing, unless part of it went into a file.
func TestABodyThatBreaksOff(t *testing.T) {
	for size, want := range map[int]bool{1000: true, 300 << 10: false} {
		e := fakeEnv{bodies: body.NewStore(t.TempDir(), func(err error) { t.Error(err) })}
		r := httptest.NewRequest(http.MethodPost, "/", io.MultiReader(strings.NewReader(strings.Repeat("x", size)), iotest.ErrReader(io.ErrUnexpectedEOF)))
		r.ContentLength = -1
		r = caddyhttp.PrepareRequest(r, caddy.NewReplacer(), httptest.NewRecorder(), new(caddyhttp.Server))
		caddyhttp.SetVar(r.Context(), caddyhttp.ClientIPVarKey, "203.0.113.7")
		zones := []*Zone{testZone(t, "a", nil), testZone(t, "b", func(z *Zone) {
			byBytes(z)
			z.ReadBody.Most = "1MiB"
		})}
		v, err := Decide(r, nil, &Directive{Zones: zones}, &e)
		check.That(t, v == nil && errors.Is(err, body.ErrLeft), "%d bytes: got %v, %v, want that the client has left", size, v, err)
		got := slices.Contains(e.asked, "correct a/203.0.113.7 -1")
		check.That(t, got == want, "%d bytes: asked %q, want the charge given back: %v", size, e.asked, want)
		memory, file := e.bodies.Held()
		check.That(t, memory+file == 0, "%d bytes: got %d and %d bytes held, want none", size, memory, file)
	}
}

// What a drop needs comes out of the outcome: nobody has to look at the request again.
func TestAnOutcomeNamesItsBucket(t *testing.T) {
	z := testZone(t, "site", func(z *Zone) { z.Block = new(Block) })
	e := fakeEnv{refuses: "all"}
	v := check.Must(asked(t, &e, nil, z))(t)
	got := v.Outcomes[0].Charge
	check.That(t, got.Zone == "site" && got.Key == "203.0.113.7" && got.Limit == z.Limit && got.Block == z.ladder, "got %+v", got)
}

// A block that holds everywhere refuses in handlers whose own zones may log all.
func TestABlockEverywhereLimitsTheLinesOfOtherHandlers(t *testing.T) {
	gate := testZone(t, "gate", func(z *Zone) { z.Block = &Block{Everywhere: true} })
	gate.Reporter.(*silent).quiet = true
	server := &caddyhttp.Server{Logs: new(caddyhttp.ServerLogConfig)}
	r := caddyhttp.PrepareRequest(httptest.NewRequest(http.MethodGet, "/", http.NoBody), caddy.NewReplacer(), httptest.NewRecorder(), server)
	caddyhttp.SetVar(r.Context(), caddyhttp.ClientIPVarKey, "203.0.113.7")
	directive := &Directive{Zones: []*Zone{testZone(t, "a", nil)}, Server: &Server{Server: server}}
	v := check.Must(Decide(r, nil, directive, &fakeEnv{everywhere: []*Zone{gate}}))(t)
	v.Report(r, time.Now(), make(http.Header))
	skipped, _ := caddyhttp.GetVar(r.Context(), caddyhttp.LogSkipVar).(bool)
	check.That(t, skipped, "the refusal is in the access log, want none")
}
