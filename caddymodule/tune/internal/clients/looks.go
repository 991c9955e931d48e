package clients

import (
	"hash/maphash"
	"regexp"
	"slices"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/tune/internal/accesslog"
)

// A Looks says what a client looks like in a log.
type Looks string

// What clients look like.
const (
	Person Looks = "person"      // it loads assets, as browsers do, and does not call itself a robot
	Many   Looks = "many people" // an office, a school or a mobile network behind one address
	Robot  Looks = "robot"
)

const (
	// A person has loaded fewestAssets, and one for personPages other requests: most files
	// come from the browser's cache after the first page.
	fewestAssets, personPages = 2, 20

	// manyAgents is from how many different user agents on an address looks like many people.
	manyAgents = 5

	// mostAgents is how many user agents of a client are told apart: clients make them up.
	mostAgents = 64
)

// Looks says what the client looks like. Those without an address are many, and unknown.
func (c *Client) Looks() Looks {
	switch robot := c.robots > 0 && 2*c.robots >= c.Agents(); {
	case !c.Addr.IsValid(), robot, c.Assets < fewestAssets, c.Assets*(personPages+1) < c.Requests:
		return Robot
	case c.Agents() >= manyAgents && c.Assets*5 >= c.Requests:
		return Many
	}
	return Person
}

// People returns how many people the client looks like, at least.
func (c *Client) People() int {
	switch c.Looks() {
	case Person:
		return 1
	case Many: // each with a browser
		return c.Agents()
	}
	return 0
}

// Agents returns how many user agents the client has, at least.
func (c *Client) Agents() int { return len(c.agents) }

var agentSeed = maphash.MakeSeed()

// addAgent counts the user agent of a request, and reports whether it is a new one that names a
// robot.
func (c *Client) addAgent(r *accesslog.Request) bool {
	hash := uint32(maphash.String(agentSeed, r.Agent))
	if len(c.agents) == mostAgents || slices.Contains(c.agents, hash) {
		return false
	}
	if c.agents = append(c.agents, hash); !robots.MatchString(r.Agent) {
		return false
	}
	c.robots++
	return true
}

// robots finds the user agents that name a program, as browsers do not. A bare - is no browser either.
var robots = regexp.MustCompile("(?i)^-$|^(curl|wget|java/)|bot|crawl|spider|slurp|scrap|fetch|feed|archiv|monitor|preview|https?://|python|go-http|okhttp|libwww|axios|node|inspectiontool|mediapartners")
