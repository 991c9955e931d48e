// Package config is the JSON of the modules, its manual, its defaults, and what turns it
// into the rules that requests meet. Begin with [Zone] and [Zone.Compile]: each part of a
// zone has a file, with what compiles it. It may import rule and the packages of one concept,
// and nothing that runs.
package config

import (
	"encoding/json"
	"fmt"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/perkey"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/text"
)

// ErrUnknownZone reports a zone that is nothing but a name, and none of the zones in
// the global options.
func ErrUnknownZone(name string, known []string) error {
	if meant := text.Nearest(name, known); meant != "" {
		return fmt.Errorf("unknown zone %q: did you mean %s?", name, meant)
	}
	return fmt.Errorf("unknown zone %q: no zone of that name is defined in the global options; define it there, or give it a limit here", name)
}

// Zone is a named rate limit: which requests it charges, to whose bucket, how
// much the bucket holds, and what happens when it overflows. A zone is one budget
// wherever its name appears, so all definitions of one name must be equal. A zone
// with nothing but a name is the one that the global options define.
type Zone struct {
	// The zone's name, of letters, digits, `_`, `.` and `-`. Required.
	Name string `json:"name,omitempty"`

	// Which requests are charged. Default: all.
	Match caddyhttp.RawMatcherSets `json:"match,omitempty" caddy:"namespace=http.matchers"`

	// The names of form fields, such as `pwd`. Of the requests above only those are charged that
	// carry one of them, in the query or the body, wherever they are sent: in forms and JSON, and
	// in whatever may be read as one. Default: all.
	Field []string `json:"field,omitempty"`

	// Which of these requests are not charged. Default: none. If assets are
	// charged, one page view may cost as much as 80 requests.
	Exempt caddyhttp.RawMatcherSets `json:"exempt,omitempty" caddy:"namespace=http.matchers"`

	// Exempt GET and HEAD requests for regular files that exist, and whose names
	// PHP does not run. Default: such requests are charged.
	ExemptStaticFiles []StaticFiles `json:"exempt_static_files,omitempty"`

	// What identifies a request's bucket. Default: the client's address.
	Key *Key `json:"key,omitempty"`

	// Names for paths, for the key source `route`. The first that matches counts.
	// Paths that match none are `other`.
	Route []Route `json:"route,omitempty"`

	// The burst and the sustained rate, such as `120 2/s`. The burst is how much a
	// bucket holds before it overflows, in units of cost. The rate is how fast it
	// drains: `2/s`, `30/m`, `1000/h`, `5000/d` or `5/20s`. Required. With too small a
	// burst, one page view with many assets is refused.
	Limit string `json:"limit,omitempty"`

	// Other limits for some keys. If several match, the one that names most parts
	// of the key counts. Default: none.
	Override []perkey.Override `json:"override,omitempty"`

	// A file with more overrides, one on each line, as a Caddyfile has them after the
	// word `override`. They are stronger than those in override. Changes are in force
	// within a few seconds, without a reload. If the file is wrong or missing, the
	// config does not load. If it becomes so later, the overrides read before stay in
	// force, and the log says why. A relative path is relative to the Caddyfile, and in
	// JSON to Caddy's working directory. Default: none.
	OverrideFile string `json:"override_file,omitempty"`

	// The cost of a request. The first that matches counts. Default: 1.
	Cost []Cost `json:"cost,omitempty"`

	// How much of a body is read for costs. Default: 64 KiB.
	ReadBody *ReadBody `json:"read_body,omitempty"`

	// How to correct the charge once the response is known. The charge at the
	// request is then a reservation. Default: the charge stays.
	Settle *Settle `json:"settle,omitempty"`

	// The responses for which nine tenths of the charge are given back, such as those to a
	// log-in that succeeded. Default: the charge stays. Not beside settle.
	Refund []Refund `json:"refund,omitempty"`

	// Charge browsers that have logged in to an account before to buckets of their
	// own. The key must name the account, and refund a log-in that succeeded. Default: everybody who names an account
	// shares its bucket, and attackers can lock out its owner.
	TrustDevices *TrustDevices `json:"trust_devices,omitempty"`

	// Queue requests instead of passing a burst at once: each waits until what was
	// charged before it has leaked. Default: all requests that fit pass at once.
	Delay *Delay `json:"delay,omitempty"`

	// Refuse a key for a while after an overflow. Default: only the requests that
	// overflow are refused.
	Block *Block `json:"block,omitempty"`

	// What refused clients get. Default: status 429 and a short page.
	Refusal *Refusal `json:"refusal,omitempty"`

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
}

// Reference reports whether the zone is nothing but a name, and so stands for a
// zone in the global options.
func (z *Zone) Reference() bool {
	return z.Limit == "" && len(z.Match) == 0 && len(z.Field) == 0 && len(z.Exempt) == 0 && len(z.ExemptStaticFiles) == 0 &&
		z.Key == nil && len(z.Route) == 0 && len(z.Override) == 0 && z.OverrideFile == "" && len(z.Cost) == 0 && z.ReadBody == nil &&
		z.Settle == nil && len(z.Refund) == 0 && z.TrustDevices == nil && z.Delay == nil && z.Block == nil && z.Refusal == nil && z.OnStoreError == "" &&
		z.Shadow == nil && z.Enforce == 0
}

// Definition returns a canonical text of the zone: definitions of one name must have
// the same.
func (z *Zone) Definition() string {
	full := z.WithDefaults()
	raw, _ := json.Marshal(&full) // its matchers have been JSON before
	return canonical(raw)
}

// canonical returns JSON without fields of some names. Matchers are raw JSON: a map forgets
// their order and white space.
func canonical(raw []byte, without ...string) string {
	var value map[string]any
	_ = json.Unmarshal(raw, &value)
	for _, name := range without {
		delete(value, name)
	}
	raw, _ = json.Marshal(value)
	return string(raw)
}

// Duplicates are the names of one handler's zones by the rest of their definitions.
type Duplicates map[string]string

// Add refuses a zone that is an earlier one, or differs from it only in its name, because it
// would charge each request twice. The definition is the zone's JSON.
func (d Duplicates) Add(name, definition string) error {
	nameless := canonical([]byte(definition), "name")
	other, found := d[nameless]
	switch {
	case other == name:
		return fmt.Errorf("zone %q is given twice in one handler", name)
	case found:
		return fmt.Errorf("zones %q and %q of one throttle directive are the same but for their names, and would refuse the same requests: remove one", other, name)
	}
	d[nameless] = name
	return nil
}
