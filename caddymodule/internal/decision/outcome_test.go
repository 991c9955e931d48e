package decision

import (
	"reflect"
	"strconv"
	"testing"
	"time"

	"go.uber.org/zap/zapcore"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/admission"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/rule"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

func TestTheStrongestDecisionAndTheLongestWaitDecide(t *testing.T) {
	zone := &Zone{Rule: &rule.Rule{Refusal: rule.Refusal{RetryEmpty: true}}}
	limit := leakybucket.Limit{Capacity: 10, Leak: 1}
	slow := leakybucket.Limit{Capacity: 10, Leak: 0.1}
	outcome := func(d Decision, why rule.Reason, limit leakybucket.Limit, level, cost float64) *Outcome {
		o := &Outcome{Zone: zone, terms: terms{Limit: limit, Cost: cost}, answer: answer{level: level, poured: why == rule.None}}
		o.decide(d, why)
		return o
	}
	weakestFirst := []*Outcome{
		outcome(Admitted, rule.None, limit, 1, 1),
		outcome(Admitted, rule.None, limit, 1, 2),
		outcome(Admitted, rule.None, leakybucket.Limit{Capacity: 2, Leak: 1}, 0, 1),
		outcome(ShadowRefused, rule.Capacity, limit, 9.5, 1),
		outcome(ShadowRefused, rule.Capacity, slow, 9.5, 1),
		outcome(ShadowRefused, rule.Denied, leakybucket.Limit{}, 0, 0),
		outcome(Refused, rule.Capacity, limit, 9.5, 1),
		outcome(Refused, rule.Capacity, limit, 10, 1),
		outcome(Refused, rule.Capacity, slow, 9.5, 1),
		outcome(Refused, rule.Oversize, limit, 0, 11),
	}
	for i, o := range weakestFirst {
		for j, other := range weakestFirst {
			if got, want := o.stronger(other), i > j; got != want {
				t.Errorf("outcome %d stronger than %d: got %v, want %v", i, j, got, want)
			}
		}
	}
}

// An enforced zone and the simulation of a group may end a request at the same time.
func TestWhatAnOutcomeBecomesFirstStays(t *testing.T) {
	for _, first := range []struct {
		decision Decision
		why      rule.Reason
	}{{Withdrawn, rule.None}, {Delayed, rule.None}, {Refused, rule.Timeout}, {ShadowRefused, rule.InFlight}} {
		o := new(Outcome)
		o.decide(Admitted, rule.None)
		o.become(first.decision, first.why)
		o.become(ShadowDelayed, rule.None)
		o.become(Refused, rule.TurnTooLate)
		if d, why := o.Ruling(); d != first.decision || why != first.why {
			t.Errorf("got %v %v, want %v %v", d, why, first.decision, first.why)
		}
	}
}

// Durations are exact to a nanosecond, and logs need not be.
func TestLogsAndPlaceholdersHaveSixDecimals(t *testing.T) {
	o := &Outcome{Zone: &Zone{Rule: &rule.Rule{Name: "a"}}, Delay: 1234567890 * time.Nanosecond, Block: 9876543210 * time.Nanosecond}
	o.decide(Delayed, rule.None)
	log := zapcore.NewMapObjectEncoder()
	if err := o.MarshalLogObject(log); err != nil {
		t.Fatal(err)
	}
	for field, want := range map[string]any{"delay": 1.234568, "blocked": 9.876543} {
		if got := log.Fields[field]; got != want {
			t.Errorf("%s: got %v, want %v", field, got, want)
		}
	}
	if got, _ := (&Verdict{Outcomes: []Outcome{*o}}).placeholder("http.throttle.delay"); got != 1.234568 {
		t.Errorf("placeholder: got %v, want 1.234568", got)
	}
}

// A request whose verdict is published allocates this much for one zone. Memory comes in sizes
// of 208, 224 and 240 bytes.
func TestTheVerdictOfOneZoneTakes240Bytes(t *testing.T) {
	if strconv.IntSize < 64 {
		t.Skip("SKIPPED: pointers are smaller here")
	}
	if got := reflect.TypeFor[Verdict]().Size() + reflect.TypeFor[Outcome]().Size(); got > 240 {
		t.Errorf("got %d bytes, want at most 240", got)
	}
}

// lone returns a verdict of one zone that lets a request in, and admits it with a result.
func lone(zone *rule.Rule, turn *Turn, r admission.Result) *Outcome {
	v := &Verdict{Outcomes: make([]Outcome, 1)}
	o := &v.Outcomes[0]
	*o = Outcome{Zone: &Zone{Rule: zone}, Key: "all", Turn: turn}
	o.decide(Admitted, rule.None)
	v.admitted(nil, r, nil, []*Outcome{o})
	return o
}

// Who has waited in vain waited, too, and it is the client who was refused, although the
// bucket is everybody's.
func TestWhoLosesATurnIsRefusedAsAClientAfterItsWait(t *testing.T) {
	turn := new(Turn)
	turn.Keys = [2]string{"203.0.113.1", "@pass/1"}
	for why, want := range map[admission.Why]string{
		admission.TimedOut: "203.0.113.1 timeout", admission.TooLong: "203.0.113.1 wait", admission.QueueFull: "203.0.113.1 waiting",
	} {
		o := lone(&rule.Rule{Name: "php", Slots: rule.Slots{Share: new(rule.Key), InFlight: 1}}, turn, admission.Result{Why: why, Waited: time.Second})
		if got := o.RefusedKey() + " " + o.Reason().String(); got != want || o.Delay != time.Second {
			t.Errorf("%v: got %s after %v, want %s after a second", why, got, o.Delay, want)
		}
	}
}

// What a request has waited for its slot says nothing of when the next one comes free.
func TestWhoeverWaitedInVainIsNotToldToWaitAsLongAgain(t *testing.T) {
	for _, why := range []admission.Why{admission.Exiting, admission.QueueFull, admission.TimedOut, admission.TooLong} {
		o := lone(&rule.Rule{Name: "downloads", Slots: rule.Slots{InFlight: 1}, Queue: rule.Queue{MaxWait: time.Minute}}, nil, admission.Result{Why: why, Waited: 50 * time.Second})
		if o.RetryAfter() != slotWait || o.Delay != 50*time.Second {
			t.Errorf("%v: got told to wait for %v after %v, want %v after 50 s", why, o.RetryAfter(), o.Delay, slotWait)
		}
	}
}

// Without Caddy's server there are no variables, and nobody knows of other handlers.
func TestARequestWithoutVariablesHasNoHandlersAround(t *testing.T) {
	new(Verdict).NotServed() // and nothing fails
}
