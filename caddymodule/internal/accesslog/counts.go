package accesslog

import (
	"cmp"
	"hash/maphash"
	"slices"
	"strings"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/sketch"
)

const (
	// MostAgents is how many user agents of a client are told apart.
	MostAgents = 64

	// MostRoutes is how many routes are counted at once.
	MostRoutes = 10_000
)

// Agents counts the different user agents of one client, up to [MostAgents]: clients make
// them up. The zero value is empty, and small: most clients have one.
type Agents struct {
	first  uint32    // hash, or 0
	robots uint8     // that name a robot
	rest   *[]uint32 // hashes
}

var agentSeed = maphash.MakeSeed()

// Add counts the user agent of a request, if it is new.
func (a *Agents) Add(r *Request) {
	hash := uint32(maphash.String(agentSeed, r.agent)) | 1
	switch {
	case hash == a.first:
		return
	case a.first == 0:
		a.first = hash
	case a.rest == nil:
		a.rest = &[]uint32{hash}
	case len(*a.rest) >= MostAgents-1 || slices.Contains(*a.rest, hash):
		return
	default:
		*a.rest = append(*a.rest, hash)
	}
	if robot(r.agent) {
		a.robots++
	}
}

// Robots reports whether at least half of the user agents name a robot.
func (a *Agents) Robots() bool { return 2*int64(a.robots) >= a.Count() && a.robots > 0 }

// Count returns how many there are, at least.
func (a *Agents) Count() (n int64) {
	if a.first != 0 {
		n = 1
	}
	if a.rest != nil {
		n += int64(len(*a.rest))
	}
	return n
}

// Routes finds the most frequent routes. Clients make up paths, so it takes bounded
// memory: above [MostRoutes], counts are lower bounds, and the number of routes is an
// estimate. The zero value is empty.
type Routes struct {
	often     sketch.Counter
	different sketch.Distinct
}

// Add counts a route.
func (c *Routes) Add(route string) {
	c.often.Size = MostRoutes
	c.often.Add(strings.Clone(route))
	c.different.Add(route)
}

// Top returns at most n routes that came most often.
func (c *Routes) Top(n int) []sketch.Key {
	all := c.often.Top(MostRoutes)
	slices.SortFunc(all, func(a, b sketch.Key) int {
		return cmp.Or(cmp.Compare(b.AtLeast, a.AtLeast), cmp.Compare(a.Key, b.Key))
	})
	return all[:min(n, len(all))]
}

// Count returns how many different routes there are.
func (c *Routes) Count() int {
	counted := len(c.often.Top(MostRoutes))
	if counted < MostRoutes {
		return counted
	}
	return max(counted, int(c.different.Estimate()))
}
