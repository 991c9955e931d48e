package board

import (
	"encoding/json"
	"maps"
	"slices"
	"time"
)

// live is how old what a node says may be for it to count as one that follows.
const live = 5 * time.Second

// A Node is what a node says of itself in its heartbeat.
type Node struct {
	Host    string                     `json:"host"`
	PID     int                        `json:"pid"`
	Began   time.Time                  `json:"began"`
	Zones   []string                   `json:"zones,omitempty"`
	Seen    int64                      `json:"seen"` // the highest version that it has read
	Asks    []string                   `json:"asks,omitempty"`
	Answers map[string]json.RawMessage `json:"answers,omitempty"` // null for what it does not know
	Left    bool                       `json:"left,omitempty"`    // it has stopped

	ID    string    `json:"-"`
	Heard time.Time `json:"-"` // of it last
}

func (n *Node) lives() bool { return time.Since(n.Heard) < live }

// members are the nodes of a board, and what they ask each other.
type members struct {
	self      Node
	others    map[string]Node // of the last minute
	strangers int             // that have other keys

	answer    func(question string) json.RawMessage // nil if this node has none
	asks      map[string]int                        // the questions of this node, and how many ask them
	questions []string                              // of the others
}

// says returns what this node says of itself.
func (m *members) says(zones []string, seen int64) Node {
	n := m.self
	n.Zones, n.Seen, n.Asks, n.Answers = zones, seen, slices.Sorted(maps.Keys(m.asks)), make(map[string]json.RawMessage)
	for _, question := range m.questions {
		n.Answers[question] = m.answer(question)
	}
	return n
}

// hear takes in what the other nodes say, and reports whether one has a new question.
func (m *members) hear(others map[string]Node, strangers int) (asked bool) {
	m.others, m.strangers = others, strangers
	before := m.questions
	m.questions = nil
	for _, n := range others {
		m.questions = append(m.questions, n.Asks...)
	}
	return slices.ContainsFunc(m.questions, func(question string) bool { return !slices.Contains(before, question) })
}

// holding returns how many nodes have read a version, and whether others that live have not.
func (m *members) holding(version int64) (holding int, waiting bool) {
	holding = 1
	for _, n := range m.others {
		if n.Seen >= version {
			holding++
		} else if n.lives() {
			waiting = true
		}
	}
	return holding, waiting
}

// answerTo returns the answer of a node that has one, or nil and whether others that live
// have not been heard yet.
func (m *members) answerTo(question string) (answer json.RawMessage, from Node, waiting bool) {
	for _, n := range m.others {
		switch said, answered := n.Answers[question]; {
		case answered && string(said) != "null":
			return said, n, false
		case !answered && n.lives():
			waiting = true
		}
	}
	return nil, from, waiting
}
