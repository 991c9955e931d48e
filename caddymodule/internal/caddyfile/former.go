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

// A zoneLine is a line in the block of a zone, as words, with those in its own block.
type zoneLine struct {
	words []string
	place string
	block []string // nil if it has none
}

// zoneLines let a translation of one word see what stands beside it.
type zoneLines []zoneLine

// zoneBlock returns the lines of the block that comes next, and reads nothing.
func zoneBlock(d *caddyfile.Dispenser) (lines zoneLines) {
	depth, read, last := 0, 0, ""
	for d.Next() {
		read++
		switch d.Val() {
		case "{":
			if depth++; depth == 2 && len(lines) > 0 {
				lines[len(lines)-1].block = []string{}
			}
			continue
		case "}":
			depth--
		}
		if depth <= 0 {
			break
		}
		if depth > 1 && len(lines) > 0 {
			line := &lines[len(lines)-1]
			line.block = append(line.block, d.Val())
		}
		if here := tokens.Place(d); depth == 1 && d.Val() != "}" {
			if here != last {
				lines = append(lines, zoneLine{place: here})
			}
			line := &lines[len(lines)-1]
			line.words, last = append(line.words, d.Val()), here
		}
	}
	for range read {
		d.Prev()
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

// after returns the words after the first line that begins with a word, and whether there
// is one.
func (z zoneLines) after(word string) ([]string, bool) {
	if line := z.find(word); line != nil {
		return line.words[1:], true
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

// inBlock returns the words in the block of an option.
func (z zoneLines) inBlock(option string) []string {
	if line := z.find(option); line != nil {
		return line.block
	}
	return nil
}

// line returns the line of a word, or a standard one if there is none.
func (z zoneLines) line(word, standard string) string {
	if line := z.find(word); line != nil {
		return strings.Join(quoted(line.words), " ")
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

// translate says what to write instead of a word that is no option of a zone, with others
// after it, or returns "". The word is one of a former grammar or of another limiter.
func (z zoneLines) translate(word string, rest []string) string {
	why, lines := z.meant(word, rest)
	if lines == "" {
		return why
	}
	option, _, _ := strings.Cut(lines, " ")
	i, other := OptionNamed(option), z.find(option)
	if i < 0 || other == nil || ZoneOptions[i].Repeats {
		return why + want(lines)
	}
	more := strings.TrimSpace(strings.TrimPrefix(lines, z.line(option, "")))
	for _, word := range strings.Fields(more) {
		if d := DetailNamed(&ZoneOptions[i], word); d >= 0 && !ZoneOptions[i].Details[d].Repeats && slices.Contains(slices.Concat(other.words, other.block), word) {
			return "remove it: " + option + " has " + word + " " + other.place + " already"
		}
	}
	if other.block == nil {
		return why + "instead of this and of " + option + " " + other.place + ", " + want(lines)
	}
	more = strings.TrimSuffix(strings.TrimPrefix(more, "{\n\t"), "\n}")
	return why + "want in the block of " + option + " " + other.place + "\n" + strings.ReplaceAll(more, "\n\t", "\n")
}

// want shows lines to write, several on lines of their own.
func want(lines string) string {
	if strings.Contains(lines, "\n") {
		return "want\n" + lines
	}
	return "want " + lines
}

// meant returns why a word is wrong, as far as that must be said, and the lines to write.
func (z zoneLines) meant(word string, rest []string) (why, lines string) {
	name, value, joined := strings.Cut(strings.TrimRight(word, ":;"), "=") // as in nginx
	words := quoted(rest)
	for i, word := range words {
		words[i] = strings.TrimSuffix(word, ";")
	}
	nginx := joined && slices.Contains(nginxWords, name)
	if nginx {
		value = word
	}
	if joined {
		words = append([]string{value}, words...)
	}
	if tokens.Translations[name] != "" {
		return "", ""
	}
	known := OptionNames(func(ZoneOption) bool { return true })
	if FormerWords[name] == nil && !nginx && text.Nearest(name, known) == "" {
		name = text.Nearest(name, slices.Collect(maps.Keys(FormerWords)))
	}
	switch whole := z.limited(); {
	case whole != nil && (nginx || slices.Contains(limitWords, name)):
		return "remove it: the zone has " + strings.Join(slices.Concat(whole.words, []string{whole.place, "already"}), " "), ""
	case nginx:
		return "", fromNginx(words, z)
	case FormerWords[name] == nil:
		return "", ""
	case slices.Contains(exemptWords, name) || slices.Contains(denyWords, name):
		why = noAddress(words)
	case slices.Contains(turnWords, name) && z.excludesTurns() != "":
		why = "share and " + z.excludesTurns() + " exclude each other: remove it"
		if slots := z.find("in_flight"); slots != nil && slots.block == nil {
			why += " and in_flight " + slots.place
		}
		why += ", and beside this zone "
	}
	seen := append(slices.Clone(z), zoneLine{words: append([]string{name}, words...)}) // also if it was written otherwise
	return why, FormerWords[name](words, seen)
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
		if option == "in_flight" && name == "queue" && !strings.Contains(line, " wait ") && !slices.Contains(z.inBlock(option), "wait") {
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

// turnWords are words about turns, which stand in the block of in_flight.
var turnWords = []string{"share", "rank", "pass"}

// excludesTurns returns an option of the zone that excludes share, or "".
func (z zoneLines) excludesTurns() string {
	for _, option := range []string{"limit", "delay", "block", "cost", "settle"} {
		if z.find(option) != nil {
			return option
		}
	}
	return ""
}

// inTurns returns in_flight with lines in its block, in a zone of its own if this one has
// what excludes share.
func inTurns(z zoneLines, lines ...string) string {
	if z.excludesTurns() != "" {
		return block("zone turns", inBlock("in_flight", z, lines...))
	}
	if slices.Contains(z.inBlock("in_flight"), lines[0]) { // which is share
		lines = lines[min(1, len(lines)-1):]
	}
	return inBlock("in_flight", z, lines...)
}

// block returns lines in the block behind a head, as a Caddyfile has them.
func block(head string, lines ...string) string {
	return head + " {\n\t" + strings.ReplaceAll(strings.Join(lines, "\n"), "\n", "\n\t") + "\n}"
}

// limited returns the line of the zone's limit, or nil if it has no whole one.
func (z zoneLines) limited() *zoneLine {
	line := z.find("limit")
	if line == nil || len(line.words) != 3 {
		return nil
	}
	if _, err := leakybucket.ParseLimit(strings.Join(line.words[1:], " ")); err != nil {
		return nil
	}
	return line
}

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
	rate, delays := "2/s", true
	burst, _ := tokens.ParseWhole(0, config.MostAtOnce)(z.first("0", "burst")) // not as nginx has it, so nothing waits
	if burst > 0 {
		delays = false
	}
	all := slices.Clone(words)
	for _, line := range z {
		all = append(all, line.words...)
	}
	for _, word := range all {
		word = strings.TrimSuffix(word, ";")
		value := word
		if _, right, joined := strings.Cut(word, "="); joined {
			value = right
		}
		if plain := strings.Replace(value, "r/", "/", 1); !strings.HasPrefix(plain, "/") {
			if _, err := leakybucket.ParseRate(plain); err == nil {
				rate = plain
			}
		}
		if strings.HasPrefix(word, "burst=") {
			burst, _ = tokens.ParseWhole(0, config.MostAtOnce)(value)
		}
		delays = delays && word != "nodelay"
	}
	if limit, _ := z.after("limit"); len(limit) == 1 {
		if n, err := tokens.ParseWhole(1, config.MostAtOnce)(limit[0]); err == nil {
			burst, delays = n-1, false
		}
	}
	line := fmt.Sprintf("limit %d %s", burst+1, rate)
	if delays && burst > 0 {
		line += "\ndelay"
	}
	return line
}

// nginxWords are those that nginx joins with their values, as in burst=20.
var nginxWords = []string{"zone", "rate", "burst"}

// isFormer reports whether a word is one of the former grammar or of another limiter.
func isFormer(word string) bool {
	name, _, joined := strings.Cut(strings.TrimRight(word, ":;"), "=")
	return FormerWords[name] != nil || joined && slices.Contains(nginxWords, name)
}

// spelledRate is a rate in words, such as 10 per minute or 120 2r/s.
var spelledRate = regexp.MustCompile(`^(\d+) ?(?:/|per|requests per|r/|req/)? ?(s|m|h|d)(?:ec|econd|in|inute|r|our|ay)?s?$`)

// nginxLimit is a rate with a burst behind it, as nginx has them.
var nginxLimit = regexp.MustCompile(`^(\d+)r?/([sm]) burst=(\d+) ?(nodelay|)$`)

// meantLimit says why words after limit are none, and what to write. Both are "" if that is
// unknown.
func meantLimit(words []string) (why, line string) {
	text := strings.Join(words, " ")
	if found := spelledRate.FindStringSubmatch(text); found != nil {
		return "the burst is missing", fmt.Sprintf("limit %s %s/%s", found[1], found[1], found[2])
	}
	if found := nginxLimit.FindStringSubmatch(text); found != nil {
		return "that is nginx's", fromNginx([]string{"rate=" + found[1] + "r/" + found[2], "burst=" + found[3], found[4]}, nil)
	}
	if len(words) == 2 {
		_, number := leakybucket.ParseCost(words[0])
		if _, err := leakybucket.ParseRate(words[1] + "/s"); number && err == nil {
			return "the rate has no unit", "limit " + text + "/s"
		}
		if _, err := leakybucket.ParseRate(words[0] + "/" + words[1]); number && err == nil {
			return "that is a window", fmt.Sprintf("limit %s %[1]s/%s", words[0], words[1])
		}
		swapped := words[1] + " " + words[0]
		if _, err := leakybucket.ParseLimit(swapped); err == nil {
			return "the capacity comes first", "limit " + swapped
		}
	}
	if len(words) > 2 {
		if found := spelledRate.FindStringSubmatch(strings.Join(words[1:], " ")); found != nil {
			return "the rate is one word", fmt.Sprintf("limit %s %s/%s", words[0], found[1], found[2])
		}
	}
	if len(words) == 1 {
		if _, err := leakybucket.ParseRate(words[0]); err == nil {
			number, _, _ := strings.Cut(words[0], "/")
			return "the burst is missing", fmt.Sprintf("limit %s %s", number, words[0])
		}
		if _, plain := leakybucket.ParseCost(words[0]); plain {
			return "the rate is missing", fmt.Sprintf("limit %s %s/m", words[0], words[0])
		}
	}
	return "", ""
}

// parseAddress reads an address or a network.
func parseAddress(word string) (netip.Prefix, error) {
	if network, err := netip.ParsePrefix(word); err == nil {
		return network, nil
	}
	address, err := netip.ParseAddr(word)
	return netip.PrefixFrom(address, address.BitLen()), err
}

// noAddress says which of the words is no address or network, or returns "". A matcher may
// stand before them.
func noAddress(words []string) string {
	for _, word := range words {
		if _, err := parseAddress(word); err != nil && !slices.Contains(config.MatcherWords, words[0]) {
			return fmt.Sprintf("%q is no address or network: ", word)
		}
	}
	return ""
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

// limitWords, exemptWords and denyWords are those of one meaning.
var (
	limitWords = append(strings.Fields("capacity leak burst average events requests count window period interval max_tokens tokens bucket_size "+
		"refill_rate refill max_events rate nodelay limit_req limit_req_zone"), slices.Collect(maps.Keys(perUnit))...)
	exemptWords = strings.Fields("whitelist allowlist safelist bypass allow skip ignore")
	denyWords   = strings.Fields("blacklist denylist blocklist deny")
)

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
				return inBlock("refusal", nil, block("page", "title \"My site\""))
			}
			return inBlock("refusal", nil, "page "+words[0])
		},
		"fold": func(words []string, z zoneLines) string {
			return z.line("key", "key form log") + " fold " + given(words[:min(1, len(words))], "wordpress", tokens.OneOf(config.FoldWords...))
		},
	}
	for _, word := range limitWords {
		FormerWords[word] = toLimit
	}
	FormerWords["nodelay"], FormerWords["limit_req"], FormerWords["limit_req_zone"] = fromNginx, fromNginx, fromNginx
	for _, word := range exemptWords {
		FormerWords[word] = exempting
	}
	for _, word := range denyWords {
		FormerWords[word] = denying
	}
	for words, to := range map[string]translation{
		"dry_run dryrun limit_req_dry_run log_only track report_only": func([]string, zoneLines) string { return "shadow" },
		"server_timing": func([]string, zoneLines) string { return "shadow server_timing" },
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

// lineHere returns the current word and those behind it on its line, and reads nothing.
func lineHere(d *caddyfile.Dispenser) (word string, rest []string) {
	word, rest = d.Val(), d.RemainingArgs()
	for range rest {
		d.Prev()
	}
	return word, rest
}
