package limit

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/option"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/perkey"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// compileOverrides compiles the overrides. It comes after the limit and the key.
func (z *Zone) compileOverrides(plans map[string]leakybucket.Limit) (err error) {
	table := perkey.TableConfig{
		Own: z.Limit, Plans: plans, Overrides: slices.Clone(z.Override), IPv4Bits: z.Key.IPv4, IPv6Bits: z.Key.IPv6,
	}
	for i := range z.Key.parts {
		part := &z.Key.parts[i]
		table.Addresses = append(table.Addresses, part.clientIP)
	}
	for i := range table.Overrides {
		if err := z.prepareOverride(&table.Overrides[i]); err != nil {
			return option.About("override", i, &perkey.OverrideError{Override: i, Parts: z.Override[i].Parts, Err: err})
		}
	}
	z.Key.Overrides, err = perkey.NewTable(table)
	if wrong, is := errors.AsType[*perkey.OverrideError](err); is {
		return option.About("override", wrong.Override, err)
	}
	return err
}

// prepareOverride checks an override, and folds names in it as keys have them.
func (z *Zone) prepareOverride(o *perkey.Override) error {
	if o.As != "" && z.TrustDevices != nil {
		return errors.New("as and trust_devices exclude each other: a device is trusted with one account")
	}
	if network, err := netip.ParsePrefix(strings.Join(o.Parts, " ")); err == nil && network.Bits() == 0 && o.Limit == "unlimited" {
		return errors.New("all clients would be unlimited, so the zone limits nothing: want a smaller network")
	}
	o.Parts = slices.Clone(o.Parts)
	for at, part := range o.Parts {
		if at < len(z.Key.parts) && z.Key.parts[at].fold != nil && !perkey.IsDigest(part) {
			if o.Parts[at] = z.Key.parts[at].fold(part); o.Parts[at] == oddName {
				return fmt.Errorf("no name: fold wordpress counts all names such as %q together, in the bucket @odd", part)
			}
		}
	}
	return nil
}
