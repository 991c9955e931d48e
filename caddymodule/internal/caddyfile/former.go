package caddyfile

import (
	"cmp"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/text"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/tokens"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

const someAddress = "203.0.113.7"

// formerWords are words of other limiters and of a former grammar, and what to write instead.
// Nothing stands for the limit, which has the numbers behind the word.
var formerWords = map[string]string{
	"leak rate nodelay limit_req limit_req_zone capacity burst max_tokens tokens bucket_size average events max_events requests count refill_rate refill " +
		"window period interval per every duration rps requests_per_second rpm requests_per_minute rph requests_per_hour": "",

	"whitelist allowlist safelist bypass allow skip ignore":       "exempt client_ip " + someAddress,
	"blacklist denylist blocklist deny":                           "override " + someAddress + " deny",
	"dry_run dryrun limit_req_dry_run log_only track report_only": "shadow",
	"server_timing": "shadow server_timing",
	"ban penalty ban_time bantime block_duration timeout":                                         "block 10m",
	"concurrency limit_conn limit_conn_zone max_concurrent max_connections max_conns connections": "in_flight 5",
	"max_wait":                "delay wait 8s, or in_flight 5 wait 8s without a limit",
	"max_waiting queue":       "delay queue 200, or in_flight 5 wait 8s queue 200 without a limit",
	"request_buffer":          "in_flight 5 buffer 8MiB",
	"share":                   "in_flight 5 {\n\tshare\n}",
	"rank":                    "in_flight 5 {\n\tshare\n\trank member issued wordpress_logged_in_*\n}",
	"pass":                    "in_flight 5 {\n\tshare\n\tpass off\n}",
	"max_body":                "read_body 64KiB",
	"unread_body_cost":        "read_body 64KiB else 1",
	"count_only":              "settle status 401 1 after",
	"debt":                    "settle seconds debt 0",
	"fold":                    "key form log fold wordpress",
	"missing_key":             "key client_ip missing share",
	"unlisted_key":            "key client_ip unlisted refuse",
	"plain_keys":              "key header X-Api-Key plain",
	"ipv4_prefix":             "key client_ip ipv4 24",
	"ipv6_prefix":             "key client_ip ipv6 48",
	"message":                 "refusal message \"Too many requests.\"",
	"page":                    "refusal {\n\tpage {\n\t\ttitle \"My site\"\n\t}\n}",
	"retry_after":             "refusal retry_after fit",
	"retry_jitter jitter":     "refusal jitter 20",
	"status limit_req_status": "refusal status 429",
	"refuse":                  "refusal error",
	"support_code":            "refusal code off",
	"zone_header":             "refusal zone_header",
	"log_refused":             "refusal log 10/s",
}

// FormerWords has the line of formerWords for each word.
var FormerWords = make(map[string]string)

func init() {
	for words, line := range formerWords {
		for _, word := range strings.Fields(words) {
			FormerWords[word] = line
		}
	}
}

// former returns the known word that one of a former grammar or another limiter stands for,
// or "".
func former(word string) string {
	name, _, _ := strings.Cut(strings.TrimRight(word, ":;"), "=")
	if _, known := FormerWords[name]; known || tokens.Translations[name] != "" || text.Nearest(name, Names(ZoneOptions)) != "" {
		return name
	}
	return text.Nearest(name, slices.Collect(maps.Keys(FormerWords)))
}

// translate says what to write instead of a word that is no option of a zone, with others
// behind it, or returns "".
func translate(word string, rest []string) string {
	line, known := FormerWords[former(word)]
	switch {
	case !known:
		return ""
	case line == "":
		return wantLimit(append([]string{word}, rest...))
	case len(rest) > 0 && values["client_ip"].MatchString(strings.TrimSuffix(rest[0], ";")):
		line = strings.Replace(line, someAddress, strings.TrimSuffix(rest[0], ";"), 1)
	}
	return "want a line such as" + strings.TrimPrefix(want(line), "want")
}

// quoted returns words as a Caddyfile has them.
func quoted(words []string) string {
	var line []string
	for _, word := range words {
		if word == "" || strings.ContainsAny(word, " \t\"#") {
			word = "\"" + strings.ReplaceAll(word, "\"", "\\\"") + "\""
		}
		line = append(line, word)
	}
	return strings.Join(line, " ")
}

// want shows lines to write, several on lines of their own.
func want(lines string) string {
	if strings.Contains(lines, "\n") {
		return "want\n" + lines
	}
	return "want " + lines
}

// block returns lines in the block behind a head, as a Caddyfile has them.
func block(head, lines string) string {
	return head + " {\n\t" + strings.ReplaceAll(lines, "\n", "\n\t") + "\n}"
}

// wantLimit says how a limit is written, with the numbers of some words.
func wantLimit(words []string) string {
	return "want limit <capacity> <leak>, such as limit " + cmp.Or(meantLimit(words), "120 2/s")
}

var (
	// spelled is the unit of a rate in words, such as per minute.
	spelled = regexp.MustCompile(` (?:requests )?per (s|m|h|d)[a-z]*\b`)

	units = map[string]string{"rps": "s", "requests_per_second": "s", "rph": "h", "requests_per_hour": "h"}
)

// meantLimit returns the limit that words probably mean, such as rate=10r/s burst=20 of
// nginx, 100 1m or 30 per minute, or "".
func meantLimit(words []string) string {
	var capacity, rate, window string
	for _, word := range strings.Fields(spelled.ReplaceAllString(strings.Join(words, " "), "/$1")) {
		name, value, named := strings.Cut(strings.TrimRight(word, ",;"), "=")
		if !named {
			value = name
		}
		value = strings.Replace(value, "r/", "/", 1)
		if n, err := strconv.Atoi(value); err == nil && name == "burst" {
			value = strconv.Itoa(n + 1) // with the one request that is due
		}
		window = cmp.Or(units[name], window)
		if _, err := leakybucket.ParseRate(value); err == nil {
			rate = cmp.Or(rate, value)
		} else if _, err := leakybucket.ParseCapacity(value); err == nil && capacity == "" {
			capacity = value
		} else if err == nil {
			rate = cmp.Or(rate, value+"/s")
		} else if _, err := caddy.ParseDuration(value); err == nil {
			window = value
		}
	}
	count, _, _ := strings.Cut(rate, "/")
	limit := cmp.Or(capacity, count) + " " + cmp.Or(rate, capacity+"/"+cmp.Or(window, "m"))
	if _, err := leakybucket.ParseLimit(limit); err != nil {
		return ""
	}
	return limit
}

// lineHere returns the current word and those behind it on its line, and reads nothing.
func lineHere(d *caddyfile.Dispenser) (word string, rest []string) {
	peek := *d
	return peek.Val(), peek.RemainingArgs()
}
