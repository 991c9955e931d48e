package caddyfile_test

import (
	"strings"
	"testing"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/golden"
)

const unset = "is a variable such as {$NAME} unset?"

// A matcher that an unset variable has emptied matches all requests or none. NET, and what
// begins with NET, is unset.
func TestEmptiedMatcher(t *testing.T) {
	for _, test := range []struct{ matcher, says string }{
		{"client_ip {$NET}", "client_ip: nothing stands after it, so it would match all requests or none: " + unset},
		{"remote_ip {$NET}", "remote_ip: nothing"},
		{"path {$NET}", "path: nothing"},
		{"query {$NET}", "query: nothing"},
		{"query \"{$NET}\"", "query: nothing"},
		{"method {$NET}", "method: nothing"},
		{"host {$NET}", "host: nothing"},
		{"not client_ip {$NET}", "client_ip: nothing"},
		{"path_regexp {$NET}", ""}, // Caddy itself refuses the rest
		{"header {$NET}", ""},
		{"header A {$NET}", ""},
		{"header_regexp {$NET}", ""},
		{"header_regexp A {$NET}", ""},
		{"protocol {$NET}", ""},
		{"vars {$NET}", ""},
		{"vars a {$NET}", ""},
		{"vars_regexp {$NET}", ""},
		{"vars_regexp a {$NET}", ""},
		{"expression {$NET}", ""},
		{"not {$NET}", ""},
		{"{$NET}", "no matchers"},
	} {
		for _, m := range []mistake{
			{"zone", "limit 5 1/s\nmatch " + test.matcher + " # <-", test.says},
			{"zone", "limit 5 1/s\nmatch {\n" + test.matcher + " # <-\n}", test.says},
			{"zone", "limit 5 1/s\nexempt " + test.matcher + " # <-", test.says},
			{"zone", "limit 5 1/s\ncost 2 {\n" + test.matcher + " # <-\n}", test.says},
			{"global", "exempt " + test.matcher + " # <-", test.says},
			{"global", "zone a {\nlimit 5 1/s\nmatch " + test.matcher + " # <-\n}", test.says},
		} {
			if test.matcher == "{$NET}" && strings.Contains(m.text, "{\n{$NET}") {
				continue // an empty line
			}
			if _, got := m.adapt(); !strings.Contains(got, m.says) || !strings.Contains(got, m.place()) {
				t.Errorf("%s\ngot  %s\nwant %s, at %s", m.caddyfile(), got, m.says, m.place())
			}
		}
	}
	for _, m := range []mistake{
		{"site", "@a client_ip {$NET}\nthrottle @a pages 5 1/s # <-", "client_ip: nothing"},
		{"site", "@a query {$NET}\nthrottle {\nzone pages {\nlimit 5 1/s\nexempt @a # <-\n}\n}", "query: nothing"},
		{"site", "@a client_ip {$NET}\nthrottle {\nzone pages {\nlimit 5 1/s\ncost @a 2 # <-\n}\n}", "client_ip: nothing"},
		{"zone", "limit 5 1/s\nkey route\nroute a {$NET} # <-", "too few words after route"},
		{"zone", "limit 5 1/s\nkey {$NET} # <-", "no source"},
		{"zone", "limit 5 1/s\nkey header {$NET} # <-", "has no name"},
		{"zone", "limit 5 1/s\nblock \"{$NET}\" # <-", `invalid duration ""`},
		{"zone", "limit 5 1/s\ndelay \"{$NET}\" # <-", `invalid number ""`},
		{"zone", "limit 5 1/s\nexempt static_files \"{$NET}\" # <-", "unexpected \"\" after exempt static_files"},
	} {
		if _, got := m.adapt(); !strings.Contains(got, m.says) || !strings.Contains(got, m.place()) {
			t.Errorf("%s\ngot  %s\nwant %s, at %s", m.caddyfile(), got, m.says, m.place())
		}
	}
	for _, words := range []string{"match file", "match tls", "match not file", "match header !A", "match client_ip 192.0.2.0/24 {$NET}"} {
		if _, got := (mistake{"zone", "limit 5 1/s\n" + words, ""}).adapt(); got != "" {
			t.Errorf("%s: got %s", words, got)
		}
	}
}

// Placeholders of the environment are filled in when the config is loaded, by the Caddy that
// runs. Others are not judged.
func TestEmptiedPlaceholder(t *testing.T) {
	t.Setenv("THROTTLE_SET", "/a*")
	for _, test := range []struct{ in, text, says string }{
		{"zone", "limit 5 1/s\nmatch path {env.NET}", `zone "pages": match: path: {env.NET} is empty: set the variable where Caddy runs, or remove the line`},
		{"zone", "limit 5 1/s\nmatch path /a{env.NET}", "match: path: {env.NET} is empty"},
		{"zone", "limit 5 1/s\nmatch client_ip {env.NET}", "match: client_ip: {env.NET} is empty"},
		{"zone", "limit 5 1/s\nexempt client_ip {env.NET}", "exempt: client_ip: {env.NET} is empty"},
		{"zone", "limit 5 1/s\nexempt remote_ip {env.NET}", "exempt: remote_ip: {env.NET} is empty"},
		{"zone", "limit 5 1/s\nexempt host {env.NET}", "exempt: host: {env.NET} is empty"},
		{"zone", "limit 5 1/s\nexempt not path {env.NET}", "exempt: not: {env.NET} is empty"},
		{"zone", "limit 5 1/s\nmatch header A {env.NET}", "match: header: {env.NET} is empty"},
		{"zone", "limit 5 1/s\nmatch query a={env.NET}", "match: query: {env.NET} is empty"},
		{"zone", "limit 5 1/s\nmatch query {env.NET}=a", "match: query: {env.NET} is empty"},
		{"zone", "limit 5 1/s\nmatch vars a {env.NET}", "match: vars: {env.NET} is empty"},
		{"zone", "limit 5 1/s\nmatch method {env.NET}", "match: method: {env.NET} is empty"},
		{"zone", "limit 5 1/s\nmatch path_regexp {env.NET}", "match: path_regexp: {env.NET} is empty"},
		{"zone", "limit 5 1/s\nmatch header_regexp A {env.NET}", "match: header_regexp: {env.NET} is empty"},
		{"zone", "limit 5 1/s\nmatch vars_regexp a {env.NET}", "match: vars_regexp: {env.NET} is empty"},
		{"zone", "limit 5 1/s\nmatch expression `{path} == {env.NET}`", "match: expression: {env.NET} is empty"},
		{"zone", "limit 5 1/s\nmatch file {env.NET}", "match: file: {env.NET} is empty"},
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
