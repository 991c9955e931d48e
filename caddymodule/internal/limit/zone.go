// Package limit is one request in the zones of a throttle handler: what a zone is, which bucket
// a request has there and at what cost, what the zones decide together, and what becomes of that.
// A [Zone] is its JSON with what is compiled of it. Begin with [Decide]: the zones make claims,
// the store is asked once about all of them, and a [Verdict] says what came out, if anybody needs
// to know. It writes no responses.
//
// A function with a twin, such as cost and costOfLines, answers what is usual, and is small, so that a
// plain request enters few functions: see bench/README.md.
package limit

import (
	"cmp"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/cespare/xxhash/v2"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/body"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/form"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/option"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/override"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/perkey"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/refusal"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/staticfile"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// Zone is a named rate limit: which requests it charges, to whose bucket, how
// much the bucket holds, and what happens when it overflows. Zones with the same name
// share their buckets wherever they appear, so their definitions must be equal. A zone
// with nothing but a name is the one that the global options define.
type Zone struct {
	// The zone's name, of letters, digits, `_`, `.` and `-`. Required.
	Name string `json:"name,omitempty"`

	Reporter Reporter          `json:"-"`
	Limit    leakybucket.Limit `json:"-"` // the zone's own
	Places   *body.Shares      `json:"-"` // of requests that wait for their delay

	// Which requests are charged. Default: all.
	MatchRaw caddyhttp.RawMatcherSets `json:"match,omitempty" caddy:"namespace=http.matchers"`

	// Charge only requests that have one of these form fields, such as `pwd`, in the query, in a
	// form or in JSON, or whose body cannot be read. Default: requests need no field.
	Field []string `json:"field,omitempty"`

	// Which of these requests are not charged. Default: none. If assets are
	// charged, one page view may cost as much as 80 requests.
	ExemptRaw caddyhttp.RawMatcherSets `json:"exempt,omitempty" caddy:"namespace=http.matchers"`

	// Exempt GET and HEAD requests for regular files that exist, and whose names
	// PHP does not run, whoever answers them: serve them before the upstream is asked.
	// Default: such requests are charged.
	ExemptStaticFiles []option.StaticFiles `json:"exempt_static_files,omitempty"`

	// What identifies a request's bucket. Default: the client's address.
	Key *Key `json:"key,omitempty"`

	// Names for paths, for the key source `route`. The first that matches counts.
	// Paths that match none are `other`.
	Route []Route `json:"route,omitempty"`

	// The burst and the sustained rate, such as `120 2/s`. The burst is how much a
	// bucket holds before it overflows, in units of cost. The rate is how fast it
	// drains: `2/s`, `30/m`, `1000/h`, `5000/d` or `5/20s`. Required. With too small a
	// burst, one page view with many assets is refused.
	LimitRaw string `json:"limit,omitempty"`

	// Other limits for some keys. If several match, the one that names most parts
	// of the key counts. Default: none.
	Override []perkey.Override `json:"override,omitempty"`

	// The cost of a request. The first that matches counts. Default: 1.
	Cost []Cost `json:"cost,omitempty"`

	// How much of a body is read for costs. Default: 64 KiB. Longer bodies cost what
	// its else says.
	ReadBody *ReadBody `json:"read_body,omitempty"`

	// How to correct the charge once the response is known. The charge at the
	// request is then a reservation. Default: the charge stays.
	Settle *Settle `json:"settle,omitempty"`

	// The responses for which nine tenths of the charge are given back, such as those to a
	// login that succeeded. Default: the charge stays. Cannot be used with settle.
	Refund Refunds `json:"refund,omitempty"`

	// Charge browsers that have logged in to an account before to buckets of their
	// own. The key must name the account, and refund the logins that succeed. Default:
	// everybody who names an account shares its bucket, so attackers can lock out its owner.
	TrustDevices *TrustDevices `json:"trust_devices,omitempty"`

	// Queue requests instead of passing a burst at once: each waits until what was
	// charged before it has leaked. Default: all requests that fit pass at once.
	Delay *Delay `json:"delay,omitempty"`

	// Refuse a key for a while after an overflow. Default: only the requests that
	// overflow are refused.
	Block *Block `json:"block,omitempty"`

	// What refused clients get. Default: status 429 and a short page.
	Refusal *refusal.Options `json:"refusal,omitempty"`

	// The fallback when a shared store does not answer: `local` uses buckets in
	// this process, `allow` lets requests pass, `deny` refuses them with status
	// 503. Default: the fallback in the global options.
	OnStoreError string `json:"on_store_error,omitempty"`

	// Dry run: decide, count and log as enforcement would, but never refuse.
	// Default: the zone is enforced.
	Shadow *Shadow `json:"shadow,omitempty"`

	// For how many percent of its keys the zone is enforced. For the others it is
	// a dry run. Default: 100. All nodes choose the same keys, and keys that are
	// enforced stay enforced at a higher percentage.
	Enforce int `json:"enforce,omitempty"`

	Match, Exempt Matchers              `json:"-"` // nil Match matches all, nil Exempt exempts nothing
	Static        []*staticfile.Matcher `json:"-"` // exempt static files
	MostCost      float64               `json:"-"` // the highest that is known before a request comes, in units

	wanted []form.Field        // those of Field, in the plan of the key
	ladder *leakybucket.Ladder // of Block; nil means that overflows begin no block
}

// Shadow makes a zone a dry run. It counts requests as if all zones of its handler were enforced.
type Shadow struct {
	// Mark responses that the zone would have refused with the header
	// `Server-Timing: throttle;desc="<zone>"`. A script in the page can read it and
	// report it to the handler `throttle_seen`, so that you know how many of the
	// refused clients are people. Default: no mark.
	ServerTiming bool `json:"server_timing,omitempty"`
}

// Reference reports whether the zone is nothing but a name, and so stands for a
// zone in the global options.
func (z *Zone) Reference() bool { return reflect.DeepEqual(z, &Zone{Name: z.Name}) }

// Definition returns a canonical text of a zone that is not loaded yet: definitions of one name
// must have the same.
func (z *Zone) Definition() string {
	full := z.Copy()
	full.fillIn()
	raw, _ := json.Marshal(full) // its matchers have been JSON before
	return option.Canonical(raw)
}

// Copy returns a copy of the JSON, which shares nothing with it.
func (z *Zone) Copy() *Zone {
	raw, _ := json.Marshal(z)
	copied := new(Zone)
	_ = json.Unmarshal(raw, copied) // which can be read, as it was just written
	return copied
}

// BlocksEverywhere reports whether blocks of the zone hold in all handlers.
func (z *Zone) BlocksEverywhere() bool { return z.Block != nil && z.Block.Everywhere }

// MarksResponses reports whether responses are marked that the zone would have refused.
func (z *Zone) MarksResponses() bool { return z.Shadow != nil && z.Shadow.ServerTiming }

// Restored sets the limit and the block of a bucket that was saved. As after a reload, the bucket
// stays what it was until it is touched.
func (z *Zone) Restored(c *leakybucket.Charge, saved *leakybucket.State) {
	c.Limit = leakybucket.Limit{Capacity: max(z.Limit.Capacity, saved.Level), Leak: cmp.Or(saved.Leak, z.Limit.Leak)}
	c.Block = z.ladder
}

// Charge makes an empty charge that of a cost to the bucket of a key. It does so in place, since
// copies of a charge would take longer.
func (z *Zone) Charge(c *leakybucket.Charge, k *Bucket, shadow bool, cost float64) {
	c.Zone, c.Key, c.Shadow, c.Limit, c.Cost = z.Name, k.Name, shadow, k.Limit, cost
	c.Block = z.ladder
	if z.Delay != nil {
		c.Undelayed = z.Delay.Undelayed
		if z.Delay.Wait > 0 {
			c.Ceiling = k.Limit.Ceiling(cost, z.Delay.Undelayed, time.Duration(z.Delay.Wait))
		}
	}
	if z.Settle != nil {
		c.Debt, c.Probe = z.Settle.debtUnder(k.Limit), z.Settle.After
	}
}

// Peek returns a charge that shows the state of a bucket, and pours and begins nothing:
// its cost fits no bucket.
func (z *Zone) Peek(name string, limit leakybucket.Limit, shadow bool) leakybucket.Charge {
	var c leakybucket.Charge
	z.Charge(&c, &Bucket{Name: name, Limit: limit}, shadow, -1)
	c.Probe = true
	return c
}

// InShadow reports whether the zone only counts requests with this key.
func (z *Zone) InShadow(overrides *override.Set, key string) bool {
	return z.Shadow != nil || (z.Enforce < 100 || overrides != nil) && z.inShadow(overrides, key)
}

// inShadow is for zones that are enforced for some keys, or may be switched. The hash has no
// seed, so all nodes and all zones choose the same keys.
func (z *Zone) inShadow(overrides *override.Set, key string) bool {
	return xxhash.Sum64String(key)%100 >= uint64(z.Enforce) || overrides.Shadow(z.Name, time.Now())
}

// concernsAll reports whether the zone charges all requests.
func (z *Zone) concernsAll() bool { return len(z.Match)+len(z.Exempt)+len(z.Static) == 0 }

// Concerns reports whether the zone charges a request, and if its match alone would have it do so,
// whether the request is exempt. The error is that of a matcher.
func (z *Zone) Concerns(s *Subject) (concerned, exempt bool, err error) {
	if z.Match != nil {
		if match, err := s.MatchesAnyAddress(z.Match); err != nil || !match {
			return false, false, matcherError("match", err)
		}
	}
	exempt, err = z.Exempts(s)
	exempt = exempt || err == nil && slices.ContainsFunc(z.Static, func(files *staticfile.Matcher) bool { return files.Match(s.Request) })
	return err == nil && !exempt, exempt, err
}

// Exempts reports whether the zone's own matchers exempt a request. Static files do
// not count.
func (z *Zone) Exempts(s *Subject) (bool, error) {
	exempt, err := s.MatchesEveryAddress(z.Exempt)
	return exempt, matcherError("exempt", err)
}

// matcherError says whose matcher has failed: match, exempt or cost.
func matcherError(option string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", option, err)
}
