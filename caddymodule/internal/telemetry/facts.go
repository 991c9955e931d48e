package telemetry

import (
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/limit"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/sketch"
	bucketkey "github.com/caddy-throttle/caddy-throttle/leakybucket/key"
)

// Facts are what a zone has met since its config was loaded.
type Facts struct {
	Since    time.Time `json:"since"`
	Requests uint64    `json:"requests"` // of the handlers that have the zone
	Asked    uint64    `json:"asked"`    // of these, those that the zone decided about
	Exempt   uint64    `json:"exempt"`   // or not limited by an override
	Keyless  uint64    `json:"without_key"`
	Keys     uint64    `json:"keys"`     // at least
	Networks uint64    `json:"networks"` // at least; /24 or /48
	Charged  uint64    `json:"charged"`  // reservations that were kept when the response was known
	Refunded uint64    `json:"refunded"` // reservations that were given back

	// Responses are how many responses of each status a zone with refund had to its
	// reservations. A client that left, or an upstream that broke off, may have none.
	Responses map[int]uint64 `json:"responses,omitzero"`

	// Devices are how many device cookies a zone with trust_devices has given, also to
	// devices that it knew.
	Devices *uint64 `json:"devices,omitempty"`
}

// facts count what a zone of one config has met. Its sketches take 16 KiB each.
type facts struct {
	asked, charged, refunded atomic.Uint64
	counts                   [limit.Counts]atomic.Uint64
	since                    time.Time
	keys, networks           sketch.Distinct

	responses *[statuses]atomic.Uint64 // from firstStatus on; nil if the zone has no refund
}

// The statuses that are counted.
const (
	firstStatus = 100
	statuses    = 500
)

// sample counts the key and the network of a request. Of many requests it is given a sample.
func (m *facts) sample(key string, client netip.Addr) {
	m.keys.Add(sketch.Hash(key))
	if client.IsValid() {
		m.networks.Add(sketch.Hash(bucketkey.ClientPrefix(client, 24, 48)))
	}
}

// Facts returns what the zone has met.
func (t *Counts) Facts() Facts {
	m := &t.facts
	shown := Facts{
		Since: m.since, Requests: t.Requests(), Asked: m.asked.Load(), Exempt: m.counts[limit.CountExempt].Load(), Keyless: m.counts[limit.CountKeyless].Load(),
		Keys: m.keys.Estimate(), Networks: m.networks.Estimate(), Charged: m.charged.Load(), Refunded: m.refunded.Load(),
	}
	if m.responses != nil {
		shown.Responses = make(map[int]uint64)
		for i := range m.responses {
			if n := m.responses[i].Load(); n > 0 {
				shown.Responses[firstStatus+i] = n
			}
		}
	}
	if t.zone.TrustDevices != nil {
		shown.Devices = new(m.counts[limit.CountDevice].Load())
	}
	return shown
}

// Settled implements limit.Reporter.
func (t *Counts) Settled(status int, refunded, known bool) {
	if i := status - firstStatus; t.facts.responses != nil && i >= 0 && i < statuses {
		t.facts.responses[i].Add(1)
	}
	switch {
	case !known:
		t.Unsettled()
	case refunded:
		t.facts.refunded.Add(1)
	default:
		t.facts.charged.Add(1)
	}
}
