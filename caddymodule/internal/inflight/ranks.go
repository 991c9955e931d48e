package inflight

import (
	"io"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/config"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/expiring"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/inflight/fairqueue"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/inflight/pass"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/limit"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/option"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/response"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	bucketkey "github.com/caddy-throttle/caddy-throttle/leakybucket/key"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/memstore"
)

// ranks say which rank a client has. Without share they are empty.
type ranks struct {
	pass            *pass.Issuer     // issues passes, and recognizes those who have one; nil if none are sent
	member, crawler []limit.Matchers // match requests of clients with these ranks
	told            []string         // response headers that name users, which clients never see
}

// loadRanks loads the matchers of ranks, and who gets passes.
func loadRanks(ctx caddy.Context, f *config.InFlight, passes *pass.Issuer) (r ranks, err error) {
	r.pass = passes
	for i := range f.Rank {
		rank := &f.Rank[i]
		match, err := option.LoadMatchers(ctx, rank, "Match", rank.Match)
		switch {
		case err != nil:
			return r, err
		case match != nil && rank.Rank == config.RankMember:
			r.member = append(r.member, match)
		case match != nil:
			r.crawler = append(r.crawler, match)
		case rank.Told != "":
			header := http.CanonicalHeaderKey(rank.Told)
			passes.Told = append(passes.Told, pass.Told{Header: header, Session: rank.Session})
			r.told = append(r.told, header)
		default:
			passes.Issued = append(passes.Issued, rank.Issued...)
		}
	}
	return r, nil
}

// listen reports whether responses tell who is a member.
func (r *ranks) listen() bool { return r.pass != nil && r.pass.LearnsMembers() }

// strip removes headers by which only the upstream may name users.
func (r *ranks) strip(header http.Header) {
	for _, name := range r.told {
		delete(header, name)
		delete(header, http.TrailerPrefix+name)
	}
}

// A standing is what a client takes turns by, beside its rank.
type standing struct {
	claim  fairqueue.Claim
	client pass.Client   // what its pass tells; not known if none are sent
	why    string        // what gives it its rank, for the access log
	tries  int           // how often it was refused in a row before
	early  time.Duration // for how long a member must still stay away, because a refusal told it to
}

// The keys of members and of passes begin so. Those of clients never do, because a leading @
// in a part of a key is escaped.
const memberKey, passKey = "@member/", "@pass/"

// whys are what a client's pass says for or against a better rank.
var whys = [...]string{
	pass.Absent: "", pass.Invalid: "invalid pass", pass.Expired: "expired pass", pass.Early: "early pass",
	pass.Unbound: "pass without log-in", pass.Valid: "pass",
}

// rank finds out the rank of a request, and what it takes turns by: a member by its account, others
// by what makes a client and by their pass. A member who comes too early waits until it may come,
// and then ranks as one who has come back. A matcher that fails matches nobody.
func (v *visit) rank(s *limit.Subject) {
	ranks, ask, identity, known := &v.ranks, &v.slot, "", false
	ask.Claim = &v.claim
	ask.Rank = fairqueue.First
	if ranks.pass != nil {
		now := time.Now()
		v.client = ranks.pass.Client(s.Request, limit.Host(s), now)
		ask.Rank, v.tries, v.why = v.client.Rank(), v.client.Tries(now), whys[v.client.State()]
		if notBefore := v.client.EarlyMember(); !notBefore.IsZero() {
			v.early = notBefore.Sub(now)
		}
		known = ask.Rank == fairqueue.Member || v.early > 0
		if id := v.client.Key(); known {
			identity = memberKey + id
		} else if id != "" {
			identity = passKey + id
		}
	}
	switch {
	case ask.Rank == fairqueue.Member:
	case s.MatchesBothAny(ranks.member):
		ask.Rank, v.why, v.early = fairqueue.Member, "matcher", 0
	case v.early > 0:
		ask.Rank, ask.Early = fairqueue.Returned, v.early
	case ask.Rank == fairqueue.First && s.MatchesBothAny(ranks.crawler):
		ask.Rank, v.why = fairqueue.Crawler, "matcher"
	}
	if ask.Rank == fairqueue.Member {
		ask.Network = bucketkey.ClientPrefix(s.Address(), 24, 48)
		if known {
			ask.Keys[0] = identity
			return
		}
	}
	ask.Keys = [2]string{v.rule.Share.Name(s, new(limit.Buffers)), identity}
}

// comesBack returns after how long a client is told to come back that has lost its turn: one that
// was refused several times later each time. Waits of members never double.
func (v *visit) comesBack() time.Duration {
	if rest := v.early - v.Waited; rest > 0 {
		return rest
	}
	tries := v.tries
	if v.slot.Rank == fairqueue.Member || v.early > 0 {
		tries = 0
	}
	return pass.RetryAfter(tries, rand.Float64())
}

// alone returns what a pass would say of a browser that keeps none, or gets none: when it was told to
// it comes again, and was refused as often. Of several that are alike, one is followed, and for the
// others that is nil.
func (v *visit) alone(now time.Time) *pass.Pass {
	if v.client.State() > pass.Expired {
		return nil
	}
	id := pass.IDOf(v.slot.Keys[0], v.r.UserAgent(), v.r.Host, v.r.RequestURI)
	p, _ := v.State.passes.Alone.Get(id, now)
	if now.Add(-v.Waited).Before(p.NotBefore) {
		return nil
	}
	p.ID, v.tries = id, p.Tries
	return &p
}

// members bound how many accounts of a network become members.
type members struct {
	places  *leakybucket.Limiter                 // by network
	holders *expiring.Map[memberPlace, struct{}] // whose place was taken in the last hour
}

// A memberPlace is that of an account among the members of a network.
type memberPlace struct {
	network string
	account pass.ID
}

// membersAnHour is how many accounts of a network become members.
const membersAnHour, mostNetworks, mostMemberships = 20, 10_000, 10_000

func newMembers() *members {
	limit := leakybucket.Limit{Capacity: membersAnHour, Leak: membersAnHour / 3600.} // which is a valid one
	places, _ := leakybucket.NewLimiter(memstore.New(memstore.Options{MaxBuckets: mostNetworks}), limit, leakybucket.LimiterOptions{})
	return &members{places, expiring.New[memberPlace, struct{}](mostMemberships)}
}

// join reports whether one more account of a network may become a member. One that has lately,
// and whose client has not kept the pass or not got it yet, needs no other place: it still has one
// turn.
func (m *members) join(network string, account pass.ID, now time.Time) bool {
	at := memberPlace{network, account}
	if _, joined := m.holders.Get(at, now); joined {
		return true
	}
	if !m.places.Allow(network) {
		return false
	}
	m.holders.Put(at, struct{}{}, now.Add(time.Hour), now)
	return true
}

// listening is a next handler whose responses tell who is a member.
type listening struct {
	visit *visit
	next  caddyhttp.Handler
}

// ServeHTTP implements caddyhttp.Handler.
func (n listening) ServeHTTP(w http.ResponseWriter, r *http.Request) error {
	l := &listener{visit: n.visit}
	l.Watch(w, r)
	defer func() { l.visit.ranks.strip(w.Header()) }() // of trailers, and of what an error route would send
	err := n.next.ServeHTTP(l, r)
	if err == nil && l.Status == 0 {
		l.answered(http.StatusOK)
	}
	return err
}

// A listener is the response writer of such a handler.
type listener struct {
	response.Writer
	visit *visit
}

// WriteHeader implements http.ResponseWriter.
func (l *listener) WriteHeader(status int) {
	if l.Final(status) && !l.Tunnels() {
		l.answered(status)
	}
	l.visit.ranks.strip(l.Header())
	l.ResponseWriter.WriteHeader(status)
}

// answered adds the pass of a member to a response that names one, or takes it away, before the
// headers are sent.
func (l *listener) answered(status int) {
	v, now := l.visit, time.Now()
	event := v.client.Answered(status, l.Header(), now, func(account pass.ID) bool {
		return v.State.members.join(v.slot.Client.Addr().String(), account, now)
	})
	v.counts.answered(v.client.New(), event)
}

func (l *listener) implicitHeader() {
	if l.Status == 0 {
		l.WriteHeader(http.StatusOK)
	}
}

// Write implements http.ResponseWriter.
func (l *listener) Write(p []byte) (int, error) {
	l.implicitHeader()
	return l.ResponseWriter.Write(p)
}

// ReadFrom implements io.ReaderFrom.
func (l *listener) ReadFrom(r io.Reader) (int64, error) {
	l.implicitHeader()
	return l.Writer.ReadFrom(r)
}

// FlushError lets http.ResponseController flush, which sends headers too.
func (l *listener) FlushError() error {
	l.implicitHeader()
	_, err := l.FlushNow()
	return err
}

// Interface guards
var (
	_ caddyhttp.Handler = listening{}
	_ response.Watching = (*listener)(nil)
)
