package tune

import (
	"context"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/spf13/cobra"

	"github.com/caddy-throttle/caddy-throttle/caddymodule"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/limit"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/tune/internal/accesslog"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/tune/internal/recommend"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// recommendFlags are the flags of `caddy throttle recommend`.
type recommendFlags struct {
	ruleFlags
	spare, check string
}

func recommendCommand() *cobra.Command {
	var f recommendFlags
	cmd := &cobra.Command{
		Use:   "recommend [--config FILE [--zone NAME] | --key SOURCE] [--spare PERCENT] LOG...",
		Short: "Recommends limits that leave people untouched",
		Long: `
Recommends limits that would have left most people of access logs untouched.
People are clients that load static assets with pages, and name no robot.

For each leak of a ladder, it finds the least capacity with which the given
percentage of people is never refused. It recommends one of these limits with the
reason, and prints the lines for the Caddyfile. If the logs are too thin to tell, it
recommends nothing, and says why. With durations in the logs, as Caddy's have, it
also finds a limit for settle seconds, and for in_flight.

With --config, it does so for each zone: requests go through the routes, matchers,
keys and costs of the config, and the limits in it do not matter. Without a config,
requests are charged to --key, and those for static assets do not count.`,
		Example: `  caddy throttle recommend /var/log/caddy/access.log*
  caddy throttle recommend --check "120 2/s" access.log
  caddy throttle recommend --spare 99 access.log.gz
  caddy throttle recommend --config /etc/caddy/Caddyfile --zone login access.log`,
	}
	f.add(cmd)
	cmd.Flags().StringVar(&f.spare, "spare", "99.9", "The percentage of people that must never be refused")
	cmd.Flags().StringVar(&f.check, "check", "", "Judge this limit, such as \"120 2/s\", and recommend none")
	return f.reads(cmd, func(in *logReader) (finding, error) { return f.find(in) })
}

func (f *recommendFlags) find(in *logReader) (*Recommendation, error) {
	spare, err := strconv.ParseFloat(strings.TrimSuffix(f.spare, "%"), 64)
	if err != nil || !(spare >= 0 && spare <= 100) {
		return nil, caddymodule.UsageErrorf("invalid --spare %q: want a percentage from 0 to 100, such as 99.9", f.spare)
	}
	var check recommend.Limit
	if f.check != "" {
		limit, err := leakybucket.ParseLimit(f.check)
		if err != nil {
			return nil, caddymodule.UsageErrorf("--check: %w", err)
		}
		check = recommend.Limit{Leak: strings.Fields(strings.Replace(f.check, ",", " ", 1))[1], Capacity: limit.Capacity}
	}
	s := &studies{clients: recommend.NewClients(), of: make(map[string]*recommend.Study), options: recommend.Options{Spare: spare, Check: check}}
	limit := ""
	if f.config == "" {
		// Not the limit but the key and the cost matter: nothing is refused.
		limit = "1000000 1000000/s"
		if len(f.keys) == 0 {
			f.keys = []string{"client_ip"}
		}
		s.options.Key, s.options.Cost = strings.Join(f.keys, " "), f.cost
	}
	rp, err := f.player(limit, s.note)
	if err != nil {
		return nil, err
	}
	defer rp.close()
	rp.strict, rp.pagesOnly, rp.store = true, f.config == "", roomyStore{rp.instant}
	batches := make(chan []*accesslog.Request, 4)
	rp.read = func(batch []*accesslog.Request) { batches <- batch }
	var told sync.WaitGroup // the clients, beside what the zones do
	told.Go(func() {
		for batch := range batches {
			for _, req := range batch {
				s.clients.Add(req)
			}
		}
	})
	notes, err := rp.runAll(in)
	close(batches)
	told.Wait()
	assets := 0
	if rp.pagesOnly {
		assets = rp.assets
	}
	answer := &Recommendation{Log: *in.Stats(), Zones: []*recommend.Result{}, Notes: notes, Partial: in.interrupted()}
	for _, zone := range slices.Sorted(maps.Keys(s.of)) {
		answer.Zones = append(answer.Zones, s.of[zone].Result(assets))
	}
	if len(answer.Zones) == 0 {
		answer.head = "No zone charges any of these requests.\n"
	}
	return answer, err
}

// studies are those of all zones.
type studies struct {
	options recommend.Options
	clients *recommend.Clients
	of      map[string]*recommend.Study
}

// note is an observer.
func (s *studies) note(o *limit.Outcome, req *accesslog.Request) {
	if o.Key == "" {
		return
	}
	name := o.Zone.Name
	study := s.of[name]
	if study == nil {
		shown := name
		if s.options.Key != "" {
			shown = "" // there is no zone yet
		}
		study = recommend.NewStudy(shown, s.clients, s.options)
		s.of[name] = study
	}
	study.Add(req, req.Shown(o.Key), o.Cost)
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
