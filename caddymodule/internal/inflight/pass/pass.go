// Package pass recognizes the clients of a zone that shares its slots: those who came back
// when they were told to, and those whom the upstream has logged in. Both hold a pass,
// which is a signed cookie. It says when the client was first seen and when it may come
// back, and nothing about who it is. Begin with [Issuer.Client].
package pass

import (
	"crypto/sha256"
	"encoding/binary"
	"net/netip"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/cookie"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/expiring"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/signer"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/key"
)

const (
	// purpose keeps tokens for other purposes from counting as passes.
	purpose = "pass"

	// Lifetime is how long a pass is good after its issue, however often it is used.
	Lifetime = 24 * time.Hour

	// Skew is how far the clock of another node may be ahead, for passes that order no
	// wait. Others are void before their time by the clock of the node that is asked.
	Skew = 2 * time.Minute

	// Forgotten is how long after its time a pass begins to count tries from none: the
	// page that reloads by itself would have come back by then.
	Forgotten = 30 * time.Second

	mostTries = 255
)

// CookieName returns the name of a zone's pass. The prefix makes browsers refuse it
// from other hosts and over plain HTTP.
func CookieName(zone string) string { return cookie.OwnPrefix + "pass-" + zone }

// An ID is what a pass is known by. That of a member is derived from the account, so
// that an account has one, however often it logs in.
type ID [8]byte

// IDOf returns an ID that is a digest.
func IDOf(fields ...string) ID {
	sum := digest(fields...)
	return ID(sum[:len(ID{})])
}

func digest(fields ...string) [sha256.Size]byte {
	text := make([]byte, 0, 512) // mostly enough
	for _, field := range fields {
		text = signer.Field(text, field)
	}
	return sha256.Sum256(text)
}

// A Binding is a digest of the cookie that a member must present with the pass. The
// zero Binding binds to nothing.
type Binding [16]byte

// bindingOf returns the binding to a cookie.
func bindingOf(name, value string) Binding {
	sum := digest(name, value)
	return Binding(sum[:len(Binding{})])
}

// A Pass is what the cookie says.
type Pass struct {
	ID        ID
	Issued    time.Time
	NotBefore time.Time // both in whole seconds
	Tries     int       // refusals in a row
	Binding   Binding
}

// A says is what a token says, with both times as Unix seconds.
type says struct {
	Issued, NotBefore int64
	Tries             uint8
	ID                ID
	Binding           Binding
}

// saysSize is that of a says as it is signed, in bytes.
const saysSize = 8 + 8 + 1 + 8 + 16

// sign returns the token of a pass, and false if there is no key to sign with.
func (p *Pass) sign(keys *signer.Ring, host, zone string) (token string, ok bool) {
	said, _ := binary.Append(nil, binary.BigEndian, says{p.Issued.Unix(), p.NotBefore.Unix(), uint8(min(p.Tries, mostTries)), p.ID, p.Binding})
	return keys.Sign(&signer.Bound{Purpose: purpose, Host: host, Zone: zone}, said)
}

// open reads a token, and returns false if it was not signed for this host and zone by
// a key in force.
func open(keys *signer.Ring, token, host, zone string) (p Pass, genuine bool) {
	var raw [saysSize]byte
	if _, genuine = keys.Open(token, &signer.Bound{Purpose: purpose, Host: host, Zone: zone}, raw[:]); !genuine {
		return Pass{}, false
	}
	var said says
	_, _ = binary.Decode(raw[:], binary.BigEndian, &said)
	return Pass{said.ID, time.Unix(said.Issued, 0), time.Unix(said.NotBefore, 0), int(said.Tries), said.Binding}, true
}

// state says what a pass is worth at an instant.
func (p *Pass) state(now time.Time) State {
	switch {
	case !now.Before(p.Issued.Add(Lifetime)):
		return Expired
	case !now.Before(p.NotBefore):
		return Valid
	case p.Tries == 0 && now.Add(Skew).After(p.NotBefore):
		return Valid // it orders no wait: the clock of the node that issued it is ahead
	}
	return Early
}

// Reloads is how many refusals in a row come with a page that reloads by itself, and
// are told the shortest wait.
const Reloads = 3

const (
	shortestWait = 5 * time.Second
	longestWait  = 60 * time.Second
)

// RetryAfter returns how long a client must wait that was refused so many times in a
// row before, in whole seconds: 5 to 10 for the first three tries, and then twice as
// long each time, up to 60. Random, from 0 up to but not including 1, spreads clients
// over the range. Longer waits from the start would cost those who come for the first
// time.
func RetryAfter(tries int, random float64) time.Duration {
	wait := shortestWait + time.Duration(random*(shortestWait.Seconds()+1))*time.Second
	for ; tries >= Reloads && wait < longestWait; tries-- {
		wait *= 2
	}
	return min(wait, longestWait)
}

const (
	mostMoved      = 100_000
	movedOfNetwork = mostMoved / 100

	mostAlone      = 10_000
	aloneOfNetwork = mostAlone / 100
)

// A Memory holds what this node knows better than the passes of a zone: copies from
// before a refusal still say what was true then. Robots may keep them. It is safe for
// concurrent use.
//
// It remembers 100,000 passes that were moved, each until 30 seconds after its time has
// come, and a hundredth of them for a network, so it takes 20 MB at most.
type Memory struct {
	// Alone is what passes would say of browsers that keep none, or get none. Beyond 10,000 of
	// them, or a hundredth in a network, no more are remembered: their pages go on reloading.
	Alone *expiring.Table[ID, Move, netip.Prefix]

	moved *expiring.Table[ID, Move, netip.Prefix]
}

// A Move is what the last refusal has made of a pass.
type Move struct {
	NotBefore time.Time
	Tries     int
	Network   netip.Prefix // of the client, by [NetworkOf]
}

// NetworkOf returns the network of a client.
func NetworkOf(addr netip.Addr) netip.Prefix { return key.ClientPrefix(addr, 24, 48) }

// NewMemory returns an empty Memory.
func NewMemory() *Memory {
	network := func(m Move) netip.Prefix { return m.Network }
	return &Memory{
		Alone: expiring.NewShares[ID](mostAlone, aloneOfNetwork, network),
		moved: expiring.NewShares[ID](mostMoved, movedOfNetwork, network),
	}
}

// refresh brings a pass up to date.
func (m *Memory) refresh(p *Pass, now time.Time) {
	if last, _ := m.moved.Get(p.ID, now); !last.NotBefore.Before(p.NotBefore) {
		p.NotBefore, p.Tries = last.NotBefore, last.Tries
	}
}

// move remembers that a pass was moved for a client at an address, if there is a place for it.
func (m *Memory) move(p *Pass, addr netip.Addr, now time.Time) {
	next := Move{time.Unix(p.NotBefore.Unix(), 0), p.Tries, NetworkOf(addr)}
	m.moved.Update(p.ID, now, func(last Move) (Move, time.Time) {
		if !next.NotBefore.Before(last.NotBefore) {
			last = next
		}
		return last, last.NotBefore.Add(Forgotten)
	})
}
