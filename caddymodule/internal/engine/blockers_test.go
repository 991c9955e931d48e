package engine_test

import (
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/limit"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/servertest"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

// A host with thousands of sites must not ask them all about each request while one blocks one client. A few may
// be asked for nothing.
func TestOnlyZonesThatMayBlockAClientAreAskedAboutIt(t *testing.T) {
	var zones strings.Builder
	for i := range 100 {
		for kind, options := range map[string]string{
			"one": "everywhere", "net": "everywhere\nkey client_ip ipv4 24", "some": "everywhere\noverride 192.0.2.0/24 unlimited",
			"list": "everywhere\nkey client_ip unlisted client_ip\noverride 192.0.2.1 9 1/s", "skip": "everywhere\nkey client_ip unlisted skip\noverride 192.0.2.1 9 1/s",
			"here": "", "route": fmt.Sprintf("\nkey client_ip route\nroute r%d /", i),
		} {
			fmt.Fprintf(&zones, "zone %s%d {\nlimit 1 1/d\nblock 1h %s\n}\n", kind, i, options)
		}
	}
	s := servertest.Run(t, "{\nthrottle {\n"+zones.String()+"}\n}\nhttp:// {\nthrottle one1\nrespond ok\n}")
	asked := func(addr string) (names []string) {
		r := caddyhttp.PrepareRequest(servertest.Request(net.JoinHostPort(addr, "1"), "/"), caddy.NewReplacer(), nil, nil)
		caddyhttp.SetVar(r.Context(), caddyhttp.ClientIPVarKey, addr)
		subject := limit.NewSubject(r)
		exempt, zones, err := s.Engine().Prepare(&subject)
		check.Assume(t, !exempt && err == nil, "%s: got exempt %v, %v, want neither", addr, exempt, err)
		for _, z := range zones {
			check.That(t, z.BlocksEverywhere(), "got %s asked, want only zones that block everywhere", z.Name)
		}
		for _, z := range s.Engine().MayBlock(&subject) { // for throttle_blocked
			if slices.Contains(zones, z) || !z.BlocksEverywhere() {
				names = append(names, z.Name)
			}
		}
		return names
	}
	check.Equal(t, len(asked("203.0.113.7")), 0, "zones asked while no block runs")
	for zone, key := range map[string]string{"here9": "203.0.113.7", "route9": "203.0.113.7/r9", "one7": "203.0.113.7", "net7": "203.0.113.0", "some7": "203.0.113.7", "list7": "@client_ip/203.0.113.7", "one8": "2001:db8::"} {
		c := leakybucket.Charge{Zone: zone, Key: key, Limit: leakybucket.Limit{Capacity: 1, Leak: 1}, Cost: 1, Block: &leakybucket.Ladder{Steps: []time.Duration{time.Hour}}}
		for range 2 {
			check.OK(t, s.Engine().Store.Take(t.Context(), []leakybucket.Charge{c}, make([]leakybucket.Decision, 1)))
		}
	}
	for addr, want := range map[string][]string{
		"203.0.113.7": {"one7", "some7", "list7", "net7", "here9", "route9"}, "203.0.113.8": {"net7"}, "2001:db8::1": {"one8"}, "198.51.100.1": nil,
	} {
		got := asked(addr)
		all := !slices.ContainsFunc(want, func(zone string) bool { return !slices.Contains(got, zone) })
		check.That(t, all && len(got) <= len(want)+20, "%s: got %q asked, want %q and few others of 700", addr, got, want)
	}
}
