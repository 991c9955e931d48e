package override

import (
	"slices"
	"sync"
	"time"
)

// An Origin says where a change comes from. The name of a user may be anything, so it
// stands apart.
type Origin struct {
	Via string // admin API, as with the commands, or inspector
	By  string // the user of the inspector or the shell, or the name of a certificate
}

// A Change is something that somebody has changed at run time.
type Change struct {
	At time.Time
	Origin
	Action string // ban, unban, limit, unlimit, shadow, unshadow, release, revoke
	Of     string // a network, a zone, a zone and a key, or everything
	Limit  string
	Until  *time.Time
	Note   string
}

// journaled is how many changes a Journal keeps.
const journaled = 200

// A Journal keeps the last changes. The zero Journal is empty.
type Journal struct {
	mu      sync.Mutex
	changes []Change // oldest first
}

// Add adds changes. Those that are too old for it fall out.
func (j *Journal) Add(changes ...Change) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.changes = append(j.changes, changes...)
	if excess := len(j.changes) - journaled; excess > 0 {
		j.changes = slices.Delete(j.changes, 0, excess)
	}
}

// List returns the changes, the last one first.
func (j *Journal) List() []Change {
	j.mu.Lock()
	defer j.mu.Unlock()
	last := append([]Change{}, j.changes...)
	slices.Reverse(last)
	return last
}
