package config

import (
	"cmp"
	"time"

	"github.com/caddyserver/caddy/v2"
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

// checkRanks checks who has which rank.
func (f *InFlight) checkRanks() error {
	for i := range f.Rank {
		if err := f.Rank[i].check(f.shares(), f.Pass != switchOff); err != nil {
			return About("in_flight rank", i, err)
		}
	}
	return nil
}

// MostBuffered is in bytes.
const MostBuffered = 64 << 20
