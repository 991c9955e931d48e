package caddymodule

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/overridefile"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/settlement"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// largestPage is the largest size of a page, in bytes.
const largestPage = 1 << 20

// parseExempt reads the words after exempt: matchers, or static_files.
func parseExempt(d *caddyfile.Dispenser, matcher matcherToken, sets *caddyhttp.RawMatcherSets, static **StaticFiles) error {
	if !d.NextArg() {
		return parseMatchers(d, d.Val(), matcher, sets)
	}
	if d.Val() != staticFiles {
		d.Prev()
		return parseMatchers(d, d.Val(), matcher, sets)
	}
	if *static != nil {
		return d.Errf("exempt %s is given twice", staticFiles)
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
	*static = &StaticFiles{Root: strings.Join(words, "")}
	return nil
}

func (z *Zone) parseKey(d *caddyfile.Dispenser) (err error) {
	if z.Key, err = parseKey(d.RemainingArgs()); err == nil && len(z.Key) == 0 {
		err = fmt.Errorf("key has no source: want %s", keySources)
	}
	if err != nil {
		return d.WrapErr(err)
	}
	return nil
}

func (z *Zone) parseRoute(d *caddyfile.Dispenser) error {
	words := d.RemainingArgs()
	if len(words) < 2 {
		return d.Err("too few words after route: want route <name> <path>...")
	}
	z.Route = append(z.Route, Route{Name: words[0], Path: words[1:]})
	return nil
}

func (z *Zone) parseLimit(d *caddyfile.Dispenser) error {
	words := d.RemainingArgs()
	if len(words) > 2 && wantedAfter[words[2]] != "" {
		return d.Errf("unexpected %q after limit %s %s: want a line for each option", words[2], words[0], words[1])
	}
	if len(words) != 2 {
		return d.Err("wrong number of words after limit: want limit <capacity> <leak>, such as limit 100 10/s")
	}
	limit, err := leakybucket.ParseLimit(words[0] + " " + words[1])
	if err != nil {
		return d.Errf("parsing limit: %w", err)
	}
	z.Capacity, z.Leak = limit.Capacity, words[1]
	return nil
}

func (z *Zone) parseOverride(d *caddyfile.Dispenser) error {
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
func (z *Zone) parseOverrideFile(d *caddyfile.Dispenser) error {
	if err := parseArg(d, &z.OverrideFile, parseWord); err != nil {
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

func (z *Zone) parseCost(d *caddyfile.Dispenser, matcher matcherToken) error {
	set, matched, err := matcher()
	if err == nil {
		err = checkMatcherSet(set)
	}
	if err != nil {
		return d.WrapErr(err)
	}
	if matched && !d.NextArg() || d.Val() == "cost" {
		return d.Err("cost has no value: want cost [<matcher>] <n>|<placeholder>|body_items [<path>]|body_bytes <unit>")
	}
	cost := Cost{Value: d.Val()}
	if err := checkNamedMethods(set, cost.Value); err != nil {
		return d.WrapErr(err)
	}
	if sources := []string{"body_items", "body_bytes"}; !slices.Contains(sources, cost.Value) {
		if meant := nearest(cost.Value, sources); meant != "" {
			return d.Errf("unknown cost %q: did you mean %s?", cost.Value, meant)
		}
	}
	switch words := d.RemainingArgs(); {
	case len(words) == 1 && cost.Value == "body_items":
		cost.Path = words[0]
	case len(words) == 1 && cost.Value == "body_bytes":
		cost.Unit = words[0]
	case len(words) > 1 && (cost.Value == "body_items" || cost.Value == "body_bytes"):
		return d.Errf("unexpected %q after cost %s %s: want the matchers in a block", words[1], cost.Value, words[0])
	case len(words) > 0:
		return d.Errf("unexpected %q after cost %s: %s", words[0], cost.Value, meantCost(cost.Value, words))
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

// meantCost says how a cost with matchers on its line is written.
func meantCost(value string, words []string) string {
	if last := len(words) - 1; len(words) > 0 {
		if _, plain := leakybucket.ParseCost(words[last]); plain {
			value, words = words[last], append([]string{value}, words[:last]...)
		}
	}
	matcher := strings.Join(words, " ")
	switch {
	case len(words) == 1 && (strings.HasPrefix(matcher, "/") || strings.HasPrefix(matcher, "@")):
		return fmt.Sprintf("did you mean cost %s %s?", matcher, value)
	case slices.Contains(httpMethods, words[0]):
		matcher = "method " + matcher
	default:
		if _, err := caddy.GetModule("http.matchers." + words[0]); err != nil {
			return "want the matchers in a block"
		}
	}
	return fmt.Sprintf("want the matchers in a block, such as cost %s { %s }, each on a line of its own", value, matcher)
}

const settleSyntax = "settle seconds [<workers>], bytes <unit>, header <Name> or status <code|class>... <n>, and perhaps after"

func (z *Zone) parseSettle(d *caddyfile.Dispenser) error {
	words := d.RemainingArgs()
	settle := new(Settle)
	if last := len(words) - 1; last >= 0 && words[last] == "after" {
		settle.After, words = true, words[:last]
	}
	if len(words) == 0 {
		return d.Errf("settle has no source: want %s", settleSyntax)
	}
	settle.Source, words = words[0], words[1:]
	switch last := len(words) - 1; {
	case settle.Source == "seconds" && last == -1:
	case settle.Source == "seconds" && last == 0:
		workers, err := parseWhole(1, mostAtOnce)(words[0])
		if err != nil {
			return d.Errf("parsing workers in settle seconds: %w", err)
		}
		settle.Workers = workers
	case settle.Source == "bytes" && last == 0:
		settle.Unit = words[0]
	case settle.Source == "header" && last == 0:
		settle.Name = words[0]
	case settle.Source == "status" && last >= 1:
		cost, plain := leakybucket.ParseCost(words[last])
		if !plain || cost == 0 {
			return d.Errf("invalid cost %q at the end of settle status: want a number above 0", words[last])
		}
		settle.Status, settle.Cost = words[:last], cost
	case settle.Source == "seconds" && last == 1 && words[0] == "workers":
		return d.Errf("unexpected \"workers\" in settle seconds: did you mean settle seconds %s?", words[1])
	case settle.Source == "bytes" && last == -1:
		return d.Err("settle bytes has no unit: want settle bytes <unit>, such as settle bytes 100KiB")
	case settle.Source == "header" && last == -1:
		return d.Err("settle header has no name: want settle header <Name>, such as settle header X-Cost")
	case settle.Source == "status" && last == 0:
		return d.Errf("settle status %s has no cost: want settle status %[1]s <n>, such as settle status %[1]s 5, or count_only status %[1]s", words[0])
	default:
		if _, err := settlement.ParseStatus(settle.Source); err == nil {
			return d.Errf("unknown source %q in settle: did you mean settle status %[1]s <n>?", settle.Source)
		}
		if sources := []string{"seconds", "bytes", "header", "status"}; !slices.Contains(sources, settle.Source) {
			if meant := nearest(settle.Source, sources); meant != "" {
				return d.Errf("unknown source %q in settle: did you mean %s?", settle.Source, meant)
			}
		}
		return d.Errf("settle %s: want %s", strings.Join(append([]string{settle.Source}, words...), " "), settleSyntax)
	}
	z.Settle = settle
	return nil
}

func (z *Zone) parseCountOnly(d *caddyfile.Dispenser) error {
	words := d.RemainingArgs()
	if len(words) < 2 || words[0] != "status" {
		return d.Err("count_only counts answers by their status: want count_only status <code|class>..., such as count_only status 401 403")
	}
	for _, word := range words[1:] {
		if n, plain := leakybucket.ParseCost(word); plain && n < 100 {
			return d.Errf("unexpected %q in count_only, which charges 1 for each answer: want settle status <code|class>... %[1]s after for another cost", word)
		}
		if _, err := settlement.ParseStatus(word); err != nil {
			return d.Errf("parsing count_only: %w", err)
		}
	}
	z.Settle = &Settle{Source: "status", Status: words[1:], Cost: 1, After: true}
	return nil
}

func (z *Zone) parseDelay(d *caddyfile.Dispenser) error {
	z.Delay = new(float64)
	if d.CountRemainingArgs() == 0 {
		return nil
	}
	return parseArg(d, &z.Delay, func(word string) (*float64, error) {
		if _, err := caddy.ParseDuration(word); err == nil && strings.Trim(word, ".0123456789") != "" {
			return nil, fmt.Errorf("invalid number %q: delay takes the units that pass undelayed, such as delay 4; for the longest wait, write max_wait %s", word, word)
		}
		units, err := parseUnits(word)
		if err != nil {
			err = fmt.Errorf("invalid number %q: want delay alone, or the units that pass undelayed, such as delay 4", word)
		}
		return units, err
	})
}

// spelledOut is a duration whose unit is spelled out, such as 1hour or 10min.
var spelledOut = regexp.MustCompile(`^([0-9.]+)((s)ec|(s)econd|(m)in|(m)inute|(h)r|(h)our|(d)ay)s?$`)

func parseDuration(word string) (caddy.Duration, error) {
	duration, err := caddy.ParseDuration(word)
	if short := spelledOut.ReplaceAllString(word, "$1$3$4$5$6$7$8$9"); short != word {
		if _, err := caddy.ParseDuration(short); err == nil {
			return 0, fmt.Errorf("invalid duration %q: did you mean %s?", word, short)
		}
	}
	if n, err := strconv.ParseFloat(word, 64); err == nil && n > 0 {
		return 0, fmt.Errorf("invalid duration %q: it has no unit: want ms, s, m, h or d behind it, such as %ss", word, word)
	}
	if err != nil || duration <= 0 {
		return 0, fmt.Errorf("invalid duration %q: want one above 0, such as 10s", word)
	}
	return caddy.Duration(duration), nil
}

func (z *Zone) parseBlock(d *caddyfile.Dispenser) error {
	z.Block = new(Block)
	words := d.RemainingArgs()
	if last := len(words) - 1; last >= 0 && words[last] == "everywhere" {
		z.Block.Everywhere, words = true, words[:last]
	}
	for _, word := range words {
		if word == "everywhere" {
			return d.Err("everywhere does not come last: want block [<duration>...] [everywhere]")
		}
		duration, err := parseDuration(word)
		if err != nil {
			return d.Errf("parsing block: %w", err)
		}
		z.Block.For = append(z.Block.For, duration)
	}
	return nil
}

func (z *Zone) parseMessage(d *caddyfile.Dispenser) error {
	words := d.RemainingArgs()
	if len(words) != 1 {
		return d.Err(`wrong number of words after message: want one text in quotes, such as message "Too many failed log-ins."`)
	}
	if err := checkMessage(words[0]); err != nil {
		return d.WrapErr(err)
	}
	z.Message = words[0]
	return nil
}

// parsePage reads the words after page: a file, or a block that brands the built-in
// page.
func (z *Zone) parsePage(d *caddyfile.Dispenser) error {
	if d.NextArg() {
		d.Prev()
		if err := z.parsePageFile(d); err != nil {
			return err
		}
		if d.NextBlock(d.Nesting()) {
			return d.Err("page takes a file or a block, not both: a page of your own has its own style")
		}
		return nil
	}
	z.PageStyle = new(PageStyle)
	here := place(d)
	seen := make(map[string]bool)
	for nesting := d.Nesting(); d.NextBlock(nesting); {
		option := d.Val()
		if err := once(d, seen, option); err != nil {
			return err
		}
		var target *string
		switch option {
		case "title":
			target = &z.PageStyle.Title
		case "accent":
			target = &z.PageStyle.Accent
		case "text":
			target = &z.PageStyle.Text
		default:
			if meant := pageWords[option]; meant != "" {
				return d.Errf("unknown option %q in page: did you mean %s?", option, meant)
			}
			return unknownOption(d, "page", []string{"title", "accent", "text"})
		}
		if err := parsePhrase(d, target); err != nil {
			return err
		}
		if err := z.PageStyle.style().Validate(); err != nil {
			return d.Errf("parsing page: %w", err)
		}
	}
	if len(seen) == 0 {
		return fmt.Errorf("page has no value: want a file, or a block of title, accent and text, %s", here)
	}
	return nil
}

// pageWords are other words for the options of a page.
var pageWords = map[string]string{
	"color": "accent", "colour": "accent", "background": "accent", "heading": "title", "headline": "title", "name": "title", "message": "text", "body": "text",
}

// parsePhrase reads the one text after an option of the page.
func parsePhrase(d *caddyfile.Dispenser, target *string) error {
	option := d.Val()
	switch words := d.RemainingArgs(); {
	case len(words) == 0 && option == "accent":
		return d.Err("accent has no value: want a colour such as 0a7f5c; a # begins a comment, unless it is in quotes")
	case len(words) == 0 || words[0] == "":
		return d.Errf("%s has no value: want a text", option)
	case len(words) > 1:
		return d.Errf("%s has several words: put them in quotes, as in %[1]s %q", option, strings.Join(words, " "))
	default:
		*target = words[0]
	}
	return nil
}

// parsePageFile reads the file, relative to the Caddyfile. So an edited page is a
// changed config, and a missing one an error with a line.
func (z *Zone) parsePageFile(d *caddyfile.Dispenser) error {
	var name string
	if err := parseArg(d, &name, parseWord); err != nil {
		return err
	}
	if !filepath.IsAbs(name) {
		name = filepath.Join(filepath.Dir(d.File()), name)
	}
	page, err := readPage(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return d.Errf("reading page: %w: want the name of an HTML file, relative to the Caddyfile", err)
	case err != nil:
		return d.Errf("reading page: %w", err)
	}
	z.PageHTML = &page
	return nil
}

func readPage(name string) (string, error) {
	info, err := os.Stat(name)
	if err != nil {
		return "", err
	}
	if !info.Mode().IsRegular() { // which could be endless
		return "", fmt.Errorf("%s is no regular file", name)
	}
	file, err := os.Open(name)
	if err != nil {
		return "", err
	}
	defer func() { _ = file.Close() }()
	page, err := io.ReadAll(io.LimitReader(file, largestPage+1))
	if err == nil && len(page) > largestPage {
		err = fmt.Errorf("%s has more than %d bytes", name, largestPage)
	}
	return string(page), err
}
