package stores

import (
	"slices"
	"testing"
	"time"
)

// outage is when a store was taken down, when it was down for certain, when it was to
// come back, and how long after its return limits held again.
type outage struct{ from, down, to, back time.Duration }

// outageUntil takes the store down for a while, at least until noticed returns, and waits until
// limits hold again. The time that end needs to bring the store back is not measured.
func (l *load) outageUntil(t *testing.T, lasts time.Duration, begin func() (end func()), noticed func()) outage {
	t.Helper()
	l.since(t, time.Since(l.began), "allow", 429)
	o := outage{from: time.Since(l.began)}
	end := begin()
	o.down = time.Since(l.began)
	time.Sleep(lasts)
	noticed()
	o.to = time.Since(l.began)
	end()
	up := time.Since(l.began)
	o.back = max(l.since(t, up, "allow", 429), l.since(t, up, "deny", 429))
	return o
}

// opening is longer than the breaker takes to open, even on a busy machine.
const opening = 300 * time.Millisecond

// wantWithout checks that all routes do without the store while it is down.
func (o outage) wantWithout(t *testing.T, name string, shots []shot) {
	t.Helper()
	for _, s := range during(shots, o.down+opening, o.to, "allow", "deny") {
		if want := map[string]int{"allow": 200, "deny": 503}[s.route]; s.at+s.took < o.to && s.answer.Status != want {
			t.Errorf("%s, %s after %v: got %d, want %d", name, s.route, s.at-o.from, s.answer.Status, want)
			return
		}
	}
}

// wantPolicies checks that every status is one that its route's policy allows.
func wantPolicies(t *testing.T, shots []shot) {
	t.Helper()
	allowed := map[string][]int{"local": {200, 429}, "allow": {200, 429}, "deny": {200, 429, 503}, "plain": {200}}
	wrong := 0
	for _, s := range shots {
		switch {
		case s.err != nil:
			t.Errorf("%s at %v: got %v, want an answer", s.route, s.at, s.err)
		case !slices.Contains(allowed[s.route], s.answer.Status):
			t.Errorf("%s at %v: got %d, want one of %v", s.route, s.at, s.answer.Status, allowed[s.route])
		case s.answer.Status == 503 && s.answer.Header.Get("Retry-After") == "":
			t.Errorf("%s at %v: got 503 without Retry-After", s.route, s.at)
		default:
			continue
		}
		if wrong++; wrong == 10 {
			t.Fatal("and more")
		}
	}
}
