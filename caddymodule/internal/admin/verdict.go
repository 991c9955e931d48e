package admin

import (
	"cmp"
	"net/netip"
	"strings"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/admin/wire"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/engine"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/limit"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/override"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// A state is that of a bucket now.
type state struct {
	limit   leakybucket.Limit // in force: while the shared store is down, this Caddy's share
	level   float64
	blocked time.Duration // the rest of the block
	denied  bool          // the store cannot be asked, and the zone denies
}

// A judge says what would become of requests now. Every answer of the admin API to that
// question is one of a judge.
type judge struct {
	*engine.Engine
	set *override.Set
	now time.Time
}

func newJudge(e *engine.Engine) judge { return judge{e, e.Overrides(), time.Now()} }

// fill adds the state of a bucket, of which describe has returned the limit, and what
// becomes of a request of cost 1 and of one of the zone's highest constant cost.
func (j judge) fill(z *engine.Zone, b *wire.Bucket, whole leakybucket.Limit, s state) {
	b.Level, b.Blocked = s.level, max(0, s.blocked.Seconds())
	if b.Share = s.limit != whole; b.Share {
		b.Capacity, b.Leak = s.limit.Capacity, s.limit.Leak
	}
	if s.limit.Capacity > 0 {
		b.Fraction, b.EmptyIn = s.level/s.limit.Capacity, s.limit.TimeToEmpty(s.level).Seconds()
	}
	ban := j.banOf(z, b.Key)
	b.Verdict = j.verdict(z, b, s, 1, ban)
	if z.MostCost > 1 && b.Capacity > 0 {
		dearest := j.verdict(z, b, s, z.MostCost, ban)
		b.Dearest = &dearest
	}
}

// verdict returns what becomes of a request of a cost, in the order of [limit.Decide]. The
// ban, if not nil, holds for its client.
func (j judge) verdict(z *engine.Zone, b *wire.Bucket, s state, cost float64, ban *override.Ban) wire.Verdict {
	var c leakybucket.Charge
	z.Charge(&c, &limit.Bucket{Name: b.Key, Limit: s.limit}, b.Shadow, cost)
	ceiling := s.limit.WithCeiling(c.Ceiling)
	shadow := b.Shadow || z.InShadow(j.set, limit.AccountOf(b.Key))
	refuse := func(why limit.Reason, by string, rest time.Duration) wire.Verdict {
		decided := limit.Refused
		if shadow {
			decided = limit.ShadowRefused
		}
		return wire.Verdict{Cost: cost, Decision: decided.String(), Reason: why.String(), By: by, For: max(0, rest.Seconds())}
	}
	switch {
	case ban != nil:
		shadow = z.Shadow != nil // a zone's switch at run time leaves bans as they are
		return refuse(limit.Banned, "ban", ban.Left(j.now))
	case z.Key.Unlisted == limit.Refuse && z.Unlisted(b.Key) != "":
		return refuse(limit.UnlistedKey, "key", 0)
	case b.Rule == "deny":
		return refuse(limit.Denied, "override", 0)
	case b.Rule == "unlimited":
	case s.denied:
		return refuse(limit.NoStore, "store", 0)
	case s.blocked > 0 && z.BlocksEverywhere():
		return refuse(limit.Blocked, "block everywhere", s.blocked)
	case s.blocked > 0:
		return refuse(limit.Blocked, "block", s.blocked)
	case s.limit.Oversize(cost):
		return refuse(limit.Oversize, "bucket", 0)
	case ceiling.TimeToFit(s.level, cost) > 0:
		return refuse(limit.Capacity, "bucket", ceiling.TimeToFit(s.level, cost))
	}
	return wire.Verdict{Cost: cost, Decision: limit.Admitted.String()}
}

// banOf returns the ban of the address that is in a key, or nil.
func (j judge) banOf(z *engine.Zone, key string) *override.Ban {
	if !z.Key.HasAddress() && !strings.HasPrefix(key, "@client_ip/") || j.set.AllShadow(j.now) {
		return nil
	}
	for part := range strings.SplitSeq(key, "/") {
		if ban := j.banned(part); ban != nil {
			return ban
		}
	}
	return nil
}

// banned returns the ban that holds for an address or a network, or nil.
func (j judge) banned(client string) *override.Ban {
	network, err := netip.ParsePrefix(client)
	if addr, wrong := netip.ParseAddr(client); wrong == nil {
		network, err = netip.PrefixFrom(addr, addr.BitLen()), nil
	}
	ban := j.set.Banned(network.Addr(), j.now)
	if err != nil || ban == nil || ban.Network.Bits() > network.Bits() {
		return nil
	}
	return ban
}

// byVerdict sorts buckets that refuse first, then those in shadow that would, then those
// that refuse the dearest requests alone.
func byVerdict(a, b *wire.Bucket) int {
	rank := func(b *wire.Bucket) int {
		switch {
		case b.Verdict.Refused():
			return 0
		case b.Verdict.Reason != "":
			return 1
		case b.Dearest != nil && b.Dearest.Reason != "":
			return 2
		}
		return 3
	}
	return cmp.Compare(rank(a), rank(b))
}
