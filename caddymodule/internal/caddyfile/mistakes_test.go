package caddyfile_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2/caddyconfig"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/servertest"
)

// A mistake is a Caddyfile that does not mean what its owner believes. The error says
// in which line, names the word that is wrong, and says what would be right.
type mistake struct {
	in   string // zone, block, site, global or file: what the text is a part of
	text string // whose wrong line ends with the comment <-
	says string
}

// caddyfile returns the whole file.
func (m mistake) caddyfile() string {
	switch m.in {
	case "zone":
		return "http://example.com {\n\tthrottle {\n\t\tzone pages {\n" + m.text + "\n\t\t}\n\t}\n}\n"
	case "block":
		return "http://example.com {\n\tthrottle {\n" + m.text + "\n\t}\n}\n"
	case "site":
		return "http://example.com {\n" + m.text + "\n}\n"
	case "global":
		return "{\n\tthrottle {\n" + m.text + "\n\t}\n}\nhttp://example.com {\n\tthrottle pages 60 10/s\n}\n"
	}
	return m.text + "\n"
}

// place returns the marked line, as errors name it.
func (m mistake) place() string {
	before, _, _ := strings.Cut(m.caddyfile(), "# <-")
	return fmt.Sprintf("Caddyfile:%d", 1+strings.Count(before, "\n"))
}

// adapt returns the adapter's error about the file, or the config and "".
func (m mistake) adapt() (config []byte, message string) {
	config, _, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte(m.caddyfile()), map[string]any{"filename": "Caddyfile"})
	if err != nil {
		return nil, err.Error()
	}
	return config, ""
}

func TestAMistakeIsAnsweredWithItsLineItsWordAndItsRemedy(t *testing.T) {
	for _, m := range mistakes {
		_, got := m.adapt()
		if !strings.Contains(got, m.says) || !strings.HasSuffix(got, "at "+m.place()) {
			t.Errorf("%s\ngot  %s\nwant %s, at %s", m.caddyfile(), got, m.says, m.place())
		}
	}
}

// Caddy itself finds these before throttle is asked. It names the line.
func TestAMistakeThatCaddyFindsHasItsLine(t *testing.T) {
	for _, m := range []mistake{
		{"site", "rate_limit { # <-\n}", "unrecognized directive: rate_limit"},
		{"site", "limit_req zone=one burst=5 nodelay # <-", "unrecognized directive: limit_req"},
		{"site", "limit_conn addr 5 # <-", "unrecognized directive: limit_conn"},
		{"site", "@x path login\nthrottle {\n\texempt static_files\n\texempt @x # <-\n\tzone pages {\n\t\tlimit 60 10/s\n\t}\n}", "login"},
		{"zone", "match { path /a } # <-", "Unexpected next token after '{' on same line"},
		{"block", "zone pages { limit 60 10/s } # <-", "Unexpected next token after '{' on same line"},
		{"block", "zone pages\n{ # <-\nlimit 60 10/s\n}", "Unexpected '{' on a new line; did you mean to place the '{' on the previous line?"},
		{"file", "throttle { # <-\n\tzone pages {\n\t}\n}", "parsed 'throttle' as a site address, but it is a known directive; directives must appear in a site block"},
	} {
		if _, got := m.adapt(); !strings.Contains(got, m.says) || !strings.Contains(got, m.place()) {
			t.Errorf("%s\ngot  %s\nwant %s, at %s", m.caddyfile(), got, m.says, m.place())
		}
	}
}

// These may be meant, so they are warned of.
func TestAMistakeThatMayBeMeantIsWarnedOf(t *testing.T) {
	for _, test := range []struct {
		mistake
		want int
	}{
		{mistake{"zone", "limit 60 10/s\nsettle status 401 5\nblock 10m", "add after to settle"}, 1},
		{mistake{"zone", "limit 60 10/s\nexempt path /wp-cron.php*", "anybody can call the script that is exempt"}, 1},
		{mistake{"zone", "limit 60 10/s\nexempt {\npath /wp-cron.php*\nclient_ip 192.0.2.1\n}", "anybody can call the script that is exempt"}, 0},
	} {
		s := servertest.Run(t, test.caddyfile())
		s.Warned(t, test.says, test.want)
		s.Stop()
	}
}

var mistakes = []mistake{
	{"zone", "limit_req zone=one burst=20 nodelay # <-", `unknown option "limit_req" in zone "pages": want one of match, field, exempt, key, route, limit,`},
	{"zone", "shaddow # <-", `unknown option "shaddow" in zone "pages": did you mean shadow?`},
	{"zone", "limit 10 2  # <-", `invalid rate "2": want <number>/<s|m|h|d> or a longer period, such as 2/s or 5/20s`},
	{"zone", "limit 10 2r/s  # <-", `invalid rate "2r/s": did you mean 2/s?`},
	{"zone", "limit 10 5/20  # <-", `invalid rate "5/20": want <number>/<s|m|h|d> or a longer period, such as 2/s or 5/20s`},
	{"zone", "limit 10 5/20x  # <-", `invalid rate "5/20x": want <number>/<s|m|h|d> or a longer period, such as 2/s or 5/20s`},
	{"zone", "limit 10 0/s  # <-", `invalid rate "0/s": a bucket must drain: want a number above 0, such as 1/h`},
	{"zone", "limit 10 1/min  # <-", `invalid rate "1/min": did you mean 1/m?`},
	{"zone", "limit 10 1/sec  # <-", `invalid rate "1/sec": did you mean 1/s?`},
	{"zone", "limit 60 # <-", "wrong number of words after limit: want limit <capacity> <leak>, such as limit 120 2/s"},
	{"zone", "limit 10/s 60 # <-", `invalid limit "10/s 60": the capacity comes first: did you mean 60 10/s?`},
	{"zone", "limit 60 10/s 20 # <-", "wrong number of words after limit: want limit <capacity> <leak>, such as limit 120 2/s"},
	{"zone", "limit 60 10/s\ncost 61 # <-", `zone "pages": invalid cost 61: it can never fit the capacity of 60`},
	{"zone", "limit 1,000 2/s # <-", `invalid capacity "1,000": did you mean 1000?`},
	{"zone", "limit 100 2,5/s # <-", `invalid rate "2,5/s": did you mean 2.5/s?`},
	{"zone", "limit 10 1/s\nlimit 20 1/s # <-", "limit is given twice"},
	{"block", "limit 10 1/s  # <-", "limit cannot stand beside the zones in the directive throttle: want it in the block of a zone"},
	{"block", "zone a/b { # <-\nlimit 60 10/s\n}", `invalid zone name "a/b": want letters, digits, _, . and -`},
	{"block", "zone { # <-\nlimit 60 10/s\n}", "zone has no name: want zone <name>, such as zone pages"},
	{"block", "zone pages {\nlimit 60 10/s\n}\nzone pages { # <-\nlimit 5 1/s\n}", `zone "pages" is given twice in the directive throttle`},
	{"file", "http://a.example {\nthrottle pages 60 10/s\n}\nhttp://b.example {\nthrottle pages 5 1/s # <-\n}", `zone "pages" is defined twice, and differently: a name is one budget, so give one of them another name`},
	{"site", "throttle pages # <-", `unknown zone "pages": none of that name is defined in the global options; define it there, or here, after its name`},
	{"site", "throttle 60 10/s pages # <-", `parsing limit: invalid limit "10/s pages": the capacity comes first: did you mean pages 10/s?; want throttle <zone> [<key>...] <capacity> <leak>, such as throttle pages 120 2/s`},
	{"site", "throttle client_ip pages 60 10/s # <-", `zone "client_ip": unknown key source "pages": want client_ip, header <name>`},
	{"site", "throttle pages 10/s 60 # <-", `parsing limit: invalid limit "10/s 60": the capacity comes first: did you mean 60 10/s?`},
	{"site", "throttle pages client_ip 10/s 60 # <-", `parsing limit: invalid limit "10/s 60": the capacity comes first: did you mean 60 10/s?`},
	{"site", "throttle pages 60 10/s burst 20 # <-", `parsing limit: invalid capacity "burst": want a number from 0.000000001 to 1000000000000, such as 10; want throttle <zone> [<key>...] <capacity> <leak>, such as throttle pages 120 2/s`},
	{"site", "throttle pages client_ip 60 # <-", `parsing limit: invalid capacity "client_ip": want a number from 0.000000001 to 1000000000000, such as 10; want throttle <zone> [<key>...] <capacity> <leak>, such as throttle pages 120 2/s`},
	{"site", "throttle # <-", "no zone given: want throttle <zone>, throttle <zone> <key>... <capacity> <leak>, or a block with zones"},
	{"site", "throttle { # <-\n}", "no zone given: want throttle <zone>, throttle <zone> <key>... <capacity> <leak>, or a block with zones"},
	{"site", "throttle pages 60 10/s {\nzone pages { # <-\nlimit 60 10/s\n}\n}", `zone "pages" stands on the line of throttle already: put both zones into the block`},
	{"zone", "limit 60 10/s\nkey remote_ip # <-", `zone "pages": unknown key source "remote_ip": want client_ip, header <name>`},
	{"zone", "limit 60 10/s\nkey ip # <-", `zone "pages": unknown key source "ip": want client_ip, header <name>`},
	{"zone", "limit 60 10/s\nkey X-Api-Key # <-", `zone "pages": unknown key source "X-Api-Key": want client_ip, header <name>`},
	{"zone", "limit 60 10/s\nkey $binary_remote_addr # <-", `zone "pages": unknown key source "$binary_remote_addr": want client_ip, header <name>`},
	{"zone", "limit 60 10/s\nkey \"x {client_ip}\" # <-", `zone "pages": placeholder {http.vars.client_ip} within "x {http.vars.client_ip}": give client_ip as a part of its own, which masks IPv6 addresses`},
	{"zone", "limit 60 10/s\nkey header # <-", `zone "pages": key source "header" has no name: want one after it`},
	{"zone", "limit 60 10/s\nkey # <-", "parsing key: no source: want client_ip, header <name>, cookie <name>, query <name>, field <name> [fold wordpress|email], basic_user [fold wordpress|email], host, method, route, text <string> or a string with {placeholders}"},
	{"zone", "limit 60 10/s\nblock 0 # <-", `parsing block: invalid duration "0": want a number above 0 with its unit ms, s, m, h or d, such as 10s`},
	{"zone", "limit 60 10/s\nblock 10 # <-", `parsing block: invalid duration "10": want a number above 0 with its unit ms, s, m, h or d, such as 10s`},
	{"zone", "limit 60 10/s\nkey header X-User\nblock 10m everywhere # <-", `zone "pages": block ... everywhere needs the key client_ip alone: other keys do not identify a client in every zone`},
	{"zone", "limit 60 10/s\nblock 1h 10m # <-", `zone "pages": invalid block: 10m0s stands after 1h0m0s: want each duration longer than the one before`},
	{"zone", "limit 60 10/s\nshadow on # <-", `unexpected "on" after shadow: want shadow [server_timing], and a line for each option`},
	{"zone", "limit 60 10/s\nshadow off # <-", `unexpected "off" after shadow: want shadow [server_timing], and a line for each option`},
	{"block", "shadow false # <-\nzone pages {\nlimit 60 10/s\n}", `unexpected "false" after shadow: want shadow [server_timing], and a line for each option`},
	{"zone", "limit 60 10/s\nblock 1d 1w # <-", `parsing block: invalid duration "1w": want a number above 0 with its unit ms, s, m, h or d, such as 10s`},
	{"zone", "limit 5 5/h\nkey field log\ntrust_devices wordpress_logged_in # <-", `zone "pages": invalid cookie "wordpress_logged_in" in trust_devices: no cookie ends so; did you mean wordpress_logged_in_*?`},
	{"zone", "limit 60 10/s\nenforce 10% # <-", `parsing enforce: invalid number "10%": want a whole one above 0; the syntax is enforce <percent of keys>`},
	{"zone", "limit 60 10/s\ndelay 3s # <-", `parsing delay: invalid number "3s": want one such as 2 or 0.5; the syntax is delay [<undelayed>] [wait <duration>] [queue <n>]`},
	{"zone", "limit 60 10/s\nrefusal {\npage missing.html # <-\n}", "reading page: stat missing.html: no such file or directory: want the name of an HTML file, relative to the Caddyfile"},
	{"zone", "limit 60 10/s\noverride 192.0.2.300 unlimited # <-", `zone "pages": override 192.0.2.300: invalid address "192.0.2.300": want an IP address or a network such as 203.0.113.0/24`},
	{"zone", "limit 60 10/s\noverride 192.0.2.1/24 unlimited # <-", `zone "pages": override 192.0.2.1/24: invalid network "192.0.2.1/24": did you mean 192.0.2.0/24?`},
	{"zone", "limit 60 10/s\ncost 1 # <-\ncost 2 {\npath /a*\n}", `zone "pages": cost 1: a line for all requests must come last`},
	{"zone", "limit 60 10/s\nmatch { # <-\n}", "match has no matchers: want at least one, such as path /wp-login.php*"},
	{"zone", "limit 60 10/s\nmatch /wp-login.php # <-", `unknown matcher "/wp-login.php" in match: want request matchers, such as path /wp-login.php* or method POST`},
	{"zone", "limit 60 10/s\nexempt 192.0.2.1 # <-", `unknown matcher "192.0.2.1" in exempt: want request matchers, such as path /wp-login.php* or method POST`},
	{"zone", "limit 60 10/s\nexempt 192.0.2.0/24 # <-", `unknown matcher "192.0.2.0/24" in exempt: want request matchers, such as path /wp-login.php* or method POST`},
	{"global", "zone login {\nlimit 60 10/s\nmatch @login # <-\n}", `matcher "@login" stands in the global options, where there are no named matchers: write the matchers themselves, such as path /login*`},
	{"zone", "limit 60 10/s\nmatch @login # <-", "unrecognized matcher name: @login: want one that the site defines, such as @login path /wp-login.php*"},
	{"zone", "limit 60 10/s\npath /wp-login.php # <-", `unknown option "path" in zone "pages": want one of match, field, exempt, key, route, limit, override, cost, read_body, settle, refund, trust_devices, delay, block, refusal, on_store_error, shadow, enforce`},
	{"zone", "limit 60 10/s\nmatch path /wp-login.php, /xmlrpc.php # <-", `path "/wp-login.php," has a comma in it: want spaces between paths`},
	{"zone", "limit 60 10/s\nmatch path wp-login.php # <-", `path "wp-login.php" never matches, since paths begin with a slash: did you mean /wp-login.php?`},
	{"zone", "limit 60 10/s\nmatch path /wp-login.php # <-", `zone "pages": path "/wp-login.php" leaves out /wp-login.php/x, for which PHP runs the same script: did you mean /wp-login.php*?`},
	{"site", "throttle /wp-login.php login 5 5/h # <-", `path "/wp-login.php" leaves out /wp-login.php/x, for which PHP runs the same script: did you mean /wp-login.php*?`},
	{"zone", "limit 60 10/s\nsettle 401 # <-", `zone "pages": parsing settle: unknown source "401": want seconds, bytes <unit>, header <Name> or status <code|class>... <n>`},
	{"zone", "limit 60 10/s\nsettle status 401 after # <-", "parsing settle: wrong words after status; the syntax is settle seconds|bytes <unit>|header <Name>|status <code|class>... <n> [after] [debt <n>]"},
	{"block", "shadow\nkey client_ip # <-\nzone pages {\nlimit 60 10/s\n}", "key cannot stand beside the zones in the directive throttle: want it in the block of a zone"},
	{"global", "store redis://localhost:6379 # <-", "unknown store \"redis://localhost:6379\": want the name of a store before the URL, as in store redis <url>"},
	{"global", "store redis localhost:6379 # <-", `unknown store "redis": this Caddy was built without it; build it with xcaddy --with github.com/caddy-throttle/caddy-throttle/caddymodule/redis`},
	{"zone", "limit 5 5/h\ntrust_devices wordpress_logged_in_* # <-", `zone "pages": trust_devices needs a key that names an account: want field, basic_user, header, cookie or query among its sources, such as key field log; client_ip, host, method, route and text name none`},
	{"site", "@out throttle_blocked\nthrottle @out login 60 10/s # <-", `throttle_blocked cannot be used inside throttle: use it outside, among the site's own matchers`},
	{"zone", "limit 5 5/h\nkey field log\ntrust_devices wordpress_logged_in_* # <-", `zone "pages": trust_devices needs refund, by which the zone tells a log-in that succeeded: want refund cookie wordpress_logged_in_*`},
	{"zone", "limit 5 5/h\nkey field log\nsettle status 200 1\ntrust_devices wordpress_logged_in_* # <-", `want refund cookie wordpress_logged_in_*`},
	{"zone", "limit 5 5/h\nrefund # <-", `zone "pages": refund names no response: want status <code|class>..., header <Field> <value> or cookie <glob>`},
	{"zone", "limit 5 5/h\nrefund 302 # <-", `unknown word "302" after refund: want refund status <code|class>..., refund header <Field> <value> or refund cookie <glob>`},
	{"zone", "limit 5 5/h\nrefund location /home # <-", `unknown word "location" after refund: want refund status <code|class>..., refund header <Field> <value> or refund cookie <glob>`},
	{"zone", "limit 5 5/h\nrefund status # <-", "several in a block: wrong argument count or unexpected line ending after 'status'"},
	{"zone", "limit 5 5/h\nrefund status ok # <-", `several in a block: bad status value 'ok': strconv.Atoi: parsing "ok": invalid syntax`},
	{"zone", "limit 5 5/h\nrefund status 302 header Location /home # <-", `several in a block: bad status value 'header': strconv.Atoi: parsing "header": invalid syntax`},
	{"zone", "limit 5 5/h\nrefund status 302\nrefund status 70 # <-", `zone "pages": invalid status 70 in refund: want a code such as 302 or a class such as 3xx`},
	{"zone", "limit 5 5/h\nrefund status 101 # <-", `zone "pages": invalid status 101 in refund: want a code such as 302 or a class such as 3xx`},
	{"zone", "limit 5 5/h\nrefund header Location # <-", "several in a block: malformed header matcher: expected both field and value"},
	{"zone", "limit 5 5/h\nrefund header set-cookie sid=* # <-", `zone "pages": refund header Set-Cookie also matches a cookie that is deleted: want refund cookie <glob>`},
	{"zone", "limit 5 5/h\nrefund cookie # <-", "wrong number of words after refund cookie: want refund cookie <glob>, and a line for each cookie"},
	{"zone", "limit 5 5/h\nrefund cookie a b # <-", "wrong number of words after refund cookie: want refund cookie <glob>, and a line for each cookie"},
	{"zone", "limit 5 5/h\nrefund cookie * # <-", `zone "pages": invalid cookie "*" in refund: want the name, or a pattern such as wordpress_logged_in_*, of one that nothing but a log-in sets`},
	{"zone", "limit 5 5/h\nrefund cookie wordpress_logged_in # <-", `zone "pages": invalid cookie "wordpress_logged_in" in refund: no cookie ends so; did you mean wordpress_logged_in_*?`},
	{"zone", "limit 5 5/h\nrefund status 302\nrefund cookie PHPSESSID # <-", `zone "pages": cookie "PHPSESSID" in refund matches PHPSESSID, which visitors get who have not logged in: want one that only a log-in sets`},
	{"zone", "limit 5 5/h\nrefund {\ncookie sid # <-\n}", "several in a block: unrecognized response matcher cookie"},
	{"zone", "limit 5 5/h\nsettle status 200 1\nrefund status 302 # <-", `zone "pages": refund and settle exclude each other: refund gives back what success costs, and settle replaces the charge by another one`},
	{"zone", "limit 5 5/h\nkey field log\ntrust_devices # <-", "trust_devices has no value: want trust_devices <cookie-glob> [<duration>]"},
	{"zone", "limit 5 5/h\nkey field log\ntrust_devices * # <-", `zone "pages": invalid cookie "*" in trust_devices: want the name, or a pattern such as wordpress_logged_in_*, of one that nothing but a log-in sets`},
	{"zone", "limit 5 5/h\nkey field log\ntrust_devices wordpress_logged_in_* 30 # <-", `parsing trust_devices: invalid duration "30": want a number above 0 with its unit ms, s, m, h or d, such as 10s`},
	{"zone", "limit 5 5/h\nkey field log\ntrust_devices wordpress_logged_in_* 180d days # <-", `unexpected "days" after trust_devices: want trust_devices <cookie-glob> [<duration>], and a line for each option`},
	{"zone", "limit 5 5/h\nkey field log\ntrust_devices wordpress_logged_in_* 2y # <-", `parsing trust_devices: invalid duration "2y": want a number above 0 with its unit ms, s, m, h or d, such as 10s`},
	{"zone", "limit 5 5/h\nkey field log\ntrust_devices wordpress_logged_in_ # <-", `zone "pages": invalid cookie "wordpress_logged_in_" in trust_devices: no cookie ends so; did you mean wordpress_logged_in_*?`},
	{"zone", "limit 5 5/h\nkey field log\ntrust_devices /wordpress_logged_in_.*/ # <-", `zone "pages": invalid cookie "/wordpress_logged_in_.*/" in trust_devices: want the name, or a pattern such as wordpress_logged_in_*, of one that nothing but a log-in sets`},
	{"zone", "limit 5 5/h\nkey field log\ntrust_device wordpress_logged_in_* # <-", `unknown option "trust_device" in zone "pages": did you mean trust_devices?`},
	{"zone", "limit 60 10/s\nkey client_ip host client_ip # <-", `zone "pages": key source "client_ip" is given twice: remove one`},
	{"zone", "limit 60 10/s\nsettle second # <-", `zone "pages": parsing settle: unknown source "second": want seconds, bytes <unit>, header <Name> or status <code|class>... <n>`},
	{"zone", "limit 60 10/s\nsettle seconds workers 5 # <-", "parsing settle: wrong words after seconds; the syntax is settle seconds|bytes <unit>|header <Name>|status <code|class>... <n> [after] [debt <n>]"},
	{"zone", "limit 60 10/s\nsettle seconds 5s # <-", `wrong words after seconds`},
	{"zone", "limit 60 10/s\nsettle bytes # <-", `zone "pages": parsing settle: a word is missing or is that of another source: want settle seconds, bytes <unit>, header <Name> or status <code|class>... <n>`},
	{"zone", "limit 60 10/s\nsettle bytes 1MB/s # <-", `zone "pages": parsing settle: invalid unit "1MB/s": want a number of bytes, such as 1KiB`},
	{"zone", "limit 60 10/s\nkey field log fold # <-", `parsing key: "fold" needs a word after it: want fold wordpress or fold email`},
	{"zone", "limit 60 10/s\nkey field log fold wp # <-", `zone "pages": unknown word "wp" after fold: want one of wordpress, email`},
	{"zone", "limit 60 10/s\nkey field log fold lower # <-", `zone "pages": unknown word "lower" after fold: want one of wordpress, email`},
	{"zone", "limit 60 10/s\nkey header X-User fold email # <-", `zone "pages": unknown key source "fold": want client_ip, header <name>`},
	{"zone", "limit 60 10/s\nkey fold wordpress field log # <-", `zone "pages": unknown key source "fold": want client_ip, header <name>`},
	{"zone", "limit 60 10/s\nkey field log wordpress # <-", `zone "pages": unknown key source "wordpress": want client_ip, header <name>`},
	{"zone", "limit 60 10/s\nkey field # <-", `zone "pages": key source "field" has no name: want one after it`},
	{"zone", "limit 60 10/s\nkey field log pwd # <-", `zone "pages": unknown key source "pwd": want client_ip, header <name>`},
	{"zone", "limit 60 10/s\nkey basic_user admin # <-", `zone "pages": unknown key source "admin": want client_ip, header <name>`},
	{"zone", "limit 60 10/s\nkey basic_auth # <-", `zone "pages": unknown key source "basic_auth": want client_ip, header <name>`},
	{"zone", "limit 60 10/s\nkey user # <-", `zone "pages": unknown key source "user": want client_ip, header <name>`},
	{"zone", "limit 60 10/s\nkey remote_user # <-", `zone "pages": unknown key source "remote_user": want client_ip, header <name>`},
	{"zone", "limit 60 10/s\nkey cookie:session # <-", `zone "pages": unknown key source "cookie:session": want client_ip, header <name>`},
	{"zone", "limit 60 10/s\nkey uri # <-", `zone "pages": unknown key source "uri": want client_ip, header <name>`},
	{"zone", "limit 60 10/s\nkey path # <-", `zone "pages": unknown key source "path": want client_ip, header <name>`},
	{"zone", "limit 60 10/s\nrefusal {\npage { # <-\n}\n}", "page has no value: want a file, or a block of title, accent and text"},
	{"zone", "limit 60 10/s\nrefusal {\npage {\ncolor red # <-\n}\n}", `unknown option "color" in page: want one of accent, text, title`},
	{"zone", "limit 60 10/s\nrefusal {\npage {\naccent #0a7f5c # <-\n}\n}", "accent has no value: want one word, in quotes if it has blanks or a #"},
	{"zone", "limit 60 10/s\nrefusal {\npage {\ntitle My Shop # <-\n}\n}", `unexpected "Shop" after title My: want one word, in quotes if it has blanks or a #`},
	{"zone", "limit 60 10/s\nrefusal {\npage {\nlogo /logo.png # <-\n}\n}", `unknown option "logo" in page: want one of accent, text, title`},
	{"zone", "limit 60 10/s\nrefusal {\npage {\nmessage x # <-\n}\n}", `unknown option "message" in page: want one of accent, text, title`},
	{"zone", "limit 60 10/s\nrefusal {\npage \"<h1>Busy</h1>\" # <-\n}", "reading page: stat <h1>Busy</h1>: no such file or directory: want the name of an HTML file, relative to the Caddyfile"},
	{"zone", "limit # <-", "limit: want limit <capacity> <leak>, such as limit 120 2/s"},
	{"zone", "limit 60 10/s\nsettle status 1 200 # <-", `zone "pages": parsing settle: invalid status "1": did you mean 1xx?`},
	{"zone", "limit 60 10/s\nrefusal page busy.html status 503 # <-", "page stands in the block of refusal: want refusal [status <cod"},
	{"zone", "limit 60 10/s\nrefusal page title Shop # <-", "page stands in the block of refusal: want refusal [status <cod"},
	{"zone", "limit 60 10/s\nrefusal {\npage title My Shop # <-\n}", `unexpected "My" after page title: want one word, in quotes if it has blanks or a #`},
	{"zone", "limit 60 10/s\nsettle status 1 after  # <-", "parsing settle: wrong words after status; the syntax is settle seconds|bytes <unit>|header <Name>|status <code|class>... <n> [after] [debt <n>]"},
	{"zone", "limit 60 10/s\nsettle status 401, 403 1 after  # <-", `zone "pages": parsing settle: invalid status "401,": want blanks between statuses`},
	{"zone", "limit 60 10/s\nsettle status 400-499 1 after  # <-", `zone "pages": parsing settle: invalid status "400-499": did you mean 4xx?`},
	{"zone", "limit 60 10/s\nsettle status 4** 1 after  # <-", `zone "pages": parsing settle: invalid status "4**": did you mean 4xx?`},
	{"zone", "limit 60 10/s\nsettle status 200 5 1 after  # <-", `zone "pages": parsing settle: invalid status "5": did you mean 5xx?`},
	{"zone", "limit 60 10/s\ndelay on # <-", `parsing delay: invalid number "on": want one such as 2 or 0.5; the syntax is delay [<undelayed>] [wait <duration>] [queue <n>]`},
	{"zone", "limit 60 10/s\ndelay 60 # <-", `zone "pages": delay 60 delays nothing: every request that fits a capacity of 60 passes undelayed; want a larger capacity, since the queue is part of it`},
	{"zone", "limit 60 10/s\ndelay 1.5s # <-", `parsing delay: invalid number "1.5s": want one such as 2 or 0.5; the syntax is delay [<undelayed>] [wait <duration>] [queue <n>]`},
	{"zone", "limit 60 10/s\nexempt static # <-", `unknown matcher "static" in exempt: did you mean static_files?`},
	{"zone", "limit 60 10/s\nexempt *.css *.js # <-", `unknown matcher "*.css" in exempt: want request matchers, such as path /wp-login.php* or method POST`},
	{"zone", "limit 60 10/s\nexempt static_files /var/www /srv # <-", `unexpected "/srv" after exempt static_files: want exempt static_files [<root>]`},
	{"zone", "limit 60 10/s\nmatch static_files # <-", "static_files stands alone, behind exempt: want exempt static_files [<root>]"},
	{"zone", "limit 60 10/s\nmatch POST # <-", `unknown matcher "POST" in match: did you mean host?`},
	{"zone", "limit 60 10/s\nmatch method POST,GET # <-", `method "POST,GET" has a comma in it: want blanks between methods`},
	{"zone", "limit 60 10/s\nmatch path /wp-login.php* method POST # <-", `path "method" never matches: for two matchers at once, want a block, and each on a line of its own`},
	{"zone", "limit 60 10/s\nmatch path_regexp ( # <-", "path_regexp: compiling matcher regexp (: error parsing regexp: missing closing ): `(`"},
	{"zone", "limit 60 10/s\nmatch location /wp-login.php # <-", `unknown matcher "location" in match: want request matchers, such as path /wp-login.php* or method POST`},
	{"zone", "limit 60 10/s\nmatch uri /wp-login.php # <-", `unknown matcher "uri" in match: want request matchers, such as path /wp-login.php* or method POST`},
	{"zone", "limit 60 10/s\nmatch ~ ^/wp-login # <-", `unknown matcher "~" in match: want request matchers, such as path /wp-login.php* or method POST`},
	{"zone", "limit 60 10/s\nmatch path ~^/wp-login # <-", `path "~^/wp-login" never matches, since path takes no regular expression: did you mean path_regexp ^/wp-login?`},
	{"zone", "limit 60 10/s\nmatch path ^/wp-login # <-", `path "^/wp-login" never matches, since path takes no regular expression: did you mean path_regexp ^/wp-login?`},
	{"zone", "limit 60 10/s\nmatch path /wp-login.php?* # <-", `path "/wp-login.php?*" never matches, since paths end before the question mark: want path /wp-login.php, and query <name>=<value> for the rest`},
	{"zone", "limit 60 10/s\nmatch path https://example.com/wp-login.php # <-", "path \"https://example.com/wp-login.php\" never matches, since paths have no host: want the path alone, such as /wp-login.php*"},
	{"zone", "limit 60 10/s\nmatch query action # <-", "malformed query matcher token: action; must be in param=val format"},
	{"zone", "limit 60 10/s\ncost POST 5 # <-", `unexpected "5" after cost POST: want the matchers in a block, each on a line of its own`},
	{"zone", "limit 60 10/s\ncost path /search* 5 # <-", `unexpected "/search*" after cost path: want the matchers in a block, each on a line of its own`},
	{"zone", "limit 60 10/s\ncost 5 path /search* # <-", `unexpected "path" after cost 5: want the matchers in a block, each on a line of its own`},
	{"zone", "limit 60 10/s\ncost 5 /search* # <-", `unexpected "/search*" after cost 5: want the matchers in a block, each on a line of its own`},
	{"zone", "limit 60 10/s\ncost five # <-", `zone "pages": invalid cost "five": want a number such as 2 or 0.5, a {placeholder}, body_items or body_bytes`},
	{"global", "zone wiki {\nlimit 60 10/s\ncost @search 5 # <-\n}", `matcher "@search" stands in the global options, where there are no named matchers: write the matchers themselves, such as path /login*`},
	{"global", "exempt @office # <-", `matcher "@office" stands in the global options, where there are no named matchers: write the matchers themselves, such as path /login*`},
	{"site", "throttle @login login 5 5/h # <-", "unrecognized matcher name: @login: want one that the site defines, such as @login path /wp-login.php*"},
	{"global", "limit_req_zone $binary_remote_addr zone=one:10m rate=1r/s # <-", `unknown option "limit_req_zone" in the global option throttle: want one of buffer, exempt, in_flight, nodes, on_store_error, plan, refusal, shadow, signing_key, store, store_timeout, zone`},
	{"site", "throttle zone=pages rate=10r/s burst=20 # <-", `invalid zone name "zone=pages": want letters, digits, _, . and -, such as pages`},
	{"site", "throttle pages 60 10r/s # <-", `parsing limit: invalid rate "10r/s": did you mean 10/s?`},
	{"site", "throttle pages five 1/s # <-", `parsing limit: invalid capacity "five": want a number from 0.000000001 to 1000000000000, such as 10; want throttle <zone> [<key>...] <capacity> <leak>, such as throttle pages 120 2/s`},
	{"site", "throttle pages header X-Key {path} 10 # <-", `parsing limit: invalid capacity "{http.request.uri.path}": want a number from 0.000000001 to 1000000000000, such as 10; want throttle <zone> [<key>...] <capacity> <leak>, such as throttle pages 120 2/s`},
	{"site", "throttle pages 10r/s # <-", `unexpected "10r/s" after pages: want throttle <zone> [<key>...] <capacity> <leak>, such as throttle pages 120 2/s`},
	{"zone", "limit 60 rate=10r/s # <-", `invalid rate "rate=10r/s": did you mean 10/s?`},
	{"zone", "limit 60 10r/s # <-", `invalid rate "10r/s": did you mean 10/s?`},
	{"zone", "limit burst=60 10/s # <-", `invalid capacity "burst=60": did you mean 60?`},
	{"zone", "limit 60 10/s; # <-", `invalid rate "10/s;": did you mean 10/s?`},
	{"zone", "limit 60; 10/s;  # <-", `invalid capacity "60;": did you mean 60?`},
	{"zone", "log_level warn # <-", `unknown option "log_level" in zone "pages": want one of match, field, exempt, key, route, limit, override, cost, read_body, settle, refund, trust_devices, delay, block, refusal, on_store_error, shadow, enforce`},
	{"zone", "limit 60 10/s\noverride 192.0.2.1 # <-", "parsing override: too few words: want override <part>... <plan>|<capacity> <leak>|unlimited|deny [as <name>]"},
	{"zone", "limit 60 10/s\noverride 192.0.2.1 600 10/s as # <-", "parsing override: as has no name: want override <part>... <plan>|<capacity> <leak>|unlimited|deny [as <name>]"},
	{"zone", "limit 60 10/s\noverride 192.0.2.1 unlimited as office # <-", "override 192.0.2.1: as office has no meaning after unlimited: want a plan, or <capacity> <leak>, which the keys of that name share"},
	{"zone", "limit 60 10/s\noverride 192.0.2.1 600 10/s as office\noverride 192.0.2.2 60 10/s as office # <-", "override 192.0.2.2: as office has another limit elsewhere: keys that share a bucket need the same limit"},
	{"zone", "limit 60 10/s\nkey header X-Api-Key\noverride @sha256:2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae deny # <-", `invalid digest "@sha256:2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae": did you mean sha256:2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae?`},
	{"zone", "limit 60 10/s\noverrides 192.0.2.1 deny # <-", `unknown option "overrides" in zone "pages": did you mean override?`},
	{"global", "plan as 60 10/s # <-", `invalid plan name "as": the word has a meaning of its own in overrides`},
	{"block", "zone pages\nlimit 60 10/s # <-", "limit cannot stand beside the zones in the directive throttle: want it in the block of a zone"},
	{"block", "zone pages{ # <-\nlimit 60 10/s\n}", `invalid zone name "pages{": want a blank before the brace`},
	{"file", "{\n\tthrottle pages 60 10/s # <-\n}\nhttp://example.com {\n}", `unexpected "pages" after the global option throttle: want a block; the line throttle pages ... stands in a site`},
	{"block", "refusal {\npage {\ntitle Busy\nzone pages { # <-\nlimit 5 1/h\n}\n}", `unknown option "zone" in page: want one of accent, text, title`},
	{"zone", "match {\npath /wp-login.php*\nlimit 60 10/s # <-\n", `unknown matcher "limit" in match: want request matchers, such as path /wp-login.php* or method POST`},
	{"block", "exempt {\nclient_ip 203.0.113.7\nzone pages { # <-\nlimit 5 1/h\n}", `unknown matcher "zone" in exempt: want request matchers, such as path /wp-login.php* or method POST`},
	{"global", "snapshot off # <-", `unknown option "snapshot" in the global option throttle: want one of buffer, exempt, in_flight, nodes, on_store_error, plan, refusal, shadow, signing_key, store, store_timeout, zone`},
	{"zone", "limit 5 1/h\nmatch method POST path /wp-login.php* # <-", `method "path" never matches: for two matchers at once, want a block, and each on a line of its own`},
	{"zone", "limit 5 1/h\nmatch not method GET path /wp-login.php* # <-", `method "path" never matches: for two matchers at once, want a block, and each on a line of its own`},
	{"zone", "limit 5 1/h\nmatch host example.com path /wp-login.php* # <-", `host "path" never matches: for two matchers at once, want a block, and each on a line of its own`},
	{"zone", "limit 5 1/h\nexempt client_ip 203.0.113.0/24 header X-Monitor yes # <-", "client_ip: invalid IP address: 'header': ParseAddr(\"header\"): unable to parse IP"},
	{"zone", "limit 5 1/h\nexempt client_ip 203.0.113.0/33 # <-", "client_ip: parsing CIDR expression '203.0.113.0/33': netip.ParsePrefix(\"203.0.113.0/33\"): prefix length out of range"},
	{"zone", "limit 5 1/h\nmatch host a.example,b.example # <-", `host "a.example,b.example" has a comma in it: want blanks between hosts`},
	{"zone", "limit 5 1/h\nmatch header_regexp User-Agent (bot # <-", "header_regexp: compiling matcher regexp (bot: error parsing regexp: missing closing ): `(bot`"},
	{"file", "http://example.com {\n\tthrottle {\n\t\tzone pages {\n\t\t\tlimit 60 10/s\n\t\t}\n\trespond hello # <-\n}", `unknown option "respond" in the directive throttle: want one of exempt, on_store_error, ratelimit_headers, refusal, shadow, zone`},
	{"file", "http://example.com {\n\tthrottle {\n\t\tzone pages {\n\t\t\tlimit 60 10/s\n\t}\n\tphp_fastcgi localhost:9000 # <-\n}", `unknown option "php_fastcgi" in the directive throttle: want one of exempt, on_store_error, ratelimit_headers, refusal, shadow, zone`},
	{"zone", "limit 60 10/s\nkey $http_x_api_key # <-", `zone "pages": unknown key source "$http_x_api_key": want client_ip, header <name>`},
	{"zone", "limit 60 10/s\nkey $cookie_session # <-", `zone "pages": unknown key source "$cookie_session": want client_ip, header <name>`},
	{"zone", "limit 60 10/s\nkey $server_name # <-", `zone "pages": unknown key source "$server_name": want client_ip, header <name>`},
	{"zone", "limit 60 10/s\nkey $geoip_country # <-", `zone "pages": unknown key source "$geoip_country": want client_ip, header <name>`},
	{"zone", "limit 60 10/s\ncost 5 { # <-\npath /search.php\n}", `zone "pages": path "/search.php" leaves out /search.php/x, for which PHP runs the same script: did you mean /search.php*?`},
	{"zone", "limit 60 10/s\nkey route\nroute login /wp-login.php # <-", `zone "pages": route "login": path "/wp-login.php" leaves out /wp-login.php/x, for which PHP runs the same script: did you mean /wp-login.php*?`},
	{"file", "http://example.com {\n\t@login path /wp-login.php\n\tthrottle {\n\t\tzone login {\n\t\t\tmatch @login # <-\n\t\t\tlimit 5 5/h\n\t\t}\n\t}\n}", `zone "login": path "/wp-login.php" leaves out /wp-login.php/x, for which PHP runs the same script: did you mean /wp-login.php*?`},
	{"zone", "key host\nlimit 60 10/s\ncost body_items # <-", "since client_ip is no part of the key: want read_body 64KiB else 6, or at most a tenth of the capacity"},
	{"zone", "key text all\nlimit 60 10/s\ncost 2 {\npath /a*\n}\ncost body_bytes 1KiB # <-\nread_body 1MiB", "since client_ip is no part of the key: want read_body 1MiB else 6"},
	{"zone", "key header X-Api-Key\nlimit 60 10/s\ncost body_items # <-", "want read_body 64KiB else 6"},
	{"zone", "key field log\nlimit 5 10/h\ncost body_items # <-", "want read_body 64KiB else 0.5"},
	{"zone", "key host\nlimit 60 10/s\ncost body_items\nread_body 64KiB else 7 # <-", "read_body ... else: 7 is too much for a bucket that clients share, since client_ip is no part of the key: want at most a tenth of the capacity, such as read_body 64KiB else 6"},
	{"zone", "key field log\nlimit 60 10/s\nread_body 64KiB else 5 # <-", `zone "pages": read_body has no meaning: no cost comes from the body`},
}
