package cli

import (
	"slices"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/admin/wire"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/text"
)

// showGroup says what the figures of a zone in shadow mean.
func (c *adminClient) showGroup(zone, group string) {
	if group != "" {
		c.printf("%s in shadow: %s\n", sanitize(zone), sanitize(group))
	}
}

// showGroups does so for the zones of buckets.
func (c *adminClient) showGroups(buckets []wire.Bucket) {
	for i, b := range buckets {
		if !slices.ContainsFunc(buckets[:i], func(before wire.Bucket) bool { return before.Zone == b.Zone && before.Shadow == b.Shadow }) {
			c.showGroup(b.Zone, b.Group)
		}
	}
}

// showPartial says that a search did not find everything.
func (c *adminClient) showPartial(complete bool, problem string) {
	if !complete {
		c.say("The search did not reach the end: there may be more. " + text.Printable(problem, 1000))
	}
}

// showLocal says that an answer was given without the shared store.
func (c *adminClient) showLocal(local bool) {
	if local {
		c.say("The store is failing: this is what this Caddy knows, and its share of the limits holds.")
	}
}
