package decision

import (
	"net/http"
	"slices"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/device"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// client returns what device cookies tell of a request to an account, or nil if the
// zone trusts no devices or the request names no account.
func (r *Rule) client(s *Subject, k *key) *device.Client {
	if r.Trust == nil || !k.own {
		return nil
	}
	host := Host(s)
	if host == "" {
		return nil
	}
	return r.Trust.Client(s.Request, host, k.name, time.Now())
}

// deviceKey returns the key of a client's device, or "" if none is known for the
// account. No client can spell it, since a leading @ is escaped in parts.
func deviceKey(account string, client *device.Client) string {
	name, known := client.Device()
	if !known {
		return ""
	}
	return account + "/@device/" + name
}

// chargeDevice makes the outcome charge the bucket of the client's device, if one is
// known, in the place of the account's. It reports whether one is.
func (o *Outcome) chargeDevice() bool {
	key := deviceKey(o.Key, o.Client)
	if key == "" {
		return false
	}
	o.account, o.Key, o.Charge.Key = o.Key, key, key
	return true
}

// chargeAccount makes the outcome charge the account's bucket again.
func (o *Outcome) chargeAccount() {
	o.Key, o.Charge.Key, o.account = o.account, o.account, ""
}

// keepCharges notes what the store is about to be asked, which a stand-in of a
// shared store may change, if it may have to be asked again.
func (p *Plan) keepCharges() {
	p.questions = p.questions[:0]
	for i := range p.outcomes {
		if p.outcomes[i].account != "" {
			p.questions = append(p.questions, p.charges...)
			return
		}
	}
}

// FallBack looks for devices whose buckets the store has found full, and charges the
// accounts' buckets instead. It returns true if the store must be asked again.
func (p *Plan) FallBack() bool {
	if len(p.questions) == 0 {
		return false
	}
	full, poured := false, false
	for i := range p.decisions {
		full = full || p.overflows(i)
		poured = poured || p.decisions[i].Poured
	}
	if !full {
		return false
	}
	n := 0
	for i, of := range p.of {
		o := &p.outcomes[of]
		switch {
		case p.overflows(i):
			o.Was = leakybucket.Decision{}
			o.chargeAccount()
		case poured:
			continue // only shadows are full, and the others have paid
		case o.Was.Began:
			p.began = append(p.began, o.Rule)
		}
		p.questions[i].Key = o.Charge.Key
		p.charges[n], p.of[n] = p.questions[i], of
		n++
	}
	clear(p.charges[n:])
	p.charges, p.of, p.refused = p.charges[:n], p.of[:n], false
	return true
}

// overflows reports whether the i-th charge is a device's and does not fit.
func (p *Plan) overflows(i int) bool {
	return p.outcomes[p.of[i]].account != "" && !p.decisions[i].Fits && !p.decisions[i].Undecided
}

// Trusts reports whether the response may earn the client's device trust in a zone of
// this handler.
func (res *Result) Trusts() bool {
	if res == nil {
		return false
	}
	for i := range res.Outcomes {
		if res.Outcomes[i].Client != nil {
			return true
		}
	}
	return false
}

// Newcomer returns the charge for one more device of the outcome's account, which fits
// if the account may have one. It returns false for a device that is known. In shadow
// devices count as in enforcement, which begins with those of the shadow.
func (o *Outcome) Newcomer() (leakybucket.Charge, bool) {
	if _, known := o.Client.Device(); known {
		return leakybucket.Charge{}, false
	}
	return leakybucket.Charge{
		Zone: o.Rule.Name, Key: o.Key + "/@devices", Cost: 1,
		Limit: leakybucket.Limit{Capacity: device.Most, Leak: device.Most / o.Rule.Trust.For.Seconds()},
	}, true
}

// Trust adds device cookies to a response that has earned them, before its headers
// are sent. room reports whether the account of a charge may have one more device.
func (res *Result) Trust(status int, header http.Header, room func(*leakybucket.Charge) bool) {
	now := time.Now()
	earned := slices.Clone(header["Set-Cookie"]) // another zone's cookie is no log-in
	for i := range res.Outcomes {
		o := &res.Outcomes[i]
		if o.Client == nil || !o.Client.Earned(status, http.Header{"Set-Cookie": earned}, now) {
			continue
		}
		if c, newcomer := o.Newcomer(); newcomer && !room(&c) {
			continue
		}
		o.Client.Issue(header, now)
	}
}
