package config

import (
	"cmp"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"

	clientpass "github.com/caddy-throttle/caddy-throttle/caddymodule/internal/inflight/pass"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/override"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/rule"
	bucketkey "github.com/caddy-throttle/caddy-throttle/leakybucket/key"
)

// InFlight is a concurrency limit: how many requests of one key are served at once on
// this node.
type InFlight struct {
	// The slots: how many requests of one key are served at once. Required.
	Slots int `json:"slots,omitempty"`

	// The longest wait for a slot, in a zone without a limit. A request that would
	// have to wait longer is refused. Default: 5 s with share; otherwise requests
	// that find no slot are refused at once.
	Wait caddy.Duration `json:"wait,omitempty"`

	// How many requests of the zone may wait at once on this node. More are
	// refused. Default: 200 with share, otherwise 1000. A waiting request uses memory.
	Queue int `json:"queue,omitempty"`

	// Who takes turns for the slots. A client whose requests have used the upstream
	// for longer goes behind others, one whose turn would come too late is refused at
	// once, and no client holds more than half the slots while others wait. The sources
	// are those of a key, but no form field; in a Caddyfile, `share` without a source
	// means `client_ip`. With share, the zone has no limit, the default of the key is
	// the whole zone, and that of the status of refusals 503. Default: requests of one
	// key wait in the order of arrival.
	Share []KeySource `json:"share,omitempty"`

	// Who is served before others in a zone with share. Default: clients who have come
	// back when they were told to, and then all others.
	Rank []Rank `json:"rank,omitempty"`

	// `off` sends no passes to clients of a zone with share: the cookie by which those
	// who come back are known, and members. Then nobody has come back. Default: passes
	// are sent over HTTPS.
	Pass string `json:"pass,omitempty"`

	// How much of the request body to read before a slot is taken, such as `8MiB`, so
	// that clients that upload slowly hold no slot meanwhile. Clients have five minutes
	// for it. A longer body, or a slower one, takes its slot then, and the rest is
	// handed on as it comes. All requests of this process together buffer at most
	// 64 MiB; while that is used up, the slot comes first. Shadow zones buffer nothing.
	// Default: slots are taken before the body is read.
	//
	// With wait, make it as large as the uploads that people send several of at once.
	// Over HTTP/2, uploads of one connection share a window of 1 MiB. Those that wait
	// for a slot with more to come fill it, so that those that are served get nothing
	// more until the others have waited and are refused. Leave conversations such as
	// gRPC out of the zone: they would wait for answers while they are buffered.
	Buffer string `json:"buffer,omitempty"`
}

// LongestShareWait is how long requests may wait for their turn without a warning. People do
// not wait much longer.
const LongestShareWait = 8 * time.Second

// shares reports whether clients take turns for the slots. Without slots, they do not.
func (f *InFlight) shares() bool { return f != nil && len(f.Share) > 0 }

// withDefaults returns the slots with what was not given.
func (f *InFlight) withDefaults() *InFlight {
	full := *f
	if f.shares() {
		full.Wait = cmp.Or(f.Wait, caddy.Duration(5*time.Second))
		full.Queue = cmp.Or(f.Queue, 200)
	}
	full.Queue = cmp.Or(full.Queue, 1000)
	return &full
}

// compile compiles slots, and who takes turns for them. It comes after the limit and the key.
// written is without defaults.
func (f *InFlight) compile(r *rule.Rule, written *InFlight, digest bool) error {
	if f == nil {
		return nil
	}
	var buffer int64
	err := cmp.Or(
		Within("in_flight", f.Slots, 1, MostAtOnce),
		Within("in_flight queue", f.Queue, 1, MostAtOnce),
		Within("in_flight wait", time.Duration(f.Wait), 0, longest),
		among("in_flight pass", f.Pass, switchOff),
		refuse("in_flight wait", f.Wait > 0 && !r.SlotsOnly(), "in_flight ... wait has no meaning beside limit: want a zone of its own for slots that requests wait for"),
		refuse("in_flight queue", written.Queue != 0 && f.Wait == 0, "in_flight ... queue has no meaning without wait: requests that find no slot are refused at once"),
		refuse("in_flight pass", f.Pass != "" && !f.shares(), "pass off has no meaning without share: no other zone sends passes"),
	)
	if err == nil && f.Buffer != "" {
		buffer, err = parseSize(f.Buffer, MostBuffered)
	}
	if err != nil {
		return About("in_flight buffer", 0, err)
	}
	r.Slots = rule.Slots{InFlight: f.Slots, RequestBuffer: buffer}
	if r.SlotsOnly() {
		r.Queue = rule.Queue{MaxWait: time.Duration(f.Wait), MaxWaiting: f.Queue}
	}
	if f.shares() {
		err = f.compileShare(r, digest)
	}
	return cmp.Or(err, f.checkRanks())
}

// compileShare compiles what clients take turns by.
func (f *InFlight) compileShare(r *rule.Rule, digest bool) (err error) {
	none, _ := override.NewLines(bucketkey.TableConfig{}, nil) // which cannot be wrong
	r.Share = &rule.Key{Overrides: none, Routes: r.Key.Routes, IPv4Bits: r.Key.IPv4Bits, IPv6Bits: r.Key.IPv6Bits}
	r.Share.Parts, err = compileSources(f.Share, &r.Key, digest)
	text := !slices.ContainsFunc(f.Share, func(k KeySource) bool { return k.Source != "text" })
	form := slices.ContainsFunc(f.Share, func(k KeySource) bool { return k.Source == "form" })
	device, named := strings.CutPrefix(r.Name, "device-")
	return cmp.Or(
		refuse("in_flight share", r.Key.HasAddress(), "share has no meaning with a key that holds client_ip: each client would have slots of its own, and nobody to take turns with; leave the key out"),
		refuse("in_flight share", text, "share has no meaning with a text alone: all clients would be one client, who takes turns with nobody; want client_ip or another key source"),
		refuse("in_flight share", form, "share takes no form fields: requests take their turn before their bodies are read"),
		About("in_flight share", 0, err),
		refuse("in_flight share", named && f.Pass == "", "the pass of a zone with share cannot be told from the cookie of trust_devices in a zone %q: want a name that does not begin with device-", device),
	)
}

// checkRanks checks who has which rank.
func (f *InFlight) checkRanks() error {
	for i := range f.Rank {
		if err := f.Rank[i].check(f.shares(), f.Pass != switchOff); err != nil {
			return About("in_flight rank", i, err)
		}
	}
	return nil
}

// load loads the matchers of ranks.
func (f *InFlight) load(ctx caddy.Context, r *rule.Rule, given *Given) error {
	if !f.shares() {
		return nil
	}
	ranks := new(rule.Ranks)
	if f.Pass != switchOff {
		ranks.Pass = &clientpass.Zone{Name: r.Name, Keys: given.Keys(), Memory: given.Passes, Full: given.PassesFull, Insecure: given.Insecure}
	}
	r.Ranks = ranks
	for i := range f.Rank {
		rank := &f.Rank[i]
		match, err := LoadMatchers(ctx, rank, "Match", rank.Match)
		switch {
		case err != nil:
			return err
		case match != nil && rank.Rank == RankMember:
			ranks.Member = append(ranks.Member, match)
		case match != nil:
			ranks.Crawler = append(ranks.Crawler, match)
		case rank.Told != "":
			ranks.Pass.Told = append(ranks.Pass.Told, clientpass.Told{Header: http.CanonicalHeaderKey(rank.Told), Session: rank.Session})
		default:
			ranks.Pass.Issued = append(ranks.Pass.Issued, rank.Issued...)
		}
	}
	return nil
}

// MostBuffered is in bytes.
const MostBuffered = 64 << 20
