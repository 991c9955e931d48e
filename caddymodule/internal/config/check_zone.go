package config

import (
	"errors"
	"fmt"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
)

// Each part of a zone checks itself. This file checks parts beside each other.

// checkTogether refuses a zone without a limit or slots, and what makes no sense without one of
// these, or with share. The zone has its defaults, and written has not. Its errors come before
// those of the parts.
func (z *Zone) checkTogether(written *Zone) error {
	shares := z.InFlight.shares()
	keyless := shares && written.Key.Given() == nil
	switch {
	case shares && z.Limit != "":
		return About("limit", 0, errors.New("limit and in_flight ... share exclude each other: a zone with share limits how many requests are in flight, so give the bucket a zone of its own"))
	case keyless && len(z.Override) > 0:
		return About("override", 0, errors.New("override has no meaning with share and without key, because all clients have one key: want exempt client_ip <network> for those who need no slot"))
	case keyless && z.OverrideFile != "":
		return About("override_file", 0, errors.New("override_file has no meaning with share and without key, because all clients have one key"))
	case shares && z.Enforce != 100:
		return About("enforce", 0, errors.New("enforce has no meaning with share, because all clients take turns for the same slots: want shadow for a dry run"))
	case z.Limit != "":
		return nil
	case z.InFlight == nil:
		return errors.New("no limit given: want limit <capacity> <leak>, such as limit 120 2/s")
	}
	for option, given := range map[string]bool{
		"cost": len(z.Cost) > 0, "settle": z.Settle != nil, "trust_devices": z.TrustDevices != nil, "delay": z.Delay != nil, "block": z.Block != nil,
	} {
		if given {
			return About(option, 0, fmt.Errorf("%s has no meaning without limit: the zone only limits how many requests are in flight", option))
		}
	}
	return nil
}

// checkKey refuses what has no meaning with the key.
func (z *Zone) checkKey() error {
	switch {
	case z.Key.Unlisted != "" && len(z.Override) == 0 && z.OverrideFile == "":
		return About("key unlisted", 0, errors.New("unlisted has no meaning without override or override_file"))
	case len(z.Route) > 0 && !namesRoute(z.Key.Sources) && !(z.InFlight.shares() && namesRoute(z.InFlight.Share)):
		return About("route", 0, fmt.Errorf("route %q has no effect: want \"route\" among the sources of the key", z.Route[0].Name))
	}
	return nil
}

// Doubts says what is probably not meant by the matchers of the zone.
func (z *Zone) Doubts() (doubts []string) {
	for exempts, sets := range []caddyhttp.RawMatcherSets{z.Match, z.Exempt} {
		for _, set := range sets {
			if doubt := Doubtful(set, exempts == 1); doubt != "" {
				doubts = append(doubts, doubt)
			}
		}
	}
	return doubts
}
