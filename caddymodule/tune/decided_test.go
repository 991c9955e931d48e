package tune

import (
	"strings"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/tune/internal/accesslog"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/tune/internal/clients"
)

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// decided returns a decision about a request of one key, at so many seconds.
func decided(at float64, refused bool) (*accesslog.Outcome, *accesslog.Request) {
	d := &accesslog.Outcome{Zone: "z", Key: "k", Decision: "admitted", Cost: 1, Capacity: 10}
	if refused {
		d.Decision, d.Reason = "shadow_refused", "capacity"
	}
	return d, &accesslog.Request{At: noon.Add(time.Duration(at * float64(time.Second))), Method: "GET", URI: "/a?b"}
}

// robots is a log whose clients sent nothing else.
func robots(string) *clients.Table { return new(clients.Log).By(32, 64) }

func TestATallyCountsByKeyAndRoute(t *testing.T) {
	found := make(tally)
	for i := range 100 {
		d, req := decided(float64(i*60), i%4 == 0)
		d.Key = string(rune('a' + i%2))
		d.Level = float64(i)
		found.add(d, req)
	}
	z := found.zones(robots)[0]
	if z.Requests != 100 || z.Decisions["admitted"] != 75 || z.Decisions["shadow_refused"] != 25 || z.Reasons["capacity"] != 25 || z.Keys != 2 || z.RefusedKeys != 1 {
		t.Errorf("got %+v", z)
	}
	if len(z.Routes) != 1 || z.Routes[0] != (Route{"/a", 25}) {
		t.Errorf("got %+v", z.Routes)
	}
	if k := z.Worst[0]; k.Key != "a" || k.Asked != 50 || k.Refused != 25 || !k.FirstOver.Equal(noon) || !k.LastOver.Equal(noon.Add(96*time.Minute)) {
		t.Errorf("got %+v", k)
	}
}

func TestTheTextEscapesWhatClientsWrite(t *testing.T) {
	found := make(tally)
	d, req := decided(0, true)
	d.Key, req.URI = "evil\x1b[2J", "/\u202eexe"
	found.add(d, req)
	if got := found.zones(robots)[0].Text(); strings.ContainsAny(got, "\x1b\u202e") || !strings.Contains(got, `evil\x1b[2J`) || !strings.Contains(got, `/\u202eexe`) {
		t.Errorf("got %s", got)
	}
}
