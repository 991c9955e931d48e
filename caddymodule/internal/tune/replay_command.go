package tune

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/accesslog"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/config"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/decision"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/replay"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/text"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/usage"
)

// ReplayFlags are the flags of `caddy throttle replay`.
type ReplayFlags struct {
	LogFlags
	Config, adapter, Zone string
	Keys                  []string
	Limit, Cost           string
	compare               string
	requests              string
}

func replayCommand() *cobra.Command {
	var f ReplayFlags
	cmd := &cobra.Command{
		Use:   "replay --config FILE [--zone NAME] | --key SOURCE --limit LIMIT LOG...",
		Short: "Shows what limits would have done to the requests of access logs",
		Long: `
Runs the requests of access logs through the limits of a config, in virtual time,
and shows what they would have done: requests admitted, refused and delayed, the
keys that were refused most, when and where, and the fullest that a bucket was.

With --config, requests go through the routes, matchers and zones of a Caddyfile
or of JSON, as in the running Caddy. Nothing else of the config is loaded: no log
or storage is opened, no upstream called. Matchers that look at files do look at
them. The status, size and duration of the log count for settle and
in_flight. With --zone, only that zone is shown.

Without a config, --key and --limit make up one zone. They are spelled
as in a zone of the Caddyfile.

A zone is left out if its key or cost is not in the log: bodies never are, and
Caddy logs cookies and credentials only with log_credentials. Combined logs have
no other headers than Referer and User-Agent. Refusals that are in the log already
count as requests with the status of the refusal.

--compare runs other algorithms beside the bucket: fixed, a fixed window of
capacity / leak seconds that admits the capacity, and sliding, one that slides
by parts of that: 10 unless told, as in sliding=20. They show how many requests each
refuses, and the most that any second and any minute admitted of one key.`,
		Example: `  caddy throttle replay --config /etc/caddy/Caddyfile /var/log/caddy/access.log*
  caddy throttle replay --config Caddyfile --zone login --json access.log
  caddy throttle replay --key client_ip --limit "60 1/s" access.log.gz
  zcat old.log.Z | caddy throttle replay --config Caddyfile --host example.com -`,
	}
	f.add(cmd)
	cmd.Flags().StringVar(&f.Limit, "limit", "", "The limit of a zone without a config, such as \"60 1/s\"")
	cmd.Flags().StringVar(&f.compare, "compare", "", "Other algorithms to run beside the bucket: fixed, sliding or, with its parts, sliding=20; with commas between")
	cmd.Flags().StringVar(&f.requests, "requests", "", "Write what each zone decides about each request to this file, as JSON lines")
	return Runnable(cmd, f.run)
}

// add adds the flags that say which zones requests go through.
func (f *ReplayFlags) add(cmd *cobra.Command) {
	f.LogFlags.Add(cmd)
	cmd.Flags().StringVarP(&f.Config, "config", "c", "", "The config with the zones")
	cmd.Flags().StringVarP(&f.adapter, "adapter", "a", "", "The adapter of the config, if it is neither JSON nor a Caddyfile")
	cmd.Flags().StringVar(&f.Zone, "zone", "", "Only this zone of the config")
	cmd.Flags().StringArrayVar(&f.Keys, "key", nil, "The key of a zone without a config; repeat it for several sources (default client_ip)")
	cmd.Flags().StringVar(&f.Cost, "cost", "", "The cost of each request of a zone without a config (default 1)")
}

func (f *ReplayFlags) run(ctx context.Context, logs []string) (err error) {
	config, err := f.LoadConfig()
	if err != nil {
		return err
	}
	windows, err := replay.ParseWindows(f.compare)
	if err != nil {
		return usage.Wrap(err)
	}
	observer := &ReplayTally{Tally: replay.New(windows), zone: f.Zone}
	rp, err := NewPlayer(config, observer)
	if err != nil {
		return usage.Wrap(err)
	}
	defer rp.Close()
	if err := rp.knows(f.Zone); err != nil {
		return err
	}
	if f.requests != "" {
		if err := observer.writeTo(f.requests); err != nil {
			return usage.Errorf("--requests: %w", err)
		}
	}
	in, err := f.Open(ctx, logs)
	if err != nil {
		return err
	}
	defer in.Close()
	notes, err := rp.RunAll(in, f.Zone)
	if err != nil {
		return err
	}
	rp.End()
	if err := observer.flush(); err != nil {
		return err
	}
	zones := observer.Zones()
	for i := range zones {
		zones[i].Group = rp.app.Zones[zones[i].Name].JudgedWith(nil)
	}
	if err := f.Print(&replay.Report{
		Log: in.Log(logs), Zones: zones, Notes: append(append([]string{}, notes...), rp.notes(in.Stats())...), Partial: in.Interrupted,
	}); err != nil {
		return err
	}
	return in.Broken()
}

// LoadConfig returns the config as JSON.
func (f *ReplayFlags) LoadConfig() ([]byte, error) {
	inline := len(f.Keys) > 0 || f.Limit != "" || f.Cost != ""
	switch {
	case f.Config != "" && inline:
		return nil, usage.Errorf("--config and --key, --limit or --cost exclude each other: change the limit in the config")
	case f.Config != "":
		config, _, _, err := caddycmd.LoadConfig(f.Config, f.adapter)
		if err != nil {
			return nil, usage.Wrap(err)
		}
		return config, nil
	case !inline:
		return nil, usage.Errorf("no limits given: want --config <file>, or --key <source> --limit \"<capacity> <leak>\"")
	case f.Limit == "":
		return nil, usage.Errorf("no limit given: want --limit \"<capacity> <leak>\", such as --limit \"60 1/s\"")
	case f.Zone != "":
		return nil, usage.Errorf("--zone needs --config")
	}
	return FlagConfig(f.Limit, f.Keys, f.Cost)
}

// knows checks that the config has a zone of this name, or that it is empty.
func (rp *player) knows(zone string) error {
	if zone == "" || rp.app.Zones[zone] != nil {
		return nil
	}
	known := slices.Sorted(maps.Keys(rp.app.Zones))
	if meant := text.Nearest(zone, known); meant != "" {
		return usage.Errorf("the config has no zone %q: did you mean %s?", zone, meant)
	}
	return usage.Errorf("the config has no zone %q: it has %s", zone, strings.Join(known, ", "))
}

// RunAll runs all requests of the logs. The first of them tell what the logs lack; the
// notes say what that means.
func (rp *player) RunAll(in *LogReader, shown string) (notes []string, err error) {
	var first []*accesslog.Request
	begun := false
	begin := func() error {
		begun = true
		without, whys, err := rp.missing(FactsOf(first), shown)
		if err != nil {
			return err
		}
		notes = whys
		o := rp.options
		o.Without = without
		rp.begin(o)
		for _, req := range first {
			rp.run(req)
		}
		first = nil
		return nil
	}
	err = in.Each(func(req *accesslog.Request) error {
		if begun {
			rp.run(req)
			return nil
		}
		if first = append(first, req); len(first) == peekedRequests {
			return begin()
		}
		return nil
	})
	if err == nil && !begun {
		err = begin()
	}
	return notes, err
}

// peekedRequests is how many requests tell what the logs lack.
const peekedRequests = 1000

// notes returns what else the figures leave out.
func (rp *player) notes(stats *accesslog.Stats) (notes []string) {
	for _, note := range []struct {
		requests int64
		what     string
	}{
		{rp.skipped, "left out, because the URI is invalid and Caddy would not have served it"},
		{stats.NoClient, "without a client address in the log, and so without that key"},
		{stats.Unlogged, "refused and not in the log, because log kept them out: their clients seem quieter than they were"},
		{stats.Late, "far out of order, and counted as arriving later"},
	} {
		if note.requests > 0 {
			notes = append(notes, fmt.Sprintf("requests %s: %s.", note.what, humanize.Comma(note.requests)))
		}
	}
	slices.Sort(rp.absent)
	for _, folder := range rp.absent {
		notes = append(notes, fmt.Sprintf("The config looks for files in %s, which is not here: what static_files exempts and what try_files makes of an address may differ.", folder))
	}
	if stats.Fractions == 0 {
		notes = append(notes, "The log has whole seconds only, so the requests of a second count as arriving at once. Levels may be higher than they were by what leaks in a second.")
	}
	return notes
}

// A ReplayTally counts what the zones decide.
type ReplayTally struct {
	*replay.Tally
	zone string // the only one to count, or empty
	out  *bufio.Writer
	file *os.File
	err  error
}

// Decided implements replayObserver.
func (t *ReplayTally) Decided(o *decision.Outcome, req *accesslog.Request) {
	if t.zone != "" && t.zone != o.Zone.Name {
		return
	}
	d, why := o.Ruling()
	t.Add(&replay.Decided{
		Zone: o.Zone.Name, Key: o.Key, Decision: d.String(), Reason: why.String(), Cost: o.Cost,
		Level: o.Level(), Capacity: o.Limit.Capacity, Leak: o.Limit.Leak, Delay: o.Delay, Request: req,
	})
	if t.out != nil {
		t.write(o, req)
	}
}

// writeTo writes what zones decide about each request to a file.
func (t *ReplayTally) writeTo(name string) (err error) {
	if t.file, err = os.Create(name); err == nil {
		t.out = bufio.NewWriter(t.file)
	}
	return err
}

// write writes one decision.
func (t *ReplayTally) write(o *decision.Outcome, req *accesslog.Request) {
	d, why := o.Ruling()
	line, err := json.Marshal(struct {
		File     string  `json:"file"`
		Line     int     `json:"line"`
		At       string  `json:"at"`
		Zone     string  `json:"zone"`
		Key      string  `json:"key"`
		Decision string  `json:"decision"`
		Reason   string  `json:"reason,omitempty"`
		Cost     float64 `json:"cost"`
		Level    float64 `json:"level"`
		Delay    float64 `json:"delay_seconds,omitempty"`
	}{req.File, req.Line, req.At.Format("2006-01-02T15:04:05.000000Z"), o.Zone.Name, o.Key, d.String(), why.String(), o.Cost, o.Level(), o.Delay.Seconds()})
	if err == nil {
		_, err = t.out.Write(append(line, '\n'))
	}
	if t.err == nil {
		t.err = err
	}
}

// flush writes what is left to the file.
func (t *ReplayTally) flush() error {
	if t.out == nil {
		return nil
	}
	for _, err := range []error{t.err, t.out.Flush(), t.file.Close()} {
		if err != nil {
			return fmt.Errorf("writing --requests: %w", err)
		}
	}
	return nil
}

// missing returns the zones that cannot be replayed because of what the log lacks, and
// says why. It fails if no zone is left, or if the zone to show is not.
func (rp *player) missing(facts LogFacts, shown string) (without map[string]bool, notes []string, err error) {
	if !facts.Hosts && rp.needsHost() {
		return nil, nil, usage.Errorf("the log has no hosts, and the config has sites or keys by host: give --host <name>")
	}
	without = make(map[string]bool)
	for _, name := range slices.Sorted(maps.Keys(rp.app.Zones)) {
		var definition config.Zone
		if err := json.Unmarshal([]byte(rp.app.Zones[name].Definition), &definition); err != nil {
			return nil, nil, err
		}
		if why := facts.Lacks(&definition); why != "" {
			without[name] = true
			notes = append(notes, fmt.Sprintf("zone %s is left out: %s.", name, why))
			continue
		}
		notes = append(notes, facts.Doubts(&definition)...)
	}
	if without[shown] || len(without) == len(rp.app.Zones) {
		return nil, nil, usage.Errorf("%s", strings.Join(notes, " "))
	}
	return without, notes, nil
}

// needsHost reports whether routes or keys look at the host.
func (rp *player) needsHost() bool {
	for _, s := range rp.servers {
		if len(s.hosts) > 0 {
			return true
		}
	}
	for _, z := range rp.app.Zones {
		if strings.Contains(z.Definition, `"source":"host"`) {
			return true
		}
	}
	return false
}

// Interface guards
var _ replayObserver = (*ReplayTally)(nil)
