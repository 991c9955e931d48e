package evidence

import (
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/rule"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/settlement"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/text"
)

// judgeEvery is after how many requests a handler has its zones judge what they have met.
// Zones that no request meets would not do it by themselves.
const judgeEvery = 1024

// lookEvery is after how many requests one is looked at for what a rewrite behind the handler
// makes of it, when all zones have met requests.
const lookEvery = 64

// A Watch counts the requests of a handler, whether or not its zones meet them.
type Watch struct {
	Zones    []*Zone
	Requests atomic.Uint64

	// rewritten says that a rewrite behind the handler has made a near miss of an address. From
	// then on each answer is looked at, since the address alone does not tell before it.
	rewritten atomic.Bool
}

// Next counts a request. While a zone has met none, and now and then after that, it returns a
// handler before the next one that looks whether the site answers what a zone was probably
// meant for.
func (w *Watch) Next(next caddyhttp.Handler) caddyhttp.Handler {
	n := w.Requests.Add(1)
	if n%judgeEvery == 0 {
		now := time.Now()
		for _, z := range w.Zones {
			z.Judge(now)
		}
	}
	if n%lookEvery == 0 || slices.ContainsFunc(w.Zones, (*Zone).unmet) {
		return &nearMiss{w, next}
	}
	return next
}

// A nearMiss serves a request and looks whether a zone of its handler should have met it.
type nearMiss struct {
	*Watch
	next caddyhttp.Handler
}

// ServeHTTP implements caddyhttp.Handler.
func (n *nearMiss) ServeHTTP(w http.ResponseWriter, r *http.Request) error {
	seen := r.URL.Path
	sent := seen
	if original, ok := r.Context().Value(caddyhttp.OriginalRequestCtxKey).(http.Request); ok && original.URL != nil {
		sent = original.URL.Path
	}
	shown := func(z *Zone) bool {
		_, of, _ := missed(z, sent, seen, r.URL.Path)
		return of != ""
	}
	if !n.rewritten.Load() && !slices.ContainsFunc(n.Zones, shown) {
		err := n.next.ServeHTTP(w, r)
		if slices.ContainsFunc(n.Zones, shown) {
			n.rewritten.Store(true)
		}
		return err
	}
	var observer settlement.Observer
	err := observer.Serve(w, r, n.next)
	if err != nil || observer.Status >= http.StatusBadRequest {
		return err
	}
	for _, z := range n.Zones {
		if path, of, made := missed(z, sent, seen, r.URL.Path); of != "" {
			s := rule.NewSubject(r)
			z.missedNearly(s.Address(), path, of, made)
		}
	}
	return nil
}

// missed returns the path of which a zone was probably meant to see more than it does, and the
// address that shows it: one that a rewrite behind the handler has made and the zone would
// match, or, while the zone has met no request, one that ends like the path. sent, seen and now
// are the addresses of the client, before the handler and behind it.
func missed(z *Zone, sent, seen, now string) (path, of string, made bool) {
	if now != seen && !rule.FrontController(sent, now) && z.matching(sent) == "" && z.matching(seen) == "" {
		if of = z.matching(now); of != "" {
			return now, of, true
		}
	}
	if z.unmet() {
		for _, path := range []string{sent, now} {
			if of := z.nearMiss(path); of != "" {
				return path, of, false
			}
		}
	}
	return "", "", false
}

// A nearPath is a path of the zone's match.
type nearPath struct {
	pattern string // as it was written
	whole   string // in lower case, without the star
	more    bool   // a star follows
}

// Wants notes path matchers by which requests meet the zone. It must be called before the
// first request.
func (e *Zone) Wants(patterns []string) {
	for _, pattern := range patterns {
		whole, more := strings.CutSuffix(strings.ToLower(pattern), "*")
		if len(whole) > 1 && strings.HasPrefix(whole, "/") && !strings.ContainsAny(whole, "*{?%") {
			e.paths = append(e.paths, nearPath{pattern, whole, more})
		}
	}
}

// unmet reports whether the zone has paths and has met no request yet.
func (e *Zone) unmet() bool { return len(e.paths) > 0 && !e.met() }

// matching returns the path of the zone that matches a path, or "".
func (e *Zone) matching(path string) string {
	path = strings.ToLower(path)
	return e.pathOf(func(p *nearPath) bool { return p.matches(path) })
}

// nearMiss returns the path of the zone that a path ends in without being matched, or "".
func (e *Zone) nearMiss(path string) string {
	path = strings.ToLower(path)
	return e.pathOf(func(p *nearPath) bool {
		return !p.matches(path) && strings.HasSuffix(strings.TrimSuffix(path, "/"), strings.TrimSuffix(p.whole, "/"))
	})
}

func (e *Zone) pathOf(is func(*nearPath) bool) string {
	for i := range e.paths {
		if is(&e.paths[i]) {
			return e.paths[i].pattern
		}
	}
	return ""
}

func (p *nearPath) matches(path string) bool {
	return p.more && strings.HasPrefix(path, p.whole) || path == p.whole
}

// missedNearly notes that the upstream has answered a near miss. made says that a rewrite
// behind the zone has made the address.
func (e *Zone) missedNearly(client netip.Addr, path, of string, made bool) {
	says := "no request has met the zone, and the site answers an address that ends like one of its paths: look whether match names the address that clients send"
	near := &e.near
	if made {
		says = "the zone does not see an address of its match, because a rewrite behind throttle makes it: look whether throttle belongs into the block of the rewrite"
		near = &e.made
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if from := network(client); from.IsValid() && !slices.Contains(*near, from) && len(*near) < nearNetworks {
		*near = append(*near, from)
	}
	if len(*near) == nearNetworks && e.tellOnce(says) {
		e.Logger.Warn(says, zap.String("address", text.Printable(path, 100)), zap.String("path", of))
	}
}
