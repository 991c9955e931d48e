package caddymodule_test

import (
	"strings"
	"testing"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/servertest"
)

// Each config limits nothing somewhere, or means two things, and must not be accepted silently.
func TestJSONThatLimitsNothingIsAnError(t *testing.T) {
	const limit = `"limit":"5 1/s"`
	zone := func(fields string) string {
		return servertest.WithHandlers(`{"handler":"throttle","zone":[{"name":"a",` + limit + `,` + fields + `}]}`)
	}
	for _, test := range []struct {
		name, http, want string // want nothing: no error
	}{
		{name: "path with a comma", http: zone(`"match":[{"path":["/a,"]}]`), want: `path "/a," has a comma in it`},
		{name: "path without a slash", http: zone(`"exempt":[{"path":["/x"]},{"path":["x"]}]`), want: `zone "a": path "x" never matches`},
		{name: "path without a slash in not", http: zone(`"match":[{"not":[{"path":["x"]}]}]`), want: `path "x" never matches`},
		{name: "path without a slash in a cost", http: zone(`"cost":[{"match":[{"path":["x"]}],"value":"2"}]`), want: `path "x" never matches`},
		{name: "path without a slash in a route", http: zone(`"key":{"sources":[{"source":"route"}]},"route":[{"name":"r","path":["x"]}]`), want: `route "r": path "x" never matches`},
		{name: "paths of all kinds", http: zone(`"match":[{"path":["/x","*.jsp","{http.vars.p}/x","*"]}]`)},
		{name: "two zones that are the same", http: servertest.WithHandlers(`{"handler":"throttle","zone":[{"name":"a",` + limit + `},{"name":"b",` + limit + `,"refusal":{"status":429}}]}`), want: `zones "a" and "b" of one throttle directive are the same`},
		{name: "two zones whose names are keys", http: servertest.WithHandlers(`{"handler":"throttle","zone":[{"name":"a","key":{"sources":[{"source":"header","name":"a"}]},` + limit + `},{"name":"b","key":{"sources":[{"source":"header","name":"b"}]},` + limit + `}]}`)},
		{name: "two zones that differ in their matchers", http: servertest.WithHandlers(`{"handler":"throttle","zone":[{"name":"a","match":[{"path":["/a"]}],` + limit + `},{"name":"b",` + limit + `}]}`)},
		{name: "static files with a root of their own", http: servertest.WithHandlers(`{"handler":"throttle","zone":[{"name":"a",` + limit + `,"exempt_static_files":[{"root":"/srv"}]}]}`)},
		{name: "static files with a blank root", http: servertest.WithHandlers(`{"handler":"throttle","zone":[{"name":"a",` + limit + `,"exempt_static_files":[{"root":" "}]}]}`), want: "the root of static_files is blank"},
		{name: "page_style and page_html", http: zone(`"refusal":{"page_style":{"title":"a"},"page_html":""}`), want: "page_style and page_html exclude each other"},
		{name: "page_style with refuse error", http: zone(`"refusal":{"page_style":{},"error":true}`), want: "page and error exclude each other"},
		{name: "page_style with an accent that is no colour", http: zone(`"refusal":{"page_style":{"accent":"#12"}}`), want: `invalid accent "#12"`},
		{name: "page_html with refuse error", http: zone(`"refusal":{"page_html":"","error":true}`), want: "page and error exclude each other"},
	} {
		t.Run(test.name, func(t *testing.T) {
			switch err := servertest.Provision(t, map[string]string{"http": test.http}); {
			case test.want == "" && err != nil:
				t.Errorf("got %v, want no error", err)
			case test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)):
				t.Errorf("got %v, want an error with %q", err, test.want)
			}
		})
	}
}

const usedAndForgotten = "{\nthrottle {\nzone used {\nlimit 5 1/s\n}\nzone forgotten {\nlimit 5 1/s\n}\n}\n}\n"

func TestAGlobalZoneThatNoSiteUsesIsWarnedOf(t *testing.T) {
	for config, want := range map[string]int{
		usedAndForgotten + "http://one.example {\nthrottle used\n}\nhttp://two.example {\nthrottle used\n}":      1,
		usedAndForgotten + "http://one.example {\nthrottle used\n}\nhttp://two.example {\nthrottle forgotten\n}": 0,
		usedAndForgotten + "http:// {\nrespond ok\n}":                                                            2,
	} {
		s := servertest.Run(t, config)
		s.Warned(t, "limits nothing, because no site uses it", 0) // before all sites are known
		servertest.Start(t, s)
		s.Warned(t, "limits nothing, because no site uses it", want)
		s.Stop()
	}
}

func TestAMatcherOfAnUnknownZoneIsAnErrorAtTheStart(t *testing.T) {
	for config, want := range map[string]string{
		"http:// {\n@out throttle_blocked lgoin\nabort @out\nthrottle login 60 10/s\n}":       `throttle_blocked asks about zone "lgoin", which is not defined: did you mean login?`,
		"http:// {\n@out not throttle_blocked other\nabort @out\nthrottle login 60 10/s\n}":   `throttle_blocked asks about zone "other", which is not defined: want a zone of this config`,
		"http:// {\n@out throttle_blocked login\nabort @out\nthrottle /late login 60 10/s\n}": "",
		usedAndForgotten + "http:// {\n@out throttle_blocked forgotten\nabort @out\n}":        "",
		"http:// {\n@out throttle_blocked\nabort @out\n}":                                     "",
	} {
		s := servertest.Run(t, config)
		err := s.Module().Start()
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: got %v, want %q", config, err, want)
		}
		if err == nil {
			_ = s.Module().Stop()
		}
		s.Stop()
	}
}
