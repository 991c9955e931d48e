package pass

import (
	"net/netip"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/expiring"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/key"
)

const (
	mostMoved      = 100_000
	movedOfNetwork = mostMoved / 100

	mostEnded      = 20_000
	endedOfAccount = 8
)

// A Memory holds what this node knows better than the passes of a zone: copies from
// before a refusal, or from before a log-out, still say what was true then. Robots may
// keep them. It is safe for concurrent use.
//
// It remembers 100,000 passes that were moved, each until 30 seconds after its time has
// come, and a hundredth of them for a network. It remembers 20,000 log-ins that have
// ended, each for as long as a pass may last, and eight of them for an account. So it
// takes 25 MB at most. Beyond that, what ends first is forgotten.
type Memory struct {
	moved *expiring.Table[ID, move, netip.Prefix]
	ended *expiring.Table[Binding, ID, ID] // the passes of log-ins that have ended
}

// A move is what the last refusal has made of a pass.
type move struct {
	notBefore time.Time
	tries     int
	network   netip.Prefix // of the client
}

// NewMemory returns an empty Memory.
func NewMemory() *Memory {
	return &Memory{
		moved: expiring.NewShares[ID](mostMoved, movedOfNetwork, func(m move) netip.Prefix { return m.network }),
		ended: expiring.NewShares[Binding](mostEnded, endedOfAccount, func(of ID) ID { return of }),
	}
}

// refresh brings a pass up to date, and reports whether its log-in has ended.
func (m *Memory) refresh(p *Pass, now time.Time) (ended bool) {
	if last, found := m.moved.Get(p.ID, now); found && !last.notBefore.Before(p.NotBefore) {
		p.NotBefore, p.Tries = last.notBefore, last.tries
	}
	return m.hasEnded(p.Binding, now)
}

func (m *Memory) hasEnded(b Binding, now time.Time) bool {
	if b == (Binding{}) {
		return false
	}
	_, ended := m.ended.Get(b, now)
	return ended
}

// move remembers that a pass was moved for a client at an address. It returns false if
// another one had to be forgotten for it, because all places are taken.
func (m *Memory) move(p *Pass, addr netip.Addr, now time.Time) (room bool) {
	next := move{time.Unix(p.NotBefore.Unix(), 0), p.Tries, key.ClientPrefix(addr, 24, 48)}
	return m.moved.Update(p.ID, now, func(last move, found bool) (move, time.Time, bool) {
		if !found || !next.notBefore.Before(last.notBefore) {
			last = next
		}
		return last, last.notBefore.Add(forgotten), true
	})
}

// end remembers that the log-in of a pass has ended. It returns what move does.
func (m *Memory) end(p *Pass, now time.Time) (room bool) {
	return m.ended.Put(p.Binding, p.ID, now.Add(Lifetime), now)
}
