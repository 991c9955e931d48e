package inflight

import (
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/config"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/inflight/fairqueue"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/inflight/pass"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/limit"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/option"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/refusal"
	bucketkey "github.com/caddy-throttle/caddy-throttle/leakybucket/key"
)

// ranks say which rank a client has. Without share they are empty.
type ranks struct {
	pass            *pass.Issuer     // issues passes, and recognizes those who have one; nil if none are sent
	member, crawler []limit.Matchers // match requests of clients with these ranks
}

// load loads the matchers of ranks, and who gets passes.
func (r *ranks) load(ctx caddy.Context, f *config.InFlight) error {
	for i := range f.Rank {
		rank := &f.Rank[i]
		match, err := option.LoadMatchers(ctx, rank, "Match", rank.Match)
		switch {
		case err != nil:
			return err
		case match != nil && rank.Rank == config.RankMember:
			r.member = append(r.member, match)
		case match != nil:
			r.crawler = append(r.crawler, match)
		case rank.Told != "":
			r.pass.Told = append(r.pass.Told, pass.Told{Header: http.CanonicalHeaderKey(rank.Told), Session: rank.Session})
		default:
			r.pass.Issued = append(r.pass.Issued, rank.Issued...)
		}
	}
	return nil
}

// strip removes headers by which only the upstream may name users, and which clients never see.
func (r *ranks) strip(header http.Header) {
	if r.pass != nil {
		for _, told := range r.pass.Told {
			delete(header, told.Header)
			delete(header, http.TrailerPrefix+told.Header)
		}
	}
}

// A standing is what a client takes turns by, beside the claim of its slot.
type standing struct {
	client pass.Client // what its pass tells; not known if none are sent
	why    string      // what gives it its rank, for the access log
	tries  int         // how often it was refused in a row before
	asked  any         // what [record.Record.Asked] returned when the request came
}

// The keys of members and of passes begin so. Those of clients never do, because a leading @
// in a part of a key is escaped.
const memberKey, passKey = "@member/", "@pass/"

// whys are what a client's pass says for or against a better rank.
var whys = [...]string{
	pass.Absent: "", pass.Invalid: "invalid pass", pass.Expired: "expired pass", pass.Early: "early pass",
	pass.Unbound: "pass without login", pass.Valid: "pass",
}

// rank finds out the rank of a request, and what it takes turns by: a member by its account, others
// by what makes a client and by their pass. A matcher that fails matches nobody.
func (v *visit) rank(s *limit.Subject) {
	ranks, ask, identity := &v.ranks, &v.slot, ""
	ask.Rank = fairqueue.First
	if ranks.pass != nil {
		var now time.Time
		if s.Request.Header["Cookie"] != nil { // else there is no pass that could have expired
			now = time.Now()
		}
		v.client = ranks.pass.Client(s.Request, limit.Host(s), now)
		ask.Rank, v.tries, v.why = v.client.Rank(), v.client.Tries(now), whys[v.client.State]
		if id := v.client.Key(); v.client.Member {
			identity = memberKey + id
		} else if id != "" {
			identity = passKey + id
		}
	}
	switch {
	case ask.Rank == fairqueue.Member:
	case s.AnyMatchesEveryAddress(ranks.member):
		ask.Rank, v.why = fairqueue.Member, "matcher"
	case ask.Rank == fairqueue.First && s.AnyMatchesEveryAddress(ranks.crawler):
		ask.Rank, v.why = fairqueue.Crawler, "matcher"
	}
	if ask.Rank == fairqueue.Member {
		ask.Network = pass.NetworkOf(s.Address())
		if v.client.Member {
			ask.Keys[0] = identity
			return
		}
	}
	ask.Keys = [2]string{v.ShareKey.Name(s), identity}
}

// loseTurn says when a client is to come back that has lost its turn: one that was refused several times
// later each time, but for members. A page brings it a pass that says so. Browsers ask for everything
// else many times at once, and would get as many.
func (v *visit) loseTurn(header http.Header, now time.Time) {
	// A browser that keeps no pass, or gets none, is followed: when it was told to it comes again, and was
	// refused as often. Of several that are alike, one is followed, and no others.
	alone, followed := pass.ID{}, v.client.State <= pass.Expired
	if followed {
		alone = pass.IDOf(v.slot.Keys[0], v.r.UserAgent(), v.r.Host, v.r.RequestURI)
		last, _ := v.State.passes.Alone.Get(alone, now)
		if followed = !now.Add(-v.Waited).Before(last.NotBefore); followed {
			v.tries = last.Tries
		}
	}
	doubled := v.tries
	if v.slot.Rank == fairqueue.Member || v.client.Member {
		doubled = 0
	}
	v.after = pass.RetryAfter(doubled, rand.Float64())
	addr := v.subject.Client().Addr()
	if !refusal.IsPage(v.r) {
		v.counts.passed(v.client.RefusedApart(now, v.after, addr))
		return
	}
	v.counts.passed(v.client.Refused(header, now, v.after, addr))
	if back := now.Add(v.after); followed {
		v.State.passes.Alone.Put(alone, pass.Move{NotBefore: back, Tries: v.tries + 1, Network: pass.NetworkOf(addr)}, back.Add(pass.Forgotten), now)
	}
}

// A memberPlace is that of an account among the members of a network.
type memberPlace struct {
	network string
	account pass.ID
}

// membersAnHour is how many accounts of a network become members: of an IPv4 address or an IPv6 /48,
// since whoever has that has as many /64 as they like.
const membersAnHour, mostMembers = 20, 100_000

// Answers implements [call.Caller]. It adds the pass of a member to a response that names one, or
// takes it away, and hides from clients who the user is.
func (v *visit) Answers(status int, header http.Header) {
	if issuer := v.ranks.pass; status > 0 && issuer != nil && issuer.LearnsMembers() {
		now := time.Now()
		v.counts.passed(v.client.Answered(status, header, now, func(account pass.ID) bool {
			// One that has joined lately, and whose client has not kept the pass or not got it yet,
			// needs no other place: it still has one turn.
			at := memberPlace{bucketkey.ClientPrefix(v.subject.Address(), 32, 48).String(), account}
			_, joined := v.State.members.Get(at, now)
			return joined || v.State.members.Put(at, at.network, now.Add(time.Hour), now)
		}))
	}
	v.ranks.strip(header)
}
