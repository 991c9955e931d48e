package replay

import (
	"strings"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/accesslog"
)

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// request returns a decision about a request of one key, at so many seconds.
func request(at float64, refused bool) *Decided {
	d := &Decided{
		Outcome: accesslog.Outcome{Zone: "z", Key: "k", Decision: "admitted", Cost: 1, Capacity: 10}, Leak: 1,
		Request: &accesslog.Request{At: noon.Add(time.Duration(at * float64(time.Second))), Method: "GET", URI: "/a?b"},
	}
	if refused {
		d.Decision, d.Reason = "shadow_refused", "capacity"
	}
	return d
}

// A fixed window admits twice the capacity around its edge.
func TestAFixedWindowAdmitsTwiceTheCapacityAroundItsEdge(t *testing.T) {
	windows, err := ParseWindows("fixed,sliding,sliding=2")
	if err != nil {
		t.Fatal(err)
	}
	tally := New(windows)
	for i := range 40 { // from half a second before the edge on, 40 a second
		tally.Add(request(9.5+float64(i)/40, i >= 10))
	}
	want := []Comparison{{"bucket", 30, 10, 10}, {"fixed", 20, 20, 20}, {"sliding=10", 30, 10, 10}, {"sliding=2", 30, 10, 10}}
	for i, got := range tally.Zones()[0].Compare {
		if got != want[i] {
			t.Errorf("got %+v, want %+v", got, want[i])
		}
	}
}

func TestAWindowForgetsWhatIsOlder(t *testing.T) {
	windows, err := ParseWindows("sliding=5,fixed")
	if err != nil {
		t.Fatal(err)
	}
	tally := New(windows)
	for _, at := range []float64{0, 1, 1000, 1000.5, 1011, 86400} {
		for range 10 {
			tally.Add(request(at, false))
		}
	}
	for i, want := range []int64{20, 20} {
		if got := tally.Zones()[0].Compare[i+1]; got.Refused != want {
			t.Errorf("got %+v, want %d refused", got, want)
		}
	}
	if got := tally.Zones()[0].Compare[0]; got.MostSecond != 20 || got.MostMinute != 30 {
		t.Errorf("got %+v, want 20 in a second and 30 in a minute", got)
	}
}

func TestUnknownAlgorithmsAreErrors(t *testing.T) {
	for _, words := range []string{"token", "fixed,", "sliding=1", "sliding=x", "sliding=100000", "fixed=2"} {
		if windows, err := ParseWindows(words); err == nil {
			t.Errorf("%q: got %v, want an error", words, windows)
		}
	}
}

func TestATallyCountsByKeyHourAndRoute(t *testing.T) {
	tally := New(nil)
	for i := range 100 {
		d := request(float64(i*60), i%4 == 0)
		d.Key = string(rune('a' + i%2))
		d.Level = float64(i)
		tally.Add(d)
	}
	z := tally.Zones()[0]
	if z.Requests != 100 || z.Decisions["admitted"] != 75 || z.Decisions["shadow_refused"] != 25 || z.Reasons["capacity"] != 25 || z.Keys != 2 || z.RefusedKeys != 1 || z.Peak.Level != 99 || z.Peak.Key != "b" {
		t.Errorf("got %+v", z)
	}
	if len(z.Hours) != 2 || z.Hours[0].Refused != 15 || z.Hours[1].Requests != 40 || len(z.Routes) != 1 || z.Routes[0] != (Route{"/a", 25}) {
		t.Errorf("got %+v and %+v", z.Hours, z.Routes)
	}
	if k := z.Worst[0]; k.Key != "a" || k.Requests != 50 || k.Refused != 25 || !k.First.Equal(noon) || !k.Last.Equal(noon.Add(96*time.Minute)) {
		t.Errorf("got %+v", k)
	}
}

func TestTheTextEscapesWhatClientsWrite(t *testing.T) {
	tally := New(nil)
	d := request(0, true)
	d.Key, d.Request.URI = "evil\x1b[2J", "/\u202eexe"
	tally.Add(d)
	if got := tally.Zones()[0].Text(); strings.ContainsAny(got, "\x1b\u202e") || !strings.Contains(got, `evil\x1b[2J`) || !strings.Contains(got, `/\u202eexe`) {
		t.Errorf("got %s", got)
	}
}
