package limit

import (
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"testing"
	"time"

	"go.uber.org/zap/zapcore"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/refusal"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

func TestTheStrongestDecisionAndTheLongestWaitDecide(t *testing.T) {
	zone := &Zone{Refusal: &refusal.Options{RetryAfter: "empty"}}
	limit := leakybucket.Limit{Capacity: 10, Leak: 1}
	slow := leakybucket.Limit{Capacity: 10, Leak: 0.1}
	outcome := func(d Decision, why Reason, limit leakybucket.Limit, level, cost float64) *Outcome {
		o := &Outcome{Zone: zone, Charge: leakybucket.Charge{Limit: limit, Cost: cost}, Answer: leakybucket.Decision{Level: level, Poured: why == None}}
		o.decision, o.reason = d, why
		return o
	}
	weakestFirst := []*Outcome{
		outcome(Admitted, None, limit, 1, 1),
		outcome(Admitted, None, limit, 1, 2),
		outcome(Admitted, None, leakybucket.Limit{Capacity: 2, Leak: 1}, 0, 1),
		outcome(ShadowRefused, Capacity, limit, 9.5, 1),
		outcome(ShadowRefused, Capacity, slow, 9.5, 1),
		outcome(ShadowRefused, Denied, leakybucket.Limit{}, 0, 0),
		outcome(Refused, Capacity, limit, 9.5, 1),
		outcome(Refused, Capacity, limit, 10, 1),
		outcome(Refused, Capacity, slow, 9.5, 1),
		outcome(Refused, Oversize, limit, 0, 11),
	}
	for i, o := range weakestFirst {
		for j, other := range weakestFirst {
			check.Equal(t, o.stronger(other), i > j, "outcome %d stronger than %d", i, j)
		}
	}
}

// Durations are exact to a nanosecond, and logs need not be.
func TestLogsAndPlaceholdersHaveSixDecimals(t *testing.T) {
	o := &Outcome{Zone: &Zone{Name: "a", Refusal: new(refusal.Options), Reporter: new(silent)}, Delay: 1234567890 * time.Nanosecond, Block: 9876543210 * time.Nanosecond}
	o.decision = Delayed
	log := zapcore.NewMapObjectEncoder()
	check.OK(t, o.MarshalLogObject(log))
	for field, want := range map[string]any{"delay": 1.234568, "blocked": 9.876543} {
		check.Equal(t, log.Fields[field], want, "%s", field)
	}
	if got, _ := (&Verdicts{all: []*Verdict{{Outcomes: []Outcome{*o}}}}).placeholder("delay"); got != 1.234568 {
		t.Errorf("placeholder: got %v, want 1.234568", got)
	}
}

// However outer handlers and the next one write a header, no value counts as the response's
// own that was there before, and none is lost that was added.
func TestOwnFields(t *testing.T) {
	values := []string{"a", "b", "c"}
	names := []string{"Set-Cookie", "Location", "X-Ok"}
	for seed := range uint64(2000) {
		random := rand.New(rand.NewPCG(seed, 1))
		header := make(http.Header)
		for range random.IntN(4) {
			header.Add(names[random.IntN(len(names))], values[random.IntN(len(values))])
		}
		before, want := header.Clone(), make(http.Header)
		for range random.IntN(5) {
			name, value := names[random.IntN(len(names))], values[random.IntN(len(values))]
			header.Add(name, value)
			want.Add(name, value)
		}
		got := ownFields(header, before)
		check.Assume(t, maps.EqualFunc(got, want, slices.Equal[[]string]), "seed %d: %v, before %v: got %v, want %v", seed, header, before, got, want)
	}
}

func TestOwnFieldsThatReplaceOthers(t *testing.T) {
	before := http.Header{"Same": {"a"}, "Shorter": {"a", "b"}, "Other": {"a"}, "Removed": {"a"}}
	got := ownFields(http.Header{"Same": {"a"}, "Shorter": {"a"}, "Other": {"b"}}, before)
	want := (http.Header{"Other": {"b"}})
	check.That(t, maps.EqualFunc(got, want, slices.Equal[[]string]), "got %v, want %v", got, want)
}
