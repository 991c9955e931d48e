package caddyfile

import (
	"cmp"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/config"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/text"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/tokens"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// formerWords are words of other limiters and of a former grammar, and the lines to write
// instead: the first that a zone may have. $1 is a word behind, and $* are all of them. What
// stands behind > is added to the option if the zone has that already. No lines stand for
// the limit, which several words give together.
var formerWords = map[string]string{
	"leak rate nodelay limit_req limit_req_zone " + burstWords + " " + countWords + " " + windowWords: "",

	"whitelist allowlist safelist bypass allow skip ignore":       "exempt client_ip $1|exempt $*|exempt client_ip 203.0.113.7",
	"blacklist denylist blocklist deny":                           "override $1 deny|override 203.0.113.7 deny",
	"dry_run dryrun limit_req_dry_run log_only track report_only": "shadow",
	"server_timing": "shadow > server_timing",
	"ban penalty ban_time bantime block_duration timeout":                                         "block $1|block 10m",
	"concurrency limit_conn limit_conn_zone max_concurrent max_connections max_conns connections": "in_flight $1|in_flight 5",
	"max_wait":                "in_flight 5 > wait $1|in_flight 5 > wait 8s",
	"max_waiting queue":       "in_flight 5 > wait 8s queue $1|in_flight 5 > wait 8s queue 200",
	"warm_up":                 "in_flight 5 > warm_up $1|in_flight 5 > warm_up 30s",
	"request_buffer":          "in_flight 5 > buffer $1|in_flight 5 > buffer 8MiB",
	"share":                   "in_flight 5 > {\n\tshare $*\n}|in_flight 5 > {\n\tshare\n}",
	"rank":                    "in_flight 5 > {\n\tshare\n\trank $*\n}|in_flight 5 > {\n\tshare\n\trank member issued wordpress_logged_in_*\n}",
	"pass":                    "in_flight 5 > {\n\tshare\n\tpass off\n}",
	"max_body":                "read_body $1|read_body 64KiB",
	"unread_body_cost":        "read_body 64KiB > else $1|read_body 64KiB > else 1",
	"count_only":              "settle $* 1 after|settle status $* 1 after|settle status 401 1 after",
	"workers":                 "settle seconds $1|settle seconds 5",
	"debt":                    "settle seconds > debt $1|settle seconds > debt 0",
	"fold":                    "key form log > fold $1|key form log > fold wordpress",
	"missing_key":             "key client_ip > missing $1|key client_ip > missing share",
	"unlisted_key":            "key client_ip > unlisted $1|key client_ip > unlisted refuse",
	"plain_keys":              "key client_ip > plain",
	"ipv4_prefix":             "key client_ip > ipv4 $1|key client_ip > ipv4 24",
	"ipv6_prefix":             "key client_ip > ipv6 $1|key client_ip > ipv6 48",
	"message":                 "refusal > message \"$*\"|refusal > message \"Too many requests.\"",
	"page":                    "refusal > {\n\tpage $1\n}|refusal > {\n\tpage {\n\t\ttitle \"My site\"\n\t}\n}",
	"retry_after":             "refusal > retry_after $1|refusal > retry_after fit",
	"retry_jitter jitter":     "refusal > jitter $1|refusal > jitter 20",
	"status limit_req_status": "refusal > status $1|refusal > status 429",
	"refuse":                  "refusal > error",
	"support_code":            "refusal > code off",
	"zone_header":             "refusal > zone_header",
	"log_refused":             "refusal > log $1|refusal > log 10/s",
}

const (
	countWords  = "average events max_events requests count refill_rate refill rps requests_per_second rpm requests_per_minute rph requests_per_hour"
	burstWords  = "capacity burst max_tokens tokens bucket_size"
	windowWords = "window period interval per every duration"
)

// FormerWords has the lines of formerWords for each word.
var FormerWords = make(map[string]string)

func init() {
	for words, lines := range formerWords {
		for _, word := range strings.Fields(words) {
			FormerWords[word] = lines
		}
	}
}

// A zoneLine is a line in the block of a zone.
type zoneLine struct {
	words []string
	block bool // one follows
	place string
}

type zoneLines []zoneLine

// zoneBlock returns the lines of the block that comes next, and reads nothing.
func zoneBlock(d *caddyfile.Dispenser) (lines zoneLines) {
	peek := *d
	for nesting := peek.Nesting(); peek.NextBlock(nesting); {
		line := zoneLine{place: tokens.Place(&peek), words: append([]string{peek.Val()}, peek.RemainingArgs()...)}
		for within := peek.Nesting(); peek.NextBlock(within); {
			line.block = true
		}
		lines = append(lines, line)
	}
	return lines
}

// find returns the first line that begins with a word, or nil.
func (z zoneLines) find(word string) *zoneLine {
	if i := slices.IndexFunc(z, func(line zoneLine) bool { return line.words[0] == word }); i >= 0 {
		return &z[i]
	}
	return nil
}

// after returns the word behind the last of some words, or "".
func (z zoneLines) after(words string) (found string) {
	known := strings.Fields(words)
	for _, line := range z {
		for i, word := range line.words {
			name, value, joined := strings.Cut(strings.TrimSuffix(word, ";"), "=") // as in nginx
			if n, err := strconv.Atoi(value); name == "burst" && err == nil {
				value = strconv.Itoa(n + 1) // with the one request that is due
			} else if !joined && i+1 < len(line.words) {
				value = line.words[i+1]
			}
			if slices.Contains(known, name) {
				found = cmp.Or(strings.TrimSuffix(value, ";"), found)
			}
		}
	}
	return found
}

// former returns the known word that one of a former grammar or another limiter stands for,
// or "".
func former(word string) string {
	name, _, _ := strings.Cut(strings.TrimRight(word, ":;"), "=")
	if _, known := FormerWords[name]; known || tokens.Translations[name] != "" {
		return name
	}
	if text.Nearest(name, OptionNames(func(ZoneOption) bool { return true })) != "" {
		return ""
	}
	return text.Nearest(name, slices.Collect(maps.Keys(FormerWords)))
}

// translate says what to write instead of a word that is no option of a zone, with others
// behind it, or returns "".
func (z zoneLines) translate(file, word string, rest []string) string {
	for i := range rest {
		rest[i] = strings.TrimSuffix(rest[i], ";") // as in nginx
	}
	name := former(word)
	lines, known := FormerWords[name]
	if !known {
		return ""
	}
	if lines == "" {
		if strings.Contains(word, "=") {
			name = word
		}
		return z.translateLimit(append([]string{name}, rest...))
	}
	if z.find("limit") != nil || z.find("delay") != nil { // which leave no wait to slots
		lines = strings.NewReplacer("in_flight 5 > wait 8s queue", "delay > queue", "in_flight 5 > wait", "delay > wait").Replace(lines)
	}
	option, _, _ := strings.Cut(lines, " ")
	line, other := firstValid(file, lines, rest), z.find(option)
	_, detail, _ := strings.Cut(line, " > ")
	line = strings.Replace(line, " > ", " ", 1)
	switch {
	case strings.HasPrefix(detail, "{\n\tshare") && z.find("limit") != nil:
		return "share and limit exclude each other: remove it, and beside this zone want\n" + block("zone turns", line)
	case other == nil || ZoneOptions[OptionNamed(option)].Repeats:
		return want(line)
	case detail == "":
		return "remove it: the zone has " + option + " " + other.place + " already"
	case other.block:
		detail = strings.TrimPrefix(strings.TrimSuffix(strings.TrimPrefix(detail, "{\n\t"), "\n}"), "wait 8s ")
		return "want in the block of " + option + " " + other.place + "\n" + strings.ReplaceAll(detail, "\n\t", "\n")
	}
	if both := strings.Join(quoted(other.words), " ") + " " + detail; adapts(file, both) {
		line = both
	}
	return "instead of this and of " + option + " " + other.place + ", " + want(line)
}

// firstValid returns the first of the lines that a zone may have, with words in it.
func firstValid(file, lines string, words []string) (line string) {
	for line = range strings.SplitSeq(lines, "|") {
		line = strings.ReplaceAll(strings.ReplaceAll(line, "$*", strings.Join(words, " ")), " \n", "\n")
		some := quoted(words)
		if !strings.Contains(line, "$1") {
			some = []string{""}
		}
		var valid []string // several if the option repeats
		for _, word := range some {
			if more := append(valid, strings.ReplaceAll(line, "$1", word)); adapts(file, strings.Replace(strings.Join(more, "\n"), " > ", " ", 1)) {
				valid = more
			}
		}
		if valid != nil {
			return strings.Join(valid, "\n")
		}
	}
	return line
}

// adapts reports whether a zone may have lines, beside what they need.
func adapts(file, lines string) bool {
	all, err := caddyfile.Tokenize([]byte(lines), file)
	d := caddyfile.NewDispenser(all)
	r := newZoneReader(d, noNamedMatchers(d))
	for err == nil && d.Next() {
		i := OptionNamed(d.Val())
		if i < 0 {
			return false
		}
		err = r.parse(&ZoneOptions[i])
	}
	z := r.zone
	if z.Name = "any"; z.InFlight == nil && z.Limit == "" {
		z.Limit = "120 2/s"
	}
	if z.ReadBody != nil {
		z.Cost = []config.Cost{{Value: "body_items"}}
	}
	if z.Key != nil {
		z.OverrideFile = "any" // for unlisted
	}
	if err == nil {
		_, err = z.Compile(nil)
	}
	return err == nil
}

// quoted returns words as a Caddyfile has them.
func quoted(words []string) []string {
	out := slices.Clone(words)
	for i, word := range out {
		if word == "" || strings.ContainsAny(word, " \t\"#") {
			out[i] = "\"" + strings.ReplaceAll(word, "\"", "\\\"") + "\""
		}
	}
	return out
}

// want shows lines to write, several on lines of their own.
func want(lines string) string {
	if strings.Contains(lines, "\n") {
		return "want\n" + lines
	}
	return "want " + lines
}

// block returns lines in the block behind a head, as a Caddyfile has them.
func block(head string, lines ...string) string {
	return head + " {\n\t" + strings.ReplaceAll(strings.Join(lines, "\n"), "\n", "\n\t") + "\n}"
}

// translateLimit says what to write instead of words that give a part of the limit.
func (z zoneLines) translateLimit(words []string) string {
	limit := z.find("limit")
	switch {
	case limit == nil:
		return want(append(slices.Clone(z), zoneLine{words: words}).limit())
	case adapts("", strings.Join(limit.words, " ")):
		return "remove it: the zone has " + strings.Join(limit.words, " ") + " " + limit.place + " already"
	}
	return "instead of this and of limit " + limit.place + ", " + want(z.limit())
}

// limit returns the limit that words of other limiters give together.
func (z zoneLines) limit() string {
	rate, burst, count, window := z.after("leak rate"), z.after("limit "+burstWords), z.after(countWords), z.after(windowWords)
	for unit, words := range map[string]string{"m": "rpm requests_per_minute", "h": "rph requests_per_hour"} {
		if z.after(words) != "" {
			window = unit
		}
	}
	rate = perWindow(strings.Replace(cmp.Or(rate, count, z.after("limit")), "r/", "/", 1), window)
	burst = cmp.Or(burst, count)
	if _, err := leakybucket.ParseCapacity(burst); err != nil {
		burst = "120"
	}
	return "limit " + burst + " " + rate
}

// perWindow returns a rate, or that of a number of requests in a window, such as 100 in 1m.
func perWindow(number, window string) string {
	for _, rate := range []string{number, number + "/" + window, number + "/s"} {
		if _, err := leakybucket.ParseRate(rate); err == nil {
			return rate
		}
	}
	return "2/s"
}

// spelled is the unit of a rate in words, such as per minute.
var spelled = regexp.MustCompile(` (?:requests )?per (s|m|h|d)[a-z]*$`)

// meantLimit says why words after limit are none, and what to write. Both are "" if that is
// unknown.
func meantLimit(words []string) (why, limit string) {
	written := strings.Join(words, " ")
	if short := spelled.ReplaceAllString(written, "/$1"); short != written {
		words = strings.Fields(short)
	}
	var meant [][2]string
	switch rate := strings.Replace(words[0], "r/", "/", 1); {
	case strings.Contains(written, " burst="):
		meant = [][2]string{{"that is nginx's", zoneLines{{words: append([]string{"rate", rate}, words[1:]...)}}.limit()[len("limit "):]}}
	case len(words) == 1:
		number, _, _ := strings.Cut(rate, "/")
		meant = [][2]string{{"the burst is missing", number + " " + rate}, {"the rate is missing", number + " " + number + "/m"}}
	case len(words) == 2:
		meant = [][2]string{
			{"the rate is one word", words[0] + " " + words[1]}, {"the rate has no unit", words[0] + " " + words[1] + "/s"},
			{"that is a window", words[0] + " " + words[0] + "/" + words[1]}, {"the capacity comes first", words[1] + " " + words[0]},
		}
	}
	for _, m := range meant {
		if _, err := leakybucket.ParseLimit(m[1]); err == nil && m[1] != written {
			return m[0], m[1]
		}
	}
	return "", ""
}

// lineHere returns the current word and those behind it on its line, and reads nothing.
func lineHere(d *caddyfile.Dispenser) (word string, rest []string) {
	peek := *d
	return peek.Val(), peek.RemainingArgs()
}
