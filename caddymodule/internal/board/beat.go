package board

import (
	"context"
	"encoding/json"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

const (
	// live is how old what a node says may be for it to count as one that follows.
	live = 5 * time.Second

	waited    = 2500 * time.Millisecond // for other nodes
	waitEvery = 150 * time.Millisecond
	keptGiven = 10 * time.Second // of an answer, for whoever asked

	mostNamed = 10 // of the posts of others
)

// A Node is what a node says of itself.
type Node struct {
	Host    string                     `json:"host"`
	PID     int                        `json:"pid"`
	Began   time.Time                  `json:"began"`
	Zones   []string                   `json:"zones,omitempty"`
	Seen    int64                      `json:"seen"` // the highest version that it has read
	Asks    []string                   `json:"asks,omitempty"`
	Answers map[string]json.RawMessage `json:"answers,omitempty"`

	ID  string        `json:"-"`
	Age time.Duration `json:"-"` // of what it says
}

// host returns what this node is called.
func host() string {
	name, _ := os.Hostname()
	return name
}

// A heard is a beat with what it says.
type heard struct {
	leakybucket.Beat
	says    Node
	genuine bool
}

type given struct {
	answer json.RawMessage
	until  time.Time
}

// others is what a board knows of other nodes.
type others struct {
	nodes     map[string]Node // of the last minute
	strangers int             // that have other keys
	asks      map[string]int  // the questions of this node, and how many ask them
	given     map[string]given
}

// says returns what this node says of itself. mu is held.
func (b *Board) says(s *Shared, now time.Time) Node {
	n := Node{Host: host(), PID: os.Getpid(), Began: b.began, Zones: s.Zones, Seen: b.after, Asks: slices.Sorted(maps.Keys(b.asks))}
	for question, g := range b.given {
		if now.After(g.until) {
			delete(b.given, question)
			continue
		}
		if n.Answers == nil {
			n.Answers = make(map[string]json.RawMessage)
		}
		n.Answers[question] = g.answer
	}
	return n
}

// hear takes in what the other nodes say, and answers them. mu is held.
func (b *Board) hear(all []heard, now time.Time) {
	b.nodes, b.strangers = make(map[string]Node), 0
	for _, h := range all {
		if !h.genuine {
			b.strangers++
			continue
		}
		h.says.ID, h.says.Age = h.Node, h.Age
		b.nodes[h.Node] = h.says
		for _, question := range h.says.Asks {
			if _, known := b.given[question]; known {
				continue
			}
			if answer := b.answer(question); answer != nil {
				if b.given == nil {
					b.given = make(map[string]given)
				}
				b.given[question] = given{answer, now.Add(keptGiven)}
				b.pollAgain()
			}
		}
	}
}

// wait waits until all nodes that live have read a version, and returns how many have.
func (b *Board) wait(ctx context.Context, version int64) (holding int) {
	b.until(ctx, func() bool {
		holding = 1
		waiting := false
		for _, n := range b.nodes {
			if n.Seen >= version {
				holding++
			} else if n.Age < live {
				waiting = true
			}
		}
		return !waiting
	})
	return holding
}

// Ask asks the other nodes, and returns the answer of one that has one, or nil.
func (b *Board) Ask(ctx context.Context, question string) (answer json.RawMessage, from Node) {
	b.mu.Lock()
	if b.asks == nil {
		b.asks = make(map[string]int)
	}
	b.asks[question]++
	b.mu.Unlock()
	b.until(ctx, func() bool {
		lives := false
		for _, n := range b.nodes {
			lives = lives || n.Age < live
			if found := n.Answers[question]; found != nil {
				answer, from = found, n
				return true
			}
		}
		return !lives
	})
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.asks[question]--; b.asks[question] <= 0 {
		delete(b.asks, question)
	}
	return answer, from
}

// until polls again and again until done, which is called with mu held. It gives up when
// other nodes had time enough.
func (b *Board) until(ctx context.Context, done func() bool) {
	ctx, cancel := context.WithTimeout(ctx, waited)
	defer cancel()
	for {
		b.talking.Lock()
		answered := b.poll(ctx)
		b.talking.Unlock()
		b.mu.Lock()
		is := done()
		b.mu.Unlock()
		if is || !answered {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(waitEvery):
		}
	}
}

// A State is how a board fares.
type State struct {
	Shared    bool
	Self      Node
	Nodes     []Node // the others of the last minute
	Strangers int    // nodes that have other keys
	Foreign   int    // posts that nobody with our keys has written
	Untold    int    // changes that the board does not have
	Err       error  // of the last exchange

	ForeignNames []string // of some of those posts
}

// State returns how the board fares.
func (b *Board) State() State {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.shared == nil {
		return State{}
	}
	s := State{Shared: true, Self: b.says(b.shared, time.Now()), Strangers: b.strangers, Foreign: len(b.foreign), Err: b.err}
	s.ForeignNames = slices.Sorted(maps.Keys(b.foreign))[:min(mostNamed, len(b.foreign))]
	s.Self.ID = b.id
	for _, id := range slices.Sorted(maps.Keys(b.nodes)) {
		s.Nodes = append(s.Nodes, b.nodes[id])
	}
	for _, k := range b.kept {
		if k.Untold {
			s.Untold++
		}
	}
	return s
}
