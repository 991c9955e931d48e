package lint

import (
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"go.uber.org/zap"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/config"
)

// CheckServers checks the config of all servers, given the zones of the global options. It
// must be called when the first module of throttle is provisioned, because Caddy drops the
// raw config of each route that it has provisioned. A module that is in no HTTP app knows
// no servers. Otherwise it returns the names of all zones, which are not nil. An unused
// global zone is only a warning, because it may be meant for later.
func CheckServers(ctx caddy.Context, global []*config.Zone, warner *zap.Logger) (known []string, err error) {
	servers := readServers(ctx)
	if servers == nil {
		return nil, nil
	}
	known, unused, err := servers.check(global)
	for _, zone := range unused {
		WarnUnused(warner, zone)
	}
	servers.warn(warner)
	return known, err
}

// warn logs what is probably meant otherwise. Most is said once of a zone.
func (c *serversConfig) warn(warner *zap.Logger) {
	warned := make(map[string]bool)
	first := func(what string) bool {
		again := warned[what]
		warned[what] = true
		return !again
	}
	for i := range c.uses {
		use := &c.uses[i]
		needs, zone, place := c.traits[use.zone], zap.String("zone", use.zone), zap.String("place", c.name(use.zonePlace))
		if !use.Narrowed && needs.keyedByForm {
			warner.Warn("zone is keyed by a form field and has no match, so all other forms of the site share one bucket: write match path <path of the form>* into the zone",
				zone, place)
		}
		if needs.keyedByHost && len(use.hosts) == 0 && first("any host "+use.zone) {
			warner.Warn("zone is keyed by host in a site for all hosts, so a client gets a fresh bucket with each Host that it makes up: give the site names, or leave host out of the key",
				zone, place)
		}
		if use.PHP && needs.ofAnything && first("behind php "+use.zone) {
			warner.Warn("zone sees no request that runs PHP, because php_fastcgi before it answers them: put throttle before php_fastcgi",
				zone, place)
		}
		if needs.static && c.serve[ownRoute(use.path)] == anUpstream && first("static "+use.path) {
			warner.Warn("zone exempts static files, and the site has no file_server, so the upstream answers for them and they are charged after all: add file_server, or exempt their paths",
				zone, place)
		}
		if needs.charges && !slices.ContainsFunc(c.uses, func(u zoneUse) bool { return u.zone == use.zone && !u.inError }) {
			warner.Warn("zone charges nothing, because it stands in error routes only, where requests are not charged: put throttle into the site itself", zone, place)
		}
		for _, r := range c.behind {
			if slices.Contains(r.Zones, use.zone) && ownRoute(r.Place) == ownRoute(use.path) && r.MayMake(slices.Concat(use.match, needs.match)) && first("rewrite "+r.Place+" "+use.zone) {
				warner.Warn("a rewrite behind throttle may make addresses that the zone matches, and it does not see those: write throttle with the zone into the block of the rewrite, behind it",
					zone, place, zap.String("rewrite", r.Text), zap.String("rewrite_place", c.name(zonePlace{use.zone, r.Place})))
			}
		}
		if use.errors == nil {
			continue
		}
		place = zap.String("place", c.name(zonePlace{use.zone, use.errors.path}))
		if needs.told && first("told "+use.zone) {
			warner.Warn("an error route asks an upstream without throttle, so the response header that names users to this zone reaches clients there: write throttle with the zone into the error route, too",
				zone, place)
		}
		if needs.inFlight && first("slots "+use.zone) {
			warner.Warn("an error route asks an upstream without a slot of in_flight, for requests that err before they take one: write throttle with the zone into the error route, too",
				zone, place)
		}
	}
}

// ownRoute returns the path of the server's route that a place is in.
func ownRoute(place string) string {
	parts := strings.SplitN(place, "/", 7)
	return strings.Join(parts[:min(6, len(parts))], "/")
}

// WarnUnused warns of a zone of the global options that no site uses.
func WarnUnused(warner *zap.Logger, zone string) {
	warner.Warn("zone is defined in the global options and limits nothing, because no site uses it: write throttle <zone> in a site",
		zap.String("zone", zone))
}
