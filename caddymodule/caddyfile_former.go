package caddymodule

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/settlement"
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

// first returns the first word after another one, or what it is by default.
func (z zoneLines) first(word, standard string) string {
	if words, found := z.after(word); found && len(words) > 0 {
		return words[0]
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
	if translations[name] != "" {
		return ""
	}
	lines := formerWords[name]
	if known := optionNames(func(zoneOption) bool { return true }); lines == nil && nearest(name, known) == "" {
		name = nearest(name, slices.Collect(maps.Keys(formerWords)))
		lines = formerWords[name]
	}
	if lines == nil {
		return ""
	}
	return lines(words, append(slices.Clone(z), append([]string{name}, words...))) // also if it was written otherwise
}

// at returns the first word, or what it is by default.
func at(words []string, standard string) string {
	if len(words) == 0 || words[0] == "" {
		return standard
	}
	return words[0]
}

// A translation returns the lines to write instead of a word with others after it.
type translation func(words []string, z zoneLines) string

// detailOf returns the translation of a word that is a detail of an option now.
func detailOf(option, standardLine, name, standard string) translation {
	return func(words []string, z zoneLines) string {
		return strings.TrimSpace(z.line(option, standardLine) + " " + name + " " + valid(option, name, words, standard))
	}
}

// valid returns the first word if the detail takes it, or else a standard one.
func valid(option, name string, words []string, standard string) string {
	o := &zoneOptions[optionNamed(option)]
	d := &o.details[detailNamed(o, name)]
	if len(words) == 0 || d.set == nil || d.set(new(Zone), strings.Trim(words[0], "\"")) != nil {
		return standard
	}
	if d.syntax == "" {
		return ""
	}
	return words[0]
}

// ofRefusal returns the translation of a word that is a detail of refusal now.
func ofRefusal(name, standard string) translation {
	return detailOf("refusal", "refusal", name, standard)
}

// ofWaits returns the translation of a word about queues, which belongs to in_flight, or to
// delay in a zone that has one or a limit.
func ofWaits(name, standard string) translation {
	return func(words []string, z zoneLines) string {
		option, line := "in_flight", z.line("in_flight", "in_flight 5")
		_, delays := z.after("delay")
		_, limited := z.after("limit")
		if delays || limited {
			option, line = "delay", z.line("delay", "delay")
		}
		if option == "in_flight" && name == "queue" && !strings.Contains(line, " wait ") {
			line += " wait " + z.first("max_wait", "8s")
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

// block returns lines in the block behind a head, as a Caddyfile has them.
func block(head string, lines ...string) string {
	return head + " {\n\t" + strings.Join(lines, "\n\t") + "\n}"
}

// toLimit returns the translation of a word that gives the burst or the rate, one of which
// may stand on a line of its own.
func toLimit(words []string, z zoneLines) string {
	capacity, leak := "", ""
	for _, name := range []string{"capacity", "burst", "events", "requests", "max_tokens", "tokens", "bucket_size", "average", "count"} {
		capacity = cmp.Or(capacity, z.first(name, ""))
	}
	for _, name := range []string{"leak", "rate", "average", "refill_rate", "events", "requests", "count"} {
		leak = cmp.Or(leak, z.first(name, ""))
	}
	if limit, found := z.after("limit"); found && len(limit) == 2 {
		capacity, leak = cmp.Or(capacity, limit[0]), cmp.Or(leak, limit[1])
	}
	window := z.first("window", z.first("period", z.first("interval", "")))
	if _, err := leakybucket.ParseRate(leak); err != nil {
		leak = perWindow(leak, window)
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
	rate, burst, delays := "2/s", 0, true
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
			burst, _ = parseWhole(0, mostAtOnce)(value)
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

func exempting(words []string, _ zoneLines) string {
	if len(words) == 2 && words[0] == "path" && checkPathList(words[1:]) == nil {
		return "exempt path " + words[1]
	}
	return "exempt client_ip " + address(words, "203.0.113.0/24")
}

func denying(words []string, _ zoneLines) string {
	return "override " + address(words, "203.0.113.7") + " deny"
}

// address returns the first word if it is an address or a network, or else a standard one.
func address(words []string, standard string) string {
	word := at(words, standard)
	_, err := netip.ParsePrefix(word)
	if _, err2 := netip.ParseAddr(word); err != nil && err2 != nil {
		return standard
	}
	return word
}

func inFlightOf(words []string, _ zoneLines) string {
	return "in_flight " + number(words)
}

// number returns the first word if it is a number of workers, or else 5.
func number(words []string) string {
	for _, word := range words { // limit_conn of nginx has the zone before it
		if n, err := parseWhole(1, mostAtOnce)(word); err == nil {
			return strconv.Itoa(n)
		}
	}
	return "5"
}

func shadowing([]string, zoneLines) string { return "shadow" }

func blocking(words []string, _ zoneLines) string {
	if _, err := parseDuration(at(words, "")); err != nil {
		return "block 10m"
	}
	return "block " + words[0]
}

// formerWords are the words of the former grammar and of other limiters.
var formerWords map[string]translation

func init() {
	formerWords = map[string]translation{
		"capacity": toLimit, "leak": toLimit,
		"missing_key": detailOf("key", "key client_ip", "missing", "share"), "unlisted_key": detailOf("key", "key client_ip", "unlisted", "refuse"),
		"plain_keys":  detailOf("key", "key client_ip", "plain", ""),
		"ipv4_prefix": detailOf("key", "key client_ip", "ipv4", "24"), "ipv6_prefix": detailOf("key", "key client_ip", "ipv6", "48"),
		"max_body": func(words []string, _ zoneLines) string {
			if _, err := parseSize(largestReadBody)(at(words, "")); err != nil {
				return "read_body " + defaultReadBody
			}
			return "read_body " + words[0]
		},
		"unread_body_cost": func(words []string, z zoneLines) string {
			return "read_body " + z.first("max_body", defaultReadBody) + " else " + valid("read_body", "else", words, "1")
		},
		"count_only": func(words []string, _ zoneLines) string {
			codes := slices.DeleteFunc(slices.Clone(words), func(w string) bool {
				_, err := settlement.ParseStatus(w)
				return err != nil
			})
			return "settle status " + cmp.Or(strings.Join(codes, " "), "401") + " 1 after"
		},
		"debt":     detailOf("settle", "settle seconds", "debt", "0"),
		"max_wait": ofWaits("wait", "8s"), "max_waiting": ofWaits("queue", "200"), "queue": ofWaits("queue", "200"),
		"share": func(words []string, z zoneLines) string {
			if !slices.Contains(sourceWords, at(words, "")) {
				words = nil
			}
			return inBlock("in_flight", z, strings.TrimSpace("share "+strings.Join(words, " ")))
		},
		"rank": func(words []string, z zoneLines) string {
			if len(words) < 3 {
				words = strings.Fields("member issued wordpress_logged_in_*")
			}
			return inBlock("in_flight", z, "share", "rank "+strings.Join(words, " "))
		},
		"pass":    func(_ []string, z zoneLines) string { return inBlock("in_flight", z, "share", "pass off") },
		"warm_up": detailOf("in_flight", "in_flight 5", "warm_up", "30s"), "request_buffer": detailOf("in_flight", "in_flight 5", "buffer", "8MiB"),
		"retry_after": ofRefusal("retry_after", "fit"), "retry_jitter": ofRefusal("jitter", "20"), "jitter": ofRefusal("jitter", "20"),
		"status": ofRefusal("status", "429"), "limit_req_status": ofRefusal("status", "429"), "message": func(words []string, _ zoneLines) string {
			text := strings.Trim(strings.Join(words, " "), "\"")
			if checkMessage(text) != nil {
				text = "Too many requests."
			}
			return fmt.Sprintf("refusal message %q", text)
		},
		"page": func(words []string, _ zoneLines) string {
			if !strings.HasSuffix(at(words, ""), ".html") {
				return inBlock("refusal", nil, "page {", "\ttitle \"My site\"", "}")
			}
			return inBlock("refusal", nil, "page "+words[0])
		},
		"refuse": ofRefusal("error", ""), "support_code": ofRefusal("code", "off"), "zone_header": ofRefusal("zone_header", ""),
		"log_refused": ofRefusal("log", "10/s"), "server_timing": func([]string, zoneLines) string { return "shadow server_timing" },

		"rate": func(words []string, z zoneLines) string {
			if len(words) > 0 && nginxRate.MatchString(strings.TrimSuffix(words[0], ";")) {
				return fromNginx(words, z)
			}
			return toLimit(words, z)
		},
		"limit_req": fromNginx, "limit_req_zone": fromNginx,
		"burst": toLimit, "average": toLimit, "events": toLimit, "requests": toLimit, "count": toLimit, "window": toLimit, "period": toLimit, "interval": toLimit,
		"max_tokens": toLimit, "tokens": toLimit, "bucket_size": toLimit, "refill_rate": toLimit, "refill": toLimit,
		"dry_run": shadowing, "dryrun": shadowing, "limit_req_dry_run": shadowing, "log_only": shadowing, "track": shadowing, "report_only": shadowing,
		"nodelay":   func(_ []string, z zoneLines) string { return fromNginx(nil, z) },
		"whitelist": exempting, "allowlist": exempting, "safelist": exempting, "bypass": exempting, "allow": exempting, "skip": exempting, "ignore": exempting,
		"blacklist": denying, "denylist": denying, "blocklist": denying, "deny": denying,
		"ban": blocking, "penalty": blocking, "ban_time": blocking, "bantime": blocking, "block_duration": blocking, "timeout": blocking,
		"concurrency": inFlightOf, "limit_conn": inFlightOf, "limit_conn_zone": inFlightOf, "max_concurrent": inFlightOf, "max_connections": inFlightOf, "max_conns": inFlightOf, "connections": inFlightOf,
		"fold": func(words []string, z zoneLines) string {
			if word := at(words, ""); slices.Contains(foldWords, word) {
				return z.line("key", "key form log") + " fold " + word
			}
			return z.line("key", "key form log") + " fold wordpress"
		},
		"workers": func(words []string, _ zoneLines) string { return "settle seconds " + number(words) },
	}
}
