package config

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/fold"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/override"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/perkey"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/rule"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// compileOverrides compiles the overrides. It comes after the limit and the key. trusts says
// that the zone trusts devices.
func compileOverrides(overrides []perkey.Override, r *rule.Rule, plans map[string]leakybucket.Limit, trusts bool) (err error) {
	config := perkey.TableConfig{
		Own: r.Limit, Plans: plans, Overrides: slices.Clone(overrides), IPv4Bits: r.Key.IPv4Bits, IPv6Bits: r.Key.IPv6Bits,
	}
	for i := range r.Key.Parts {
		part := &r.Key.Parts[i]
		config.Addresses, config.Digests = append(config.Addresses, part.ClientIP), append(config.Digests, part.Digest)
	}
	r.Key.Overrides, err = override.NewLines(config, func(o *perkey.Override) error { return prepareOverride(o, &r.Key, trusts) })
	var wrong *perkey.OverrideError
	if errors.As(err, &wrong) {
		return About("override", wrong.Override, err)
	}
	return err
}

// prepareOverride checks an override, and folds names in it as keys have them.
func prepareOverride(o *perkey.Override, key *rule.Key, trusts bool) error {
	if o.As != "" && trusts {
		return errors.New("as and trust_devices exclude each other: a device is trusted with one account")
	}
	if network, err := netip.ParsePrefix(strings.Join(o.Parts, " ")); err == nil && network.Bits() == 0 && o.Limit == "unlimited" {
		return errors.New("all clients would be unlimited, so the zone limits nothing: want a smaller network")
	}
	o.Parts = slices.Clone(o.Parts)
	for at, part := range o.Parts {
		if at < len(key.Parts) && key.Parts[at].Fold != nil && !perkey.IsDigest(part) {
			if o.Parts[at] = key.Parts[at].Fold(part); o.Parts[at] == fold.Odd {
				return fmt.Errorf("no name: fold wordpress counts all names such as %q together, in the bucket @odd", part)
			}
		}
	}
	return nil
}
