package decision

import (
	"net/http"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/admission"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/expiring"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/pass"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/rule"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/settlement"
)

// A Zone is a rule, and what runs of it.
type Zone struct {
	*rule.Rule

	// Enforced and Simulated hold the zone's queues and slots. They outlive configs:
	// a reload changes limits, and waiting requests keep their places.
	Enforced, Simulated *admission.Zone

	Meter *settlement.Meter // of the workers' time; required if the rule settles by that

	Reporter Reporter

	members *expiring.Map[memberPlace, struct{}] // whose places were taken in the last hour
}

// NewZone returns the zone of a rule.
func NewZone(r *rule.Rule, enforced, simulated *admission.Zone, meter *settlement.Meter, reporter Reporter) *Zone {
	z := &Zone{Rule: r, Enforced: enforced, Simulated: simulated, Meter: meter, Reporter: reporter}
	if r.Ranks.LearnsMembers() {
		z.members = expiring.New[memberPlace, struct{}](mostMemberPlaces)
	}
	return z
}

// A Meeting is how a request met a zone that did not charge it by its key.
type Meeting uint8

// The meetings.
const (
	Exempt       Meeting = iota // by the zone's exempt
	ExemptAsSent                // exempt holds for the address as sent, and not for what a rewrite has made of it
	NotLimited                  // as a static file, or by an override
	Keyless                     // a part of the key is missing
)

// A Reporter counts and logs the outcomes of a zone. It must be safe for concurrent
// use.
type Reporter interface {
	// Decided is called once for each outcome, when it is final. now is zero if nobody
	// needed the time yet. header is that of the response; it is nil for outcomes of
	// simulations, which may end after the response.
	Decided(o *Outcome, now time.Time, header http.Header)

	// Logs reports whether the line of a refused request is to be in the access log.
	// Unlogged returns how many were not, since it was asked last.
	Logs(now time.Time) bool
	Unlogged() uint32

	// Met notes that a request came that the zone does not charge, or why it charges another
	// bucket than its key's.
	Met(Meeting, *rule.Subject)

	// Settled notes what a request has cost, in units, or that its response does not say it.
	// FellBack counts a charge that was decided without the shared store.
	Settled(o *Outcome, response *settlement.Observer, cost float64, known bool)
	FellBack()

	// Failed warns that a matcher of this option has failed. If the zone is enforced, the
	// request fails.
	Failed(option string, err error, enforced bool)

	// ServedStatic warns that the upstream has answered a request that was taken for one of
	// a static file.
	ServedStatic(*http.Request)

	// CountPass counts what has happened to the pass of a client. Answered is called
	// with the same for each response of a zone that learns from them who is a member. The
	// client is new if it came without cookies.
	CountPass(pass.Event)
	Answered(isNew bool, e pass.Event)
}
