package pgstore

import (
	"slices"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/store"
)

// A batch is what one transaction executes: some calls, in the order in which
// they came, and the rows that they are about.
type batch struct {
	calls []*call
	rows  []row // in the order of their names, each once
	index map[string]int
	raced bool // another batch inserts the same rows at the same time
}

// A row is a bucket as the table has it, and then as it must be written.
type row struct {
	name   string
	tid    pgtype.TID // the row's position, if the table has it
	state  leakybucket.State
	forget leakybucket.Instant
	kept   bool // the table has it
	dirty  bool // it must be written
}

// newBatch returns a batch of these calls, of which nothing has been read yet.
func newBatch(calls []*call) *batch {
	b := &batch{calls: calls, index: make(map[string]int)}
	var names []string
	for _, c := range calls {
		names = append(names, c.names...)
	}
	slices.Sort(names)
	for i, name := range slices.Compact(names) {
		b.index[name] = i
		b.rows = append(b.rows, row{name: name})
	}
	return b
}

// forgetRead drops what was read and decided, before a retry.
func (b *batch) forgetRead() {
	for i := range b.rows {
		b.rows[i] = row{name: b.rows[i].name}
	}
}

// judge decides all calls, each after those before it.
func (b *batch) judge(now leakybucket.Instant) {
	for _, c := range b.calls {
		if len(c.charges) > 0 {
			b.take(c, now)
		}
		for i := range c.settlements {
			b.settle(&c.settlements[i], b.row(c.names[i]), now)
		}
	}
}

func (b *batch) row(name string) *row { return &b.rows[b.index[name]] }

func (b *batch) take(c *call, now leakybucket.Instant) {
	states := make([]leakybucket.State, len(c.names))
	for i, name := range c.names {
		states[i] = b.row(name).state
	}
	store.TakeAll(c.charges, states, now, c.decisions)
	for i := range c.charges {
		// A charge of cost 0 as a rule only brings its bucket up to date, and the row says the same
		// without that.
		if r := b.row(c.names[i]); r.changedBy(c.charges[i].Limit, states[i], now) {
			r.set(&c.charges[i], states[i])
		}
	}
}

func (b *batch) settle(s *leakybucket.Settlement, r *row, now leakybucket.Instant) {
	if !r.kept && !r.dirty && !s.Creates() {
		return
	}
	if state := s.Apply(r.state, now); state != r.state {
		r.set(&s.Charge, state)
	}
}

func (r *row) set(c *leakybucket.Charge, state leakybucket.State) {
	r.state, r.forget, r.dirty = state, store.Expiry(c, &state), true
}

// changedBy reports whether a state differs from the row's, brought up to date.
func (r *row) changedBy(limit leakybucket.Limit, state leakybucket.State, now leakybucket.Instant) bool {
	switch old := r.state; {
	case state == old:
		return false
	case state.BlockedUntil != old.BlockedUntil || state.Step != old.Step || state.At < old.At:
		return true
	case state.Leak != old.Leak:
		return state.Level > 0
	default:
		return state.Level != limit.Level(old, now)
	}
}

// written returns the rows to update and the rows to insert.
func (b *batch) written() (updated, made []row) {
	for i := range b.rows {
		switch r := &b.rows[i]; {
		case r.dirty && r.kept:
			updated = append(updated, *r)
		case r.dirty:
			made = append(made, *r)
		}
	}
	return updated, made
}
