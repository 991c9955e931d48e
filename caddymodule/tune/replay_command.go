package tune

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"github.com/caddy-throttle/caddy-throttle/caddymodule"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/limit"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/tune/internal/accesslog"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/tune/internal/recommend"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/tune/internal/replay"
)

// ruleFlags are the flags that say through which zones requests go.
type ruleFlags struct {
	logFlags
	config, adapter, zone string
	keys, logIns          []string
	cost, settle          string
}

// add adds the flags, but for those that all commands have.
func (f *ruleFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVarP(&f.config, "config", "c", "", "The config with the zones")
	cmd.Flags().StringVarP(&f.adapter, "adapter", "a", "", "The adapter of the config, if it is neither JSON nor a Caddyfile")
	cmd.Flags().StringVar(&f.zone, "zone", "", "Only this zone of the config, as if there were no other")
	cmd.Flags().StringArrayVar(&f.keys, "key", nil, "The key of a zone without a config; repeat it for several sources (default client_ip)")
	cmd.Flags().StringVar(&f.cost, "cost", "", "The cost of each request of a zone without a config (default 1)")
	cmd.Flags().StringVar(&f.settle, "settle", "", "What corrects the cost of a zone without a config, such as seconds")
	cmd.Flags().StringArrayVar(&f.logIns, "login", nil, "The address to which log-ins are sent, such as /wp-login.php, for zones with a field: logs hold no bodies (default all POST requests)")
}

// replayFlags are the flags of `caddy throttle replay`.
type replayFlags struct {
	ruleFlags
	limit, requests string
}

func replayCommand() *cobra.Command {
	var f replayFlags
	cmd := &cobra.Command{
		Use:   "replay --config FILE [--zone NAME] | --key SOURCE --limit LIMIT LOG...",
		Short: "Shows what limits would have done to the requests of access logs",
		Long: `
Runs the requests of access logs through the limits of a config, at the times of
the log, and shows what they would have done. Nobody waits: delayed are those whom the
level of their bucket would have let wait. in_flight is not replayed.

With --config, requests go through the routes, matchers and zones of a Caddyfile
or of JSON, as in the running Caddy. Nothing else of it is loaded. Without a config,
--key and --limit make up one zone.

A zone is left out if its key or cost is not in the log: Caddy logs cookies and
credentials only with log_credentials, and bodies never. A zone with a field charges
all POST requests, or those to --login. A zone whose matchers look at what the log does
not show is marked as unknown.`,
		Example: `  caddy throttle replay --config /etc/caddy/Caddyfile /var/log/caddy/access.log*
  caddy throttle replay --key client_ip --limit "60 1/s" access.log.gz`,
	}
	f.add(cmd)
	cmd.Flags().StringVar(&f.limit, "limit", "", "The limit of a zone without a config, such as \"60 1/s\"")
	cmd.Flags().StringVar(&f.requests, "requests", "", "Write what each zone decides about each request to this file, as JSON lines")
	return f.reads(cmd, func(in *logReader) (finding, error) { return f.find(in) })
}

func (f *replayFlags) find(in *logReader) (*Report, error) {
	rp, err := f.player(f.limit)
	if err != nil {
		return nil, err
	}
	defer rp.close()
	tally := &replayTally{Tally: make(replay.Tally)}
	rp.observe = tally.note
	var requests *os.File
	if f.requests != "" {
		if requests, err = os.OpenFile(f.requests, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600); err != nil {
			return nil, caddymodule.UsageErrorf("--requests: %w", err)
		}
		defer func() { _ = requests.Close() }() // late lines have it written anew
		tally.out = bufio.NewWriter(requests)
	}
	notes, err := rp.runAll(in)
	if err != nil {
		return nil, err
	}
	if f.config == "" && rp.assets > 0 {
		notes = append(notes, fmt.Sprintf("%s for static assets count here. A zone with exempt static_files leaves them out, and so does caddy throttle recommend --check.", recommend.Counted(rp.assets, "request")))
	}
	if requests != nil {
		if err := errors.Join(tally.out.Flush(), requests.Close()); err != nil {
			return nil, fmt.Errorf("writing --requests: %w", err)
		}
	}
	zones := tally.Zones(rp.clientsOf)
	for _, zone := range zones {
		zone.Shadow = rp.app.Zones[zone.Name].Mode(nil, time.Time{}) != "enforcing"
		zone.Unknown = rp.unknown[zone.Name]
	}
	return reportOf(in, zones, &rp.clients, notes), nil
}

// player loads the config of the flags, which has the zone to show.
func (f *ruleFlags) player(limit string) (*player, error) {
	config, err := f.load(limit)
	if err != nil {
		return nil, err
	}
	rp, err := newPlayer(config)
	if err != nil {
		return nil, caddymodule.UsageErrorf("%w", err)
	}
	if rp.logIns = f.logIns; len(f.logIns) > 0 {
		rp.clients.LogIn = rp.logsIn
	}
	if rp.shown = f.zone; f.zone == "" || rp.app.Zones[f.zone] != nil {
		return rp, nil
	}
	rp.close()
	return nil, caddymodule.UsageErrorf("%w", caddymodule.ErrUnknown("zone", f.zone, slices.Sorted(maps.Keys(rp.app.Zones))...))
}

// load returns the config as JSON.
func (f *ruleFlags) load(limit string) ([]byte, error) {
	inline := len(f.keys) > 0 || limit != "" || f.cost != "" || f.settle != ""
	switch {
	case f.config != "" && inline:
		return nil, caddymodule.UsageErrorf("--config and --key, --limit, --cost or --settle exclude each other: change the limit in the config")
	case f.config != "":
		config, _, _, err := caddycmd.LoadConfig(f.config, f.adapter)
		if err != nil {
			return nil, caddymodule.UsageErrorf("%w", err)
		}
		return config, nil
	case !inline:
		return nil, caddymodule.UsageErrorf("no limits given: want --config <file>, or --key <source> --limit \"<capacity> <leak>\"")
	case limit == "":
		return nil, caddymodule.UsageErrorf("no limit given: want --limit \"<capacity> <leak>\", such as --limit \"60 1/s\"")
	case f.zone != "":
		return nil, caddymodule.UsageErrorf("--zone needs --config")
	}
	return flagConfig(limit, f.keys, f.cost, f.settle)
}

// runAll runs all requests of the logs. The first of them tell what the logs lack. It
// returns what the figures leave out.
func (rp *player) runAll(in *logReader) (notes []string, err error) {
	begun, batches := false, make(chan []*accesslog.Request, 4)
	var told sync.WaitGroup // the clients, beside what the zones do
	told.Go(func() {
		for batch := range batches {
			for _, req := range batch {
				rp.clients.Add(req)
			}
		}
	})
	for batch := range in.batches() {
		if !begun {
			begun = true
			var without map[string]bool
			if without, notes, err = rp.missing(factsOf(batch)); err != nil {
				break
			}
			rp.begin(without)
		}
		batches <- batch
		for _, req := range batch {
			rp.run(req)
		}
	}
	close(batches)
	told.Wait()
	if err != nil {
		return nil, err
	}
	if in.err != nil {
		return nil, in.err
	}
	rp.finish()
	return append(notes, rp.notes(in.Stats())...), nil
}

// notes returns what else the figures leave out.
func (rp *player) notes(stats *accesslog.Stats) (notes []string) {
	if host := rp.stranger(); host != "" {
		notes = append(notes, host)
	}
	for _, note := range []struct {
		requests int64
		what     string
	}{
		{rp.skipped, "left out, because the URI is invalid and Caddy would not have served it"},
		{stats.NoClient, "without a client address in the log, and so without that key"},
		{stats.StandIns, "with a hash or a name in the place of the address: each is a client of its own, and nothing in the config that names addresses holds for it"},
		{stats.Unlogged, "refused and not in the log, because refusal log kept them out: their clients seem quieter than they were"},
	} {
		if note.requests > 0 {
			notes = append(notes, fmt.Sprintf("requests %s: %s.", note.what, humanize.Comma(note.requests)))
		}
	}
	notes = append(notes, stats.Doubts()...)
	slices.Sort(rp.absent)
	for _, folder := range rp.absent {
		notes = append(notes, fmt.Sprintf("The config looks for files in %s, which is not here: static_files exempts static assets by their endings, and what try_files makes of an address may differ.", folder))
	}
	if stats.Fractions == 0 {
		notes = append(notes, "The log has whole seconds only, so the requests of a second count as arriving at once. Levels may be higher than they were by what leaks in a second.")
	}
	return notes
}

// A replayTally counts what the zones decide.
type replayTally struct {
	replay.Tally
	out *bufio.Writer // nil if nobody wants each decision
}

// note is an observer.
func (t *replayTally) note(o *limit.Outcome, req *accesslog.Request) {
	outcome := &accesslog.Outcome{
		Zone: o.Zone.Name, Key: req.Shown(o.Key), Decision: o.Decision().String(), Reason: o.Reason().String(), Cost: o.Cost,
		Level: o.Level(), Capacity: o.Limit.Capacity, Delay: o.Delay.Seconds(),
	}
	t.Add(outcome, req)
	if t.out == nil {
		return
	}
	_ = json.NewEncoder(t.out).Encode(struct { // Flush returns the error
		File string    `json:"file"`
		Line int       `json:"line"`
		At   time.Time `json:"at"`
		*accesslog.Outcome
	}{req.File, req.Line, req.At, outcome})
}

// missing returns the zones that cannot be replayed because of what the log lacks, and
// says why. It fails if no zone is left, or if the zone to show is not.
func (rp *player) missing(facts logFacts) (without map[string]bool, notes []string, err error) {
	if !facts.hosts && rp.needsHost() {
		return nil, nil, caddymodule.UsageErrorf("the log has no hosts, and the config has sites or keys by host: give --host <name>")
	}
	without, notes = make(map[string]bool), []string{}
	for _, name := range slices.Sorted(maps.Keys(rp.app.Zones)) {
		if rp.shown != "" && name != rp.shown {
			continue
		}
		z := rp.app.Zones[name]
		why := facts.lacks(z.Zone)
		if names := facts.hidden([]byte(z.Definition)); why == "" && len(names) > 0 {
			hidden := fmt.Sprintf("its matchers or costs look at the header %s, which the log does not show", strings.Join(names, ", "))
			if rp.study != nil {
				why = hidden
			} else {
				rp.unknown[name] = hidden
				notes = append(notes, fmt.Sprintf("zone %s: %s: requests are judged as if they lacked it.", name, hidden))
			}
		}
		if why != "" {
			without[name] = true
			notes = append(notes, fmt.Sprintf("zone %s is left out: %s.", name, why))
			continue
		}
		if len(z.Field) > 0 {
			counted := "to " + strings.Join(rp.logIns, ", ")
			if len(rp.logIns) == 0 {
				counted = "of this log: name the address of log-ins with --login"
			}
			notes = append(notes, fmt.Sprintf("zone %s charges requests with the field %q, and logs hold no bodies: it is judged by the POST requests %s.", name, z.Field[0], counted))
		}
		notes = append(notes, facts.doubts(z.Zone)...)
	}
	if names := facts.hidden(rp.raw); len(names) > 0 && len(notes) == 0 {
		notes = append(notes, fmt.Sprintf("matchers of the config look at the header %s, which the log does not show: requests are judged as if they lacked it.", strings.Join(names, ", ")))
	}
	if len(without) == len(rp.app.Zones) || without[rp.shown] {
		return nil, nil, caddymodule.UsageErrorf("%s", strings.Join(notes, " "))
	}
	return without, notes, nil
}

// needsHost reports whether routes or keys look at the host.
func (rp *player) needsHost() bool {
	for _, z := range rp.app.Zones {
		if strings.Contains(z.Definition, `"source":"host"`) {
			return true
		}
	}
	return slices.ContainsFunc(rp.servers, func(s *replayServer) bool { return len(s.hosts) > 0 })
}
