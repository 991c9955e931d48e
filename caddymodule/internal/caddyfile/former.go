package caddyfile

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/config"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/settlement"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/text"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/tokens"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// zoneLines are the lines in the block of a zone, as words. They let a translation of one
// word see what stands beside it.
type zoneLines [][]string

// zoneBlock returns the lines of the block that comes next, and reads nothing.
func zoneBlock(d *caddyfile.Dispenser) (lines zoneLines) {
	depth, read, last := 0, 0, -1
	for d.Next() {
		read++
		switch d.Val() {
		case "{":
			depth++
			continue
		case "}":
			depth--
		}
		if depth <= 0 {
			break
		}
		if line := d.Line(); depth == 1 && d.Val() != "}" {
			if line != last {
				lines = append(lines, nil)
			}
			lines[len(lines)-1] = append(lines[len(lines)-1], d.Val())
			last = line
		}
	}
	for range read {
		d.Prev()
	}
	return lines
}

// after returns the words after the first line that begins with a word, and whether there
// is one.
func (z zoneLines) after(word string) ([]string, bool) {
	for _, line := range z {
		if line[0] == word {
			return line[1:], true
		}
	}
	return nil, false
}

// first returns the first word after one of some others, or what it is by default.
func (z zoneLines) first(standard string, others ...string) string {
	for _, other := range others {
		if words, _ := z.after(other); len(words) > 0 {
			return words[0]
		}
	}
	return standard
}

// line returns the line of a word, or a standard one if there is none.
func (z zoneLines) line(word, standard string) string {
	if words, found := z.after(word); found {
		return strings.Join(append([]string{word}, quoted(words)...), " ")
	}
	return standard
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

// translate returns the line to write instead of the current word, which is no option of a
// zone, or "". The word is one of a former grammar or of another limiter.
func (z zoneLines) translate(d *caddyfile.Dispenser) string {
	name, value, joined := strings.Cut(strings.TrimRight(d.Val(), ":;"), "=") // as in nginx
	rest := d.RemainingArgs()
	for range rest {
		d.Prev()
	}
	words := quoted(rest)
	for i, word := range words {
		words[i] = strings.TrimSuffix(word, ";")
	}
	if joined && slices.Contains([]string{"zone", "rate", "burst"}, name) {
		return fromNginx(append([]string{d.Val()}, words...), z)
	}
	if joined {
		words = append([]string{value}, words...)
	}
	if tokens.Translations[name] != "" {
		return ""
	}
	lines := FormerWords[name]
	if known := OptionNames(func(ZoneOption) bool { return true }); lines == nil && text.Nearest(name, known) == "" {
		name = text.Nearest(name, slices.Collect(maps.Keys(FormerWords)))
		lines = FormerWords[name]
	}
	if lines == nil {
		return ""
	}
	return lines(words, append(slices.Clone(z), append([]string{name}, words...))) // also if it was written otherwise
}

// A translation returns the lines to write instead of a word with others after it.
type translation func(words []string, z zoneLines) string

// given returns the first of the words that is valid, or else a standard one.
func given[T any](words []string, standard string, parse func(string) (T, error)) string {
	for _, word := range words {
		if _, err := parse(strings.Trim(word, "\"")); err == nil {
			return word
		}
	}
	return standard
}

// filled returns the translation into a line, whose %s is a word that is given or a standard
// one.
func filled[T any](line, standard string, parse func(string) (T, error)) translation {
	return func(words []string, _ zoneLines) string { return fmt.Sprintf(line, given(words, standard, parse)) }
}

// toDetail returns the translation of a word that is a detail of an option now. The line is
// that of the option where the zone has none.
func toDetail(line, name, standard string) translation {
	option, _, _ := strings.Cut(line, " ")
	return func(words []string, z zoneLines) string {
		return strings.TrimSpace(z.line(option, line) + " " + name + " " + valid(option, name, words, standard))
	}
}

// valid returns the first word if the detail takes it, or else a standard one.
func valid(option, name string, words []string, standard string) string {
	o := &ZoneOptions[OptionNamed(option)]
	d := &o.Details[DetailNamed(o, name)]
	if d.Syntax == "" {
		return ""
	}
	return given(words[:min(1, len(words))], standard, func(word string) (any, error) { return nil, d.set(new(config.Zone), word) })
}

// toWaits returns the translation of a word about queues, which belongs to in_flight, or to
// delay in a zone that has one or a limit.
func toWaits(name, standard string) translation {
	return func(words []string, z zoneLines) string {
		option, line := "in_flight", z.line("in_flight", "in_flight 5")
		_, delays := z.after("delay")
		_, limited := z.after("limit")
		if delays || limited {
			option, line = "delay", z.line("delay", "delay")
		}
		if option == "in_flight" && name == "queue" && !strings.Contains(line, " wait ") {
			line += " wait " + z.first("8s", "max_wait")
		}
		return line + " " + name + " " + valid(option, name, words, standard)
	}
}

// inBlock returns an option with lines in its block.
func inBlock(option string, z zoneLines, lines ...string) string {
	standard := option
	if option == "in_flight" {
		standard = "in_flight 5"
	}
	return block(z.line(option, standard), lines...)
}

// inTurns returns in_flight with lines in its block, in a zone of its own if this one has
// what excludes share.
func inTurns(z zoneLines, lines ...string) string {
	for _, option := range []string{"limit", "delay", "block", "cost", "settle"} {
		if _, excludes := z.after(option); excludes {
			return "a zone of its own, since share and " + option + " exclude each other:\n" + block("zone turns", block("in_flight 5", lines...))
		}
	}
	return inBlock("in_flight", z, lines...)
}

// block returns lines in the block behind a head, as a Caddyfile has them.
func block(head string, lines ...string) string {
	return head + " {\n\t" + strings.Join(lines, "\n\t") + "\n}"
}

// limited returns what to say of a word about the limit in a zone that has a whole one, or "".
func (z zoneLines) limited() string {
	words, _ := z.after("limit")
	if len(words) != 2 {
		return ""
	}
	if _, err := leakybucket.ParseLimit(strings.Join(words, " ")); err != nil {
		return ""
	}
	return removeIt + "the zone has limit " + strings.Join(words, " ") + " already"
}

// removeIt begins what is said of a line that nothing replaces.
const removeIt = "remove it: "

// window returns how long other limiters count for, or "".
func (z zoneLines) window() string {
	return z.first("", "window", "period", "interval", "per", "every", "duration")
}

// perUnit are words of rates that have the unit in their names.
var perUnit = map[string]string{
	"rps": "s", "requests_per_second": "s", "rpm": "m", "requests_per_minute": "m", "rph": "h", "requests_per_hour": "h",
}

// toLimit returns the translation of a word that gives the burst or the rate, one of which
// may stand on a line of its own.
func toLimit(_ []string, z zoneLines) string {
	if whole := z.limited(); whole != "" {
		return whole
	}
	if nginxRate.MatchString(z.first("", "rate")) {
		return fromNginx(nil, z)
	}
	limit, _ := z.after("limit")
	limit = slices.Concat(limit, []string{"", ""})
	capacity := cmp.Or(z.first("", "capacity", "burst", "events", "max_events", "requests", "max_tokens", "tokens", "bucket_size", "average", "count"), limit[0])
	leak := cmp.Or(z.first("", "leak", "rate", "average", "refill_rate", "events", "max_events", "requests", "count"), limit[1], limit[0])
	for word, unit := range perUnit {
		if number := z.first("", word); number != "" {
			capacity, leak = cmp.Or(capacity, number), number+"/"+unit
		}
	}
	if _, err := leakybucket.ParseRate(leak); err != nil {
		leak = perWindow(leak, z.window())
	}
	if _, err := leakybucket.ParseCapacity(capacity); err != nil {
		capacity = "120"
	}
	return "limit " + capacity + " " + leak
}

// perWindow returns the rate of a number of requests in a window, such as 100 in 1m.
func perWindow(number, window string) string {
	if _, plain := leakybucket.ParseCost(number); !plain || number == "0" {
		return "2/s"
	}
	rate := number + "/" + cmp.Or(window, "s")
	if _, err := leakybucket.ParseRate(rate); err != nil {
		return number + "/s"
	}
	return rate
}

// nginxRate is a rate as nginx has it.
var nginxRate = regexp.MustCompile(`^(\d+)r/([sm])$`)

// fromNginx translates rate=10r/s burst=20 nodelay. A burst of nginx is what may come beside
// the one request that is due.
func fromNginx(words []string, z zoneLines) string {
	if whole := z.limited(); whole != "" {
		return whole
	}
	rate, delays := "2/s", true
	burst, _ := tokens.ParseWhole(0, config.MostAtOnce)(z.first("0", "burst")) // not as nginx has it, so nothing waits
	if burst > 0 {
		delays = false
	}
	all := slices.Clone(words)
	for _, line := range z {
		all = append(all, line...)
	}
	for _, word := range all {
		word = strings.TrimSuffix(word, ";")
		value := word
		if _, right, joined := strings.Cut(word, "="); joined {
			value = right
		}
		if found := nginxRate.FindStringSubmatch(value); found != nil {
			rate = found[1] + "/" + found[2]
		}
		if strings.HasPrefix(word, "burst=") {
			burst, _ = tokens.ParseWhole(0, config.MostAtOnce)(value)
		}
		delays = delays && word != "nodelay"
	}
	line := fmt.Sprintf("limit %d %s", burst+1, rate)
	if delays && burst > 0 {
		line += "\ndelay"
	}
	return line
}

// spelledRate is a rate in words, such as 10 per minute or 120 2r/s.
var spelledRate = regexp.MustCompile(`^(\d+) ?(?:/|per|requests per|r/|req/)? ?(s|m|h|d)(?:ec|econd|in|inute|r|our|ay)?s?$`)

// nginxLimit is a rate with a burst behind it, as nginx has them.
var nginxLimit = regexp.MustCompile(`^(\d+)r?/([sm]) burst=(\d+) ?(nodelay|)$`)

// meantLimit says what was meant by words after limit that are none, or "".
func meantLimit(words []string) string {
	text := strings.Join(words, " ")
	if found := spelledRate.FindStringSubmatch(text); found != nil {
		return fmt.Sprintf("the burst is missing: limit %s %s/%s", found[1], found[1], found[2])
	}
	if found := nginxLimit.FindStringSubmatch(text); found != nil {
		return "want " + fromNginx([]string{"rate=" + found[1] + "r/" + found[2], "burst=" + found[3], found[4]}, nil)
	}
	if len(words) == 2 {
		_, number := leakybucket.ParseCost(words[0])
		if _, err := leakybucket.ParseRate(words[1] + "/s"); number && err == nil {
			return fmt.Sprintf("the rate has no unit: limit %s %s/s", words[0], words[1])
		}
	}
	if len(words) > 2 {
		if found := spelledRate.FindStringSubmatch(strings.Join(words[1:], " ")); found != nil {
			return fmt.Sprintf("want limit %s %s/%s", words[0], found[1], found[2])
		}
	}
	if text == "unlimited" {
		return "want override <part>... unlimited for some keys, or no zone"
	}
	if len(words) == 1 {
		if _, err := leakybucket.ParseRate(words[0]); err == nil {
			number, _, _ := strings.Cut(words[0], "/")
			return fmt.Sprintf("the burst is missing: limit %s %s", number, words[0])
		}
		if _, plain := leakybucket.ParseCost(words[0]); plain {
			return fmt.Sprintf("the rate is missing: limit %s %s/m", words[0], words[0])
		}
	}
	return ""
}

// parseAddress reads an address or a network.
func parseAddress(word string) (netip.Prefix, error) {
	if network, err := netip.ParsePrefix(word); err == nil {
		return network, nil
	}
	address, err := netip.ParseAddr(word)
	return netip.PrefixFrom(address, address.BitLen()), err
}

// addresses returns the words that are addresses or networks, or else an example.
func addresses(words []string) []string {
	found := slices.DeleteFunc(slices.Clone(words), func(word string) bool { _, err := parseAddress(word); return err != nil })
	if len(found) == 0 {
		return []string{"203.0.113.7"}
	}
	return found
}

// FormerWords are the words of the former grammar and of other limiters.
var FormerWords map[string]translation

func init() {
	toWorkers := tokens.ParseWhole(1, config.MostAtOnce)
	exempting := func(words []string, _ zoneLines) string {
		if len(words) == 2 && words[0] == "path" && config.CheckPathList(words[1:]) == nil {
			return "exempt path " + words[1]
		}
		return "exempt client_ip " + strings.Join(addresses(words), " ")
	}
	denying := func(words []string, _ zoneLines) string {
		all := addresses(words)
		for i, address := range all {
			all[i] = "override " + address + " deny"
		}
		return strings.Join(all, "\n")
	}
	FormerWords = map[string]translation{
		"max_wait": toWaits("wait", "8s"), "max_waiting": toWaits("queue", "200"), "queue": toWaits("queue", "200"),
		"max_body": filled("read_body %s", config.DefaultReadBody, config.ParseSize(config.LargestReadBody)),
		"unread_body_cost": func(words []string, z zoneLines) string {
			return "read_body " + z.first(config.DefaultReadBody, "max_body") + " else " + valid("read_body", "else", words, "1")
		},
		"count_only": func(words []string, _ zoneLines) string {
			codes := slices.DeleteFunc(slices.Clone(words), func(w string) bool {
				_, err := settlement.ParseStatus(w)
				return err != nil
			})
			return "settle status " + cmp.Or(strings.Join(codes, " "), "401") + " 1 after"
		},
		"share": func(words []string, z zoneLines) string {
			if len(words) == 0 || !slices.Contains(config.SourceWords, words[0]) {
				words = nil
			}
			return inTurns(z, strings.TrimSpace("share "+strings.Join(words, " ")))
		},
		"rank": func(words []string, z zoneLines) string {
			switch {
			case len(words) < 3:
				words = strings.Fields("member issued wordpress_logged_in_*")
			case words[1] == "told":
				words = append(words[:3:3], "*_session")
			}
			return inTurns(z, "share", "rank "+strings.Join(words, " "))
		},
		"pass": func(_ []string, z zoneLines) string { return inTurns(z, "share", "pass off") },
		"message": func(words []string, _ zoneLines) string {
			text := strings.Trim(strings.Join(words, " "), "\"")
			if config.CheckMessage(text) != nil {
				text = "Too many requests."
			}
			return fmt.Sprintf("refusal message %q", text)
		},
		"page": func(words []string, _ zoneLines) string {
			if len(words) == 0 || !strings.HasSuffix(words[0], ".html") {
				return inBlock("refusal", nil, "page {", "\ttitle \"My site\"", "}")
			}
			return inBlock("refusal", nil, "page "+words[0])
		},
		"rate": func(words []string, z zoneLines) string {
			if len(words) > 0 && nginxRate.MatchString(words[0]) {
				return fromNginx(words, z)
			}
			return toLimit(words, z)
		},
		"nodelay": func(_ []string, z zoneLines) string { return fromNginx(nil, z) },
		"fold": func(words []string, z zoneLines) string {
			return z.line("key", "key form log") + " fold " + given(words[:min(1, len(words))], "wordpress", tokens.OneOf(config.FoldWords...))
		},
	}
	for words, to := range map[string]translation{
		"capacity leak burst average events requests count window period interval max_tokens tokens bucket_size refill_rate refill max_events": toLimit,
		strings.Join(slices.Collect(maps.Keys(perUnit)), " "):         toLimit,
		"limit_req limit_req_zone":                                    fromNginx,
		"dry_run dryrun limit_req_dry_run log_only track report_only": func([]string, zoneLines) string { return "shadow" },
		"server_timing": func([]string, zoneLines) string { return "shadow server_timing" },
		"whitelist allowlist safelist bypass allow skip ignore":                                       exempting,
		"blacklist denylist blocklist deny":                                                           denying,
		"ban penalty ban_time bantime block_duration timeout":                                         filled("block %s", "10m", tokens.ParseDuration),
		"concurrency limit_conn limit_conn_zone max_concurrent max_connections max_conns connections": filled("in_flight %s", "5", toWorkers),
		"workers": filled("settle seconds %s", "5", toWorkers),
	} {
		for _, word := range strings.Fields(words) {
			FormerWords[word] = to
		}
	}
	for _, d := range [][4]string{
		{"missing_key", "key client_ip", "missing", "share"}, {"unlisted_key", "key client_ip", "unlisted", "refuse"}, {"plain_keys", "key client_ip", "plain"},
		{"ipv4_prefix", "key client_ip", "ipv4", "24"}, {"ipv6_prefix", "key client_ip", "ipv6", "48"}, {"debt", "settle seconds", "debt", "0"},
		{"warm_up", "in_flight 5", "warm_up", "30s"}, {"request_buffer", "in_flight 5", "buffer", "8MiB"},
		{"retry_after", "refusal", "retry_after", "fit"}, {"retry_jitter", "refusal", "jitter", "20"}, {"jitter", "refusal", "jitter", "20"},
		{"status", "refusal", "status", "429"}, {"limit_req_status", "refusal", "status", "429"}, {"refuse", "refusal", "error"},
		{"support_code", "refusal", "code", "off"}, {"zone_header", "refusal", "zone_header"}, {"log_refused", "refusal", "log", "10/s"},
	} {
		FormerWords[d[0]] = toDetail(d[1], d[2], d[3])
	}
}
