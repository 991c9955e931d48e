package caddymodule

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/decision"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/override"
	bucketkey "github.com/caddy-throttle/caddy-throttle/leakybucket/key"
)

// The defaults of a zone with share.
const (
	shareMaxWait    = 5 * time.Second
	shareMaxWaiting = 200
	shareStatus     = http.StatusServiceUnavailable
	wholeZone       = "all" // the key
)

// longestShareWait is how long requests may wait for their turn without a warning:
// people do not wait much longer.
const longestShareWait = 8 * time.Second

// shareDefaults fills in what share changes of the defaults.
func (z *Zone) shareDefaults() {
	if len(z.Key) == 0 {
		z.Key = []KeySource{{Source: "text", Text: wholeZone}}
	}
	if z.Status == 0 {
		z.Status = shareStatus
	}
	if z.MaxWait == 0 {
		z.MaxWait = caddy.Duration(shareMaxWait)
	}
	if z.MaxWaiting == 0 {
		z.MaxWaiting = shareMaxWaiting
	}
}

// parseShare reads the option share.
func (z *Zone) parseShare(d *caddyfile.Dispenser) (err error) {
	words := d.RemainingArgs()
	if len(words) == 0 {
		words = []string{"client_ip"}
	}
	if z.Share, err = parseKey(words); err != nil {
		return d.WrapErr(err)
	}
	return nil
}

// checkShare refuses options that make no sense with share.
func (c *compilation) checkShare() error {
	if len(c.Share) == 0 {
		return nil
	}
	switch {
	case c.InFlight == 0:
		return about("share", 0, errors.New("share has no meaning without in_flight: want in_flight <number>, how many requests the upstream serves at once"))
	case c.Capacity != 0 || c.Leak != "":
		return about("share", 0, errors.New("share and capacity exclude each other: a zone with share limits how many requests are in flight, so give the bucket a zone of its own"))
	case len(c.written.Key) == 0 && len(c.Override) > 0:
		return about("override", 0, errors.New("override has no meaning with share and without key, because all clients have one key: want exempt client_ip <network> for those who need no slot"))
	case len(c.written.Key) == 0 && c.OverrideFile != "":
		return about("override_file", 0, errors.New("override_file has no meaning with share and without key, because all clients have one key"))
	case c.Enforce != 100:
		return about("enforce", 0, errors.New("enforce has no meaning with share, because all clients take turns for the same slots: want shadow for a dry run"))
	}
	return nil
}

// compileShare compiles what clients take turns by.
func (c *compilation) compileShare() error {
	if len(c.Share) == 0 {
		return nil
	}
	if c.rule.Key.HasAddress() {
		return about("share", 0, errors.New("share has no meaning with a key that holds client_ip: each client would have slots of its own, and nobody to take turns with; leave the key out"))
	}
	if !slices.ContainsFunc(c.Share, func(k KeySource) bool { return k.Source != "text" }) {
		return about("share", 0, errors.New("share has no meaning with a text alone: all clients would be one client, who takes turns with nobody; want client_ip or another key source"))
	}
	if err := checkRepeated(c.Share); err != nil {
		return about("share", 0, err)
	}
	lines, err := override.NewLines(bucketkey.TableConfig{IPv4Bits: c.IPv4Prefix, IPv6Bits: c.IPv6Prefix}, nil)
	if err != nil {
		return about("share", 0, err)
	}
	share := &decision.Rule{Name: c.Name, Key: decision.Key{
		Overrides: lines, Routes: c.rule.Key.Routes, IPv4Bits: c.IPv4Prefix, IPv6Bits: c.IPv6Prefix,
	}}
	for _, source := range c.Share {
		if source.Source == "form" {
			return about("share", 0, errors.New("share takes no form fields: requests take their turn before their bodies are read"))
		}
		part, err := c.compilePart(source)
		if err != nil {
			return about("share", 0, err)
		}
		share.Key.Parts = append(share.Key.Parts, part)
	}
	if slices.ContainsFunc(c.Share, func(k KeySource) bool { return k.Source == "route" }) && len(c.Route) == 0 {
		return about("share", 0, fmt.Errorf("key source %q has no routes: want at least one line of route <name> <path>... in the zone", "route"))
	}
	c.rule.Share = share
	return nil
}
