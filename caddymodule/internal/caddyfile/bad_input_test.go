package caddyfile_test

import (
	"strings"
	"testing"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/servertest"
)

// A triedConfig is a configuration that an owner tried, with the number it had there. Each
// was accepted in silence, or answered without a line or a remedy.
type triedConfig struct {
	number string
	mistake
}

// These are errors now.
var triedErrors = []triedConfig{
	{"01", mistake{"zone", "limit 10/s # <-", "wrong number of words after limit: want limit <capacity> <leak>, such as limit 120 2/s"}},
	{"04", mistake{"zone", "limit 2/s burst=10 nodelay # <-", "wrong number of words after limit: want limit <capacity> <leak>, such as limit 120 2/s"}},
	{"08", mistake{"zone", "limit 120/2s # <-", "wrong number of words after limit: want limit <capacity> <leak>, such as limit 120 2/s"}},
	{"N7", mistake{"site", "throttle pages 120/2s # <-", `unexpected "120/2s" after pages: want throttle <zone> [<key>...] <capacity> <leak>, such as throttle pages 120 2/s`}},
	{"10", mistake{"zone", "limit 120 30 per minute # <-", "wrong number of words after limit: want limit <capacity> <leak>, such as limit 120 2/s"}},
	{"E3", mistake{"zone", "limit unlimited # <-", "wrong number of words after limit: want limit <capacity> <leak>, such as limit 120 2/s"}},
	{"10a", mistake{"zone", "limit 10 per minute # <-", "wrong number of words after limit: want limit <capacity> <leak>, such as limit 120 2/s"}},
	{"3", mistake{"zone", "limit 5 5/m\nmatch path *.php # <-", `path "*.php" leaves out *.php/x, for which PHP runs the same script: did you mean *.php*?`}},
	{"82", mistake{"zone", "limit 5 5/m\nmatch { # <-\npath *.php\n}", `path "*.php" leaves out`}},
	{"K1", mistake{"zone", "limit 5 5/m\nmatch path_regexp \\.php$ # <-", `leaves out .php/x, for which PHP runs the same script: did you mean \.php(/|$)?`}},
	{"81", mistake{"zone", "limit 5 5/m\nmatch path_regexp wp-login.php$ # <-", `did you mean wp-login.php(/|$)?`}},
	{"44", mistake{"zone", "limit 5 5/m\nexempt path /* # <-", "exempt path /* exempts all requests, so nothing is limited"}},
	{"47", mistake{"zone", "limit 5 5/m\nexempt client_ip 0.0.0.0/0 # <-", "exempt client_ip 0.0.0.0/0 exempts all clients, so nothing is limited"}},
	{"47g", mistake{"global", "exempt client_ip ::/0 # <-", "exempt client_ip ::/0 exempts all clients"}},
	{"B7", mistake{"zone", "limit 5 5/m\nmatch path /a*\nexempt path /a* # <-", "exempt has all that match has, so the zone limits nothing"}},
	{"94", mistake{"zone", "limit 5 5/m\nkey header X-Api-Key: # <-", `invalid header name "X-Api-Key:"`}},
	{"76", mistake{"zone", "limit 5 5/m\nrefusal status 444 # <-", "status 444 is nginx's word for a closed connection, and Caddy would send it"}},
	{"A7", mistake{"zone", "limit 5 5/m\nmatch expression `{path}.foo(` # <-", "expression: compiling CEL program: ERROR: <input>:1:38: Syntax error"}},
	{"34", mistake{"zone", "limit 5 5/m\nmatch vars_regexp {uri} ( # <-", "vars_regexp: compiling matcher regexp (: error parsing regexp: missing closing ): `(`"}},
	{"35", mistake{"global", "store memory {\nsnapshot_interval 10ms # <-\n}", `invalid snapshot_interval 10ms: want one from 100ms to 24h0m0s`}},
	{"91", mistake{"zone", "limit 60 10/s\ncost query s=* 5 # <-", `unexpected "s=*" after cost query: want the matchers in a block, each on a line of its own`}},
	{"92", mistake{"zone", "limit 60 10/s\ncost 5 query s=* # <-", `unexpected "query" after cost 5: want the matchers in a block, each on a line of its own`}},
	{"71", mistake{"block", "zone pages { limit 60 10/s } # <-", "Unexpected next token after '{' on same line"}},
	{"N2", mistake{"block", "zone pages\nlimit 60 10/s # <-", "limit cannot stand beside the zones in the directive throttle: want it in the block of a zone"}},
	{"N6", mistake{"block", "limit 60 10/s # <-", "limit cannot stand beside the zones in the directive throttle: want it in the block of a zone"}},
	{"N9", mistake{"site", "throttle path /x* pages client_ip 120 2/s # <-", `zone "path": unknown key source "/x*": want client_ip, header <name>`}},
	{"9d", mistake{"zone", "limit 5 1/s\ndelay wait 36h # <-", `zone "pages": invalid wait 36h0m0s: want one from 0s to 24h0m0s`}},
	{"9r", mistake{"zone", "limit 5 1/s\nrefusal retry_after 48h # <-", "want empty, fit, or a duration of at most a day"}},
}

func TestEachConfigurationThatWasTriedIsAnErrorWithItsLine(t *testing.T) {
	for _, c := range triedErrors {
		if _, got := c.adapt(); !strings.Contains(got, c.says) || !strings.Contains(got, "at "+c.place()) {
			t.Errorf("%s: %s\ngot  %s\nwant %s, at %s", c.number, c.caddyfile(), got, c.says, c.place())
		}
	}
}

// These may be meant, and are warned of.
func TestEachConfigurationThatWasTriedAndMayBeMeantIsWarnedOf(t *testing.T) {
	const chosen, sent, common = "keyed by values that clients choose", "anybody can send the header by which", "all clients share one bucket of the zone"
	for _, c := range []triedConfig{
		{"43", mistake{"zone", "limit 5 5/m\nexempt path *.css", "paths such as /index.php/x.css run PHP"}},
		{"48", mistake{"zone", "limit 5 5/m\nexempt header User-Agent *Googlebot*", sent}},
		{"49", mistake{"zone", "limit 5 5/m\nexempt header Cookie *wordpress_logged_in*", sent}},
		{"F5", mistake{"global", "exempt header Cookie *wordpress_logged_in*", sent}},
		{"D9", mistake{"zone", "limit 5 5/m\nexempt {\nfile\n}", "exempt file exempts PHP scripts, too"}},
		{"60", mistake{"zone", "limit 120 2/s\nkey host", common}},
		{"61", mistake{"zone", "limit 120 2/s\nkey text all", common}},
		{"62", mistake{"zone", "limit 5 5/m\nkey client_ip {path}", chosen}},
		{"63", mistake{"zone", "limit 5 5/m\nkey {uri}", chosen}},
		{"64", mistake{"zone", "limit 5 5/m\nkey client_ip header User-Agent", chosen}},
		{"K2", mistake{"zone", "limit 5 5/m\nkey client_ip cookie PHPSESSID", chosen}},
		{"K3", mistake{"zone", "limit 5 5/m\nkey client_ip query s", chosen}},
		{"K5", mistake{"zone", "limit 5 5/m\nmatch path /login*\nkey client_ip field log", chosen}},
		{"48e", mistake{"zone", "limit 5 5/m\nexempt expression `{header.User-Agent}.contains('Googlebot')`", sent}},
		{"49e", mistake{"zone", "limit 5 5/m\nexempt header_regexp Cookie wordpress_logged_in", sent}},
		{"F2", mistake{"zone", "limit 5 5/m\nkey header X-Forwarded-For", "clients can send this header, too"}},
		{"F2p", mistake{"zone", "limit 5 5/m\nkey {header.X-Real-Ip}", "clients can send this header, too"}},
		{"F3", mistake{"zone", "limit 5 5/m\nkey header CF-Connecting-IP", "clients can send this header, too"}},
		{"43f", mistake{"zone", "limit 5 5/m\nexempt path /wp-admin/admin-ajax.php*", "anybody can call the script that is exempt"}},
		{"F1", mistake{"zone", "limit 50 1/s\ncost {header.X-Cost}", "clients choose what their requests cost"}},
		{"S1", mistake{"zone", "limit 5 30/h\nmatch method POST\nsettle status 302 303 1", "settle status charges redirects only"}},
		{"L1", mistake{"zone", "limit 1 1/s", "one request at a time, and browsers"}},
		{"F7", mistake{"site", "throttle / a 5 1/s", "path / is the front page alone"}},
		{"F8", mistake{"zone", "limit 5 5/m\nmatch path /", "path / is the front page alone"}},
		{"G3", mistake{"zone", "limit 5 5/m\nmatch header User-Agent bot", "want header User-Agent *bot*"}},
		{"G2", mistake{"zone", "limit 60 1/s\nmatch query s=* search=*", "matches requests that have all of them"}},
	} {
		s := servertest.Run(t, c.caddyfile())
		s.Warned(t, c.says, 1)
		if strings.Contains(c.says, "this header, too") {
			s.Warned(t, chosen, 0) // whose remedy would limit the proxy
		}
		s.Stop()
	}
}

// The words of the grammar, each wrong in several ways.
var wrongWords = []mistake{
	{"zone", "MATCH path /x* # <-", "did you mean match?"},
	{"zone", "limit 5 1/s\nmatch PATH /x* # <-", "unknown matcher \"PATH\" in match: did you mean path?"},
	{"zone", "limit 5 1/s\nmatch @nothing # <-", "want one that the site defines"},
	{"zone", "limit 5 1/s\nmatch not path /* # <-", "match has not with a matcher of all requests, so the zone limits nothing"},
	{"zone", "limit 5 1/s\nexempt static_files a b # <-", `unexpected "b" after exempt static_files: want exempt static_files [<root>]`},
	{"zone", "limit 5 1/s\nexempt path \"\" # <-", "path \"\" never matches"},
	{"zone", "limit 5 1/s\nkey client_ip missing # <-", "missing has no value: want key <source>... [missing client_ip|share|skip|refuse] [unlisted client_ip|share|skip|refuse] [plain] [ipv4 <bits>] [ipv6 <bits>]"},
	{"zone", "limit 5 1/s\nkey client_ip missing share share # <-", `unexpected "share" after key: want key <source>... [missing client_ip|share|skip|refuse] [unlisted client_ip|share|skip|refuse] [plain] [ipv4 <bits>] [ipv6 <bits>], and a line for each option`},
	{"zone", "limit 5 1/s\nkey client_ip missing share {\nmissing skip # <-\n}", "missing is given twice in key"},
	{"zone", "limit 5 1/s\nkey client_ip ipv4 24% # <-", `parsing ipv4: invalid number "24%": want a whole one above 0`},
	{"zone", "limit 5 1/s\nkey client_ip ipv6 6４ # <-", `parsing ipv6: invalid number "6４": want a whole one above 0`},
	{"zone", "limit 5 1/s\nkey Client_IP # <-", "unknown key source \"Client_IP\": did you mean client_ip?"},
	{"zone", "limit 5 1/s\nkey {$NO_SUCH_VARIABLE} # <-", "parsing key: no source: want client_ip, header <name>, cookie <name>, query <name>, field <name> [fold wordpress|email], basic_user [fold wordpress|email], host, method, route, text <string> or a string with {placeholders}"},
	{"zone", "limit 5 1/s\nkey cookie sid; # <-", "invalid cookie name \"sid;\": want the name alone, such as session"},
	{"zone", "limit 5 1/s\nkey query s= # <-", "invalid query parameter \"s=\": want its name alone, such as s"},
	{"zone", "limit 5 1/s\nkey field log unlisted refuse # <-", "unlisted has no meaning without override"},
	{"zone", "limit 5 1/s\nkey route\nroute login # <-", "too few words after route: want route <name> <path>..."},
	{"zone", "limit 5 1/s\nkey route\nroute a x # <-", "path \"x\" never matches, since paths begin with a slash: did you mean /x?"},
	{"zone", "limit 5% 1/s # <-", "invalid capacity \"5%\": want a number from"},
	{"zone", "limit ５ 1/s # <-", "invalid capacity \"５\": want a number from"},
	{"zone", "limit 5 ١/s # <-", "invalid rate \"١/s\""},
	{"zone", "limit 1e99 1/s # <-", "invalid capacity \"1e99\""},
	{"zone", "limit NaN 1/s # <-", "invalid capacity \"NaN\""},
	{"zone", "limit {$NO_SUCH_VARIABLE} 1/s # <-", "wrong number of words after limit: want limit <capacity> <leak>, such as limit 120 2/s"},
	{"zone", "limit 5 1/s { # <-\nshadow\n}", "unexpected { in zone \"pages\": the option before it takes no block"},
	{"zone", "limit 5 1/s\noverride 0.0.0.0/0 unlimited # <-", "all clients would be unlimited, so the zone limits nothing"},
	{"zone", "limit 5 1/s\noverride {$NO_SUCH_VARIABLE} unlimited # <-", "parsing override: too few words"},
	{"zone", "limit 5 1/s\noverride 10.0.0.1 { # <-\nunlimited\n}", "parsing override: too few words"},
	{"zone", "limit 5 1/s\ncost 0 # <-", "cost 0 for all requests charges nothing, so the zone limits nothing"},
	{"zone", "limit 5 1/s\ncost -1 # <-", "invalid cost \"-1\": want a number such as 2 or 0.5"},
	{"zone", "limit 5 1/s\ncost 50% # <-", "invalid cost \"50%\""},
	{"zone", "limit 5 1/s\ncost body_bytes 1 KiB # <-", `unexpected "1" after cost body_bytes: want the matchers in a block, each on a line of its own`},
	{"zone", "limit 5 1/s\ncost 2 /x* # <-", `unexpected "/x*" after cost 2: want the matchers in a block, each on a line of its own`},
	{"zone", "limit 5 1/s\ncost body_items\nread_body 64 KiB # <-", `unexpected "KiB" after read_body: want read_body <size> [else <cost>], and a line for each option`},
	{"zone", "limit 5 1/s\ncost body_items\nread_body 64KiB else # <-", "else has no value: want read_body <size> [else <cost>]"},
	{"zone", "limit 5 1/s\ncost body_items\nread_body 64KiB else 0 # <-", "0 lets clients hide costs in bodies that cannot be read: want a number above 0"},
	{"zone", "limit 5 1/s\ncost body_items\nread_body 64KiB else 1 {\nelse 2 # <-\n}", "else is given twice in read_body"},
	{"zone", "limit 5 1/s\nsettle after # <-", "settle has no value: want settle seconds|bytes"},
	{"zone", "limit 5 1/s\nsettle Status 401 1 # <-", "parsing settle: wrong words after Status; the syntax is settle seconds|bytes <unit>|header <Name>|status <code|class>... <n> [after] [debt <n>]"},
	{"zone", "limit 5 1/s\nsettle status 4XX 1 # <-", "invalid status \"4XX\": want a code such as 401 or a class such as 4xx"},
	{"zone", "limit 5 1/s\nsettle seconds debt 5% # <-", "parsing debt: invalid number \"5%\""},
	{"zone", "limit 5 1/s\nkey field log\ntrust_devices sid 30 # <-", `parsing trust_devices: invalid duration "30": want a number above 0 with its unit ms, s, m, h or d, such as 10s`},
	{"zone", "limit 5 1/s\ndelay 99 # <-", "delay 99 delays nothing"},
	{"zone", "limit 5 1/s\ndelay wait 8S # <-", `parsing wait: invalid duration "8S": want a number above 0 with its unit ms, s, m, h or d, such as 10s`},
	{"zone", "limit 5 1/s\ndelay wait 8s {\nwait 9s # <-\n}", "wait is given twice in delay"},
	{"zone", "limit 5 1/s\nblock 1h 10m # <-", "10m0s stands after 1h0m0s: want each duration longer than the one before"},
	{"zone", "limit 5 1/s\nblock 10M # <-", `parsing block: invalid duration "10M": want a number above 0 with its unit ms, s, m, h or d, such as 10s`},
	{"zone", "limit 5 1/s\nrefusal { # <-\n}", "refusal has no option"},
	{"zone", "limit 5 1/s\nrefusal status 429 {\nstatus 503 # <-\n}", "status is given twice in refusal"},
	{"zone", "limit 5 1/s\nrefusal page testdata/page.html # <-", "page stands in the block of refusal: want refusal [status <cod"},
	{"zone", "limit 5 1/s\non_store_error ALLOW # <-", "did you mean allow?"},
	{"zone", "limit 5 1/s\nshadow off # <-", `unexpected "off" after shadow: want shadow [server_timing], and a line for each option`},
	{"zone", "limit 5 1/s\nenforce 10% # <-", `parsing enforce: invalid number "10%": want a whole one above 0; the syntax is enforce <percent of keys>`},
	{"block", "zone \"\" { # <-\nlimit 5 1/s\n}", "parsing zone: the word is empty: want at least a letter"},
	{"site", "throttle pages key client_ip 5 1/s # <-", "unknown key source \"key\": want client_ip"},
	{"site", "throttle pages client_ip 5 1/s {\nkey host # <-\n}", "key is given twice"},
	{"file", "(lim) {\nthrottle {args[0]} {args[1]} {args[2]} # <-\n}\nhttp://a.example {\nimport lim pages 5\n}", "invalid rate \"{args[2]}\""},
	{"file", "(lim) {\nthrottle {\nzone {args[0]} {\nlimit {args[1]} {args[2]} # <-\n}\n}\n}\nhttp://a.example {\nimport lim pages x 1/s\n}", "invalid capacity \"x\""},
}

func TestEachWordThatIsWrongIsAnsweredWithItsLineAndARemedy(t *testing.T) {
	for _, m := range wrongWords {
		if _, got := m.adapt(); !strings.Contains(got, m.says) || !strings.Contains(got, "at "+m.place()) {
			t.Errorf("%s\ngot  %s\nwant %s, at %s", m.caddyfile(), got, m.says, m.place())
		}
	}
}
