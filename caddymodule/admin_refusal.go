package caddymodule

import (
	"math"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/supportcode"
)

// A pastRefusal is the refusal that a visitor's support code names, as it was then.
type pastRefusal struct {
	Code     string    `json:"code"`
	At       time.Time `json:"at"`
	Zone     string    `json:"zone"`
	Key      string    `json:"key"`
	Reason   string    `json:"reason"`
	Cost     float64   `json:"cost"` // in units, like the next two
	Level    float64   `json:"level"`
	Capacity float64   `json:"capacity"`
	Wait     float64   `json:"wait,omitempty"`    // seconds until the request would have fit
	Blocked  float64   `json:"blocked,omitempty"` // seconds that were left
}

// pastRefusal returns the refusal of a support code, or nil if the text is none or the
// refusal is not remembered.
func (a *engine) pastRefusal(text string) *pastRefusal {
	code, ok := supportcode.Parse(text)
	if !ok {
		return nil
	}
	r, found := a.control.refusals.Find(code)
	if !found {
		return nil
	}
	return &pastRefusal{
		Code: code.String(), At: r.At, Zone: r.Zone, Key: r.Key, Reason: r.Reason,
		Cost: r.Cost, Level: math.Round(r.Level*1e6) / 1e6, Capacity: r.Capacity, Wait: r.Wait.Seconds(), Blocked: r.Block.Seconds(),
	}
}
