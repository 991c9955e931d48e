package caddyfile

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/config"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/overridefile"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/settlement"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/text"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/tokens"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// LargestPage is the largest size of a page, in bytes.
const LargestPage = 1 << 20

// parseExempt reads the words after exempt: matchers, or static_files.
func parseExempt(d *caddyfile.Dispenser, matcher matcherToken, sets *caddyhttp.RawMatcherSets, static *[]config.StaticFiles) error {
	if !d.NextArg() {
		return parseMatchers(d, d.Val(), matcher, sets)
	}
	if d.Val() != staticFiles {
		d.Prev()
		return parseMatchers(d, d.Val(), matcher, sets)
	}
	words := d.RemainingArgs()
	switch {
	case len(words) > 1:
		return d.Errf("unexpected %q after exempt %s %s: want at most a root", words[1], staticFiles, words[0])
	case len(words) == 1 && strings.TrimSpace(words[0]) == "":
		return d.Errf("the root of exempt %s is blank: want a folder, or nothing for the site's root", staticFiles)
	case d.NextBlock(d.Nesting()):
		return d.Errf("exempt %s takes no block: want exempt %[1]s [<root>]", staticFiles)
	}
	files := config.StaticFiles{Root: strings.Join(words, "")}
	if slices.Contains(*static, files) {
		return d.Errf("exempt %s is given twice", strings.TrimSpace(staticFiles+" "+files.Root))
	}
	*static = append(*static, files)
	return nil
}

// before returns how many words come before the first detail.
func before(details []detail, words []string) int {
	if i := slices.IndexFunc(words, func(word string) bool {
		return slices.ContainsFunc(details, func(d detail) bool { return d.Name == word })
	}); i >= 0 {
		return i
	}
	return len(words)
}

func parseKeyWords(z *config.Zone, words []string) (used int, err error) {
	if keyIn(z).Sources, used, err = parseKey(words); err == nil && used == 0 && len(words) == 0 {
		err = fmt.Errorf("key has no source: want %s", config.KeySources)
	}
	return used, err
}

func parseReadBody(z *config.Zone, words []string) (int, error) {
	if len(words) == 0 || words[0] == "else" {
		return 0, errors.New("read_body has no size: want read_body <size>, such as read_body 64KiB")
	}
	var err error
	if readBodyIn(z).Most, err = asText(config.ParseSize(config.LargestReadBody))(words[0]); err != nil {
		err = fmt.Errorf("parsing read_body: %w", err)
	}
	return 1, err
}

func parseInFlight(z *config.Zone, words []string) (int, error) {
	if len(words) == 0 {
		return 0, errors.New("in_flight has no number: want in_flight <n>, such as in_flight 5, how many requests are served at once")
	}
	if _, err := leakybucket.ParseRate(words[0]); err == nil {
		n, _, _ := strings.Cut(words[0], "/")
		return 0, fmt.Errorf("parsing in_flight: invalid number %q: it is a number of requests at a time, and no rate: want in_flight %s, or limit %[2]s %[1]s", words[0], n)
	}
	var err error
	if inFlightIn(z).Slots, err = tokens.ParseWhole(1, config.MostAtOnce)(words[0]); err != nil {
		err = fmt.Errorf("parsing in_flight: %w", err)
	}
	return 1, err
}

// parseShare reads who takes turns, in the block of in_flight.
func parseShare(z *config.Zone, d *caddyfile.Dispenser) error {
	words := d.RemainingArgs()
	if len(words) == 0 {
		words = []string{"client_ip"}
	}
	sources, used, err := parseKey(words)
	if err == nil && used < len(words) {
		err = fmt.Errorf("unexpected %q after share: %[1]s goes with key", words[used])
	}
	if err != nil {
		return d.WrapErr(err)
	}
	inFlightIn(z).Share = sources
	return nil
}

func parseRoute(z *config.Zone, d *caddyfile.Dispenser) error {
	words := d.RemainingArgs()
	if len(words) < 2 {
		return d.Err("too few words after route: want route <name> <path>...")
	}
	z.Route = append(z.Route, config.Route{Name: words[0], Path: words[1:]})
	return nil
}

func parseZoneLimit(r *zoneReader) error {
	words := r.RemainingArgs()
	if len(words) == 1 && r.lines.after(windowWords) != "" {
		return r.Errf("limit %s: the rate is missing: %s", words[0], want(r.lines.limit()))
	}
	limit, err := parseLimit(words)
	if err != nil {
		return r.WrapErr(err)
	}
	r.zone.Limit = limit
	return nil
}

// parseLimit reads a burst and a rate.
func parseLimit(words []string) (string, error) {
	if len(words) > 2 && tokens.WantedAfter[words[2]] != "" {
		return "", fmt.Errorf("unexpected %q after limit %s %s: want a line for each option", words[2], words[0], words[1])
	}
	if len(words) == 1 && words[0] == "unlimited" {
		return "", errors.New("limit unlimited: want override <part>... unlimited for some keys, or no zone")
	}
	if _, err := leakybucket.ParseLimit(strings.Join(words, " ")); err != nil && len(words) > 0 {
		if why, limit := meantLimit(words); limit != "" {
			return "", fmt.Errorf("limit %s: %s: want limit %s", strings.Join(words, " "), why, limit)
		}
	}
	if len(words) != 2 {
		return "", errors.New("wrong number of words after limit: want limit <capacity> <leak>, such as limit 100 10/s")
	}
	if _, err := leakybucket.ParseLimit(words[0] + " " + words[1]); err != nil {
		return "", fmt.Errorf("parsing limit: %w", err)
	}
	return words[0] + " " + words[1], nil
}

func parseOverride(z *config.Zone, d *caddyfile.Dispenser) error {
	o, err := overridefile.ParseWords(d.RemainingArgs())
	if err != nil {
		return d.Errf("parsing override: %w: want override %s", err, overridefile.Syntax)
	}
	z.Override = append(z.Override, o)
	return nil
}

// parseOverrideFile reads the name of a file, relative to the Caddyfile. The config
// has its full name, since Caddy may run in another folder. The file itself is read
// when the config is loaded.
func parseOverrideFile(z *config.Zone, d *caddyfile.Dispenser) error {
	if err := tokens.ParseArg(d, &z.OverrideFile, tokens.ParseWord); err != nil {
		return err
	}
	if filepath.IsAbs(z.OverrideFile) {
		return nil
	}
	full, err := filepath.Abs(filepath.Join(filepath.Dir(d.File()), z.OverrideFile))
	if err != nil {
		return d.WrapErr(err)
	}
	z.OverrideFile = full
	return nil
}

func parseCost(z *config.Zone, d *caddyfile.Dispenser, matcher matcherToken) error {
	set, matched, err := matcher()
	if err == nil {
		err = config.CheckMatcherSet(set)
	}
	if err != nil {
		return d.WrapErr(err)
	}
	if matched && !d.NextArg() || d.Val() == "cost" {
		return d.Err("cost has no value: want cost [<matcher>] <n>|<placeholder>|body_items [<path>]|body_bytes <unit>")
	}
	cost := config.Cost{Value: d.Val()}
	if err := checkNamedMethods(set, cost.Value); err != nil {
		return d.WrapErr(err)
	}
	if sources := []string{"body_items", "body_bytes"}; !slices.Contains(sources, cost.Value) {
		if meant := text.Nearest(cost.Value, sources); meant != "" {
			return d.Errf("unknown cost %q: did you mean %s?", cost.Value, meant)
		}
	}
	switch words := d.RemainingArgs(); {
	case len(words) == 1 && cost.Value == "body_items":
		cost.Path = words[0]
	case len(words) == 1 && cost.Value == "body_bytes":
		cost.Unit = words[0]
	case len(words) > 0:
		return d.Errf("unexpected %q after cost %s: want the matchers in a block, each on a line of its own:\n%s", words[0], cost.Value, block("cost 5", "path /search*"))
	}
	block, err := parseMatcherSet(d, "cost")
	if err != nil {
		return err
	}
	if len(set) > 0 && len(block) > 0 {
		return d.Errf("cost %s has a matcher on its line and a block: want one of them", cost.Value)
	}
	maps.Copy(block, set)
	if len(block) > 0 {
		cost.Match = caddyhttp.RawMatcherSets{block}
	}
	z.Cost = append(z.Cost, cost)
	return nil
}

const settleSyntax = "settle seconds [<workers>], bytes <unit>, header <Name> or status <code|class>... <n>, and perhaps after"

func parseSettle(z *config.Zone, all []string) (used int, err error) {
	used = before(settleDetails, all)
	words, settle := all[:used], settleIn(z)
	if len(words) == 0 {
		return used, fmt.Errorf("settle has no source: want %s", settleSyntax)
	}
	settle.Source, words = words[0], words[1:]
	last := len(words) - 1
	switch {
	case settle.Source == "seconds" && last == -1:
	case settle.Source == "seconds" && last == 0:
		if settle.Workers, err = tokens.ParseWhole(1, config.MostAtOnce)(words[0]); err != nil {
			return used, fmt.Errorf("parsing workers in settle seconds: %w", err)
		}
	case settle.Source == "bytes" && last == 0:
		settle.Unit = words[0]
	case settle.Source == "header" && last == 0:
		settle.Name = words[0]
	case settle.Source == "status" && last >= 0:
		cost, plain := leakybucket.ParseCost(words[last])
		if _, err := settlement.ParseStatus(words[last]); err == nil || last == 0 {
			return used, fmt.Errorf("settle status %s has no cost: want settle status %[1]s 1", strings.Join(words, " "))
		}
		if !plain || cost == 0 {
			return used, fmt.Errorf("invalid cost %q at the end of settle status: want a number above 0", words[last])
		}
		settle.Status, settle.Cost = words[:last], cost
	default:
		return used, fmt.Errorf("settle %s: want %s", strings.Join(all[:used], " "), settleSyntax)
	}
	return used, nil
}

func parseDelay(z *config.Zone, words []string) (used int, err error) {
	used = before(delayDetails, words)
	delay := delayIn(z)
	switch {
	case used == 0:
		return 0, nil
	case used > 1:
		return used, fmt.Errorf("unexpected %q after delay %s: want delay [<undelayed>] [wait <duration>] [queue <n>]", words[1], words[0])
	}
	word := words[0]
	if _, err := caddy.ParseDuration(word); err == nil && strings.Trim(word, ".0123456789") != "" {
		return used, fmt.Errorf("parsing delay: invalid number %q: delay takes the units that pass undelayed, such as delay 4; for the longest wait, write delay wait %s", word, word)
	}
	units, err := config.ParseUnits(word)
	if err != nil {
		return used, fmt.Errorf("parsing delay: invalid number %q: want delay alone, or the units that pass undelayed, such as delay 4", word)
	}
	delay.Undelayed = *units
	return used, nil
}

func parseBlock(z *config.Zone, words []string) (used int, err error) {
	block := blockIn(z)
	for _, word := range words {
		if word == "everywhere" {
			break
		}
		duration, err := tokens.ParseDuration(word)
		if err != nil {
			return used, fmt.Errorf("parsing block: %w", err)
		}
		block.For = append(block.For, duration)
		used++
	}
	return used, nil
}

// parsePage reads the words after page: a file, or a block that brands the built-in
// page.
func parsePage(r *zoneReader) error {
	d, refusal := r.Dispenser, refusalIn(r.zone)
	if d.NextArg() {
		d.Prev()
		if err := parsePageFile(refusal, d); err != nil {
			return err
		}
		if d.NextBlock(d.Nesting()) {
			return d.Err("page takes a file or a block, not both: a page of your own has its own style")
		}
		return nil
	}
	style, here := new(config.PageStyle), tokens.Place(d)
	options := map[string]*string{"title": &style.Title, "accent": &style.Accent, "text": &style.Text}
	for nesting := d.Nesting(); d.NextBlock(nesting); {
		option, target := d.Val(), options[d.Val()]
		if target == nil {
			return tokens.UnknownOption(d, "page", slices.Sorted(maps.Keys(options)))
		}
		switch words := d.RemainingArgs(); {
		case *target != "":
			return d.Errf("%s is given twice", option)
		case len(words) == 0 || words[0] == "":
			return d.Errf("%s has no value: want a text or colour; a # begins a comment, unless it is in quotes", option)
		case len(words) > 1:
			return d.Errf("%s has several words: put them in quotes, as in %[1]s %q", option, strings.Join(words, " "))
		default:
			*target = words[0]
		}
		if err := style.Validate(); err != nil {
			return d.Errf("parsing page: %w", err)
		}
	}
	if *style == (config.PageStyle{}) {
		return fmt.Errorf("page has no value: want a file, or a block of title, accent and text, %s", here)
	}
	refusal.PageStyle = style
	return nil
}

// parsePageFile reads the file, relative to the Caddyfile. So an edited page is a
// changed config, and a missing one an error with a line.
func parsePageFile(r *config.Refusal, d *caddyfile.Dispenser) error {
	words := d.RemainingArgs()
	if len(words) != 1 || words[0] == "" {
		return d.Err("wrong number of words after page: want the name of an HTML file, or a block of title, accent and text")
	}
	name := words[0]
	if !filepath.IsAbs(name) {
		name = filepath.Join(filepath.Dir(d.File()), name)
	}
	info, err := os.Stat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return d.Errf("reading page: %w: want the name of an HTML file, relative to the Caddyfile", err)
	case err == nil && !info.Mode().IsRegular(): // which could be endless
		return d.Errf("reading page: %s is no regular file", name)
	case err == nil && info.Size() > LargestPage:
		return d.Errf("reading page: %s has more than %d bytes", name, LargestPage)
	}
	page, err := os.ReadFile(name)
	if err != nil {
		return d.Errf("reading page: %w", err)
	}
	text := string(page)
	r.PageHTML = &text
	return nil
}
