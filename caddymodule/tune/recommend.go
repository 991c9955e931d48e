package tune

import (
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/command"
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
		Use:   "recommend [--config FILE [--zone NAME]] [--spare PERCENT] LOG...",
		Short: "Recommends limits that leave people untouched",
		Long: `
Recommends limits that would have left most people of access logs untouched: clients
that load static assets with pages, and name no robot. From a log that is too thin it
recommends nothing, and says why.

With --config, it does so for each zone as if there were no other: requests go through
its routes, matchers, keys and costs. Without one, requests are charged to the address of
the client, and those for static assets do not count.` + aboutLogs,
		Example: `  caddy throttle recommend /var/log/caddy/access*.log*
  caddy throttle recommend --check "120 2/s" access.log.gz
  caddy throttle recommend --config /etc/caddy/Caddyfile --zone login access.log`,
	}
	f.add(cmd)
	cmd.Flags().StringVar(&f.spare, "spare", "99.9", "The percentage of people that must never be refused")
	cmd.Flags().StringVar(&f.check, "check", "", "Judge this limit, such as \"120 2/s\", and recommend none")
	return f.reads(cmd, f.find)
}

func (f *recommendFlags) find(in *accesslog.Reader) (finding, error) {
	spare, err := strconv.ParseFloat(strings.TrimSuffix(f.spare, "%"), 64)
	if err != nil || !(spare >= 0 && spare <= 100) {
		return nil, command.UsageErrorf("invalid --spare %q: want a percentage from 0 to 100, such as 99.9", f.spare)
	}
	if f.zone != "" && f.config == "" {
		return nil, command.UsageErrorf("--zone needs --config")
	}
	options := recommend.Options{Spare: spare, Pages: f.config == ""}
	if f.check != "" {
		limit, err := leakybucket.ParseLimit(f.check)
		if err != nil {
			return nil, command.UsageErrorf("--check: %w", err)
		}
		options.Check = recommend.Limit{Leak: strings.Fields(strings.Replace(f.check, ",", " ", 1))[1], Capacity: limit.Capacity}
	}
	rp, err := f.player()
	if err != nil {
		return nil, err
	}
	defer rp.close()
	studies := make(map[string]*recommend.Study)
	rp.pagesOnly = options.Pages
	rp.study = func(o *limit.Outcome, req *accesslog.Request, diff float64, took time.Duration) {
		study := studies[o.Zone.Name]
		if study == nil {
			study = recommend.NewStudy(o.Zone, rp.clientsOf(o.Zone.Name), options)
			studies[o.Zone.Name] = study
		}
		study.Add(req, o, diff, took)
	}
	notes, err := rp.runAll(in)
	if err != nil {
		return nil, err
	}
	if !rp.pagesOnly {
		rp.assets = 0
	}
	answer := &Recommendation{Log: *in.Stats(), Zones: []*recommend.Result{}, Clients: rp.clients.Senders(), Notes: notes}
	for _, zone := range slices.Sorted(maps.Keys(studies)) {
		answer.Zones = append(answer.Zones, studies[zone].Result(rp.assets))
	}
	if len(answer.Zones) == 0 {
		answer.head = "No zone charges any of these requests.\n"
	}
	return answer, nil
}
