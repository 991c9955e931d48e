package caddyfile

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/config"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// startsWithDigit tells numbers and rates from names.
var startsWithDigit = regexp.MustCompile(`^[0-9]`)

const wantLine = "want throttle <zone> [<key>...] <capacity> <leak>"

// parseLine reads a whole zone from one line.
func parseLine(d *caddyfile.Dispenser, matcher matcherToken, words []string) (*zoneReader, error) {
	if err := checkZoneWord(words); err != nil {
		return nil, d.WrapErr(err)
	}
	r := newZoneReader(d, matcher)
	z := r.zone
	z.Name = words[0]
	if len(words) == 1 {
		return r, nil
	}
	if err := meantLine(words); err != nil {
		return nil, d.WrapErr(err)
	}
	last := len(words) - 2
	limit, err := parseLimit(words[last:])
	if err != nil {
		return nil, d.WrapErr(err)
	}
	z.Limit = limit
	r.places["limit"] = []string{r.place}
	if last == 1 {
		return r, nil
	}
	sources, used, err := parseKey(words[1:last])
	if err != nil {
		return nil, d.WrapErr(err)
	}
	key := &ZoneOptions[OptionNamed("key")]
	keyIn(z).Sources, r.places["key"] = sources, []string{r.place}
	return r, r.parseDetails(key, words[1+used:last])
}

// checkZoneWord says what stands on a line after throttle where the zone should.
func checkZoneWord(words []string) error {
	first := words[0]
	number := func(word string) bool { _, plain := leakybucket.ParseCost(word); return plain }
	switch {
	case slices.Contains(config.SourceWords, first) || len(words) > 1 && strings.Contains(first, "{"):
		return fmt.Errorf("no zone name before %s: %s", first, wantLine)
	case strings.HasPrefix(first, "zone="):
		return fmt.Errorf("unexpected %q: %s", first, wantLine)
	case len(words) == 1:
		return nil
	case slices.Contains(config.MatcherWords, first) && strings.HasPrefix(words[1], "/"):
		return fmt.Errorf("no zone name before %s, which is a matcher: want throttle %s", first, strings.Join(words[1:], " "))
	case len(words) == 2 && first == "zone":
		return fmt.Errorf("zone %s stands on the line of throttle: want throttle %[1]s <key>... <capacity> <leak>, or the zone in the block", words[1])
	case number(first):
		if _, err := leakybucket.ParseRate(words[1]); err == nil {
			return fmt.Errorf("no zone name before %s %s: %s", first, words[1], wantLine)
		}
	}
	return nil
}

// meantLine returns an error with what to write instead of words after throttle that are
// no whole zone, if that can be told. It reads them as the lines of a block.
func meantLine(words []string) error {
	lines := linesOf(words)
	key, limit, why := lines[0].words[1:], "", ""
	if whole := lines.limited(); whole != nil {
		if len(lines) == 2 && len(words) == len(key)+3 {
			return nil
		}
		limit = strings.Join(whole.words, " ")
	}
	given := lines
	if len(key) == 0 {
		given = lines[1:]
	}
	var others, beside []string
	for _, line := range lines[1:] {
		word, rest := line.words[0], line.words[1:]
		_, meant := given.meant(word, rest)
		why = cmp.Or(why, line.place)
		switch {
		case word == "key":
			key = rest
		case strings.HasPrefix(meant, "key "):
			key = strings.Fields(meant)[1:]
		case word == "limit":
		case OptionNamed(word) >= 0:
			others = append(others, strings.Join(quoted(line.words), " "))
		case strings.HasPrefix(meant, "limit "):
			limit = cmp.Or(limit, meant)
		case strings.HasPrefix(meant, "zone "):
			beside = []string{meant}
		case meant != "":
			others = append(others, meant)
		}
	}
	if rest, given := lines.after("limit"); given && limit == "" {
		why, limit = meantLimit(rest)
	}
	if len(lines) == 1 {
		why, limit = "no limit after "+words[len(words)-1], "limit 120 2/s"
		if !slices.Contains(config.SourceWords, key[0]) {
			return fmt.Errorf("%q stands alone after the zone: want throttle <zone>, or throttle <zone> <key>... <capacity> <leak>", key[0])
		}
	}
	limit, more, waits := strings.Cut(limit, "\n")
	if waits {
		others = append(others, more)
	}
	if limit == "" && others == nil {
		return nil
	}
	return fmt.Errorf("%s: %s", why, want(directive(words[0], key, limit, others, beside)))
}

// directive returns the directive for a zone: on one line with its options in a block, or
// with zones in a block if it has no limit or others beside it.
func directive(name string, key []string, limit string, options, beside []string) string {
	if limit != "" && beside == nil {
		line := strings.Join(slices.Concat([]string{"throttle", name}, quoted(key), strings.Fields(limit)[1:]), " ")
		if options == nil {
			return line
		}
		return block(line, options...)
	}
	if len(key) > 0 {
		options = append([]string{"key " + strings.Join(quoted(key), " ")}, options...)
	}
	if limit != "" {
		options = append([]string{limit}, options...)
	}
	return block("throttle", append([]string{block("zone "+name, options...)}, beside...)...)
}

// linesOf returns the lines of a zone's block that the words behind its name stand for. The
// first is the key. The places say why a word is wrong here.
func linesOf(words []string) zoneLines {
	lines := zoneLines{{words: []string{"key"}}}
	for i := 1; i < len(words); {
		line, word := &lines[len(lines)-1], words[i]
		begin := zoneLine{place: fmt.Sprintf("unexpected %q after %s", word, words[i-1])}
		used := belonging(line.words[0], words[i:])
		switch {
		case used > 0 || len(line.words) == 1 && takesWord(line.words[0]):
		case OptionNamed(word) >= 0 || isFormer(word):
			lines = append(lines, begin)
		case line.words[0] == "key" && startsWithDigit.MatchString(word):
			lines = append(lines, zoneLine{words: []string{"limit"}})
		case line.words[0] == "limit" && lines.limited() != nil:
			if slices.Contains(config.SourceWords, word) {
				begin.words = []string{"key"}
			}
			lines = append(lines, begin)
		}
		used = max(used, 1)
		line = &lines[len(lines)-1]
		line.words = append(line.words, words[i:i+used]...)
		i += used
	}
	return lines
}

// takesWord reports whether a word must follow an option.
func takesWord(option string) bool {
	i := OptionNamed(option)
	return i >= 0 && option != "key" && ZoneOptions[i].syntax != "" && ZoneOptions[i].syntax[0] != '['
}

// belonging returns how many of the words belong to an option for sure: a source of the key
// or a detail, with the word it takes.
func belonging(option string, words []string) int {
	takes := false
	if o := OptionNamed(option); o < 0 {
		return 0
	} else if i := DetailNamed(&ZoneOptions[o], words[0]); i >= 0 {
		takes = ZoneOptions[o].Details[i].Syntax != ""
	} else if option == "key" && slices.Contains(config.SourceWords, words[0]) {
		takes = slices.Contains(namedSources, words[0])
	} else {
		return 0
	}
	if takes {
		return min(2, len(words))
	}
	return 1
}
