package clients

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/dustin/go-humanize"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/text"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/tune/internal/accesslog"
)

// Senders are the clients of a log that have most of something.
type Senders struct {
	Requests []Sender  `json:"most_requests"`
	NotFound []Sender  `json:"most_not_found"`
	LogIns   []Sender  `json:"most_log_ins"`
	Networks []Network `json:"networks"` // of several clients, that sent most
}

// A Sender is one client, by all that it sent.
type Sender struct {
	Client   string          `json:"client"`
	Agent    string          `json:"user_agent"`      // of its first request
	Agents   int             `json:"user_agents"`     // how many there are, at least
	Claims   []string        `json:"claims_crawlers"` // that they name, as verified_crawler does
	Asks     string          `json:"asks"`            // the folder of most of its requests, if there is one
	First    time.Time       `json:"first"`
	Last     time.Time       `json:"last"`
	Requests int             `json:"requests"`
	Assets   int             `json:"assets"`
	NotFound int             `json:"not_found"`       // answered with 404
	LogIns   int             `json:"log_ins"`         // by POST
	Time     float64         `json:"time_seconds"`    // of all its requests; 0 if the log has no durations
	Looks    accesslog.Looks `json:"looks"`           // like
	Probe    string          `json:"probe,omitempty"` // what asks whether the site is up

	share, time float64 // of all requests, and of all their time
}

// A Network is a /24, or a /48 of IPv6.
type Network struct {
	Network string  `json:"network"`
	Clients int     `json:"clients"`
	People  int     `json:"people"` // of these clients
	Share   float64 `json:"requests_share"`
}

const (
	// shown is how many clients or networks are listed.
	shown = 5

	// leastShare is from which share of the requests on a network is listed, of two clients at
	// least.
	leastShare = .01

	// fewest is from how many 404s or log-ins on a client is listed for them.
	fewest = 10
)

// Senders returns who sent most.
func (l *Log) Senders() *Senders {
	s := &Senders{Networks: []Network{}}
	var all []*Client
	networks := make(map[netip.Prefix]*Network)
	for addr, c := range l.By(32, 64).of {
		if c.Requests == 0 {
			continue
		}
		if all = append(all, c); !addr.IsValid() {
			continue
		}
		of := c.Network()
		n := networks[of]
		if n == nil {
			n = &Network{Network: of.String()}
			networks[of] = n
		}
		if n.Clients++; c.Person() {
			n.People++
		}
		n.Share += float64(c.Requests) // whose sum depends on no order
	}
	for _, n := range networks {
		n.Share /= float64(l.requests)
		if n.Clients > 1 && n.Share >= leastShare {
			s.Networks = append(s.Networks, *n)
		}
	}
	slices.SortFunc(s.Networks, func(a, b Network) int {
		return cmp.Or(cmp.Compare(b.Share, a.Share), cmp.Compare(a.Network, b.Network))
	})
	s.Networks = s.Networks[:min(shown, len(s.Networks))]
	s.Requests = l.most(all, 1, func(c *Client) uint32 { return c.Requests })
	s.NotFound = l.most(all, fewest, func(c *Client) uint32 { return c.notFound })
	s.LogIns = l.most(all, fewest, func(c *Client) uint32 { return c.logIns })
	return s
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
		Client: name, Agent: c.agent.Value(), Agents: c.agents.Count(), Claims: c.Claims(), Asks: c.asks(), First: instant(c.First), Last: instant(c.Last), Requests: int(c.Requests),
		Assets: int(c.Assets), NotFound: int(c.notFound), LogIns: int(c.logIns), Time: c.took.Seconds(), Looks: c.Looks(), Probe: c.probe(),
	}
}

// Text returns the tables for people. Texts from clients are escaped.
func (s *Senders) Text() string {
	b := new(strings.Builder)
	for _, table := range []struct {
		title string
		rows  []Sender
	}{{"Who sent the most", s.Requests}, {"Who got the most 404s", s.NotFound}, {"Who sent the most log-ins (POST)", s.LogIns}} {
		for i, c := range table.rows {
			if i == 0 {
				fmt.Fprintf(b, "\n%s:\n\n  %-39s %9s %6s %6s %8s %8s  %s\n", table.title, "client", "requests", "share", "time", "404", "log-ins", "looks like")
			}
			fmt.Fprintf(b, "  %-39s %9s %6s %6s %8s %8s  %s\n    %s\n", text.Printable(c.Client, 39), humanize.Comma(int64(c.Requests)), percent(c.share), percent(c.time),
				humanize.Comma(int64(c.NotFound)), humanize.Comma(int64(c.LogIns)), c.Is(), c.About())
		}
	}
	for i, n := range s.Networks {
		if i == 0 {
			fmt.Fprintf(b, "\nNetworks that sent most (key client_ip ipv4 24 ipv6 48 counts each as one):\n\n  %-39s %9s %6s %8s\n", "network", "requests", "clients", "people")
		}
		fmt.Fprintf(b, "  %-39s %9s %6s %8s\n", text.Printable(n.Network, 39), percent(n.Share), humanize.Comma(int64(n.Clients)), humanize.Comma(int64(n.People)))
	}
	return b.String()
}

// Is says what the client is, or looks like.
func (s *Sender) Is() string { return cmp.Or(s.Probe, string(s.Looks)) }

// About says what the client asks for most, and what it calls itself.
func (s *Sender) About() string {
	said := "no user agent"
	if s.Agent != "" && s.Agent != "-" {
		said = "as " + text.Printable(s.Agent, 80)
	}
	switch {
	case s.Agents == 2:
		said += " and 1 other user agent"
	case s.Agents > 2:
		said += fmt.Sprintf(" and %d other user agents", s.Agents-1)
	}
	if s.Asks != "" {
		said = "mostly " + text.Printable(s.Asks, 40) + ", " + said
	}
	if len(s.Claims) > 0 {
		said += ": it says that it is " + strings.Join(s.Claims, ", ")
	}
	return said
}

func percent(share float64) string { return fmt.Sprintf("%.1f%%", 100*share) }
