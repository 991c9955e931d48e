package limit

import (
	"net/http"
	"strings"
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
		outcome(Refused, Capacity, leakybucket.Limit{Capacity: 1000, Leak: 1}, 1000, 1), // fits in a second, and is empty in 1000
		outcome(Refused, Capacity, slow, 9.5, 1),
		outcome(Refused, Oversize, limit, 0, 11),
	}
	for i, o := range weakestFirst {
		for j, other := range weakestFirst {
			check.Equal(t, o.stronger(other), i > j, "outcome %d stronger than %d", i, j)
		}
	}
}

// TestRateLimitHeadersAreTrue: a client that relies on them is not refused.
func TestRateLimitHeadersAreTrue(t *testing.T) {
	for name, test := range map[string]struct {
		why            Reason
		block, delay   time.Duration
		level, ceiling float64
		answer         leakybucket.Decision
		policy, want   string
	}{
		"an empty bucket":             {policy: `;q=10;w=20`, want: `;r=10`},
		"part of a unit":              {level: 2.5, policy: `;q=10;w=20`, want: `;r=7;t=1`},
		"refused":                     {why: Capacity, level: 9.5, policy: `;q=10;w=20`, want: `;r=0;t=1`},
		"blocked, and all has leaked": {why: Blocked, block: time.Hour, policy: `;q=10;w=20`, want: `;r=0;t=3600`},
		"blocked, and some has":       {why: Blocked, block: time.Hour, level: 4, policy: `;q=10;w=20`, want: `;r=0;t=3600`},
		"others wait":                 {why: QueueFull, delay: 8 * time.Second, level: 4, policy: `;q=10;w=20`, want: `;r=0;t=8`},
		"no store":                    {why: NoStore, answer: leakybucket.Decision{Undecided: true}},
		"a delay that is bounded":     {level: 2, ceiling: 5, policy: `;q=5;w=10`, want: `;r=3;t=2`},
		"and would be too long":       {why: Capacity, level: 4.5, ceiling: 5, policy: `;q=5;w=10`, want: `;r=0;t=1`},
	} {
		o := Outcome{Zone: testZone(t, "a", nil), Charge: leakybucket.Charge{Limit: leakybucket.Limit{Capacity: 10, Leak: 0.5}, Cost: 1, Ceiling: test.ceiling}, Answer: test.answer}
		o.Answer.Level, o.Block, o.Delay, o.decision = test.level, test.block, test.delay, Admitted
		if test.why != None {
			o.Refuse(test.why)
		}
		header := make(http.Header)
		(&Verdict{Outcomes: []Outcome{o}}).Announce(header)
		check.Equal(t, strings.TrimPrefix(header.Get("RateLimit-Policy"), `"a"`), test.policy, "%s: RateLimit-Policy", name)
		check.Equal(t, strings.TrimPrefix(header.Get("RateLimit"), `"a"`), test.want, "%s: RateLimit", name)
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
	got, _ := (&Verdicts{all: []*Verdict{{Outcomes: []Outcome{*o}}}}).placeholder("delay")
	check.That(t, got == 1.234568, "placeholder: got %v, want 1.234568", got)
}
