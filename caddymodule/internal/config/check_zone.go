package config

import (
	"cmp"
	"fmt"
)

// Each part of a zone checks itself. This file checks parts beside each other.

// checkTogether refuses a zone without a limit or slots, and what makes no sense without one of
// these, or with share. The zone has its defaults, and written has not. Its errors come before
// those of the parts.
func (z *Zone) checkTogether(written *Zone) error {
	shares := z.InFlight.shares()
	keyless := shares && written.Key.Given() == nil
	limited := func(option string, given bool) error {
		return refuse(option, given && z.Limit == "", option+" has no meaning without limit: the zone only limits how many requests are in flight")
	}
	return cmp.Or(
		refuse("limit", shares && z.Limit != "", "limit and in_flight ... share exclude each other: a zone with share limits how many requests are in flight, so give the bucket a zone of its own"),
		refuse("override", keyless && len(z.Override) > 0, "override has no meaning with share and without key, because all clients have one key: want exempt client_ip <network> for those who need no slot"),
		refuse("override_file", keyless && z.OverrideFile != "", "override_file has no meaning with share and without key, because all clients have one key"),
		refuse("enforce", shares && z.Enforce != 100, "enforce has no meaning with share, because all clients take turns for the same slots: want shadow for a dry run"),
		refuse("limit", z.Limit == "" && z.InFlight == nil, "no limit given: want limit <capacity> <leak>, such as limit 120 2/s"),
		limited("cost", len(z.Cost) > 0),
		limited("settle", z.Settle != nil),
		limited("trust_devices", z.TrustDevices != nil),
		limited("delay", z.Delay != nil),
		limited("block", z.Block != nil),
	)
}

// checkKey refuses what has no meaning with the key.
func (z *Zone) checkKey() error {
	if len(z.Route) > 0 && !namesRoute(z.Key.Sources) && !(z.InFlight.shares() && namesRoute(z.InFlight.Share)) {
		return About("route", 0, fmt.Errorf("route %q has no effect: want \"route\" among the sources of the key", z.Route[0].Name))
	}
	return refuse("key unlisted", z.Key.Unlisted != "" && len(z.Override) == 0 && z.OverrideFile == "", "unlisted has no meaning without override or override_file")
}
