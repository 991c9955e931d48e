package tune

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2/caddyconfig"
	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	"github.com/spf13/cobra"

	"github.com/caddy-throttle/caddy-throttle/caddymodule"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/command"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/limit"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/tune/internal/accesslog"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/tune/internal/clients"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/tune/internal/recommend"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// ruleFlags are the flags that say through which zones requests go.
type ruleFlags struct {
	logFlags
	config, adapter, zone string
	logIns                []string
}

// add adds the flags, but for those that all commands have.
func (f *ruleFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVarP(&f.config, "config", "c", "", "The config with the zones")
	cmd.Flags().StringVarP(&f.adapter, "adapter", "a", "", "The adapter of the config, such as caddyfile; needed unless the file is named *.json, Caddyfile* or *.caddyfile")
	cmd.Flags().StringVar(&f.zone, "zone", "", "Only this zone of the config, as if there were no other")
	cmd.Flags().StringArrayVar(&f.logIns, "login", nil, "The address to which logins are sent, such as /wp-login.php, for zones with a field: logs hold no bodies (default all POST requests)")
}

// replayFlags are the flags of `caddy throttle replay`.
type replayFlags struct {
	ruleFlags
	requests string
}

func replayCommand() *cobra.Command {
	var f replayFlags
	cmd := &cobra.Command{
		Use:   "replay --config FILE [--zone NAME] LOG...",
		Short: "Shows what limits would have done to the requests of access logs",
		Long: `
Runs the requests of access logs through the routes, matchers and zones of a config, as
in the running Caddy, at the times of the log, and shows what they would have done.
Nothing else of the config is loaded, and in_flight is not replayed.

A zone is left out if its key or cost is not in the log: Caddy logs cookies and
credentials only with log_credentials, and bodies never. A zone with a field charges
all POST requests, or those to --login.` + aboutLogs,
		Example: `  caddy throttle replay --config /etc/caddy/Caddyfile /var/log/caddy/access*.log*`,
	}
	f.add(cmd)
	cmd.Flags().StringVar(&f.requests, "requests", "", "Write what each zone decides about each request to this new file, as JSON lines")
	return f.reads(cmd, f.find)
}

func (f *replayFlags) find(in *accesslog.Reader) (_ finding, err error) {
	if f.config == "" {
		return nil, command.UsageErrorf("no limits given: want --config <file>, or caddy throttle recommend --check <limit>")
	}
	rp, err := f.player()
	if err != nil {
		return nil, err
	}
	defer rp.close()
	found, write := make(tally), func(any) error { return nil }
	if f.requests != "" {
		file, failed := os.OpenFile(f.requests, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600) // it may be one of the logs
		if failed != nil {
			return nil, command.UsageErrorf("--requests: %w", failed)
		}
		out := bufio.NewWriter(file)
		write = json.NewEncoder(out).Encode
		defer func() {
			if failed := errors.Join(out.Flush(), file.Close()); failed != nil && err == nil {
				err = fmt.Errorf("writing --requests: %w", failed)
			}
		}()
	}
	rp.observe = func(o *limit.Outcome, req *accesslog.Request) {
		outcome := &accesslog.Outcome{
			Zone: o.Zone.Name, Key: req.Shown(o.Key), Decision: o.Decision().String(), Reason: o.Reason().String(), Cost: o.Cost,
			Level: o.Level(), Capacity: o.Limit.Capacity, Delay: o.Delay.Seconds(),
		}
		found.add(outcome, req)
		_ = write(struct { // Flush returns the error
			File string    `json:"file"`
			Line int       `json:"line"`
			At   time.Time `json:"at"`
			*accesslog.Outcome
		}{req.File, req.Line, req.At, outcome})
	}
	notes, err := rp.runAll(in)
	if err != nil {
		return nil, err
	}
	zones := found.zones(rp.clientsOf)
	for _, zone := range zones {
		zone.Shadow = rp.app.Zones[zone.Name].Mode(nil, time.Time{}) != "enforcing"
		zone.Unknown = rp.unknown[zone.Name]
	}
	return reportOf(in, zones, &rp.clients, notes), nil
}

// player loads the config of the flags, which has the zone to show, or one of a zone for pages whose
// limit does not matter.
func (f *ruleFlags) player() (*player, error) {
	config, _, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte(":80 {\nthrottle pages 1000000 1000000/s\n}\n"), nil)
	if f.config != "" {
		config, _, _, err = caddycmd.LoadConfig(f.config, f.adapter)
	}
	if err != nil {
		return nil, command.UsageErrorf("%w", err)
	}
	rp, err := newPlayer(config)
	if err != nil {
		return nil, command.UsageErrorf("%w", err)
	}
	if rp.logIns = f.logIns; len(f.logIns) > 0 {
		rp.clients.LogIn = rp.logsIn
	}
	if rp.shown = f.zone; f.zone == "" || rp.app.Zones[f.zone] != nil {
		return rp, nil
	}
	rp.close()
	return nil, command.UsageErrorf("%w", caddymodule.ErrUnknown("zone", f.zone, slices.Sorted(maps.Keys(rp.app.Zones))...))
}

// runAll runs all requests of the logs, and returns what the figures leave out.
func (rp *player) runAll(in *accesslog.Reader) (notes noted, err error) {
	begun := false
	for req, err := range in.Requests {
		if err != nil {
			return nil, err
		}
		if !begun {
			begun = true
			var without map[string]bool
			if without, notes, err = rp.missing(in.Facts()); err != nil {
				return nil, err
			}
			rp.begin(without)
		}
		rp.clients.Add(req)
		rp.run(req)
	}
	return append(notes, rp.notes(in.Stats())...), nil
}

// notes returns what else the figures leave out.
func (rp *player) notes(stats *accesslog.Stats) (notes noted) {
	requests := func(n int64, what string) { notes.add(n > 0, "requests %s: %s.", what, clients.Comma(int(n))) }
	requests(int64(rp.elsewhere), "for hosts of which the config has no site, such as "+command.Printable(rp.stranger, 80)+" (change that in a copy to try it)")
	requests(int64(rp.skipped), "left out, because the URI is invalid and Caddy would not have served it")
	requests(stats.Upgraded, "left out, because Caddy sent the client from HTTP to HTTPS, and asked no zone")
	requests(stats.NoClient, "without a client address in the log, and so without that key")
	requests(stats.StandIns, "with a hash or a name in the place of the address: each is a client of its own, and nothing in the config that names addresses holds for it")
	requests(stats.Unlogged, "refused and not in the log, because refusal log kept them out: their clients seem quieter than they were")
	for _, zone := range slices.Sorted(maps.Keys(rp.keyless)) {
		requests(int64(rp.keyless[zone]), "without the key of zone "+zone+", which go by its key missing")
	}
	notes.add(bytes.Contains(rp.raw, []byte(`"handler":"invoke"`)), "The config has invoke: named routes are not followed, and nothing is judged by what they limit or answer.")
	notes = append(notes, stats.Doubts()...)
	slices.Sort(rp.absent)
	for _, folder := range rp.absent {
		notes.add(true, "The config looks for files in %s, which is not here: static_files exempts static assets by their endings, and what try_files makes of an address may differ.", folder)
	}
	notes.add(stats.Fractions == 0, "The log has whole seconds only, so the requests of a second count as arriving at once. Levels may be higher than they were by what leaks in a second.")
	return notes
}

// missing returns the zones that cannot be replayed because of what the log lacks, and
// says why. It fails if no zone is left, or if the zone to show is not.
func (rp *player) missing(facts *accesslog.Facts) (without map[string]bool, notes noted, err error) {
	if !facts.Hosts && (bytes.Contains(rp.raw, []byte(`"source":"host"`)) || slices.ContainsFunc(rp.servers, func(s *replayServer) bool { return len(s.hosts) > 0 })) {
		return nil, nil, command.UsageErrorf("the log has no hosts, and the config has sites or keys by host: give --host <name>")
	}
	without, notes = make(map[string]bool), noted{}
	for _, name := range slices.Sorted(maps.Keys(rp.app.Zones)) {
		z, unseen := rp.app.Zones[name], ""
		why := lacks(facts, z.Zone)
		if names := hidden(facts, []byte(z.Definition)); len(names) > 0 {
			unseen = fmt.Sprintf("its matchers or costs look at the header %s, which the log does not show", strings.Join(names, ", "))
		}
		if !facts.Caddy && askedTLS.MatchString(z.Definition) {
			unseen = cmp.Or(unseen, "its matchers ask for TLS, which only Caddy's log shows")
		}
		if rp.study != nil {
			why = cmp.Or(why, unseen)
		}
		switch {
		case rp.shown != "" && name != rp.shown:
			continue
		case why != "":
			without[name] = true
			notes.add(true, "zone %s is left out: %s.", name, why)
			continue
		case unseen != "":
			rp.unknown[name] = unseen
			notes.add(true, "zone %s: %s: requests are judged without its value.", name, unseen)
		}
		doubt := func(is bool, what string) { notes.add(is, "zone %s %s.", name, what) }
		doubt(len(z.Field) > 0, "charges requests with a field, and logs hold no bodies: it is judged by the POST requests to "+cmp.Or(strings.Join(rp.logIns, ", "), "any address. Name that of logins with --login"))
		doubt(z.Settle != nil && z.Settle.Source == "header", "settles what a response header says, which logs do not hold: its charges stay as they were reserved")
		doubt(z.Settle != nil && z.Settle.Source == "seconds", "settles the time until the response's headers come, and most logs have that until its end: slow clients and large responses cost more here. --time-field names another field")
		doubt(slices.ContainsFunc(z.Refund, func(r limit.Refund) bool { return r.Cookie != "" || len(r.Match.Headers) > 0 }), "refunds by a cookie or a header of responses, which logs do not hold: such refunds are left out, so right logins are charged like wrong ones")
		doubt(z.Delay != nil, "delays requests, and nobody waits in a replay: delayed are those whom the level of their bucket would have let wait. How many may wait at once does not count, and the upstream gets them at once")
		doubt(z.TrustDevices != nil, "trusts devices, whose cookies logs do not hold: all requests are charged to the account")
	}
	names := hidden(facts, rp.raw)
	notes.add(len(names) > 0 && len(notes) == 0, "matchers of the config look at the header %s, which the log does not show: requests are judged without its value.", strings.Join(names, ", "))
	notes.add(!facts.Caddy && askedScheme.Match(rp.raw), "matchers of the config ask for TLS, which only Caddy's log shows: requests are judged as if they came without.")
	if len(without) == len(rp.app.Zones) || without[rp.shown] {
		return nil, nil, command.UsageErrorf("%s", strings.Join(notes, " "))
	}
	return without, notes, nil
}

// lacks returns why a zone cannot be replayed, or "".
func lacks(f *accesslog.Facts, z *limit.Zone) string {
	for _, k := range z.Key.Sources {
		header := http.CanonicalHeaderKey(map[string]string{"cookie": "Cookie", "basic_user": "Authorization", "header": k.Name}[k.Source])
		_, redacted := f.Headers[header]
		switch {
		case k.Source == "field":
			return "its key is the form field " + strconv.Quote(k.Name) + ", and logs hold no bodies"
		case strings.Contains(k.Source, "{http.auth."), strings.Contains(k.Source, "{http.request.tls.client."):
			return "its key is who has authenticated, and a replay authenticates nobody"
		case header == "" || f.Shows(header):
		case redacted && (header == "Cookie" || header == "Authorization"):
			return "its key is in the header " + header + ", which the log does not show: set log_credentials in the servers options to log it"
		default:
			return "its key is in the header " + header + ", which the log does not show"
		}
	}
	for _, cost := range z.Cost {
		if strings.HasPrefix(cost.Value, "body_items") || strings.HasPrefix(cost.Value, "body_bytes") && !f.Caddy {
			return "its cost is in the body, and logs hold no bodies"
		}
	}
	switch s := z.Settle; {
	case s == nil:
	case s.Source == "header" && s.After:
		return "it charges what a response header says, which logs do not hold"
	case s.Source == "seconds" && !f.Durations:
		return "it settles seconds, and the log has no durations"
	case s.Source == "bytes" && !f.Sizes:
		return "it settles bytes, and the log has no sizes"
	}
	return ""
}

var (
	// sentHeader finds the headers and cookies that matchers, expressions and placeholders ask for.
	sentHeader = regexp.MustCompile(`"header(?:_regexp)?":(\{(?:[^{}"]|"(?:[^"\\]|\\.)*"|\{(?:[^{}"]|"(?:[^"\\]|\\.)*")*\})*\})|\bheader(?:_regexp)?\(\s*(?:\{\s*)?(?:['\x60]|\\")([^'"\x60\\]+)|http\.request\.header\.([A-Za-z0-9-]+)|http\.request\.(cookie)\.`)

	// askedTLS finds matchers that tell connections with TLS from others.
	askedTLS = regexp.MustCompile(`"protocol":"https?"|"tls":`)

	// askedScheme finds them in a whole config, where tls is also a transport's.
	askedScheme = regexp.MustCompile(`"protocol":"https?"`)

	// matchedHeader finds those in the JSON of a matcher.
	matchedHeader = regexp.MustCompile(`"([^"]+)":[\[{n]`)
)

// hidden returns the headers that matchers and costs in a part of a config look at and
// that the log does not show.
func hidden(f *accesslog.Facts, part []byte) (names []string) {
	for _, found := range sentHeader.FindAllStringSubmatch(string(part), -1) {
		for _, match := range append(matchedHeader.FindAllStringSubmatch(found[1], -1), []string{"", cmp.Or(found[2], found[3], found[4])}) {
			if name := http.CanonicalHeaderKey(match[1]); name != "" && !f.Shows(name) && !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	slices.Sort(names)
	return names
}

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
