package clients

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

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

// A Sender is one client.
type Sender struct {
	Client   string          `json:"client"`
	Agent    string          `json:"user_agent"`  // of its first request
	Agents   int             `json:"user_agents"` // how many there are, at least
	Asks     string          `json:"asks"`        // the folder of most of its requests, if there is one
	Requests int             `json:"requests"`
	NotFound int             `json:"not_found"`        // answered with 404
	LogIns   int             `json:"log_ins"`          // by POST
	Share    float64         `json:"requests_share"`   // of all requests, from 0 to 1
	Time     float64         `json:"time_share"`       // of all durations; 0 if the log has none
	Looks    accesslog.Looks `json:"looks"`            // like
	Probe    string          `json:"probe,omitempty"`  // what asks whether the site is up
	Claims   []string        `json:"claims,omitempty"` // the crawlers that it says it is
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
		n.Share += float64(c.Requests) / float64(l.sums.Requests)
	}
	for _, n := range networks {
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
		if of(c) < least {
			break
		}
		some = append(some, Sender{
			Client: c.Name(), Agent: c.Agent(), Agents: c.Agents(), Asks: c.Asks(), Requests: int(c.Requests), NotFound: int(c.notFound), LogIns: int(c.logIns),
			Share: float64(c.Requests) / float64(l.sums.Requests), Time: c.took.Seconds() / max(l.sums.Took.Seconds(), 1e-9), Looks: c.Looks(), Probe: c.Probe(), Claims: c.Claims(),
		})
	}
	return some
}

// Name returns the address of the client, or what the log has in its place.
func (c *Client) Name() string {
	switch {
	case c.named:
		return c.name.Value()
	case !c.Addr.IsValid():
		return "(no address)"
	}
	return c.Addr.String()
}

// Text returns the tables for people. Texts from clients are escaped.
func (s *Senders) Text() string {
	b := new(strings.Builder)
	for _, table := range []struct {
		title string
		rows  []Sender
	}{{"Who sent most", s.Requests}, {"Who got most answers 404", s.NotFound}, {"Who sent most log-ins (POST)", s.LogIns}} {
		for i, c := range table.rows {
			if i == 0 {
				fmt.Fprintf(b, "\n%s:\n\n  %-39s %9s %6s %6s %8s %8s  %s\n", table.title, "client", "requests", "share", "time", "404", "log-ins", "looks like")
			}
			fmt.Fprintf(b, "  %-39s %9s %6s %6s %8s %8s  %s\n    %s\n", text.Printable(c.Client, 39), humanize.Comma(int64(c.Requests)), percent(c.Share), percent(c.Time),
				humanize.Comma(int64(c.NotFound)), humanize.Comma(int64(c.LogIns)), cmp.Or(c.Probe, string(c.Looks)), About(c.Asks, c.Agent, c.Agents, c.Claims))
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

// About says what a client asks for most, and what it calls itself.
func About(asks, agent string, agents int, claims []string) string {
	said := "no user agent"
	if agent != "" && agent != "-" {
		said = "as " + text.Printable(agent, 80)
	}
	switch {
	case agents == 2:
		said += " and 1 other user agent"
	case agents > 2:
		said += fmt.Sprintf(" and %d other user agents", agents-1)
	}
	if asks != "" {
		said = "mostly " + text.Printable(asks, 40) + ", " + said
	}
	if len(claims) > 0 {
		said += ": it says that it is " + strings.Join(claims, ", ")
	}
	return said
}

func percent(share float64) string { return fmt.Sprintf("%.1f%%", 100*share) }
