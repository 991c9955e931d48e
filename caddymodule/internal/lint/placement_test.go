package lint_test

import (
	"strings"
	"testing"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/servertest"
)

// Each config limits nothing somewhere, and must not be accepted silently.
func TestJSONThatLimitsNothingIsRefusedWithItsPlace(t *testing.T) {
	const limit = `"limit":"5 1/s"`
	zone := func(fields string) string {
		return servertest.WithHandlers(`{"handler":"throttle","zone":[{"name":"a",` + limit + `,` + fields + `}]}`)
	}
	routes := func(routes string) string { return `{"servers":{"s":{"listen":[":8080"],"routes":[` + routes + `]}}}` }
	const (
		root     = `{"handle":[{"handler":"vars","root":"/srv"}]}`
		throttle = `{"handle":[{"handler":"throttle","zone":[{"name":"a",` + limit + `,"exempt_static_files":[{}]}]}]}`
	)
	for _, test := range []struct {
		name, http, app, want string // want nothing: no error
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
		{name: "matcher of an unknown zone", http: routes(`{"match":[{"not":[{"throttle_blocked":{"zone":"b"}}]}],"handle":[{"handler":"throttle","zone":[{"name":"a",` + limit + `}]}]}`), want: `throttle_blocked asks about zone "b", which is not defined: did you mean a?`},
		{name: "matcher of a zone of another route", http: routes(`{"match":[{"throttle_blocked":{"zone":"a"}}]},{"handle":[{"handler":"throttle","zone":[{"name":"a",` + limit + `}]}]}`)},
		{name: "matcher of a global zone", http: routes(`{"match":[{"throttle_blocked":{"zone":"g"}}]},{"handle":[{"handler":"throttle","zone":[{"name":"g"}]}]}`), app: `{"zone":[{"name":"g",` + limit + `}]}`},
		{name: "static files without a root", http: routes(throttle), want: `zone "a" exempts static files, and nothing sets the site's root before it: want root * <folder> in the site, or exempt static_files <folder>, in apps/http/servers/s/routes/0/handle/0`},
		{name: "static files with a root after it", http: routes(throttle + `,` + root), want: `nothing sets the site's root before it`},
		{name: "static files with a root before it", http: routes(root + `,` + throttle)},
		{name: "static files with the root of another site", http: routes(`{"match":[{"host":["a.example.com"]}],"terminal":true,"handle":[{"handler":"subroute","routes":[` + root + `]}]},{"handle":[{"handler":"subroute","routes":[` + throttle + `]}]}`), want: `in apps/http/servers/s/routes/1/handle/0/routes/0/handle/0`},
		{name: "static files with the root of an alternative", http: routes(`{"group":"g","match":[{"path":["/a/*"]}],"handle":[{"handler":"subroute","routes":[` + root + `]}]},{"group":"g","handle":[{"handler":"subroute","routes":[` + throttle + `]}]}`), want: `nothing sets the site's root before it`},
		{name: "static files with one of two roots", http: routes(`{"group":"g","match":[{"path":["/a/*"]}],"handle":[{"handler":"vars","root":"/a"}]},{"group":"g","handle":[{"handler":"vars","root":"/b"}]},` + throttle)},
		{name: "static files with a root of their own", http: servertest.WithHandlers(`{"handler":"throttle","zone":[{"name":"a",` + limit + `,"exempt_static_files":[{"root":"/srv"}]}]}`)},
		{name: "static files with a blank root", http: servertest.WithHandlers(`{"handler":"throttle","zone":[{"name":"a",` + limit + `,"exempt_static_files":[{"root":" "}]}]}`), want: "the root of static_files is blank"},
		{name: "page_style and page_html", http: zone(`"refusal":{"page_style":{"title":"a"},"page_html":""}`), want: "page_style and page_html exclude each other"},
		{name: "page_style with refuse error", http: zone(`"refusal":{"page_style":{},"error":true}`), want: "page and error exclude each other"},
		{name: "page_style with an accent that is no colour", http: zone(`"refusal":{"page_style":{"accent":"#12"}}`), want: `invalid accent "#12"`},
		{name: "page_html with refuse error", http: zone(`"refusal":{"page_html":"","error":true}`), want: "page and error exclude each other"},
	} {
		t.Run(test.name, func(t *testing.T) {
			apps := map[string]string{"http": test.http}
			if test.app != "" {
				apps["throttle"] = test.app
			}
			switch err := servertest.Provision(t, apps); {
			case test.want == "" && err != nil:
				t.Errorf("got %v, want no error", err)
			case test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)):
				t.Errorf("got %v, want an error with %q", err, test.want)
			}
		})
	}
}

func TestAGlobalZoneThatNoSiteUsesIsWarnedOf(t *testing.T) {
	s := servertest.Run(t, `{
		throttle {
			zone used {
				limit 5 1/s
			}
			zone forgotten {
				limit 5 1/s
			}
		}
	}
	http://one.example.com {
		throttle used
	}
	http://two.example.com {
		throttle used
	}`)
	servertest.Start(t, s)
	lines := s.Logs.Lines(t, "limits nothing, because no site uses it")
	if len(lines) != 1 || lines[0]["zone"] != "forgotten" {
		t.Errorf("got %v, want one line about the zone forgotten", lines)
	}
}

func TestAGlobalZoneIsWarnedOfIfNoSiteHasAThrottle(t *testing.T) {
	s := servertest.Run(t, "{\nthrottle {\nzone forgotten {\nlimit 5 1/s\n}\n}\n}\nhttp:// {\nrespond ok\n}")
	servertest.Start(t, s)
	lines := s.Logs.Lines(t, "limits nothing, because no site uses it")
	if len(lines) != 1 || lines[0]["zone"] != "forgotten" {
		t.Errorf("got %v, want one line about the zone forgotten", lines)
	}
}
