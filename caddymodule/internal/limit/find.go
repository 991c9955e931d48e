package limit

import (
	"strconv"
	"strings"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/form"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/perkey"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// ReadBy makes the plan one that also reads what the zone wants of bodies.
func (z *Zone) ReadBy(p *form.Plan) (err error) {
	z.Key.Form, z.wanted = p, nil
	for _, name := range z.Field {
		var wanted form.Field
		if wanted, err = p.Field(name); err != nil {
			return err
		}
		z.wanted = append(z.wanted, wanted)
	}
	for i := range z.Key.parts {
		if part := &z.Key.parts[i]; err == nil && part.field != "" {
			part.wanted, err = p.Field(part.field)
		}
	}
	for i := range z.Cost {
		if c := &z.Cost[i]; err == nil && c.source == bodyItems {
			c.items, err = p.Array(c.Path)
		}
	}
	return err
}

// ReadsFields reports whether the zone reads fields of the body.
func (z *Zone) ReadsFields() bool { return len(z.Field) > 0 || z.Key.FromBody() }

// MaxBody returns how long a body may be that the zone reads, in bytes; 0 stands for the bound of
// all bodies.
func (z *Zone) MaxBody() int64 {
	if z.ReadsFields() {
		return 0
	}
	return z.ReadBody.bytes
}

// Carries reports whether a request carries one of the zone's fields, if it has any. What cannot
// be read, or not for sure, carries every field.
func (z *Zone) Carries(s *Subject) bool {
	switch {
	case len(z.Field) == 0:
		return true
	case !s.CarriesAny():
		return false
	case !s.whole():
		return true
	}
	return s.Form(z.Key.Form).Carries(z.wanted...) != form.Absent
}

// Find returns the bucket that a request is charged to. If why is not None, the zone
// refuses the request without a store. If skip, the zone does not charge it.
func (z *Zone) Find(s *Subject, b *Buffers) (k Bucket, why Reason, skip bool) {
	k, why, skip = z.configured(s, b)
	if s.Overrides != nil && why == None && !skip {
		k.Rule, k.Limit = s.Overrides.Apply(z.Name, k.Name, k.Rule, k.Limit, z.MostCost, time.Now())
	}
	return k, why, skip
}

// configured is Find without overrides at run time.
func (z *Zone) configured(s *Subject, b *Buffers) (k Bucket, why Reason, skip bool) {
	k, state := z.Key.own(s, b)
	policy, lacks := Policy(""), false
	switch {
	case state == keyUnclear:
		return Bucket{Name: UnclearBucket, Rule: perkey.Limited, Limit: z.Limit}, None, false
	case state == keyOdd:
		return Bucket{Name: OddBucket, Rule: perkey.Limited, Limit: z.Limit}, None, false
	case state != keyComplete:
		policy, why, lacks = z.Key.Missing, MissingKey, true
		switch {
		case s.Preflight():
			policy = Skip
		case state == keyAbsent && policy == Share:
			policy = ByClientIP // a few page views must not close the zone to everybody
		}
	case !k.listed:
		policy, why = z.Key.Unlisted, UnlistedKey
	}
	skip = policy == Skip
	switch policy {
	case "", Skip:
		why = None
	case Refuse:
	default:
		k, why = z.fallback(s, policy), None
	}
	k.Lacking = lacks
	return k, why, skip
}

// BlockedBucket returns a charge that names the bucket with the client's block,
// whether or not the zone matches the request. It returns false for requests that the
// zone can never block.
func (z *Zone) BlockedBucket(s *Subject, b *Buffers) (c leakybucket.Charge, can bool) {
	if z.Block == nil {
		return c, false
	}
	if exempt, err := z.Exempts(s); err != nil || exempt {
		return c, false
	}
	if z.Key.FromBody() && !s.whole() {
		return c, false // nobody knows yet whom the request names
	}
	k, why, skip := z.Find(s, b)
	if why != None || skip || k.Rule != perkey.Limited {
		return c, false
	}
	z.Charge(&c, &k, z.InShadow(s.Overrides, k.Name), 0)
	c.Key = DeviceKey(k.Name, z.DeviceClient(s, &k))
	return c, true
}

// fallback returns the bucket for requests without a usable key.
func (z *Zone) fallback(s *Subject, policy Policy) Bucket {
	k := Bucket{Name: SharedBucket, Rule: perkey.Limited, Limit: z.Limit}
	if policy == ByClientIP {
		k.Name, k.Address = z.Key.byAddress(s)
	}
	return k
}

// DeviceClient returns what device cookies tell of a request to an account, or nil if the
// zone trusts no devices or the request names no account.
func (z *Zone) DeviceClient(s *Subject, k *Bucket) *deviceClient {
	if z.TrustDevices == nil || !k.own {
		return nil
	}
	host := Host(s)
	if host == "" {
		return nil
	}
	return z.TrustDevices.trust.Client(s.Request, host, k.Name, deviceAccount{Name: k.Account, Fold: z.Key.folding()}, time.Now())
}

// DeviceKey returns the key of a client's device, or that of the account if no device is
// known. No client can spell it, since a leading @ is escaped in parts.
func DeviceKey(account string, client *deviceClient) string {
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
