// Package wire is the JSON of the admin API: what is sent to the paths under /throttle/,
// and what they answer. The endpoints fill it, and the commands read it. What a package below
// has for people, such as the journal, stands here as that has it. Begin with [Status].
//
// Names of zones, keys and notes may hold anything that clients or administrators have
// sent. Numbers are in the units of the zone, and spans in seconds, unless said otherwise.
package wire

import "github.com/caddy-throttle/caddy-throttle/caddymodule/internal/telemetry"

// A Top is the answer of /throttle/top.
type Top struct {
	Zones  []TopZone `json:"zones"`  // of the requests of this Caddy
	Shared bool      `json:"shared"` // the store, with other Caddys, whose requests these are not
}

// A TopQuery says who is counted.
type TopQuery struct {
	Zone string `json:"zone,omitempty"` // Default: all
	By   string `json:"by,omitempty"`   // ip, /24 or /16. Default: the keys of the zones
}

// A TopZone is who made the most requests of a zone, about in the last minute.
type TopZone struct {
	Zone     string   `json:"zone"`
	Mode     string   `json:"mode"`     // as in the status
	Requests int      `json:"requests"` // refused ones included
	Refused  int      `json:"refused"`  // by enforcement and shadow
	Seconds  float64  `json:"seconds"`
	Busiest  []TopKey `json:"busiest"`
	Denied   []TopKey `json:"most_refused"`
}

// A TopKey is a lower bound if there are many keys. Of many requests it is an estimate.
type TopKey struct {
	Key      string `json:"key"`
	Network  string `json:"network,omitempty"` // that the key stands for, if the zone masks addresses
	Requests int    `json:"requests"`          // in most_refused: that were refused
	Admitted int    `json:"admitted"`
	Refused  int    `json:"refused"`
	Sampled  bool   `json:"sampled,omitempty"` // the numbers are estimates
}

// Rates is the answer of /throttle/rates: those of each zone that had requests in the last
// hour or day, oldest first.
type Rates struct {
	Hour map[string][]telemetry.Rate `json:"hour"`
	Day  map[string][]telemetry.Rate `json:"day"`
}
