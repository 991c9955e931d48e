package admin

import (
	"context"
	"encoding/json"
	"math"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/admin/wire"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/engine"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/supportcode"
)

// pastRefusal returns the refusal of a support code, of which other Caddys of the store may
// know, or nil if the text is none or nobody remembers the refusal.
func pastRefusal(ctx context.Context, e *engine.Engine, text string) *wire.PastRefusal {
	code, ok := supportcode.Parse(text)
	if !ok {
		return nil
	}
	node := ""
	r, found := e.Control.Refusals.Find(code)
	if !found {
		raw, from := e.Control.Board.Ask(ctx, code.String())
		if raw == nil || json.Unmarshal(raw, &r) != nil {
			return nil
		}
		node = from.Host
	}
	return &wire.PastRefusal{
		Node: node,
		Code: code.String(), At: r.At, Zone: r.Zone, Key: r.Key, Reason: r.Reason,
		Cost: r.Cost, Level: math.Round(r.Level*1e6) / 1e6, Capacity: r.Capacity, Wait: r.Wait.Seconds(), Blocked: r.Block.Seconds(),
	}
}
