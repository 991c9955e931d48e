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
// them up. The zero value is empty.
type Agents struct {
	hashes []uint32
	robots int // of these, those that name a robot
}

var agentSeed = maphash.MakeSeed()

// Add counts the user agent of a request, if it is new.
func (a *Agents) Add(r *Request) {
	if len(a.hashes) >= MostAgents {
		return
	}
	agent := r.UserAgent()
	hash := uint32(maphash.String(agentSeed, agent))
	if !slices.Contains(a.hashes, hash) {
		a.hashes = append(a.hashes, hash)
		if robotAgent.MatchString(agent) {
			a.robots++
		}
	}
}

// Robots reports whether at least half of the user agents name a robot.
func (a *Agents) Robots() bool { return 2*a.robots >= len(a.hashes) && a.robots > 0 }

// Count returns how many there are, at least.
func (a *Agents) Count() int64 { return int64(len(a.hashes)) }

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
