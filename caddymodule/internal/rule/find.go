package rule

import (
	"strconv"
	"strings"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/device"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/form"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/perkey"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// ReadBy makes the plan one that also reads what the zone wants of bodies.
func (r *Rule) ReadBy(p *form.Plan) (err error) {
	r.Key.Form, r.Cost.Form, r.wanted = p, p, nil
	for _, name := range r.Fields {
		var wanted form.Field
		if wanted, err = p.Field(name); err != nil {
			return err
		}
		r.wanted = append(r.wanted, wanted)
	}
	for i := range r.Key.Parts {
		if part := &r.Key.Parts[i]; err == nil && part.Field != "" {
			part.Wanted, err = p.Field(part.Field)
		}
	}
	for i := range r.Cost.Lines {
		if l := &r.Cost.Lines[i]; err == nil && l.Source == BodyItems {
			l.Items, err = p.Array(l.Path)
		}
	}
	return err
}

// ReadsFields reports whether the zone reads fields of the body.
func (r *Rule) ReadsFields() bool { return len(r.Fields) > 0 || r.Key.FromBody() }

// MaxBody returns how long a body may be that the zone reads, in bytes; 0 stands for the bound of
// all bodies.
func (r *Rule) MaxBody() int64 {
	if r.ReadsFields() {
		return 0
	}
	return r.Cost.MaxBody
}

// Carries reports whether a request carries one of the zone's fields, if it has any. What cannot
// be read, or not for sure, carries every field.
func (r *Rule) Carries(s *Subject) bool {
	switch {
	case len(r.Fields) == 0:
		return true
	case !s.CarriesAny():
		return false
	case !s.whole():
		return true
	}
	return s.Form(r.Key.Form).Carries(r.wanted...) != form.Absent
}

// Find returns the bucket that a request is charged to. If why is not None, the zone
// refuses the request without a store. If skip, the zone does not charge it.
func (r *Rule) Find(s *Subject, b *Buffers) (k Bucket, why Reason, skip bool) {
	k, why, skip = r.configured(s, b)
	if s.Overrides != nil && why == None && !skip {
		k.Rule, k.Limit = s.Overrides.Apply(r.Name, k.Name, k.Rule, k.Limit, r.Cost.Most, time.Now())
	}
	return k, why, skip
}

// configured is Find without overrides at run time.
func (r *Rule) configured(s *Subject, b *Buffers) (k Bucket, why Reason, skip bool) {
	k, state := r.Key.own(s, b)
	policy, lacks := Policy(""), false
	switch {
	case state == keyUnclear:
		return Bucket{Name: UnclearBucket, Rule: perkey.Limited, Limit: r.Limit}, None, false
	case state == keyOdd:
		return Bucket{Name: OddBucket, Rule: perkey.Limited, Limit: r.Limit}, None, false
	case state != keyComplete:
		policy, why, lacks = r.Key.Missing, MissingKey, true
		switch {
		case s.Preflight():
			policy = Skip
		case state == keyAbsent && policy == Share:
			policy = ByClientIP // a few page views must not close the zone to everybody
		}
	case !k.listed:
		policy, why = r.Key.Unlisted, UnlistedKey
	}
	skip = policy == Skip
	switch policy {
	case "", Skip:
		why = None
	case Refuse:
	default:
		k, why = r.fallback(s, policy), None
	}
	k.Lacking = lacks
	return k, why, skip
}

// BlockedBucket returns a charge that names the bucket with the client's block,
// whether or not the zone matches the request. It returns false for requests that the
// zone can never block.
func (r *Rule) BlockedBucket(s *Subject, b *Buffers) (c leakybucket.Charge, can bool) {
	if r.Block == nil {
		return c, false
	}
	if exempt, err := r.Exempts(s); err != nil || exempt {
		return c, false
	}
	if r.Key.FromBody() && !s.whole() {
		return c, false // nobody knows yet whom the request names
	}
	k, why, skip := r.Find(s, b)
	if why != None || skip || k.Rule != perkey.Limited {
		return c, false
	}
	c = r.Charge(&k, r.InShadow(s.Overrides, k.Name), 0)
	c.Key = DeviceKey(k.Name, r.DeviceClient(s, &k))
	return c, true
}

// fallback returns the bucket for requests without a usable key.
func (r *Rule) fallback(s *Subject, policy Policy) Bucket {
	k := Bucket{Name: SharedBucket, Rule: perkey.Limited, Limit: r.Limit}
	if policy == ByClientIP {
		k.Name, k.Address = r.Key.byAddress(s)
	}
	return k
}

// DeviceClient returns what device cookies tell of a request to an account, or nil if the
// zone trusts no devices or the request names no account.
func (r *Rule) DeviceClient(s *Subject, k *Bucket) *device.Client {
	if r.Trust == nil || !k.own {
		return nil
	}
	host := Host(s)
	if host == "" {
		return nil
	}
	return r.Trust.Client(s.Request, host, k.Name, device.Account{Name: k.Account, Fold: r.Key.folding()}, time.Now())
}

// DeviceKey returns the key of a client's device, or that of the account if no device is
// known. No client can spell it, since a leading @ is escaped in parts.
func DeviceKey(account string, client *device.Client) string {
	if place, known := client.Place(); known {
		return account + "/@device/" + strconv.Itoa(place)
	}
	return account
}

// AccountOf returns the key of the account whose device has a bucket of this name, or
// the name itself.
func AccountOf(name string) string {
	account, _, _ := strings.Cut(name, "/@device/")
	return account
}
