package rule

import (
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/inflight/fairqueue"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/inflight/pass"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// Ranks say who has which rank in a zone with share.
type Ranks struct {
	// Pass issues passes, and recognizes those who have one. If it is nil, nobody has.
	Pass *pass.Zone

	// Member and Crawler match requests of clients with these ranks.
	Member, Crawler []Matchers

	// Fixed, if not nil, is what Standing returns. Only tests set it.
	Fixed func(*Subject) Standing
}

// MemberLimit is how many accounts of a network may become members: 20 an hour.
var MemberLimit = leakybucket.Limit{Capacity: 20, Leak: 20. / 3600}

// LearnsMembers reports whether clients become members by what the upstream answers. If
// the Ranks are nil, they do not.
func (r *Ranks) LearnsMembers() bool {
	return r != nil && r.Pass != nil && r.Pass.LearnsMembers()
}

// A Standing is the rank of a client in a zone with share, and what else it takes
// turns by.
type Standing struct {
	Rank fairqueue.Rank
	Why  string // what gives it the rank, for the access log

	// Pass is the id of its valid pass, and Member what the upstream knows a member by.
	// Either may be empty. A member takes turns by that alone, unless it is early.
	Pass, Member string

	// Early is for how long a member must still stay away, because a refusal told it to.
	// Until then it waits, and then it ranks as one who has come back.
	Early time.Duration

	// Tries is how often the client was refused in a row before.
	Tries int

	// Client is what the client's pass tells. It is not known in a zone that sends none.
	Client pass.Client
}

// HoldsPass reports whether the client has a pass of ours, also one that is early or has
// expired.
func (t *Standing) HoldsPass() bool { return t.Pass != "" || t.Client.HoldsPass() }

// Ordered returns how many refusals count for the next wait that is told. Waits of
// members never double.
func (t *Standing) Ordered() int {
	if t.Rank == fairqueue.Member || t.Member != "" {
		return 0
	}
	return t.Tries
}

// Standing returns the rank of a client, and what it takes turns by. A matcher that
// fails matches nobody.
func (r *Ranks) Standing(s *Subject) Standing {
	if r.Fixed != nil {
		return r.Fixed(s)
	}
	t := Standing{Rank: fairqueue.First}
	var now, notBefore time.Time
	if r.Pass != nil {
		now = time.Now()
		t.Client = r.Pass.Client(s.Request, Host(s), now)
		t.Rank, t.Pass, t.Tries = t.Client.Rank(), t.Client.Key(), t.Client.Tries(now)
		notBefore = t.Client.EarlyMember()
		if t.Rank == fairqueue.Member || !notBefore.IsZero() {
			t.Member = t.Pass
		}
		t.Why = whys[t.Client.State()]
	}
	switch {
	case t.Rank == fairqueue.Member:
	case s.SparesAny(r.Member):
		t.Rank, t.Why = fairqueue.Member, "matcher"
	case !notBefore.IsZero():
		t.Rank, t.Early = fairqueue.Returned, notBefore.Sub(now)
	case t.Rank == fairqueue.First && s.SparesAny(r.Crawler):
		t.Rank, t.Why = fairqueue.Crawler, "matcher"
	}
	return t
}

// whys are what a client's pass says for or against a better rank.
var whys = [...]string{
	pass.Absent: "", pass.Invalid: "invalid pass", pass.Expired: "expired pass", pass.Early: "early pass",
	pass.Unbound: "pass without log-in", pass.Valid: "pass",
}
