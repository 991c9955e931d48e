package tests

import (
	"fmt"
	"testing"
)

// TestTwoSitesThatNameOneZoneHaveOneBudget: a PHP site and a Rack site,
// however the zone is written.
func TestTwoSitesThatNameOneZoneHaveOneBudget(t *testing.T) {
	t.Parallel()
	const capacity = 7
	php, rack := phpSite(t), rackSite(t)
	for _, c := range []struct{ name, global, site string }{
		{"global", "zone shared {\n limit 7 1/d\n }", "throttle shared"},
		{"inline", "", "throttle shared client_ip 7 1/d"},
		{"block", "", "throttle {\n zone shared {\n limit 7 1/d\n }\n }"},
		{"reference", "zone shared {\n limit 7 1/d\n }", "throttle {\n zone shared\n }"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			one, two := freePort(t), freePort(t)
			caddy := startCaddy(t, config{
				throttle: c.global,
				sites: fmt.Sprintf("http://:%d {\n%s\n%s\n}\nhttp://:%d {\n%s\n%s\n}",
					one, c.site, php.directives, two, c.site, rack.directives),
			})
			for _, protocol := range protocols {
				v := newVisitor(t, protocol)
				admitted := 0
				for n := range 40 {
					port := one
					if n%2 == 1 {
						port = two
					}
					admitted += v.countAdmitted(t, 1, fmt.Sprintf("http://127.0.0.1:%d/", port))
				}
				if admitted != capacity {
					t.Errorf("got %d admitted over both sites with %s, want the one capacity of %d", admitted, protocol, capacity)
				}
			}
			if got := caddy.metric(t, "caddy_throttle_buckets", `zone="shared"`); got != 2 {
				t.Errorf("got %v buckets, want one for each of 2 visitors", got)
			}
		})
	}
}

// TestARequestIsChargedOnceHoweverOftenItIsRouted: it passes the same zone three
// times, once after a rewrite.
func TestARequestIsChargedOnceHoweverOftenItIsRouted(t *testing.T) {
	t.Parallel()
	port := freePort(t)
	startCaddy(t, config{
		throttle: "zone once {\n limit 4 1/d\n }",
		sites: fmt.Sprintf(`
http://:%d {
	route {
		throttle once
		throttle {
			zone once
			zone other {
				limit 100 1/d
			}
		}
		rewrite * /elsewhere
		throttle once
		respond ok
	}
}`, port),
	})
	if got := newVisitor(t, "h1").countAdmitted(t, 10, fmt.Sprintf("http://127.0.0.1:%d/", port)); got != 4 {
		t.Errorf("got %d admitted, want the capacity of 4", got)
	}
}
