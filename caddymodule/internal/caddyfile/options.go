package caddyfile

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/config"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/overridefile"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/refusal"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/settlement"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/text"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/tokens"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// parseExempt reads the words after exempt: matchers, or static_files.
func parseExempt(h httpcaddyfile.Helper, sets *caddyhttp.RawMatcherSets, static *[]config.StaticFiles) error {
	if _, words := lineHere(h.Dispenser); len(words) == 0 || words[0] != staticFiles {
		return parseMatchers(h, h.Val(), sets)
	}
	words := h.RemainingArgs()
	if len(words) > 2 || len(words) == 2 && strings.TrimSpace(words[1]) == "" {
		return h.Errf("unexpected %q after exempt %s: want exempt %[2]s [<root>]", words[len(words)-1], staticFiles)
	}
	*static = append(*static, config.StaticFiles{Root: strings.Join(words[1:], "")})
	return nil
}

// before returns how many words come before the first detail.
func before(details []ZoneOption, words []string) int {
	if i := slices.IndexFunc(words, func(word string) bool { return Named(details, word) != nil }); i >= 0 {
		return i
	}
	return len(words)
}

// parseKey reads the key sources of a Caddyfile, up to the first detail of key. It returns
// how many words that were.
func parseKey(words []string) (key []config.KeySource, used int, err error) {
	end := before(keyDetails, words)
	for used < end {
		source := config.KeySource{Source: words[used]}
		used++
		switch {
		case used == end: // which is an error where a word is missing
		case source.Source == "text":
			source.Text = words[used]
			used++
		case slices.Contains(config.NamedSources, source.Source):
			source.Name = words[used]
			used++
		}
		if source.Folds() && used < end && words[used] == "fold" {
			if used++; used == end {
				return nil, used, errors.New("\"fold\" needs a word after it: want fold wordpress or fold email")
			}
			source.Fold = words[used]
			used++
		}
		key = append(key, source)
	}
	return key, used, nil
}

func parseKeyWords(z *config.Zone, words []string) (used int, err error) {
	z.Key.Sources, used, err = parseKey(words)
	if len(words) == 0 {
		err = errors.New("no source: want " + config.KeySources)
	}
	return used, err
}

// parseShare reads who takes turns, in the block of in_flight.
func parseShare(r *zoneReader) error {
	words := r.RemainingArgs()
	if len(words) == 0 {
		words = []string{"client_ip"}
	}
	sources, used, err := parseKey(words)
	if err == nil && used < len(words) {
		err = fmt.Errorf("unexpected %q after share: %[1]s goes with key", words[used])
	}
	inFlightOf(r.zone).Share = sources
	return tokens.Wrap(r.Dispenser, err)
}

func parseRoute(r *zoneReader) error {
	words := r.RemainingArgs()
	if len(words) < 2 {
		return r.Err("too few words after route: want route <name> <path>...")
	}
	r.zone.Route = append(r.zone.Route, config.Route{Name: words[0], Path: words[1:]})
	return nil
}

func parseLimit(r *zoneReader) error {
	words := r.RemainingArgs()
	r.zone.Limit = strings.Join(words, " ")
	if _, err := leakybucket.ParseLimit(r.zone.Limit); err != nil && len(words) != 2 {
		return r.Errf("%s: %s", strings.TrimSpace("limit "+r.zone.Limit), wantLimit(words))
	}
	return nil
}

func parseOverride(r *zoneReader) error {
	o, err := overridefile.ParseWords(r.RemainingArgs())
	if err != nil {
		return r.Errf("parsing override: %w: want override %s", err, overridefile.Syntax)
	}
	r.zone.Override = append(r.zone.Override, o)
	return nil
}

// parseOverrideFile reads the name of a file, relative to the Caddyfile. The config
// has its full name, since Caddy may run in another folder. The file itself is read
// when the config is loaded.
func parseOverrideFile(r *zoneReader) (err error) {
	file := &r.zone.OverrideFile
	if err = tokens.ParseArg(r.Dispenser, file); err == nil && !filepath.IsAbs(*file) {
		*file, err = filepath.Abs(filepath.Join(filepath.Dir(r.File()), *file))
	}
	return err
}

func parseCost(r *zoneReader) error {
	set, matched, err := namedMatcher(r.Helper)
	if err != nil {
		return err
	}
	if matched && !r.NextArg() || r.Val() == "cost" {
		return r.Err("cost has no value: want " + tokens.WantedAfter["cost"])
	}
	cost := config.Cost{Value: r.Val()}
	if meant := text.Nearest(cost.Value, []string{"body_items", "body_bytes"}); meant != "" && meant != cost.Value {
		return r.Errf("unknown cost %q: did you mean %s?", cost.Value, meant)
	}
	switch words := r.RemainingArgs(); {
	case len(words) == 1 && cost.Value == "body_items":
		cost.Path = words[0]
	case len(words) == 1 && cost.Value == "body_bytes":
		cost.Unit = words[0]
	case len(words) > 0:
		return r.Errf("unexpected %q after cost %s: want the matchers in a block, each on a line of its own:\n%s", words[0], cost.Value, block("cost 5", "path /search*"))
	}
	block, err := parseMatcherSet(r.Dispenser, "cost")
	if err != nil {
		return err
	}
	if len(set) > 0 && len(block) > 0 {
		return r.Errf("cost %s has a matcher on its line and a block: want one of them", cost.Value)
	}
	maps.Copy(block, set)
	if len(block) > 0 {
		cost.Match = caddyhttp.RawMatcherSets{block}
	}
	r.zone.Cost = append(r.zone.Cost, cost)
	return nil
}

func parseSettle(z *config.Zone, words []string) (used int, err error) {
	settle, used := z.Settle, before(settleDetails, words)
	if used == 0 {
		return 0, errors.New("no source: want " + tokens.WantedAfter["settle"])
	}
	settle.Source, words = words[0], words[1:used]
	last := len(words) - 1
	switch {
	case settle.Source == "seconds" && last == 0:
		err = tokens.Set(&settle.Workers, words[0])
	case settle.Source == "bytes" && last == 0:
		settle.Unit = words[0]
	case settle.Source == "header" && last == 0:
		settle.Name = words[0]
	case settle.Source == "status" && last >= 0:
		if isStatus(words[last]) || last == 0 {
			statuses := slices.DeleteFunc(slices.Clone(words), func(word string) bool { return !isStatus(word) })
			return used, fmt.Errorf("settle status %s ends without a cost: want settle status %s 1",
				strings.Join(words, " "), cmp.Or(strings.Join(statuses, " "), "401"))
		}
		settle.Status = words[:last]
		err = tokens.Set(&settle.Cost, words[last])
	case last >= 0:
		err = fmt.Errorf("wrong words after %s: want %s", settle.Source, tokens.WantedAfter["settle"])
	}
	return used, err
}

func isStatus(word string) bool {
	_, err := settlement.ParseStatus(word)
	return err == nil
}

// parseRefund reads a response matcher as Caddy does, or the cookie that a response sets.
func parseRefund(r *zoneReader) error {
	_, words := lineHere(r.Dispenser)
	if len(words) > 0 && words[0] == "cookie" {
		if words = r.RemainingArgs(); len(words) != 2 {
			return r.Errf("wrong number of words after refund cookie: want refund cookie <glob>, and a line for each cookie")
		}
		r.zone.Refund = append(r.zone.Refund, config.Refund{Cookie: words[1]})
		return nil
	}
	if len(words) > 0 && words[0] != "status" && words[0] != "header" {
		return r.Errf("unknown word %q after refund: want refund status <code|class>..., refund header <Field> <value> or refund cookie <glob>", words[0])
	}
	matchers := make(map[string]caddyhttp.ResponseMatcher)
	if err := caddyhttp.ParseNamedResponseMatcher(r.NewFromNextSegment(), matchers); err != nil {
		return fmt.Errorf("parsing refund, with one matcher on a line or several in a block: %w", err)
	}
	match := matchers["refund"]
	r.zone.Refund = append(r.zone.Refund, config.Refund{Match: &match})
	return nil
}

func parseBlock(z *config.Zone, words []string) (used int, err error) {
	for used < len(words) && words[used] != "everywhere" && err == nil {
		z.Block.For = append(z.Block.For, 0)
		err = tokens.Set(&z.Block.For[used], words[used])
		used++
	}
	return used, err
}

func parseTrust(z *config.Zone, words []string) (used int, err error) {
	const want = "want the cookie that a log-in sets first, as in trust_devices wordpress_logged_in_* 180d"
	if len(words) == 0 {
		return 0, errors.New("no cookie: " + want)
	}
	if _, err := tokens.ParseDuration(words[0]); err == nil || words[0] == "on" {
		return 0, fmt.Errorf("unexpected %q: %s", words[0], want)
	}
	z.TrustDevices.Cookie = words[0]
	if len(words) > 1 {
		err = tokens.Set(&z.TrustDevices.For, words[1])
	}
	return min(2, len(words)), err
}

// parsePage reads the words after page: a file, or a block that brands the built-in
// page.
func parsePage(r *zoneReader) error {
	own := partOf(r.zone, "refusal").(*config.Refusal)
	if words := r.RemainingArgs(); len(words) > 0 {
		page, err := readPage(r.File(), words[0])
		if len(words) > 1 {
			err = fmt.Errorf("unexpected %q after page %s: want\n%s", words[1], words[0], pageLines(words))
		}
		own.PageHTML = &page
		return tokens.Wrap(r.Dispenser, err)
	}
	own.PageStyle = new(config.PageStyle)
	here := tokens.Place(r.Dispenser)
	err := tokens.Options(r.Dispenser, "page", own.PageStyle, func() error { return own.PageStyle.Validate() }, pageStyle...)
	if err == nil && *own.PageStyle == (config.PageStyle{}) {
		err = fmt.Errorf("page has no value: want a file, or a block of title, accent and text, %s", here)
	}
	return err
}

// pageLines returns the lines that several words after page on its line were meant to be, in
// the block of refusal.
func pageLines(words []string) string {
	if slices.Contains(pageStyle, words[0]) {
		return block("page", words[0]+" "+quoted([]string{strings.Join(words[1:], " ")}))
	}
	return "page " + quoted(words[:1]) + "\n" + quoted(words[1:])
}

var pageStyle = []string{"title", "accent", "text"}

// readPage reads a file that is named in a Caddyfile, relative to that. So an edited page is
// a changed config, and a missing one an error with a line.
func readPage(caddyfile, name string) (string, error) {
	if !filepath.IsAbs(name) {
		name = filepath.Join(filepath.Dir(caddyfile), name)
	}
	info, err := os.Stat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "", fmt.Errorf("reading page: %w: want the name of an HTML file, relative to the Caddyfile", err)
	case err == nil && !info.Mode().IsRegular(): // which could be endless
		return "", fmt.Errorf("reading page: %s is no regular file", name)
	case err == nil && info.Size() > refusal.MostPage:
		return "", fmt.Errorf("reading page: %s has more than %d bytes", name, refusal.MostPage)
	}
	page, err := os.ReadFile(name)
	if err != nil {
		err = fmt.Errorf("reading page: %w", err)
	}
	return string(page), err
}

const (
	rankSyntax = "member issued <cookie-glob>...|member told <Response-Header> <cookie-glob>|member|crawler <request matchers>"

	wantRank = "want rank member issued <cookie-glob>..., rank member told <Response-Header> <cookie-glob>, or rank member|crawler with request matchers"
)

// parseRank reads the option rank.
func parseRank(r *zoneReader) error {
	_, words := lineHere(r.Dispenser)
	words = append(words, "", "")
	rank := config.Rank{Rank: words[0]}
	if rank.Rank != config.RankMember && rank.Rank != config.RankCrawler {
		return r.Errf("unknown rank %q: %s", rank.Rank, wantRank)
	}
	name := words[1]
	if name == "cookie" {
		name = words[2]
	}
	switch {
	case name != words[1] || strings.HasSuffix(name, "*") && name != "*":
		return r.Errf("unknown matcher %q in rank %s: did you mean rank member issued %s?", words[1], rank.Rank, name)
	case name == "issued":
		if rank.Issued = r.RemainingArgs()[2:]; slices.Contains(rank.Issued, "told") {
			return r.Err("rank member issued and rank member told stand on one line: want a line for each")
		}
	case name == "told":
		if words = r.RemainingArgs(); len(words) != 4 {
			return r.Err("wrong number of words after rank member told: want one response header and the cookie of the session, such as X-Throttle-User _redmine_session")
		}
		rank.Told, rank.Session = words[2], words[3]
	default:
		r.NextArg()
		if err := parseMatchers(r.Helper, "rank "+rank.Rank, &rank.Match); err != nil {
			return err
		}
	}
	inFlight := inFlightOf(r.zone)
	inFlight.Rank = append(inFlight.Rank, rank)
	return nil
}
