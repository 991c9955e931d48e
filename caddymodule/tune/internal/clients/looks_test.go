package clients

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/tune/internal/accesslog"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

func TestClientsAreJudgedByWhatTheyLoad(t *testing.T) {
	for _, test := range []struct {
		requests, assets uint32
		agents, robots   int

		want Looks
	}{
		{100, 0, 1, 0, Robot},
		{100, 0, 9, 0, Robot},
		{100, 60, 1, 0, Person},
		{100, 60, 9, 0, Many},
		{30, 1, 1, 0, Robot},
		{42, 2, 1, 0, Person},
		{1000, 10, 9, 0, Robot},
		{1000, 60, 9, 0, Person},
		{100, 60, 1, 1, Robot},
		{100, 60, 9, 4, Many},
		{100, 60, 8, 4, Robot},
	} {
		c := &Client{Addr: netip.MustParseAddr("192.0.2.1"), Requests: test.requests, Assets: test.assets, agents: make([]uint32, test.agents), robots: test.robots}
		check.Equal(t, c.Looks(), test.want, "%+v", test)
	}
	for agent, want := range map[string]bool{
		"Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/140.0 Safari/537.36": false,
		"Mozilla/5.0 (compatible; Googlebot/2.1; +http://www.google.com/bot.html)":                          true,
		"curl/8.5.0": true, "python-requests/2.31": true, "-": true, "": false, "Opera/9.80 (Windows NT 6.1)": false,
		"Mozilla/5.0 (compatible; archive.org_bot +http://archive.org)": true, "msnbot-media/1.1": true, "FeedDemon/4.5": true,
	} {
		check.Equal(t, robots.MatchString(agent), want, "user agent %q: for a robot", agent)
	}
}

// Servers log what clients send in place of a path, too.
func TestFolders(t *testing.T) {
	for path, want := range map[string]string{"": "", "/": "/", "/a": "/a", "/a/": "/a/*", "/a/b/c": "/a/*", "//a": "//*", "a/": "a/*", "ab/c": "ab/*", "é/": "é/*"} {
		c := new(Client)
		c.vote(path)
		check.Equal(t, c.folder.Value(), want, "%q", path)
	}
}

func TestUserAgentsAreToldApartUpToABound(t *testing.T) {
	c := new(Client)
	for i := range 2 * mostAgents {
		for range 2 {
			c.addAgent(&accesslog.Request{HeaderFields: accesslog.HeaderFields{Agent: fmt.Sprint("made up ", i)}})
		}
		check.Need(t, c.Agents(), min(i+1, mostAgents), "agents of %d", i+1)
	}
}
