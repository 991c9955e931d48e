package decision

import (
	"net/http"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/pass"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/refusal"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/rule"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	bucketkey "github.com/caddy-throttle/caddy-throttle/leakybucket/key"
)

// busy returns how a request is refused that did not get its turn.
func (o *Outcome) busy() *refusal.Busy {
	standing := &o.Turn.Standing
	b := &refusal.Busy{Reload: standing.Tries < pass.Reloads}
	if standing.Client.Known() && o.early() <= 0 {
		b.Pass = func(header http.Header) {
			o.countPass(standing.Client.Refused(header, time.Now(), o.RetryAfter(), o.ClientIP()))
		}
		b.NoPass = func() {
			o.countPass(standing.Client.RefusedApart(time.Now(), o.RetryAfter(), o.ClientIP()))
		}
	}
	return b
}

// early returns for how long a member is still to stay away who came too early, and has
// waited for its time or was refused at once.
func (o *Outcome) early() time.Duration { return o.Turn.Standing.Early - o.Delay }

// countPass counts what has happened to the client's pass.
func (o *Outcome) countPass(e pass.Event) {
	if e != pass.None {
		o.Zone.Reporter.CountPass(e)
	}
}

// sendsPass reports whether the response may bring the client the pass of a member, or
// take it away. Shadow zones send none.
func (o *Outcome) sendsPass() bool {
	return o.Turn != nil && o.Shadow == 0 && o.admits() && o.Turn.Standing.Client.Learns()
}

// SendsPasses reports whether the response may bring the client the pass of a member, or
// take it away, in a zone of this handler.
func (res *Result) SendsPasses() bool {
	if res == nil {
		return false
	}
	for i := range res.Outcomes {
		if res.Outcomes[i].sendsPass() {
			return true
		}
	}
	return false
}

// SendPasses adds the passes of members to a response before its headers are sent, or
// takes them away. take asks the store, and returns false if that fails.
func (res *Result) SendPasses(r *http.Request, status int, header http.Header, take func([]leakybucket.Charge, []leakybucket.Decision) bool) {
	if r.Method == http.MethodConnect || status < 200 {
		return // a tunnel
	}
	now := time.Now()
	for i := range res.Outcomes {
		o := &res.Outcomes[i]
		if !o.sendsPass() {
			continue
		}
		c := &o.Turn.Standing.Client
		event := c.Answered(status, header, now, func(account pass.ID) bool { return o.join(account, now, take) })
		o.Zone.Reporter.Answered(c.New(), event)
		o.countPass(event)
	}
}

// A place is that of an account among the members of a network.
type place struct {
	network string
	account pass.ID
}

// mostPlaces bounds the memory of places. Accounts beyond it take a place each time.
const mostPlaces = 10_000

// join reports whether one more account of the client's network may become a member. One
// that has lately, and whose client has not kept the pass or not got it yet, needs no
// other place: it still has one turn.
func (o *Outcome) join(account pass.ID, now time.Time, take func([]leakybucket.Charge, []leakybucket.Decision) bool) bool {
	network := "unknown"
	if addr := o.ClientIP(); addr.IsValid() {
		network = bucketkey.ClientPrefix(addr, o.Zone.Key.IPv4Bits, o.Zone.Key.IPv6Bits).Addr().String()
	}
	at := place{network, account}
	if _, joined := o.Zone.places.Get(at, now); joined {
		return true
	}
	charges := []leakybucket.Charge{{Zone: o.Zone.Name, Key: "@members/" + network, Cost: 1, Limit: rule.MemberLimit}}
	decisions := make([]leakybucket.Decision, 1)
	if !take(charges, decisions) || !decisions[0].Fits {
		return false
	}
	o.Zone.places.Put(at, struct{}{}, now.Add(time.Hour), now)
	return true
}
