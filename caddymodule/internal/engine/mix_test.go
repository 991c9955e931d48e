package engine_test

import (
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/body"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/limit"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/servertest"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/telemetry"
)

// Waits, blocks, shadows, bodies and settlements meet in each request, while
// the store is slow or down, clients leave and upstreams panic. Whatever happens,
// each zone counts a request once at most, and nothing is kept of those that are gone.
func TestWhateverMeetsLeavesNothingBehind(t *testing.T) {
	zones := map[string]string{
		"queue":   "limit 6 2/s\ndelay 1 wait 2s",
		"shared":  "key text all\nlimit 9 3/s\ndelay queue 3",
		"strict":  "limit 20 1/s\nblock 3s 10s",
		"settled": "limit 50 5/s\nsettle header X-Cost",
		"after":   "limit 50 5/s\nsettle seconds after",
		"items":   "limit 30 3/s\ncost body_items\ndelay 5\nsettle status 5xx 4",
	}
	for seed := range uint64(12) {
		servertest.InBubble(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 9))
			names, directives := []string{}, ""
			for name, options := range zones {
				if random.IntN(4) == 0 {
					continue
				}
				names = append(names, name)
				mode := []string{"", "shadow", "enforce 50"}[random.IntN(3)]
				directives += fmt.Sprintf("throttle {\nzone %s {\n%s\n%s\n}\n", name, options, mode)
				if random.IntN(2) == 0 {
					directives += fmt.Sprintf("zone %s-too {\n%s\nmatch path /a*\n}\n", name, options)
					names = append(names, name+"-too")
				}
				directives += "}\n"
			}
			s := servertest.NewWaitSite(t, directives, 0)
			s.Store.Failing = func(take int) bool { return take%29 == int(seed) }
			s.Serve = func(w http.ResponseWriter, r *http.Request) error {
				w.Header().Set("X-Cost", r.Header.Get("X-Cost"))
				select {
				case <-time.After(time.Duration(len(r.URL.Path)) * 100 * time.Millisecond):
				case <-r.Context().Done():
				}
				if strings.HasPrefix(r.URL.Path, "/ap") {
					panic(http.ErrAbortHandler)
				}
				return nil
			}
			var visits []*servertest.Visit
			const all = 150
			for i := range all {
				r := httptest.NewRequest("POST", "http://example.com/"+[]string{"", "a", "ap", "bbbbb"}[random.IntN(4)], strings.NewReader(`[1,2,3]`))
				r.RemoteAddr = fmt.Sprintf("203.0.113.%d:1", random.IntN(3))
				r.Header.Set("X-Cost", fmt.Sprint(random.IntN(9)))
				if i%7 == 0 {
					r.Header.Set("Upgrade", "websocket")
				}
				s.Store.Mu.Lock()
				s.Store.Slow = time.Duration(random.IntN(2)*random.IntN(40)) * time.Millisecond
				s.Store.Slowly = []time.Duration{time.Duration(random.IntN(2)*random.IntN(2000)) * time.Millisecond}
				s.Store.Mu.Unlock()
				visits = append(visits, s.Come(r))
				if random.IntN(5) == 0 {
					visits[random.IntN(len(visits))].Leave()
				}
				servertest.Sleep(time.Duration(random.IntN(300)) * time.Millisecond)
			}
			servertest.Sleep(5 * time.Minute)
			for i, v := range visits {
				if !v.Ended {
					t.Errorf("seed %d: got request %d under way yet", seed, i)
				}
			}
			servertest.WantEmpty(t, names...)
			for _, name := range names {
				sum := 0.0
				for _, n := range servertest.Counted(t, telemetry.Requests, name) {
					sum += n
				}
				if sum > all {
					t.Errorf("seed %d: got zone %s to count %v of %d requests", seed, name, sum, all)
				}
			}
		})
	}
}

// TestABodyWithoutRoomIsUnread, and the log says so whether or not it is refused.
func TestABodyWithoutRoomIsUnread(t *testing.T) {
	servertest.InBubble(t, func(t *testing.T) {
		s := servertest.NewWaitSite(t, "throttle {\nzone items {\nlimit 10 1/d\ncost body_items rows\n}\nzone names {\nlimit 1 1/d\nmatch path /login\nkey field log\n}\n}", 0)
		logged := ""
		s.Serve = func(_ http.ResponseWriter, r *http.Request) error {
			fields, _ := json.Marshal(servertest.Logged(limit.VerdictsOf(r.Context())))
			logged = string(fields)
			return nil
		}
		post := func(addr, path string) *servertest.Visit {
			reader, sent := io.Pipe()
			r := httptest.NewRequest(http.MethodPost, "http://example.com"+path, reader)
			r.RemoteAddr = addr + ":1"
			r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
			v := s.Come(r)
			fmt.Fprint(sent, "rows=1&log=bob&pad="+strings.Repeat("x", 2000))
			sent.Close()
			servertest.Quiet()
			return v
		}
		post(servertest.Office, "/") // is read, and costs 1
		bodies := s.App.Engine().Control.Bodies
		bodies.SetBounds(body.Bounds{Memory: 1, Files: 1})
		defer bodies.SetBounds(body.Bounds{})
		post("203.0.113.77", "/login") // has the bucket of unclear forms
		for addr, path := range map[string]string{servertest.Office: "/", "203.0.113.78": "/login"} {
			if v := post(addr, path); v.Code != http.StatusTooManyRequests || v.Header().Get("Retry-After") == "" {
				t.Errorf("%s: got %d, %v, want 429 and a time to wait", path, v.Code, v.Header())
			}
		}
		if post(servertest.Visitor, "/"); !strings.Contains(logged, `"reason":"memory"`) || !strings.Contains(logged, `"cost":10`) {
			t.Errorf("got the log %s, want the reason and the cost of an unread body", logged)
		}
		servertest.WantCounts(t, "items", map[string]float64{"admitted": 3, "refused memory": 1})
		servertest.WantCounts(t, "names", map[string]float64{"admitted": 1, "refused memory": 1})
	})
}
