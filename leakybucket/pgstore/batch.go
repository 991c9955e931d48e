package pgstore

import (
	"cmp"
	"slices"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// A batch is what one transaction does: some calls, in the order in which they
// came, and the rows they are about.
type batch struct {
	calls []*call
	rows  []row // in the order of their names, each once
	index map[string]int
	raced bool // others make the same rows at the same time

	states []leakybucket.State // room for those of one call
}

// A row is a bucket as the table has it, and then as it must be written.
type row struct {
	name   string
	state  leakybucket.State
	forget leakybucket.Instant
	kept   bool // there is one in the table
	dirty  bool // it must be written
}

// set makes b the batch of these calls, of which nothing was read yet.
func (b *batch) set(calls []*call) {
	b.calls, b.rows, b.raced = calls, b.rows[:0], false
	if b.index == nil {
		b.index = make(map[string]int)
	}
	clear(b.index)
	for _, c := range calls {
		for _, name := range c.names {
			if _, known := b.index[name]; !known {
				b.index[name] = 0
				b.rows = append(b.rows, row{name: name})
			}
		}
	}
	slices.SortFunc(b.rows, func(x, y row) int { return cmp.Compare(x.name, y.name) })
	for i := range b.rows {
		b.index[b.rows[i].name] = i
	}
}

// forgetRead undoes what was read and decided, to begin again.
func (b *batch) forgetRead() {
	for i := range b.rows {
		b.rows[i] = row{name: b.rows[i].name}
	}
}

// judge decides all calls, each after what those before it have done.
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
	if len(c.charges) == 1 {
		r := b.row(c.names[0])
		state := r.state
		if c.charges[0].Take(&state, now, &c.decisions[0]) {
			r.write(&c.charges[0], state)
		}
		return
	}
	b.states = b.states[:0]
	for _, name := range c.names {
		b.states = append(b.states, b.row(name).state)
	}
	clear(c.decisions)
	leakybucket.TakeAll(c.charges, b.states, now, c.decisions)
	for i := range c.charges {
		if r := b.row(c.names[i]); c.decisions[i].Poured || r.state != b.states[i] {
			r.write(&c.charges[i], b.states[i])
		}
	}
}

func (b *batch) settle(s *leakybucket.Settlement, r *row, now leakybucket.Instant) {
	if r.kept || r.dirty || s.Diff > 0 && !s.Cancel {
		r.write(&s.Charge, s.Apply(r.state, now))
	}
}

func (r *row) write(c *leakybucket.Charge, state leakybucket.State) {
	r.state, r.forget, r.dirty = state, c.Forget(&state), true
}

// written returns the rows that must be updated, and those that must be made.
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
