// Package clients knows the clients of a log by all of their requests: who looks like a person,
// and who sends most. Begin with [Log].
package clients

import (
	"cmp"
	"fmt"
	"hash/maphash"
	"net/http"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"time"
	"unique"

	"github.com/dustin/go-humanize"
	"github.com/dustin/go-humanize/english"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/command"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/tune/internal/accesslog"
	bucketkey "github.com/caddy-throttle/caddy-throttle/leakybucket/key"
)

// A Log is the clients of a log, once for each width of the addresses by which zones tell
// them apart.
type Log struct {
	// LogIn reports whether a request is a login. If nil, those are whose address sounds like it.
	LogIn func(*accesslog.Request) bool

	tables   []*Table
	requests int
	took     time.Duration // by those whose line says so
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
	logIn := l.LogIn == nil && looksLikeLogIn(r) || l.LogIn != nil && l.LogIn(r)
	for _, t := range l.tables {
		t.Of(r.Client).add(r, logIn)
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
		c = &Client{Addr: addr, agent: none, name: none}
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
	agents           []uint32              // hashes of user agents
	robots           int                   // of these, that name a robot
	name             unique.Handle[string] // a hash or a name in the place of the address
	agent            unique.Handle[string] // the last that names a robot and was new, or that of its first request
	folder           unique.Handle[string] // the first of the path that it asked for most, if that is most of them
	ahead            int32                 // of the other folders, by how many requests
}

var none = unique.Make("")

// mostKept is how much of a text is kept, in bytes. Crawlers name themselves late.
const mostKept = 200

// kept returns the beginning of a text, of which there is one copy.
func kept(text string) unique.Handle[string] { return unique.Make(text[:min(len(text), mostKept)]) }

func (c *Client) add(r *accesslog.Request, logIn bool) {
	c.Last = uint32(r.At.Unix())
	if named := c.addAgent(r); named || c.Requests == 0 {
		c.agent = kept(r.Agent)
	}
	if c.Requests == 0 {
		c.First = c.Last
	}
	if r.StandsIn && c.name == none {
		c.name = kept(r.ClientText)
	}
	c.Requests++
	c.took += max(0, r.Duration)
	if r.Asset() {
		c.Assets++
	} else {
		c.vote(r.Route())
	}
	if r.Status == http.StatusNotFound {
		c.notFound++
	}
	if logIn {
		c.logIns++
	}
}

// vote finds the folder, the first of the path, of most of a client's requests, if there is one
// (Boyer and Moore 1981, "MJRTY").
func (c *Client) vote(path string) {
	if n := strings.IndexByte(path[min(1, len(path)):], '/'); n >= 0 { // it need not begin with one
		path = path[:n+2] + "*"
	}
	switch folder := kept(path); {
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

// probes finds the user agents of what asks whether a site is up.
var probes = regexp.MustCompile("(?i)health-?check|googlehc|kube-probe|prtg|uptime|pingdom|statuscake|site24x7|nagios|check_http|zabbix|icinga|hetrix|datadog|nodeping|monit/|blackbox|updown.io|checkly")

// probe says what asks whether the site is up, or is on this machine: "" if the client is
// neither. Nobody should ban it.
func (c *Client) probe() string {
	switch {
	case probes.MatchString(c.agent.Value()):
		return "a monitor or health check"
	case c.Addr.IsLoopback(), c.Addr.IsUnspecified(): // ::1, masked
		return "this machine itself"
	}
	return ""
}

// logIns are parts of the addresses to which logins are sent.
var logIns = strings.Fields("login log-in log_in signin sign-in sign_in logon session xmlrpc.php userlogin")

// looksLikeLogIn reports whether a request is a POST to an address that sounds like one for
// logins.
func looksLikeLogIn(r *accesslog.Request) bool {
	if r.Method != http.MethodPost {
		return false
	}
	uri := strings.ToLower(r.URI)
	return slices.ContainsFunc(logIns, func(word string) bool { return strings.Contains(uri, word) })
}

// Senders are the clients of a log that have most of something.
type Senders struct {
	Requests []Sender `json:"most_requests"`
	NotFound []Sender `json:"most_not_found"`
	LogIns   []Sender `json:"most_log_ins"`

	People int `json:"-"` // how many of all look like them
}

// A Sender is one client, by all that it sent.
type Sender struct {
	Client   string    `json:"client"`
	Agent    string    `json:"user_agent"`  // the last that names a robot, or that of its first request
	Agents   int       `json:"user_agents"` // how many there are, at least
	Asks     string    `json:"asks"`        // the folder of most of its requests, if there is one
	First    time.Time `json:"first"`
	Last     time.Time `json:"last"`
	Requests int       `json:"requests"`
	Assets   int       `json:"assets"`
	NotFound int       `json:"not_found"`       // answered with 404
	LogIns   int       `json:"log_ins"`         // by POST
	Time     float64   `json:"time_seconds"`    // of all its requests; 0 if the log has no durations
	Looks    Looks     `json:"looks"`           // like
	Probe    string    `json:"probe,omitempty"` // what asks whether the site is up

	share, time float64 // of all requests, and of all their time
}

// A Key is one that was refused, and the client that sent the first of its requests.
type Key struct {
	Key       string    `json:"key"`
	Asked     int       `json:"asked"`   // requests
	Refused   int       `json:"refused"` // of these
	FirstOver time.Time `json:"first_refused"`
	LastOver  time.Time `json:"last_refused"`
	Sender
}

// Refuse counts a refusal.
func (k *Key) Refuse(at time.Time) {
	if k.Refused++; k.Refused == 1 {
		k.FirstOver = at
	}
	k.LastOver = at
}

const (
	shown     = 5  // clients in a table
	shownKeys = 10 // keys in a table

	// fewest is from how many 404s or logins on a client is listed for them.
	fewest = 10
)

// Senders returns who sent most.
func (l *Log) Senders() *Senders {
	var all []*Client
	people := 0
	for _, c := range l.By(32, 64).of {
		if c.Requests > 0 {
			all = append(all, c)
			people += c.People()
		}
	}
	return &Senders{
		l.most(all, 1, func(c *Client) uint32 { return c.Requests }),
		l.most(all, fewest, func(c *Client) uint32 { return c.notFound }),
		l.most(all, fewest, func(c *Client) uint32 { return c.logIns }),
		people,
	}
}

// most returns the clients that have most of something, and so many at least.
func (l *Log) most(all []*Client, least uint32, of func(*Client) uint32) []Sender {
	slices.SortFunc(all, func(a, b *Client) int { return cmp.Or(cmp.Compare(of(b), of(a)), a.Addr.Compare(b.Addr)) })
	some := []Sender{}
	for _, c := range all[:min(shown, len(all))] {
		if of(c) >= least {
			s := c.Sender()
			s.share, s.time = float64(c.Requests)/float64(l.requests), s.Time/max(l.took.Seconds(), 1e-9)
			some = append(some, s)
		}
	}
	return some
}

// Sender returns what there is to say of the client.
func (c *Client) Sender() Sender {
	name := c.Addr.String()
	switch {
	case c.name != none:
		name = c.name.Value()
	case !c.Addr.IsValid():
		name = "(no address)"
	}
	instant := func(unix uint32) time.Time { return time.Unix(int64(unix), 0).UTC() }
	return Sender{
		Client: name, Agent: c.agent.Value(), Agents: c.Agents(), Asks: c.asks(), First: instant(c.First), Last: instant(c.Last), Requests: int(c.Requests),
		Assets: int(c.Assets), NotFound: int(c.notFound), LogIns: int(c.logIns), Time: c.took.Seconds(), Looks: c.Looks(), Probe: c.probe(),
	}
}

// Text returns the tables for people. Texts from clients are escaped.
func (s *Senders) Text() string {
	b := new(strings.Builder)
	for _, table := range []struct {
		title string
		rows  []Sender
	}{{"Who sent the most", s.Requests}, {"Who got the most 404s", s.NotFound}, {"Who sent the most logins (POST)", s.LogIns}} {
		for i, c := range table.rows {
			if i == 0 {
				fmt.Fprintf(b, "\n%s:\n\n  %-39s %9s %6s %6s %8s %8s  %s\n", table.title, "client", "requests", "share", "time", "404", "logins", "looks like")
			}
			took := "-" // the log does not say
			if c.Time > 0 {
				took = Percent(c.time)
			}
			fmt.Fprintf(b, "  %-39s %9s %6s %6s %8s %8s  %s\n    %s\n", command.Printable(c.Client, 39), Comma(c.Requests), Percent(c.share), took,
				Comma(c.NotFound), Comma(c.LogIns), c.is(), c.about())
		}
	}
	return b.String()
}

// MostRefused returns those that were refused most often, the first of them first.
func MostRefused(all []Key) []Key {
	slices.SortFunc(all, func(a, b Key) int { return cmp.Or(cmp.Compare(b.Refused, a.Refused), cmp.Compare(a.Key, b.Key)) })
	return all[:min(len(all), shownKeys)]
}

// WriteKeys writes those keys as a table.
func WriteKeys(b *strings.Builder, title string, keys []Key) {
	for i, k := range keys {
		if i == 0 {
			fmt.Fprintf(b, "\n%s:\n\n  %-39s %9s %9s %9s  %s\n", title, "key", "refused", "of", "assets", "looks like")
		}
		fmt.Fprintf(b, "  %-39s %9s %9s %9s  %s\n    %s to %s, %s\n", command.Printable(cmp.Or(k.Key, "(shared)"), 39), Comma(k.Refused), Comma(k.Asked), Comma(k.Assets), k.is(),
			k.FirstOver.Format(time.DateTime), k.LastOver.Format(time.DateTime), k.about())
	}
}

// is says what the client is, or looks like.
func (s *Sender) is() string { return cmp.Or(s.Probe, string(s.Looks)) }

// about says what the client asks for most, and what it calls itself.
func (s *Sender) about() string {
	said := "no user agent"
	if s.Agent != "" && s.Agent != "-" {
		said = "as " + command.Printable(s.Agent, mostKept)
	}
	if s.Agents > 1 {
		said += " and " + Counted(s.Agents-1, "other user agent")
	}
	if s.Asks != "" {
		said = "mostly " + command.Printable(s.Asks, 40) + ", " + said
	}
	return said
}

// Comma writes a number for people.
func Comma(n int) string { return humanize.Comma(int64(n)) }

// Counted returns a number with its noun, whose plural may be told.
func Counted(n int, noun string, plural ...string) string {
	return english.Plural(n, noun, strings.Join(plural, ""))
}

// Percent writes a share. Only all of it is 100%.
func Percent(of float64) string {
	switch {
	case of > 0 && of < 0.001:
		return "<0.1%"
	case of < 1 && of > 0.999:
		return ">99.9%"
	}
	return fmt.Sprintf("%.1f%%", 100*of)
}

// A Looks says what a client looks like in a log.
type Looks string

// What clients look like.
const (
	Person Looks = "person"      // it loads assets, as browsers do, and does not call itself a robot
	Many   Looks = "many people" // an office, a school or a mobile network behind one address
	Robot  Looks = "robot"
)

const (
	// A person has loaded fewestAssets, and one for personPages other requests: most files
	// come from the browser's cache after the first page.
	fewestAssets, personPages = 2, 20

	// manyAgents is from how many different user agents on an address looks like many people.
	manyAgents = 5

	// mostAgents is how many user agents of a client are told apart: clients make them up.
	mostAgents = 64
)

// Looks says what the client looks like. Those without an address are many, and unknown.
func (c *Client) Looks() Looks {
	switch robot := c.robots > 0 && 2*c.robots >= c.Agents(); {
	case !c.Addr.IsValid(), robot, c.Assets < fewestAssets, c.Assets*(personPages+1) < c.Requests:
		return Robot
	case c.Agents() >= manyAgents && c.Assets*5 >= c.Requests:
		return Many
	}
	return Person
}

// People returns how many people the client looks like, at least.
func (c *Client) People() int {
	switch c.Looks() {
	case Person:
		return 1
	case Many: // each with a browser
		return c.Agents()
	}
	return 0
}

// Agents returns how many user agents the client has, at least.
func (c *Client) Agents() int { return len(c.agents) }

var agentSeed = maphash.MakeSeed()

// addAgent counts the user agent of a request, and reports whether it is a new one that names a
// robot.
func (c *Client) addAgent(r *accesslog.Request) bool {
	hash := uint32(maphash.String(agentSeed, r.Agent))
	if len(c.agents) == mostAgents || slices.Contains(c.agents, hash) {
		return false
	}
	if c.agents = append(c.agents, hash); !robots.MatchString(r.Agent) {
		return false
	}
	c.robots++
	return true
}

// robots finds the user agents that name a program, as browsers do not. A bare - is no browser either.
var robots = regexp.MustCompile("(?i)^-$|^(curl|wget|java/)|bot|crawl|spider|slurp|scrap|fetch|feed|archiv|monitor|preview|https?://|python|go-http|okhttp|libwww|axios|node|inspectiontool|mediapartners")
