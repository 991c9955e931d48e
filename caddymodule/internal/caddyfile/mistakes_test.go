package caddyfile_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2/caddyconfig"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/golden"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/servertest"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
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

// check adapts the file, which must be a mistake.
func (m mistake) check(t *testing.T) {
	t.Helper()
	_, got := m.adapt()
	check.That(t, strings.Contains(got, m.says) && strings.Contains(got, m.place()), "%s\ngot  %s\nwant %s, at %s", m.caddyfile(), got, m.says, m.place())
}

func TestAMistakeIsAnsweredWithItsLineItsWordAndItsRemedy(t *testing.T) {
	for _, m := range mistakes {
		m.check(t)
	}
}

// These may be meant, so they are warned of.
func TestAMistakeThatMayBeMeantIsWarnedOf(t *testing.T) {
	const chosen, sent, script, forwarding = "keyed by values that clients choose", "anybody can send the header by which", "anybody can call the script that is exempt", "clients can send this header, too"
	for _, test := range []struct {
		options, says string
		want          int
	}{
		{"exempt path /wp-cron.php*", script, 1},
		{"exempt {\npath /wp-cron.php*\nclient_ip 192.0.2.1\n}", script, 0},
		{"exempt path *.css", "want exempt static_files", 1},
		{"match not path *.css", "want exempt static_files", 1},
		{"match not path *.css\nsettle status 404 1", "want exempt static_files", 0},
		{"match not path *.php*", "want exempt static_files", 0},
		{"exempt header User-Agent *Googlebot*", sent, 1},
		{"cost 0 {\npath *.css\n}\ncost 0.5 {\npath *.js\n}", "want exempt static_files", 1},
		{"cost 0.0 {\nheader User-Agent *Googlebot*\n}", sent, 1},
		{"cost {header.X-Cost}", "clients choose what their requests cost", 1},
		{"cost {vars.cost}", "clients choose what their requests cost", 0},
		{"exempt header Cookie *wordpress_logged_in*", sent, 1},
		{"exempt header X-Loadtest *", sent, 1},
		{"exempt header X-Loadtest demo-secret*", sent, 0},
		{"exempt {\nfile\n}", "want exempt static_files", 1},
		{"key client_ip {path}", chosen, 1},
		{"match path /login*\nkey client_ip field log", chosen, 1},
		{"key header X-Forwarded-For", forwarding, 1},
		{"key header CF-Connecting-IP", forwarding, 1},
		{"key header CF-Connecting-IP", chosen, 0}, // whose remedy would limit the proxy
	} {
		s := servertest.Run(t, mistake{in: "zone", text: "limit 60 10/s\n" + test.options}.caddyfile())
		s.Warned(t, test.says, test.want)
		s.Stop()
	}
	for rank, want := range map[string]int{
		"member header Authorization *":                 1,
		"member header Cookie *wordpress_logged_in*":    1,
		"crawler header User-Agent *Googlebot*":         1,
		"crawler {\nclient_ip 192.0.2.1\nheader A *\n}": 0,
	} {
		s := servertest.Run(t, mistake{in: "site", text: "in_flight php 5 {\nshare\nrank " + rank + "\n}"}.caddyfile())
		s.Warned(t, "anybody can send the header by which clients have priority", want)
		s.Stop()
	}
	for _, directive := range []string{"throttle @pages pages 5 1/s", "in_flight @pages php 5"} {
		s := servertest.Run(t, mistake{in: "site", text: "@pages not path *.css\n" + directive}.caddyfile())
		s.Warned(t, "want exempt static_files", 1)
		s.Stop()
	}
}

var mistakes = []mistake{
	{"zone", "limit 10 2r/s  # <-", `invalid rate "2r/s": want <number>/<s|m|h|d> or a longer period, such as 2/s or 5/20s`},
	{"zone", "limit 10 0/s  # <-", `invalid rate "0/s": a bucket must drain: want a number above 0, such as 1/h`},
	{"zone", "limit 60 10/s\nmatch /wp-login.php # <-", `unknown matcher "/wp-login.php" in match: did you mean path /wp-login.php?`},
	{"zone", "limit 60 10/s\nexempt 10.0.0.0/8 # <-", `unknown matcher "10.0.0.0/8" in exempt: did you mean client_ip 10.0.0.0/8?`},
	{"zone", "limit 60 10/s\nmatch throttle_blockd # <-", `unknown matcher "throttle_blockd" in match: want one of client_ip`},
	{"global", "zone pages 60 10/s # <-", `unexpected "60" after zone pages: want its options in a block, each on a line, such as limit 120 2/s`},
	{"zone", "limit 60 # <-", "wrong number of words after limit: want limit <capacity> <leak>, such as limit 120 2/s"},
	{"zone", "limit 10/s 60 # <-", `invalid limit "10/s 60": the capacity comes first: did you mean 60 10/s?`},
	{"zone", "limit 1,000 2/s # <-", `invalid limit "1,000 2/s": want <capacity> <leak>, such as 10 1/s`},
	{"zone", "limit 10 1/s\nlimit 20 1/s # <-", "limit is given twice"},
	{"block", "zone { # <-\nlimit 60 10/s\n}", "zone has no name: want zone <name>, such as zone pages"},
	{"block", "zone pages {\nlimit 60 10/s\n}\nzone pages { # <-\nlimit 5 1/s\n}", `zone "pages" is defined twice, and differently (limit): a name is one budget, so give one of them another name`},
	{"file", "http://a.example {\nthrottle pages 60 10/s\n}\nhttp://b.example {\nthrottle pages 5 1/s # <-\n}", `zone "pages" is defined twice, and differently (limit): a name is one budget, so give one of them another name`},
	{"site", "throttle 60 10/s pages # <-", `parsing limit: invalid capacity "10/s": want a number from 0.000000001 to 1000000000000, such as 10; want throttle <zone> [<key>...] <capacity> <leak>, such as throttle pages 120 2/s`},
	{"site", "throttle pages 10/s 60 # <-", `parsing limit: invalid limit "10/s 60": the capacity comes first: did you mean 60 10/s?`},
	{"file", "{\nthrottle {\nzone pages {\nlimit 60 10/s\n}\n}\n}\nhttp://a.example {\nthrottle {\nshadow\nzone pages # <-\nzone own {\nlimit 5 1/s\n}\n}\n}", `zone "pages" is only a name here, so the options beside it do not apply to it: want exempt, refusal, on_store_error and shadow where it is defined`},
	{"site", "throttle # <-", "no zone given: want throttle <zone>, throttle <zone> <key>... <capacity> <leak>, or a block with zones"},
	{"global", "refusal status 503\nzone pages # <-", "no limit given"},
	{"site", "throttle pages 60 10/s {\nzone pages { # <-\nlimit 60 10/s\n}\n}", `zone "pages" is on the line of throttle already: put both zones into the block`},
	{"zone", "limit 60 10/s\nkey \"x {client_ip}\" # <-", `zone "pages": placeholder {http.vars.client_ip} within "x {http.vars.client_ip}": give client_ip as a part of its own, which masks IPv6 addresses`},
	{"zone", "limit 60 10/s\nkey # <-", "parsing key: no source: want client_ip, header <name>, cookie <name>, query <name>, field <name> [fold wordpress|email], basic_user [fold wordpress|email], host, method, route, text <string> or a string with {placeholders}"},
	{"zone", "limit 60 10/s\nblock 0 # <-", `parsing block: invalid duration "0": want a number above 0 with its unit ms, s, m, h or d, such as 10s`},
	{"zone", "limit 60 10/s\nkey header X-User\nblock 10m everywhere # <-", `zone "pages": block ... everywhere needs the key client_ip alone: other keys do not identify a client in every zone`},
	{"zone", "limit 60 10/s\nshadow on # <-", `unexpected "on" after shadow: want shadow [server_timing], and a line for each option`},
	{"block", "shadow false # <-\nzone pages {\nlimit 60 10/s\n}", `unexpected "false" after shadow: want shadow [server_timing], and a line for each option`},
	{"zone", "limit 60 10/s\nenforce 10% # <-", `parsing enforce: invalid number "10%": want a whole one above 0; the syntax is enforce <percent of keys>`},
	{"zone", "limit 60 10/s\ndelay 3s # <-", `parsing delay: invalid number "3s": want one such as 2 or 0.5; the syntax is delay [<undelayed>] [wait <duration>] [queue <n>]`},
	{"zone", "limit 60 10/s\nrefusal {\npage missing.html # <-\n}", "reading page: open missing.html: no such file or directory: want the name of an HTML file, relative to the Caddyfile"},
	{"zone", "limit 60 10/s\noverride 192.0.2.1/24 unlimited # <-", `zone "pages": override 192.0.2.1/24: invalid network "192.0.2.1/24": did you mean 192.0.2.0/24?`},
	{"zone", "limit 60 10/s\ncost 1 # <-\ncost 2 {\npath /a*\n}", `zone "pages": cost 1: a line for all requests must come last`},
	{"zone", "limit 60 10/s\nmatch { # <-\n}", "match has no matchers: want at least one, such as path /wp-login.php*"},
	{"zone", "limit 60 10/s\nmatch @login # <-", "unrecognized matcher name: @login: want one that the site defines, such as @login path /wp-login.php*"},
	{"zone", "limit 60 10/s\nsettle status 401 after # <-", "parsing settle: wrong words after status; the syntax is settle seconds|bytes <unit>|header <Name>|status <code|class>... <n> [after] [debt <n>]"},
	{"global", "refusal status 503 # <-", "refusal holds for what the global options define, which is nothing: want it beside the zones of the sites, or in an in_flight"},
	{"global", "store redis localhost:6379 # <-", `unknown store "redis": want one of memory, test_shared; others must be built into Caddy, as by xcaddy --with github.com/caddy-throttle/caddy-throttle/caddymodule/<redis|postgres|memcached>`},
	{"zone", "limit 5 5/h\ntrust_devices wordpress_logged_in_* # <-", `zone "pages": trust_devices needs a key that names an account: want field, basic_user, header, cookie or query among its sources, such as key field log; client_ip, host, method, route and text name none`},
	{"zone", "limit 5 5/h\nrefund # <-", `zone "pages": refund names no response: want status <code|class>..., header <Field> <value> or cookie <glob>`},
	{"zone", "limit 5 5/h\nrefund status # <-", `: want refund status <code|class>..., refund header <Field> <value> or refund cookie <glob>; in a block, status and header apply together`},
	{"zone", "limit 5 5/h\nrefund 302 # <-", `unknown word "302" after refund: want refund status <code|class>..., refund header <Field> <value> or refund cookie <glob>`},
	{"zone", "limit 5 5/h\nrefund status # <-", "parsing refund: wrong argument count or unexpected line ending after 'status'"},
	{"zone", "limit 5 5/h\nrefund status ok # <-", `parsing refund: bad status value 'ok': strconv.Atoi: parsing "ok": invalid syntax`},
	{"zone", "limit 5 5/h\nrefund status 302 header Location /home # <-", `parsing refund: bad status value 'header': strconv.Atoi: parsing "header": invalid syntax`},
	{"zone", "limit 5 5/h\nrefund header Location # <-", "parsing refund: malformed header matcher: expected both field and value"},
	{"zone", "limit 5 5/h\nrefund header set-cookie sid=* # <-", `zone "pages": refund header Set-Cookie also matches a cookie that is deleted: want refund cookie <glob>`},
	{"zone", "limit 5 5/h\nrefund cookie # <-", "wrong number of words after refund cookie: want refund cookie <glob>, and a line for each cookie"},
	{"zone", "limit 5 5/h\nrefund cookie * # <-", `zone "pages": invalid cookie "*" in refund: want the name, or a pattern such as wordpress_logged_in_*, of one that nothing but a login sets`},
	{"zone", "limit 5 5/h\nrefund {\ncookie sid # <-\n}", "parsing refund: unrecognized response matcher cookie"},
	{"zone", "limit 5 5/h\nkey field log\ntrust_devices # <-", "trust_devices has no value: want trust_devices <cookie-glob> [<duration>]"},
	{"zone", "limit 5 5/h\nkey field log\ntrust_devices * # <-", `zone "pages": invalid cookie "*" in trust_devices: want the name, or a pattern such as wordpress_logged_in_*, of one that nothing but a login sets`},
	{"zone", "limit 5 5/h\nkey field log\ntrust_devices wordpress_logged_in_* 30 # <-", `parsing trust_devices: invalid duration "30": want a number above 0 with its unit ms, s, m, h or d, such as 10s`},
	{"zone", "limit 5 5/h\nkey field log\ntrust_devices wordpress_logged_in_* 180d days # <-", `unexpected "days" after trust_devices: want trust_devices <cookie-glob> [<duration>], and a line for each option`},
	{"zone", "limit 5 5/h\nkey field log\ntrust_device wordpress_logged_in_* # <-", `unknown option "trust_device" in zone "pages": did you mean trust_devices?`},
	{"zone", "limit 60 10/s\nsettle bytes 1MB/s # <-", `zone "pages": parsing settle: invalid unit "1MB/s": want a number of bytes, such as 1KiB`},
	{"zone", "limit 60 10/s\nkey field log fold # <-", `parsing key: "fold" needs a word after it: want fold wordpress or fold email`},
	{"zone", "limit 60 10/s\nkey field log fold wp # <-", `zone "pages": unknown word "wp" after fold: want one of wordpress, email`},
	{"zone", "limit 60 10/s\nrefusal {\npage { # <-\n}\n}", "page has no value: want a file, or a block of title, accent and text"},
	{"zone", "limit 60 10/s\nrefusal {\npage {\ncolor red # <-\n}\n}", `unknown option "color" in page: want one of accent, text, title`},
	{"zone", "limit 60 10/s\nrefusal {\npage {\naccent #0a7f5c # <-\n}\n}", "wrong number of words after accent: it takes one word, in quotes if it has blanks or a #"},
	{"zone", "limit 60 10/s\nrefusal {\npage {\ntitle My Shop # <-\n}\n}", `wrong number of words after title: it takes one word, in quotes if it has blanks or a #`},
	{"zone", "limit 60 10/s\nrefusal {\npage \"<h1>Busy</h1>\" # <-\n}", "reading page: open <h1>Busy</h1>: no such file or directory: want the name of an HTML file, relative to the Caddyfile"},
	{"zone", "limit # <-", "limit: want limit <capacity> <leak>, such as limit 120 2/s"},
	{"zone", "limit 60 10/s\nsettle status 1 200 # <-", `zone "pages": parsing settle: invalid status "1": want a code such as 401 or a class such as 4xx`},
	{"zone", "limit 60 10/s\nrefusal page busy.html status 503 # <-", "page belongs in the block of refusal: want refusal [status <cod"},
	{"zone", "limit 60 10/s\nrefusal {\npage title My Shop # <-\n}", `wrong number of words after page: it takes one word, in quotes if it has blanks or a #`},
	{"zone", "limit 60 10/s\nsettle status 401, 403 1 after  # <-", `zone "pages": parsing settle: invalid status "401,": want a code such as 401 or a class such as 4xx`},
	{"zone", "limit 60 10/s\ndelay 60 # <-", `zone "pages": delay 60 delays nothing: every request that fits a capacity of 60 passes undelayed; want a larger capacity, since the queue is part of it`},
	{"zone", "limit 60 10/s\nexempt static # <-", `unknown matcher "static" in exempt: did you mean static_files?`},
	{"zone", "limit 60 10/s\nmatch POST # <-", `unknown matcher "POST" in match: did you mean host?`},
	{"zone", "limit 60 10/s\nmatch query action # <-", "malformed query matcher token: action; must be in param=val format"},
	{"zone", "limit 60 10/s\ncost POST 5 # <-", `unexpected "5" after cost POST: want the matchers in a block, each on a line of its own`},
	{"zone", "limit 60 10/s\ncost path /search* 5 # <-", `unexpected "/search*" after cost path: want the matchers in a block, each on a line of its own`},
	{"zone", "limit 60 10/s\ncost five # <-", `zone "pages": invalid cost "five": want a number such as 2 or 0.5, a {placeholder}, body_items or body_bytes`},
	{"site", "throttle @login login 5 5/h # <-", "unrecognized matcher name: @login: want one that the site defines, such as @login path /wp-login.php*"},
	{"global", "limit_req_zone $binary_remote_addr zone=one:10m rate=1r/s # <-", `unknown option "limit_req_zone" in the global option throttle: want one of buffer, exempt, in_flight, nodes, on_store_error, plan, refusal, shadow, signing_key, store, store_timeout, zone`},
	{"site", "throttle pages 60 10r/s # <-", `parsing limit: invalid rate "10r/s": want <number>/<s|m|h|d> or a longer period, such as 2/s or 5/20s`},
	{"site", "throttle pages 10r/s # <-", `unexpected "10r/s" after pages: want throttle <zone> [<key>...] <capacity> <leak>, such as throttle pages 120 2/s`},
	{"zone", "limit 60 10/s\noverride 192.0.2.1 # <-", "parsing override: too few words: want override <part>... <plan>|<capacity> <leak>|unlimited|deny [as <name>]"},
	{"zone", "limit 60 10/s\noverride 192.0.2.1 600 10/s as # <-", `zone "pages": override 192.0.2.1 600 10/s: 3 parts of a key given before the limit "as", and the key has 1`},
	{"zone", "limit 60 10/s\noverride 192.0.2.1 unlimited as office # <-", "override 192.0.2.1: as office has no meaning after unlimited: want a plan, or <capacity> <leak>, which the keys of that name share"},
	{"zone", "limit 60 10/s\noverride 192.0.2.1 600 10/s as office\noverride 192.0.2.2 60 10/s as office # <-", "override 192.0.2.2: as office has another limit elsewhere: keys that share a bucket need the same limit"},
	{"zone", "limit 60 10/s\nkey header X-Api-Key\noverride @sha256:2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae deny # <-", `invalid digest "@sha256:2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae": did you mean sha256:2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae?`},
	{"zone", "limit 60 10/s\noverrides 192.0.2.1 deny # <-", `unknown option "overrides" in zone "pages": did you mean override?`},
	{"global", "plan as 60 10/s # <-", `invalid plan name "as": the word has a meaning of its own in overrides`},
	{"block", "zone pages{ # <-\nlimit 60 10/s\n}", `invalid zone name "pages{": want a blank before the brace`},
	{"file", "{\n\tthrottle pages 60 10/s # <-\n}\nhttp://example.com {\n}", `unexpected "pages" after the global option throttle: want a block; the line throttle pages ... belongs in a site`},
	{"block", "refusal {\npage {\ntitle Busy\nzone pages { # <-\nlimit 5 1/h\n}\n}", `unknown option "zone" in page: want one of accent, text, title`},
	{"block", "exempt {\nclient_ip 203.0.113.7\nzone pages { # <-\nlimit 5 1/h\n}", `unknown matcher "zone" in exempt: want one of `},
	{"file", "http://example.com {\n\tthrottle {\n\t\tzone pages {\n\t\t\tlimit 60 10/s\n\t\t}\n\trespond hello # <-\n}", `unknown option "respond" in the directive throttle: want one of exempt, on_store_error, ratelimit_headers, refusal, shadow, zone`},
	{"zone", "limit 60 10/s\nkey route\nroute login /wp-login.php # <-", `zone "pages": route "login": path "/wp-login.php" leaves out /wp-login.php/x, for which PHP runs the same script: did you mean /wp-login.php*?`},
	{"zone", "key host\nlimit 60 10/s\ncost body_items\nread_body 64KiB else 7 # <-", "read_body ... else: 7 is too much for a bucket that clients share, since client_ip is no part of the key: want at most a tenth of the capacity, such as read_body 64KiB else 6"},
	{"zone", "key field log\nlimit 60 10/s\nread_body 64KiB else 5 # <-", `zone "pages": read_body has no meaning: no cost comes from the body`},
	{"zone", "limit 5 5/m\nmatch path *.php # <-", `path "*.php" leaves out *.php/x, for which PHP runs the same script: did you mean *.php*?`},
	{"zone", "limit 5 5/m\nmatch path_regexp wp-login.php$ # <-", `did you mean wp-login.php(/|$)?`},
	{"zone", "limit 5 5/m\nrefusal status 444 # <-", "status 444 is nginx's word for a closed connection, and Caddy would send it"},
	{"global", "store memory {\nsnapshot_interval 10ms # <-\n}", `invalid snapshot_interval 10ms: want one from 100ms to 24h0m0s`},
	{"zone", "limit 60 10/s\ncost query s=* 5 # <-", `unexpected "s=*" after cost query: want the matchers in a block, each on a line of its own`},

	// Values of keys that no request has.
	{"zone", "limit 5 1/s\nkey text {host} # <-", `key source "text" fills in no placeholders: want {http.request.host} without text`},
	{"site", "in_flight php 5 text {env.A} # <-", "fills in no placeholders"},
	{"zone", "limit 5 1/s\nkey host\noverride Example.com:443 deny # <-", `override Example.com:443: no request has the host "Example.com:443": want one such as "example.com"`},
	{"zone", "limit 5 1/s\nkey {host} client_ip\noverride *.example.com unlimited # <-", `no request has the host "*.example.com": want one such as "example.com"`},
	{"zone", "limit 5 1/s\nkey client_ip method\noverride 192.0.2.1 get 1 1/m # <-", `no request has the method "get": want one such as "POST"`},
	{"zone", "limit 5 1/s\nkey text all\noverride al deny # <-", `no request has the text "al": want one such as "all"`},
	{"zone", "limit 5 1/s\nkey route\nroute login /a*\noverride logn deny # <-", `override logn: unknown route "logn": did you mean login?`},
	{"zone", "limit 5 1/s\nkey header X-Key unlisted refuse\noverride \"{$NET}\" unlimited # <-", "no request has \"\" here"},
	{"zone", "limit 5 1/s\nkey header X-Key\noverride {env.KEY} deny # <-", "want the value itself, {$NAME} in a Caddyfile, or sha256:<hex>"},

	// Words of matchers that no request has.
	{"zone", "limit 5 1/s\nmatch method post # <-", `method "post" never matches: want words in upper case`},
	{"zone", "limit 5 1/s\ncost 2 { # <-\nmethod POST,PUT\n}", `method "POST,PUT" never matches`},
	{"zone", "limit 5 1/s\nexempt not method {env.METHOD} # <-", "never matches"},
	{"site", "@b host example.com:8080\nthrottle @b pages 5 1/s # <-", `host "example.com:8080" never matches: want names without scheme, port and brackets`},
	{"zone", "limit 5 1/s\nmatch host [::1] # <-", "never matches"},
	{"site", "in_flight php 5 {\nexempt host https://example.com # <-\n}", "never matches"},
	{"zone", "limit 5 1/s\nmatch host a.example,b.example # <-", "never matches"},

	// The words of the grammar, each wrong in several ways.
	{"zone", "MATCH path /x* # <-", "did you mean match?"},
	{"zone", "limit 5 1/s\nmatch PATH /x* # <-", "unknown matcher \"PATH\" in match: did you mean path?"},
	{"zone", "limit 5 1/s\nkey client_ip missing # <-", "missing has no value: want key <source>... [missing client_ip|share|skip|refuse] [unlisted client_ip|share|skip|refuse] [plain] [ipv4 <bits>] [ipv6 <bits>]"},
	{"zone", "limit 5 1/s\nkey client_ip missing share share # <-", `unexpected "share" after key: want key <source>... [missing client_ip|share|skip|refuse] [unlisted client_ip|share|skip|refuse] [plain] [ipv4 <bits>] [ipv6 <bits>], and a line for each option`},
	{"zone", "limit 5 1/s\nkey client_ip ipv4 24% # <-", `parsing ipv4: invalid number "24%": want a whole one above 0`},
	{"zone", "limit 5 1/s\nkey cookie sid; # <-", "invalid cookie name \"sid;\": want the name alone, such as session"},
	{"zone", "limit 5 1/s\nkey query s= # <-", "invalid query parameter \"s=\": want its name alone, such as s"},
	{"zone", "limit 5 1/s\nkey field log unlisted refuse # <-", "unlisted has no meaning without override"},
	{"zone", "limit 5 1/s\nkey route\nroute login # <-", "too few words after route: want route <name> <path>..."},
	{"zone", "limit 5 1/s\noverride 0.0.0.0/0 unlimited # <-", "all clients would be unlimited, so the zone limits nothing"},
	{"zone", "limit 5 1/s\noverride {$NO_SUCH_VARIABLE} unlimited # <-", "parsing override: too few words"},
	{"zone", "limit 5 1/s\ncost 0 # <-", "cost 0 for all requests charges nothing, so the zone limits nothing"},
	{"zone", "limit 5 1/s\ncost -1 # <-", "invalid cost \"-1\": want a number such as 2 or 0.5"},
	{"zone", "limit 5 1/s\ncost body_bytes 1 KiB # <-", `unexpected "1" after cost body_bytes: want the matchers in a block, each on a line of its own`},
	{"zone", "limit 5 1/s\ncost body_items\nread_body 64 KiB # <-", `unexpected "KiB" after read_body: want read_body <size> [else <cost>], and a line for each option`},
	{"zone", "limit 5 1/s\ncost body_items\nread_body 64KiB else # <-", "else has no value: want read_body <size> [else <cost>]"},
	{"zone", "limit 5 1/s\ncost body_items\nread_body 64KiB else 0 # <-", "0 lets clients hide costs in bodies that cannot be read: want a number above 0"},
	{"zone", "limit 5 1/s\nsettle after # <-", "settle has no value: want settle seconds|bytes"},
	{"zone", "limit 5 1/s\nsettle Status 401 1 # <-", "parsing settle: wrong words after Status; the syntax is settle seconds|bytes <unit>|header <Name>|status <code|class>... <n> [after] [debt <n>]"},
	{"zone", "limit 5 1/s\nsettle status 4XX 1 # <-", "invalid status \"4XX\": want a code such as 401 or a class such as 4xx"},
	{"zone", "limit 5 1/s\nsettle seconds debt 5% # <-", "parsing debt: invalid number \"5%\""},
	{"zone", "limit 5 1/s\ndelay 99 # <-", "delay 99 delays nothing"},
	{"zone", "limit 5 1/s\non_store_error ALLOW # <-", "did you mean allow?"},
	{"block", "zone \"\" { # <-\nlimit 5 1/s\n}", `invalid zone name "": want letters`},
	{"site", "throttle pages client_ip 5 1/s {\nkey host # <-\n}", "key is given twice"},
	{"file", "(lim) {\nthrottle {args[0]} {args[1]} {args[2]} # <-\n}\nhttp://a.example {\nimport lim pages 5\n}", "invalid rate \"{args[2]}\""},
	{"file", "(lim) {\nthrottle {\nzone {args[0]} {\nlimit {args[1]} {args[2]} # <-\n}\n}\n}\nhttp://a.example {\nimport lim pages x 1/s\n}", "invalid capacity \"x\""},

	// Caddy itself finds these before throttle is asked.
	{"site", "rate_limit { # <-\n}", "unrecognized directive: rate_limit"},
	{"site", "limit_req zone=one burst=5 nodelay # <-", "unrecognized directive: limit_req"},
	{"site", "limit_conn addr 5 # <-", "unrecognized directive: limit_conn"},
	{"site", "@x path login\nthrottle {\n\texempt static_files\n\texempt @x # <-\n\tzone pages {\n\t\tlimit 60 10/s\n\t}\n}", "login"},
	{"zone", "match { path /a } # <-", "Unexpected next token after '{' on same line"},
	{"block", "zone pages { limit 60 10/s } # <-", "Unexpected next token after '{' on same line"},
	{"block", "zone pages\n{ # <-\nlimit 60 10/s\n}", "Unexpected '{' on a new line; did you mean to place the '{' on the previous line?"},
	{"file", "throttle { # <-\n\tzone pages {\n\t}\n}", "parsed 'throttle' as a site address, but it is a known directive; directives must appear in a site block"},
}

const unset = "is a variable such as {$NAME} unset?"

// A matcher that an unset variable has emptied matches all requests or none. NET, and what
// begins with NET, is unset.
func TestEmptiedMatcher(t *testing.T) {
	for matcher, says := range map[string]string{
		"client_ip {$NET}": "client_ip: nothing stands after it, so it would match all requests or none: " + unset, "remote_ip {$NET}": "remote_ip: nothing",
		"path {$NET}": "path: nothing", "query {$NET}": "query: nothing", "query \"{$NET}\"": "query: nothing", "method {$NET}": "method: nothing", "host {$NET}": "host: nothing",
		"not client_ip {$NET}": "client_ip: nothing", "header_regexp X-Api-Key \"{$NET}\"": "header_regexp: nothing", "{$NET}": "no matchers",
		// Caddy itself refuses the rest.
		"path_regexp {$NET}": "", "header {$NET}": "", "header A {$NET}": "", "header_regexp {$NET}": "", "header_regexp A {$NET}": "", "protocol {$NET}": "",
		"vars {$NET}": "", "vars a {$NET}": "", "vars_regexp {$NET}": "", "vars_regexp a {$NET}": "", "expression {$NET}": "", "not {$NET}": "",
	} {
		for _, m := range []mistake{
			{"zone", "limit 5 1/s\nmatch " + matcher + " # <-", says},
			{"zone", "limit 5 1/s\nmatch { # <-\n" + matcher + "\n}", says},
			{"zone", "limit 5 1/s\nexempt " + matcher + " # <-", says},
			{"zone", "limit 5 1/s\ncost 2 { # <-\n" + matcher + "\n}", says},
			{"global", "exempt " + matcher + " # <-", says},
			{"global", "zone a {\nlimit 5 1/s\nmatch " + matcher + " # <-\n}", says},
		} {
			if matcher == "{$NET}" && strings.Contains(m.text, "\n{$NET}") {
				continue // an empty line
			}
			if _, got := m.adapt(); got == "" || !strings.Contains(got, m.says) || m.says != "" && !strings.Contains(got, m.place()) {
				t.Errorf("%s\ngot  %s\nwant %s, at %s", m.caddyfile(), got, m.says, m.place())
			}
		}
	}
	for _, m := range []mistake{
		{"site", "@a client_ip {$NET}\nthrottle @a pages 5 1/s # <-", "client_ip: nothing"},
		{"site", "@a query {$NET}\nthrottle {\nzone pages {\nlimit 5 1/s\nexempt @a # <-\n}\n}", "query: nothing"},
		{"site", "@a client_ip {$NET}\nthrottle {\nzone pages {\nlimit 5 1/s\ncost @a 2 # <-\n}\n}", "client_ip: nothing"},
		{"zone", "limit 5 1/s\nexempt header X-Key \"{$NET}\" # <-", "anybody can send an empty header or parameter: " + unset},
		{"global", "exempt { # <-\nheader A b\nquery key={$NET}\n}", "anybody can send an empty"},
		{"site", "in_flight php 5 {\nexempt query key={$NET} # <-\n}", "anybody can send an empty"},
		{"site", "in_flight php 5 {\nshare\nrank member header X-Office \"{$NET}\" # <-\n}", "anybody can send an empty"},
		{"zone", "limit 5 1/s\nkey route\nroute a {$NET} # <-", "too few words after route"},
		{"zone", "limit 5 1/s\nkey {$NET} # <-", "no source"},
		{"zone", "limit 5 1/s\nkey header {$NET} # <-", "has no name"},
		{"zone", "limit 5 1/s\nblock \"{$NET}\" # <-", `invalid duration ""`},
		{"zone", "limit 5 1/s\ndelay \"{$NET}\" # <-", `invalid number ""`},
		{"zone", "limit 5 1/s\nexempt static_files \"{$NET}\" # <-", "unexpected \"\" after exempt static_files"},
	} {
		m.check(t)
	}
	for _, words := range []string{"match file", "match tls", "match not file", "match header !A", "match host ::1 *.example.com {vars.a}", "match header A \"\"", "exempt header A *", "exempt query a=*", "match client_ip 192.0.2.0/24 {$NET}"} {
		_, got := (mistake{"zone", "limit 5 1/s\n" + words, ""}).adapt()
		check.Equal(t, got, "", "%s", words)
	}
}

// Placeholders of the environment are filled in when the config is loaded, by the Caddy that
// runs. Others are not judged.
func TestEmptiedPlaceholder(t *testing.T) {
	t.Setenv("THROTTLE_SET", "/a*")
	for _, test := range []struct{ in, text, says string }{
		{"zone", "limit 5 1/s\nmatch path {env.NET}", `zone "pages": match: path: {env.NET} is empty: set the variable where Caddy runs, or remove the line`},
		{"zone", "limit 5 1/s\nmatch path /a{env.NET}", "match: path: {env.NET} is empty"},
		{"zone", "limit 5 1/s\nexempt client_ip {env.NET}", "exempt: client_ip: {env.NET} is empty"},
		{"zone", "limit 5 1/s\nexempt not path {env.NET}", "exempt: not: {env.NET} is empty"},
		{"zone", "limit 5 1/s\nmatch query {env.NET}=a", "match: query: {env.NET} is empty"},
		{"zone", "limit 5 1/s\nmatch expression `{path} == {env.NET}`", "match: expression: {env.NET} is empty"},
		{"zone", "limit 5 1/s\ncost 2 {\npath {env.NET}\n}", "match: path: {env.NET} is empty"},
		{"zone", "limit 5 1/s\nkey route\nroute a {env.NET}", `zone "pages": route "a": {env.NET} is empty`},
		{"site", "@a path {env.NET}\nthrottle @a pages 5 1/s", "match: path: {env.NET} is empty"},
		{"global", "exempt path {env.NET}", "exempt: path: {env.NET} is empty"},
		{"zone", "limit 5 1/s\nmatch path {env.THROTTLE_SET}", ""},
		{"zone", "limit 5 1/s\nmatch path {vars.NET}", ""},
	} {
		m := mistake{test.in, test.text, test.says}
		config, message := m.adapt()
		if message != "" {
			t.Errorf("%s: got %s, want it adapted", m.caddyfile(), message)
			continue
		}
		err := golden.Validate(t, config)
		if test.says == "" && err != nil || test.says != "" && (err == nil || !strings.Contains(err.Error(), test.says)) {
			t.Errorf("%s\ngot  %v\nwant %s", m.caddyfile(), err, test.says)
		}
	}
}
