package admin

import (
	"math"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/admin/wire"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/engine"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/supportcode"
)

// pastRefusal returns the refusal of a support code, or nil if the text is none or the
// refusal is not remembered.
func pastRefusal(e *engine.Engine, text string) *wire.PastRefusal {
	code, ok := supportcode.Parse(text)
	if !ok {
		return nil
	}
	r, found := e.Control.Refusals.Find(code)
	if !found {
		return nil
	}
	return &wire.PastRefusal{
		Code: code.String(), At: r.At, Zone: r.Zone, Key: r.Key, Reason: r.Reason,
		Cost: r.Cost, Level: math.Round(r.Level*1e6) / 1e6, Capacity: r.Capacity, Wait: r.Wait.Seconds(), Blocked: r.Block.Seconds(),
	}
}
