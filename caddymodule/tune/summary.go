// Package tune is the commands replay, recommend and summary, which read the access logs of a
// site: to find limits before they are enforced, and to see what they did. Begin with
// [logFlags].
package tune

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/command"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/sketch"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/tune/internal/accesslog"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/tune/internal/clients"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/tune/internal/recommend"
)

func init() {
	command.Register(replayCommand)
	command.Register(recommendCommand)
	command.Register(summaryCommand)
}

// An Answer is what a command found in logs: its JSON is printed with --json, its text for
// people.
type Answer[Zone interface{ Text() string }] struct {
	Log     accesslog.Stats  `json:"log"`
	Zones   []Zone           `json:"zones"`
	Clients *clients.Senders `json:"clients"` // that sent most
	Notes   []string         `json:"notes"`   // what the figures leave out, and why

	head string // of the text
}

type (
	// A Recommendation is the answer of `caddy throttle recommend`.
	Recommendation = Answer[*recommend.Result]

	// A Report is the answer of `caddy throttle replay` and `caddy throttle summary`.
	Report = Answer[*Decided]
)

// reportOf returns what zones have decided about the requests of logs.
func reportOf(in *accesslog.Reader, zones []*Decided, known *clients.Log, notes noted) *Report {
	senders := known.Senders()
	notes.add(senders.People == 0, "No client looks like a person, who loads static assets with pages, so this log does not say whether people were refused.")
	r := &Report{Log: *in.Stats(), Zones: zones, Clients: senders, Notes: notes}
	r.head = fmt.Sprintf("%s from %s to %s UTC (%s)\n", clients.Counted(int(r.Log.Requests), "request"), r.Log.From.Format(time.DateTime), r.Log.To.Format(time.DateTime), r.Log.To.Sub(r.Log.From).Round(time.Second))
	if r.Log.Other > 0 {
		r.head += clients.Counted(int(r.Log.Other), "line is", "lines are") + " about something else.\n"
	}
	return r
}

// A noted is what figures leave out, and why.
type noted []string

func (n *noted) add(is bool, format string, args ...any) {
	if is {
		*n = append(*n, fmt.Sprintf(format, args...))
	}
}

// Text returns the answer for people.
func (a *Answer[Zone]) Text() string {
	var b strings.Builder
	b.WriteString(a.head + a.Log.Complaints())
	for _, zone := range a.Zones {
		if b.Len() > 0 {
			b.WriteString("\n")
		}
		b.WriteString(zone.Text())
	}
	b.WriteString(a.Clients.Text())
	if len(a.Notes) > 0 {
		b.WriteString("\nNote: " + strings.Join(a.Notes, "\nNote: ") + "\n")
	}
	return b.String()
}

func summaryCommand() *cobra.Command {
	return new(logFlags).reads(&cobra.Command{
		Use:   "summary LOG...",
		Short: "Shows what throttle decided, from Caddy's access logs",
		Long: `
Shows what every zone decided, by the field throttle of Caddy's access logs: how many
requests it admitted and refused, or would have refused in shadow, which keys and
routes that concerns, and how near all other keys came.` + aboutFiles,
		Example: `  caddy throttle summary /var/log/caddy/access*.log*`,
	}, summarize)
}

// summarize counts what zones decided.
func summarize(in *accesslog.Reader) (finding, error) {
	found, decided, broken, busy, notes := make(tally), 0, 0, 0, noted{}
	var known clients.Log
	table := known.By(32, 64)
	for req, err := range in.Requests {
		if err != nil {
			return nil, err
		}
		known.Add(req)
		outcomes, err := req.Outcomes()
		if err != nil {
			broken++
		}
		outcomes = slices.DeleteFunc(outcomes, func(o accesslog.Outcome) bool { return o.Zone == "" || o.Decision == "" })
		for i := range outcomes {
			found.add(&outcomes[i], req)
		}
		if decided += min(1, len(outcomes)); req.InFlight == "refused" {
			busy++
		}
	}
	notes.add(decided == 0, "No line has the field throttle: no zone was asked, or the log is not that of a site with throttle. To see what a limit would do, run caddy throttle replay or recommend.")
	notes.add(decided > 0, "requests that a zone was asked about: %d of %d.", decided, in.Stats().Requests)
	notes.add(busy > 0, "requests that in_flight refused, which no zone above counts as refused: %d. The field in_flight says why.", busy)
	notes.add(broken > 0, "fields throttle that could not be read: %d.", broken)
	return reportOf(in, found.zones(func(string) *clients.Table { return table }), &known, append(notes, in.Stats().Doubts()...)), nil
}

// Decided is what a zone has decided. Refusals of a shadow zone count as refusals.
type Decided struct {
	Name          string          `json:"zone"`
	Requests      int             `json:"requests"`
	Shadow        bool            `json:"shadow,omitempty"`  // for some keys at least: counted as if all zones of the same throttle were enforced
	Unknown       string          `json:"unknown,omitempty"` // why the log cannot answer for the zone
	Decisions     map[string]int  `json:"decisions"`         // by admitted, delayed, refused, shadow_delayed, shadow_refused
	Unlogged      int64           `json:"unlogged"`          // refusals that refusal log kept out of the log
	LongestDelay  float64         `json:"longest_delay_seconds"`
	Reasons       map[string]int  `json:"reasons"` // of refusals
	Keys          int             `json:"keys"`
	RefusedKeys   int             `json:"refused_keys"`
	RefusedPeople int             `json:"refused_people"` // keys of clients that look like people
	Fullest       [len(steps)]int `json:"fullest"`        // how many other keys came how near, by quarter of the capacity
	Worst         []clients.Key   `json:"worst_keys"`
	Routes        []Route         `json:"routes"`

	keys     map[string]*decidedKey
	refusals int
	routes   sketch.Counter[string] // of refusals
}

// A decidedKey is what a zone has decided about a key so far.
type decidedKey struct {
	clients.Key
	sender  netip.Addr // of its first request
	fullest float64    // the highest level, in capacities; 0 if there is no bucket
}

// A Route is a path that has at least 1% of a zone's refusals, without the query.
type Route struct {
	Path    string `json:"path"`
	Refused int    `json:"refused"` // at least
}

// steps are how full the buckets became, at most, of keys that were never refused.
var steps = [...]string{"below 25%", "25 to 50%", "50 to 75%", "75% or more"}

const (
	mostRoutes  = 1000 // counted at once: clients make up paths
	shownRoutes = 10
)

// A tally counts what zones decide, by their names.
type tally map[string]*Decided

// add counts what a zone has decided about a request.
func (t tally) add(d *accesslog.Outcome, req *accesslog.Request) {
	z := t[d.Zone]
	if z == nil {
		z = &Decided{Name: d.Zone, Decisions: make(map[string]int), Reasons: make(map[string]int), Worst: []clients.Key{}, Routes: []Route{}, keys: make(map[string]*decidedKey)}
		z.routes.Size = mostRoutes
		t[d.Zone] = z
	}
	k := z.keys[d.Key]
	if k == nil {
		k = &decidedKey{Key: clients.Key{Key: strings.Clone(d.Key)}, sender: req.Client}
		z.keys[k.Key.Key] = k
	}
	k.Asked++
	if d.Capacity > 0 {
		k.fullest = max(k.fullest, d.Level/d.Capacity)
	}
	z.Requests++
	z.Decisions[d.Decision]++
	z.Unlogged += max(0, d.Unlogged)
	z.LongestDelay = max(z.LongestDelay, d.Delay)
	if strings.HasSuffix(d.Decision, "refused") { // or would have been
		z.refusals++
		z.Reasons[d.Reason]++
		z.routes.Add(strings.Clone(req.Route()), 1)
		k.Refuse(req.At)
	}
}

// zones returns what the zones have decided, in the order of their names. by returns the
// clients of the log as a zone tells them apart.
func (t tally) zones(by func(zone string) *clients.Table) []*Decided {
	all := make([]*Decided, 0, len(t))
	for _, name := range slices.Sorted(maps.Keys(t)) {
		z, known := t[name], by(name)
		z.Keys = len(z.keys)
		for _, k := range z.keys {
			if k.Refused > 0 {
				c := known.Of(k.sender)
				k.Sender = c.Sender()
				if z.Worst = append(z.Worst, k.Key); c.People() > 0 {
					z.RefusedPeople++
				}
			} else if k.fullest > 0 {
				z.Fullest[min(int(min(k.fullest, 1)*float64(len(steps))), len(steps)-1)]++
			}
		}
		z.RefusedKeys = len(z.Worst)
		z.Worst = clients.MostRefused(z.Worst)
		for _, route := range z.routes.Top(shownRoutes) {
			if 100*route.AtLeast >= z.refusals {
				z.Routes = append(z.Routes, Route{route.Key, route.AtLeast})
			}
		}
		all = append(all, z)
	}
	return all
}

// Text returns the zone for people. Texts of the log are escaped: clients can forge lines of mixed ones.
func (z *Decided) Text() string {
	b := new(strings.Builder)
	fmt.Fprintf(b, "Zone %s", command.Printable(z.Name, 100))
	if z.Shadow {
		b.WriteString(" (shadow: as if all zones of its throttle were enforced)")
	}
	if z.Unknown != "" {
		fmt.Fprintf(b, " (unknown: %s)", z.Unknown)
	}
	b.WriteString("\n")
	row := func(what string, n, of int) {
		fmt.Fprintf(b, "  %18s  %10s", what, clients.Comma(n))
		if of > 0 {
			fmt.Fprintf(b, "  %6s", clients.Percent(float64(n)/float64(of)))
		}
		b.WriteString("\n")
	}
	row("requests", z.Requests, 0)
	for _, decision := range slices.Sorted(maps.Keys(z.Decisions)) {
		row(command.Printable(strings.ReplaceAll(decision, "_", " "), 40), z.Decisions[decision], z.Requests)
	}
	row("keys", z.Keys, 0)
	row("keys ever refused", z.RefusedKeys, z.Keys)
	row("people among them", z.RefusedPeople, 0)
	if z.Unlogged > 0 {
		fmt.Fprintf(b, "  refused too, but by refusal log not in the log, and in no figure here: %s\n", clients.Comma(int(z.Unlogged)))
	}
	if z.LongestDelay > 0 {
		fmt.Fprintf(b, "  longest delay: %s\n", time.Duration(z.LongestDelay*float64(time.Second)).Round(time.Millisecond))
	}
	if z.Fullest != [len(steps)]int{} {
		b.WriteString("  how full the buckets of keys that were never refused became, at most:\n")
		for i, keys := range z.Fullest {
			fmt.Fprintf(b, "  %11s %8s\n", steps[i], clients.Comma(keys))
		}
	}
	if z.RefusedKeys == 0 {
		return b.String()
	}
	b.WriteString("  refused for:")
	for _, reason := range slices.Sorted(maps.Keys(z.Reasons)) {
		fmt.Fprintf(b, " %s %s", command.Printable(reason, 40), clients.Comma(z.Reasons[reason]))
	}
	b.WriteString("\n")
	clients.WriteKeys(b, "Most refused", z.Worst)
	b.WriteString("\nRefused by path:\n\n")
	if len(z.Routes) == 0 {
		b.WriteString("  no path has 1% of them\n")
	}
	for _, route := range z.Routes {
		fmt.Fprintf(b, "  %8s  %s\n", clients.Comma(route.Refused), command.Printable(route.Path, 60))
	}
	return b.String()
}

// logFlags are the flags of all commands that read logs.
type logFlags struct {
	accesslog.Options
	json bool
}

const aboutLogs = `

Logs may be those of Caddy, nginx, Apache, Rails and others. A combined line may end
with a request time: seconds with a point, as nginx's $request_time, or microseconds, as
Apache's %D. --fields reads any other line.` + aboutFiles

const aboutFiles = `

It needs no running Caddy and changes nothing. Logs may be plain or compressed by gzip or
zstd, several in any order; a dash is the standard input.`

// A finding is an [Answer].
type finding interface{ Text() string }

// reads lets a command read logs, print what find finds in them, and exit with the code
// that an error means.
func (f *logFlags) reads(cmd *cobra.Command, find func(*accesslog.Reader) (finding, error)) *cobra.Command {
	cmd.Flags().StringVar(&f.Host, "host", "", "The host of requests whose line has none, as in combined logs")
	cmd.Flags().StringVar(&f.TimeField, "time-field", "", "The field of the request's duration, and perhaps its unit: upstream_time:ms in JSON, 2 for the second word after the user agent")
	cmd.Flags().StringVar(&f.Client, "client", "", "The field of the client's address, named as in --time-field; remote_addr is the first of combined lines")
	cmd.Flags().StringVar(&f.Fields, "fields", "", "The fields of each line, as the text of Apache's LogFormat or nginx's log_format")
	cmd.Flags().BoolVar(&f.json, "json", false, "Print JSON")
	cmd.RunE = func(cmd *cobra.Command, logs []string) error { return f.run(cmd, logs, find) }
	return cmd
}

func (f *logFlags) run(cmd *cobra.Command, logs []string, find func(*accesslog.Reader) (finding, error)) error {
	switch {
	case len(logs) == 0:
		return command.UsageErrorf("no log given: want files, or - for the standard input")
	case strings.ContainsAny(f.Host, "/ "):
		return command.UsageErrorf("invalid --host %q: want a name such as example.com", f.Host)
	}
	f.Stdin = os.Stdin
	in, err := accesslog.Open(logs, f.Options)
	if err != nil {
		return err
	}
	defer in.Close()
	found, err := find(in)
	if err != nil {
		return err
	}
	if f.json {
		out := json.NewEncoder(cmd.OutOrStdout())
		out.SetIndent("", "\t")
		err = out.Encode(found)
	} else {
		_, err = io.WriteString(cmd.OutOrStdout(), found.Text())
	}
	return cmp.Or(err, in.Stats().Broken)
}
