package tune

import (
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/accesslog"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/decision"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/recommend"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/replay"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/report"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/usage"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// RecommendFlags are the flags of `caddy throttle recommend`.
type RecommendFlags struct {
	ReplayFlags
	Spare          string
	People, Assets bool
	report         string
}

func recommendCommand() *cobra.Command {
	var f RecommendFlags
	cmd := &cobra.Command{
		Use:   "recommend [--config FILE [--zone NAME] | --key SOURCE] [--spare PERCENT] [--people] LOG...",
		Short: "Recommends limits that leave most clients untouched",
		Long: `
Recommends limits that would have left most clients of access logs untouched.

For each leak of a ladder, it finds the least capacity with which the given
percentage of clients is never refused. It prints what each of these limits would
have refused, recommends one of them with the reason, and prints the lines for the
Caddyfile. It says so if the logs are too thin to tell.

With --config, it does so for each zone: requests go through the routes, matchers,
keys and costs of the config, and the limits in it do not matter. Without a config,
requests are charged to --key, and those for static assets do not count.

With --people, the percentage is one of the clients that also loaded static assets,
as people's browsers do. Then the scrapers in the log do not set the limit.

If the logs have durations, as Caddy's have, it also finds a limit for settle
seconds, and for in_flight.`,
		Example: `  caddy throttle recommend --people /var/log/caddy/access.log*
  caddy throttle recommend --spare 99 --report limits.html access.log.gz
  caddy throttle recommend --config /etc/caddy/Caddyfile --zone login access.log`,
	}
	f.add(cmd)
	cmd.Flags().StringVar(&f.Spare, "spare", "99.9", "The percentage of clients that must never be refused")
	cmd.Flags().BoolVar(&f.People, "people", false, "Take the percentage of clients that also loaded static assets")
	cmd.Flags().BoolVar(&f.Assets, "assets", false, "Count requests for static assets, too, without a config")
	cmd.Flags().StringVar(&f.report, "report", "", "Write a page about it to this file")
	return Runnable(cmd, f.run)
}

// A Recommendation is the output of `caddy throttle recommend --json`.
type Recommendation struct {
	Log     replay.Log          `json:"log"`
	Zones   []*recommend.Result `json:"zones"`
	Notes   []string            `json:"notes"`   // what the figures leave out, and why
	Partial bool                `json:"partial"` // the reading was interrupted
}

func (f *RecommendFlags) run(ctx context.Context, logs []string) error {
	r, broken, err := f.Find(ctx, logs)
	if err != nil {
		return err
	}
	if f.report != "" {
		if err := f.writeReport(r); err != nil {
			return err
		}
	}
	if err := f.Print(r); err != nil {
		return err
	}
	return broken
}

// Find reads the logs. The second result is the error of the first log that broke off.
func (f *RecommendFlags) Find(ctx context.Context, logs []string) (_ *Recommendation, broken, err error) {
	spare, err := strconv.ParseFloat(strings.TrimSuffix(f.Spare, "%"), 64)
	if err != nil || !(spare >= 0 && spare <= 100) {
		return nil, nil, usage.Errorf("invalid --spare %q: want a percentage from 0 to 100, such as 99.9", f.Spare)
	}
	if f.Config != "" && f.Assets {
		return nil, nil, usage.Errorf("--config and --assets exclude each other: the config says what is exempt")
	}
	studies := &studies{
		zone: f.Zone, inline: f.Config == "", key: f.keyText(), cost: f.Cost, clients: recommend.NewClients(), of: make(map[string]*recommend.Study),
		exempts: f.Config == "" && !f.Assets, options: recommend.Options{Spare: spare, People: f.People},
	}
	defer studies.close()
	rp, err := f.load(studies)
	if err != nil {
		return nil, nil, err
	}
	defer rp.Close()
	in, err := f.Open(ctx, logs)
	if err != nil {
		return nil, nil, err
	}
	defer in.Close()
	rp.options = replayOptions{Store: roomyStore{rp.instant}, Passes: studies.passes}
	notes, err := rp.RunAll(in, f.Zone)
	if err != nil {
		return nil, nil, err
	}
	rp.End()
	if studies.err != nil {
		return nil, nil, studies.err
	}
	results, err := studies.results()
	if err != nil {
		return nil, nil, err
	}
	return &Recommendation{
		Log: in.Log(logs), Zones: results, Notes: append(append([]string{}, notes...), rp.notes(in.Stats())...), Partial: in.Interrupted,
	}, in.Broken(), nil
}

// load loads the config of the flags, or one with the key of the flags.
func (f *RecommendFlags) load(observe replayObserver) (*player, error) {
	limit := f.ReplayFlags
	if f.Config == "" {
		// Not the limit but the key and the cost matter: nothing is refused.
		limit.Limit, limit.Keys = "1000000 1000000/s", []string{f.keyText()}
	}
	config, err := limit.LoadConfig()
	if err != nil {
		return nil, err
	}
	rp, err := NewPlayer(config, observe)
	if err != nil {
		return nil, usage.Wrap(err)
	}
	if err := rp.knows(f.Zone); err != nil {
		rp.Close()
		return nil, err
	}
	return rp, nil
}

func (f *RecommendFlags) keyText() string {
	if len(f.Keys) == 0 {
		return "client_ip"
	}
	return strings.Join(f.Keys, " ")
}

// Write writes the recommendation for people.
func (r *Recommendation) Write(out io.Writer) error {
	var b strings.Builder
	if r.Partial {
		b.WriteString("Interrupted: the figures are those of the requests so far.\n\n")
	}
	if r.Log.Unreadable > 0 {
		fmt.Fprintf(&b, "%d of %d lines could not be read.\n", r.Log.Unreadable, r.Log.Lines)
	}
	for _, problem := range r.Log.Problems {
		fmt.Fprintf(&b, "  %s\n", problem)
	}
	if len(r.Zones) == 0 {
		b.WriteString("No zone charges any of these requests.\n")
	}
	for i, zone := range r.Zones {
		if i > 0 || b.Len() > 0 {
			b.WriteString("\n")
		}
		if err := zone.Write(&b); err != nil {
			return err
		}
	}
	for i, note := range r.Notes {
		if i == 0 {
			b.WriteString("\n")
		}
		fmt.Fprintf(&b, "Note: %s\n", note)
	}
	_, err := io.WriteString(out, b.String())
	return err
}

// writeReport writes the page.
func (f *RecommendFlags) writeReport(r *Recommendation) error {
	settings := []report.Setting{
		{Name: "logs", Value: strings.Join(r.Log.Files, ", ")},
		{Name: "spare", Value: strings.TrimSuffix(f.Spare, "%") + "%"},
		{Name: "people", Value: strconv.FormatBool(f.People)},
	}
	if f.Config != "" {
		settings = append(settings, report.Setting{Name: "config", Value: f.Config})
	} else {
		settings = append(settings, report.Setting{Name: "key", Value: f.keyText()}, report.Setting{Name: "assets", Value: strconv.FormatBool(f.Assets)})
	}
	settings = append(settings, report.Setting{Name: "written", Value: time.Now().UTC().Format("2006-01-02 15:04 MST")})
	file, err := os.Create(f.report)
	if err != nil {
		return usage.Errorf("--report: %w", err)
	}
	if err := report.Write(file, r.Zones, r.Notes, settings); err != nil {
		_ = file.Close()
		return fmt.Errorf("writing the report: %w", err)
	}
	return file.Close()
}

// studies are those of all zones.
type studies struct {
	zone    string // the only one, or empty
	inline  bool   // the only zone is one of the flags
	key     string // of that
	cost    string // of that
	exempts bool   // it exempts static assets
	assets  int    // requests for these
	options recommend.Options
	clients *recommend.Clients
	of      map[string]*recommend.Study
	name    []byte
	err     error
}

// passes notes who sent a request, and reports whether a zone is to be asked about it.
func (s *studies) passes(req *accesslog.Request) bool {
	s.clients.Add(req)
	if s.exempts && req.Asset() {
		s.assets++
		return false
	}
	return true
}

// Decided implements replayObserver.
func (s *studies) Decided(o *decision.Outcome, req *accesslog.Request) {
	if s.zone != "" && s.zone != o.Zone.Name || o.Key == "" || s.err != nil {
		return
	}
	study := s.of[o.Zone.Name]
	if study == nil {
		options := s.options
		name := o.Zone.Name
		if s.inline {
			name, options.Key, options.Cost = "", s.key, s.cost
		}
		study = recommend.NewStudy(name, s.clients, options)
		s.of[o.Zone.Name] = study
	}
	cost := o.Cost
	if o.Zone.SlotsOnly() {
		cost = 1
	}
	s.name = append(s.name[:0], o.Key...)
	s.err = study.Add(req, s.name, cost)
}

func (s *studies) results() ([]*recommend.Result, error) {
	all := []*recommend.Result{}
	for _, zone := range slices.Sorted(maps.Keys(s.of)) {
		r, err := s.of[zone].Result(s.assets)
		if err != nil {
			return nil, err
		}
		all = append(all, r)
	}
	return all, nil
}

func (s *studies) close() {
	for _, study := range s.of {
		_ = study.Close() // a temporary file that cannot be removed is no error of the answer
	}
}

// A roomyStore admits everything: what limits there are does not matter.
type roomyStore struct{ now func() leakybucket.Instant }

// Take implements leakybucket.Store.
func (s roomyStore) Take(_ context.Context, _ []leakybucket.Charge, decisions []leakybucket.Decision) error {
	for i := range decisions {
		decisions[i] = leakybucket.Decision{Fits: true, Poured: true, At: s.now()}
	}
	return nil
}

// Settle implements leakybucket.Store.
func (roomyStore) Settle(context.Context, []leakybucket.Settlement) error { return nil }

// Interface guards
var (
	_ replayObserver    = (*studies)(nil)
	_ leakybucket.Store = roomyStore{}
)
