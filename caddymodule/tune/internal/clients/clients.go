// Package clients knows the clients of a log by all of their requests: who looks like a person,
// and who sends most. Begin with [Log].
package clients

import (
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"
	"unique"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/sketch"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/tune/internal/accesslog"
	bucketkey "github.com/caddy-throttle/caddy-throttle/leakybucket/key"
)

// A Log is the clients of a log, once for each width of the addresses by which zones tell
// them apart.
type Log struct {
	// LogIn reports whether a request is a log-in. If nil, [LooksLikeLogIn] does.
	LogIn func(*accesslog.Request) bool

	tables   []*Table
	requests int
	took     time.Duration // by those whose line says so
	hosts    sketch.Counter[unique.Handle[string]]
}

// A Table is the clients of a log, by so many leading bits of their addresses.
type Table struct {
	ipv4, ipv6 int
	of         map[netip.Addr]*Client
}

// By returns the table for these widths. It must be asked for before requests are added.
func (l *Log) By(ipv4, ipv6 int) *Table {
	i := slices.IndexFunc(l.tables, func(t *Table) bool { return t.ipv4 == ipv4 && t.ipv6 == ipv6 })
	if i < 0 {
		i = len(l.tables)
		l.tables = append(l.tables, &Table{ipv4, ipv6, make(map[netip.Addr]*Client)})
	}
	return l.tables[i]
}

// Add notes a request.
func (l *Log) Add(r *accesslog.Request) {
	l.requests++
	l.took += max(0, r.Duration)
	l.hosts.Add(unique.Make(r.Host), 1)
	logIn := LooksLikeLogIn
	if l.LogIn != nil {
		logIn = l.LogIn
	}
	for _, t := range l.tables {
		t.Of(r.Client).add(r, logIn(r))
	}
}

// Hosts iterates over the hosts of most requests, and how many these are, at least.
func (l *Log) Hosts(yield func(host string, requests int) bool) {
	for _, h := range l.hosts.Top(64) {
		if !yield(h.Key.Value(), h.AtLeast) {
			return
		}
	}
}

// Of returns the client with an address, or of all requests without one. One that sent nothing
// looks like a robot.
func (t *Table) Of(addr netip.Addr) *Client {
	if addr.IsValid() {
		addr = bucketkey.ClientPrefix(addr, t.ipv4, t.ipv6).Addr()
	}
	c := t.of[addr]
	if c == nil {
		c = &Client{Addr: addr, agent: none, robot: none, name: none}
		t.of[addr] = c
	}
	return c
}

// A Client is who sent some requests of a log.
type Client struct {
	Addr  netip.Addr // the first of its network; invalid for those without an address
	First uint32     // request, in Unix seconds
	Last  uint32

	Requests, Assets uint32
	notFound, logIns uint32
	took             time.Duration
	agents           accesslog.Agents
	name             unique.Handle[string] // a hash or a name in the place of the address
	agent            unique.Handle[string] // of its first request
	robot            unique.Handle[string] // the last that names a robot and was new
	folder           unique.Handle[string] // the first of the path that it asked for most, if that is most of them
	ahead            int32                 // of the other folders, by how many requests
}

var none = unique.Make("")

// mostLetter and mostRobot are how much of a text is kept, in bytes. Crawlers name themselves
// late.
const (
	mostLetter = 80
	mostRobot  = 300
)

// kept returns the beginning of a text, of which there is one copy.
func kept(text string, most int) unique.Handle[string] {
	return unique.Make(text[:min(len(text), most)])
}

func (c *Client) add(r *accesslog.Request, logIn bool) {
	if at := uint32(r.At.Unix()); c.Requests == 0 || at < c.First {
		c.First, c.agent = at, kept(r.UserAgent(), mostLetter)
	}
	c.Last = max(c.Last, uint32(r.At.Unix()))
	if r.StandsIn && c.name == none {
		c.name = kept(r.ClientText, mostLetter)
	}
	c.Requests++
	c.took += max(0, r.Duration)
	if r.Asset() {
		c.Assets++
	} else {
		c.vote(kept(folderOf(r.Route()), mostLetter))
	}
	if r.Status == http.StatusNotFound {
		c.notFound++
	}
	if logIn {
		c.logIns++
	}
	if c.agents.Add(r) {
		c.robot = kept(r.UserAgent(), mostRobot)
	}
}

// folderOf returns a path up to the end of its first folder.
func folderOf(path string) string {
	if n := strings.IndexByte(strings.TrimPrefix(path, "/"), '/'); n >= 0 {
		path = path[:n+2] + "*"
	}
	return path
}

// vote finds the folder of most of a client's requests, if there is one (Boyer and Moore
// 1981, "MJRTY").
func (c *Client) vote(folder unique.Handle[string]) {
	switch {
	case c.ahead == 0:
		c.folder, c.ahead = folder, 1
	case c.folder == folder:
		c.ahead++
	default:
		c.ahead--
	}
}

// asks returns the folder that most of the client's requests are for, or "".
func (c *Client) asks() string {
	if c.ahead == 0 || int64(c.ahead)*4 < int64(c.Requests-c.Assets) {
		return ""
	}
	return c.folder.Value()
}

// Looks says what the client looks like. Those without an address are many, and unknown.
func (c *Client) Looks() accesslog.Looks {
	if !c.Addr.IsValid() {
		return accesslog.Robot
	}
	return accesslog.LooksLike(int(c.Requests), int(c.Assets), &c.agents)
}

// Person reports whether the client looks like a person, or like many.
func (c *Client) Person() bool { return c.Looks() != accesslog.Robot }

// Agents returns how many user agents the client has, at least.
func (c *Client) Agents() int { return c.agents.Count() }

// Network returns the /24 of the client, or the /48 of IPv6.
func (c *Client) Network() netip.Prefix {
	if !c.Addr.IsValid() {
		return netip.Prefix{}
	}
	return bucketkey.ClientPrefix(c.Addr, 24, 48)
}

// names reports whether a user agent of the client has one of the words.
func (c *Client) names(words []string) bool {
	said := strings.ToLower(c.agent.Value() + "\n" + c.robot.Value())
	return slices.ContainsFunc(words, func(word string) bool { return strings.Contains(said, word) })
}

// crawlers are those that the matcher verified_crawler knows by name: none if it is not built
// in, because then nobody can let them pass.
var crawlers = sync.OnceValue(func() map[string][]string {
	info, err := caddy.GetModule("http.matchers.verified_crawler")
	if err != nil {
		return nil
	}
	return info.New().(interface{ KnownAgents() map[string][]string }).KnownAgents()
})

// Claims returns the crawlers that the client says it is, as verified_crawler names them.
func (c *Client) Claims() []string {
	names := []string{}
	for name, words := range crawlers() {
		if c.names(words) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// probes are words in the user agents of what asks whether a site is up.
var probes = []struct {
	is    string
	words []string
}{
	{"a health check", strings.Fields("healthcheck health-check googlehc kube-probe")},
	{"a monitor", strings.Fields("prtg uptime pingdom statuscake site24x7 nagios check_http zabbix icinga hetrix datadog nodeping monit/ blackbox updown.io checkly")},
}

// probe says what asks whether the site is up, or is on this machine: "" if the client is
// neither. Nobody should ban it.
func (c *Client) probe() string {
	for _, probe := range probes {
		if c.names(probe.words) {
			return probe.is
		}
	}
	if c.Addr.IsLoopback() || c.Addr.IsUnspecified() { // ::1, masked
		return "this machine itself"
	}
	return ""
}

// logIns are parts of the addresses to which log-ins are sent.
var logIns = strings.Fields("login log-in log_in signin sign-in sign_in logon session xmlrpc.php userlogin")

// LooksLikeLogIn reports whether a request is a POST to an address that sounds like one for
// log-ins.
func LooksLikeLogIn(r *accesslog.Request) bool {
	if r.Method != http.MethodPost {
		return false
	}
	uri := strings.ToLower(r.URI)
	return slices.ContainsFunc(logIns, func(word string) bool { return strings.Contains(uri, word) })
}
