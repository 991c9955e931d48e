package lint

import (
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"go.uber.org/zap"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/config"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/rule"
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
	known, err = servers.check(global, warner)
	servers.warn(warner)
	return known, err
}

// A warning is about a zone that probably does not do what is meant where it is used.
type warning struct {
	holds func(c *serversConfig, use *zoneUse, z *config.Zone) bool
	says  string
}

var warnings = []warning{
	{
		func(_ *serversConfig, use *zoneUse, z *config.Zone) bool {
			return !use.Narrowed && len(z.Match) == 0 && hasSource(z, "form") && z.Key.Missing != string(rule.Skip)
		},
		"zone is keyed by a form field and has no match, so all other forms of the site share one bucket: write match path <path of the form>* into the zone",
	},
	{
		func(_ *serversConfig, use *zoneUse, z *config.Zone) bool {
			named := slices.ContainsFunc(z.Match, func(set caddy.ModuleMap) bool { return set["host"] != nil })
			return len(use.Site) == 0 && !named && hasSource(z, "host")
		},
		"zone is keyed by host in a site for all hosts, so a client gets a fresh bucket with each Host that it makes up: give the site names, or leave host out of the key",
	},
	{
		func(_ *serversConfig, use *zoneUse, z *config.Zone) bool { return use.PHP && len(z.Match) == 0 },
		"zone sees no request that runs PHP, because php_fastcgi before it answers them: put throttle before php_fastcgi",
	},
	{
		func(c *serversConfig, use *zoneUse, z *config.Zone) bool {
			return len(z.ExemptStaticFiles) > 0 && c.serve[ownRoute(use.path)] == anUpstream
		},
		"zone exempts static files, and the site has no file_server, so the upstream answers for them and they are charged after all: add file_server, or exempt their paths",
	},
	{
		func(c *serversConfig, use *zoneUse, z *config.Zone) bool {
			return z.Limit != "" && !slices.ContainsFunc(c.uses, func(u zoneUse) bool { return u.zone == use.zone && !u.inError })
		},
		"zone charges nothing, because it stands in error routes only, where requests are not charged: put throttle into the site itself",
	},
	{
		func(_ *serversConfig, use *zoneUse, z *config.Zone) bool {
			return use.errors != nil && z.InFlight != nil
		},
		"an error route asks an upstream without a slot of in_flight, for requests that err before they take one, and shows clients a header that names users: write throttle with the zone into the error route, too",
	},
}

// hasSource reports whether a source is in the key of a zone, as it was written.
func hasSource(z *config.Zone, source string) bool {
	return slices.ContainsFunc(z.Key.Given(), func(k config.KeySource) bool { return k.Source == source })
}

// warn logs what is probably meant otherwise, each once of a zone.
func (c *serversConfig) warn(warner *zap.Logger) {
	warned := make(map[[2]string]bool)
	for i := range c.uses {
		use := &c.uses[i]
		for _, w := range warnings {
			if said := [2]string{w.says, use.zone}; !warned[said] && w.holds(c, use, c.zoneOf(use)) {
				warned[said] = true
				warner.Warn(w.says, zap.String("zone", use.zone), zap.String("place", nameOf(use.path, use.Site)))
			}
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
