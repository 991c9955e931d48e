package caddymodule

import (
	"fmt"
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
func (a *App) pastRefusal(text string) *pastRefusal {
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

// showRefusal writes what was refused under a support code.
func (r *remote) showRefusal(p *pastRefusal) error {
	ago := max(0, time.Since(p.At)).Round(time.Second)
	fmt.Fprintf(&r.out, "Refused %s ago, at %s:\n", ago, p.At.Local().Format(time.DateTime))
	t := r.table("CODE", "ZONE", "KEY", "REASON", numeric("COST"), numeric("LEVEL"), numeric("OF"), numeric("WAIT"), numeric("BLOCKED FOR"))
	cost, level, capacity := measures(p.Cost, p.Level, p.Capacity)
	t.row(p.Code, shown(p.Zone), shown(p.Key), p.Reason, cost, level, capacity, seconds(p.Wait), seconds(p.Blocked))
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(&r.out, "\nNow:")
	return nil
}

// showUnknownCode says that a support code is unknown, if the text looks like one.
func (r *remote) showUnknownCode(text string) (isCode bool) {
	if _, isCode = supportcode.Parse(text); isCode {
		fmt.Fprintln(&r.out, "No refusal with this support code is known here. Each Caddy remembers its last 10,000, until it stops; the access log has older ones.")
	}
	return isCode
}
