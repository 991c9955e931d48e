package limit

import (
	"cmp"
	"time"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/option"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// Block refuses a key for a while after an overflow.
type Block struct {
	// How long the first block lasts, the next one, and so on; each must be longer
	// than the one before. With `10m` and `1h`, a key that overflows again within
	// 10 minutes of its first block ending is blocked for 1 hour. After staying
	// quiet for as long as its last block, it starts at 10 minutes again. Default:
	// a block lasts until the bucket is empty.
	For []caddy.Duration `json:"for,omitempty"`

	// Refuse the client in every throttle handler of this Caddy. The key must be
	// the client's address alone. Default: only in handlers with this zone.
	Everywhere bool `json:"everywhere,omitempty"`
}

// compile compiles what an overflow begins. It comes after the key.
func (b *Block) compile(z *Zone) error {
	if b == nil {
		return nil
	}
	z.ladder = new(leakybucket.Ladder)
	for _, step := range b.For {
		z.ladder.Steps = append(z.ladder.Steps, time.Duration(step))
	}
	return cmp.Or(
		option.About("block", 0, z.ladder.Validate()),
		option.Refuse("block", b.Everywhere && !z.Key.IsAddress(), "block ... everywhere needs the key client_ip alone: other keys do not identify a client in every zone"),
	)
}
