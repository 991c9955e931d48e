package caddymodule_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/engine"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/limit"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/servertest"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/stores"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

// JSON that no Caddyfile could say is checked, too. What limits nothing somewhere, or means two
// things, must not be accepted silently.
func TestJSONIsCheckedAsCaddyfilesAre(t *testing.T) {
	const limit, a = `"limit":"5 1/s"`, `{"name":"a","limit":"5 1/s"}`
	zone := func(fields string) []string { return []string{`{"name":"a",` + limit + `,` + fields + `}`} }
	for _, test := range []struct {
		name  string
		app   string   // the throttle app
		zones []string // of each handler
		want  string   // nothing: no error
	}{
		{name: "unknown field of the app", app: `{"zones":[]}`, want: `unknown field "zones"`},
		{name: "unknown field of a zone", zones: zone(`"burst":5`), want: `unknown field "burst"`},
		{name: "null zone in a handler", zones: []string{`null`}, want: "a zone is null"},
		{name: "null zone in the app", app: `{"zone":[null]}`, want: "a zone is null"},
		{name: "no zone", zones: []string{``}, want: "no zone given"},
		{name: "empty zone", zones: []string{`{}`}, want: `unknown zone ""`},
		{name: "zone without a name", zones: []string{`{` + limit + `}`}, want: `invalid zone name ""`},
		{name: "reference to a zone that is not defined", zones: []string{`{"name":"a"}`}, want: `unknown zone "a"`},
		{name: "reference to a zone of another handler", zones: []string{a, `{"name":"a"}`}, want: `unknown zone "a"`},
		{name: "reference with a shadow", app: `{"zone":[` + a + `]}`, zones: []string{`{"name":"a","shadow":{}}`}, want: `zone "a": no limit given`},
		{name: "same zone twice", zones: []string{a + `,` + a}, want: `zone "a" is given twice in one handler`},
		{name: "zone differs in app and handler", app: `{"zone":[` + a + `]}`, zones: []string{`{"name":"a","limit":"6 1/s"}`}, want: `zone "a" is defined twice, and differently`},
		{name: "zone differs in two handlers", zones: []string{a, `{"name":"a","limit":"5 2/s","refusal":{"message":"secret"}}`}, want: `zone "a" is defined twice, and differently (limit, refusal): a name is one budget, so give one of them another name`},
		{
			name: "equal definitions, spelled differently", app: `{"zone":[{"name":"a","limit":"5 1/s","match":[{"path":["/x"],"method":["GET"]}]}]}`,
			zones: []string{`{"name":"a"}`, `{"match":[{"method":[ "GET" ],"path":["/x"]}],"limit":"5 1/s","name":"a","refusal":{"status":429},"key":{"sources":[{"source":"client_ip"}]}}`},
		},
		{name: "two zones that are the same", zones: []string{a + `,{"name":"b",` + limit + `,"refusal":{"status":429}}`}, want: `zones "a" and "b" of one throttle directive are the same`},
		{name: "two zones whose names are keys", zones: []string{`{"name":"a","key":{"sources":[{"source":"header","name":"a"}]},` + limit + `},{"name":"b","key":{"sources":[{"source":"header","name":"b"}]},` + limit + `}`}},
		{name: "two zones that differ in their matchers", zones: []string{`{"name":"a","match":[{"path":["/a"]}],` + limit + `},{"name":"b",` + limit + `}`}},
		{name: "exempt of the app with an empty set of matchers", app: `{"exempt":[{}]}`, want: "a set without matchers"},
		{name: "a verdict within the app", app: `{"exempt":[{"vars":{"{http.throttle.zone}":["a"]}}]}`, want: "cannot be used inside throttle"},
		{name: "throttle_blocked within the app", app: `{"exempt":[{"throttle_blocked":{}}]}`, want: "cannot be used inside throttle"},
		{name: "matcher unknown", zones: zone(`"match":[{"paht":["/x"]}]`), want: "unknown module: http.matchers.paht"},
		{name: "matcher that cannot be provisioned", zones: zone(`"match":[{"remote_ip":{"ranges":["home"]}}]`), want: "home"},
		{name: "path with a comma", zones: zone(`"match":[{"path":["/a,"]}]`), want: `path "/a," never matches`},
		{name: "matcher of a handler by the method as sent", zones: []string{a + `],"match":[{"vars":{"{http.request.method}":["POST"]}}`}, want: "FastCGI sends post as POST"},
		{name: "matcher of a handler that leaves out what follows a script", zones: []string{a + `],"match":[{"path":["/wp-login.php"]}`}, want: "did you mean /wp-login.php*?"},
		{name: "matcher of in_flight with a path of no request", zones: []string{a + `]},{"handler":"in_flight","name":"b","slots":1,"match":[{"not":[{"path":["x"]}]}`}, want: `path "x" never matches`},
		{name: "field after the upstream", zones: []string{a + `]},{"handler":"reverse_proxy","handle_response":[{"routes":[{"handle":[{"handler":"throttle","zone":[{"name":"b",` + limit + `,"field":["p"]}]}]}]}`}, want: `zone "b" reads bodies`},
		{name: "cost of a body after the upstream", zones: []string{a + `]},{"handler":"intercept","handle_response":[{"routes":[{"handle":[{"handler":"throttle","zone":[{"name":"b",` + limit + `,"cost":[{"value":"body_items"}],"read_body":{"most":"1KiB"}}]}]}]}`}, want: `zone "b" reads bodies`},
		{name: "zone after the upstream that reads no body", zones: []string{a + `]},{"handler":"reverse_proxy","handle_response":[{"routes":[{"handle":[{"handler":"throttle","zone":[{"name":"b",` + limit + `}]}]}]}`}},
		{name: "paths of all kinds", zones: zone(`"match":[{"path":["/x","*.jsp","{http.vars.p}/x","*"]}]`)},
		{name: "static files with a root of their own", zones: zone(`"exempt_static_files":[{"root":"/srv"}]`)},
		{name: "static files with a blank root", zones: zone(`"exempt_static_files":[{"root":" "}]`), want: "the root of static_files is blank"},
		{name: "page_style and page_html", zones: zone(`"refusal":{"page_style":{"title":"a"},"page_html":""}`), want: "page_style and page_html exclude each other"},
		{name: "plan that is no limit", app: `{"plan":{"p":"fast"}}`, want: `plan "p": invalid limit "fast"`},
		{name: "plan with a reserved name", app: `{"plan":{"deny":"5 1/s"}}`, want: `invalid plan name "deny"`},
		{name: "store unknown", app: `{"store":{"module":"paper"}}`, want: "unknown module: throttle.stores.paper"},
		{name: "store without a name", app: `{"store":{}}`, want: "module"},
		{name: "store null", app: `{"store":null}`, want: "module"},
		{name: "max_buckets negative", app: `{"store":{"module":"memory","max_buckets":-1}}`, want: "invalid max_buckets -1"},
		{name: "max_buckets too many", app: `{"store":{"module":"memory","max_buckets":100000001}}`, want: "invalid max_buckets 100000001"},
		{name: "max_buckets with a fraction", app: `{"store":{"module":"memory","max_buckets":0.5}}`, want: "max_buckets"},
		{name: "snapshot_interval too short", app: `{"store":{"module":"memory","snapshot_interval":"10ms"}}`, want: "invalid snapshot_interval 10ms"},
		{name: "snapshot with an unknown placeholder", app: `{"store":{"module":"memory","snapshot":"{env.NO_SUCH_VARIABLE}/x"}}`, want: "snapshot: filling in placeholders"},
	} {
		t.Run(test.name, func(t *testing.T) {
			apps, handlers := make(map[string]string), []string(nil)
			if test.app != "" {
				apps["throttle"] = test.app
			}
			for _, zones := range test.zones {
				handlers = append(handlers, `{"handler":"throttle","zone":[`+zones+`]}`)
			}
			if handlers != nil {
				apps["http"] = servertest.WithHandlers(handlers...)
			}
			err := servertest.Provision(t, apps)
			if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "secret")) {
				t.Errorf("got %v, want %q", err, test.want)
			}
		})
	}
}

func TestARefusedConfigLeavesNothingBehind(t *testing.T) {
	err := servertest.Provision(t, map[string]string{
		"throttle": `{"zone":[{"name":"left","limit":"5 1/s"}]}`,
		"http":     servertest.WithHandlers(`{"handler":"throttle","zone":[{"name":"undefined"}]}`),
	})
	check.Assume(t, err != nil, "got no error, want one")
	_, kept := stores.Process.References(stores.MemoryKey)
	check.That(t, !kept, "the memory store is kept")
	_, kept = stores.Process.References(engine.StateKey("left"))
	check.That(t, !kept, "the zone's counters are kept")
}

const usedAndForgotten = "{\nthrottle {\nzone used {\nlimit 5 1/s\n}\nzone forgotten {\nlimit 5 1/s\n}\n}\n}\n"

func TestAGlobalZoneThatNoSiteUsesIsWarnedOf(t *testing.T) {
	for config, want := range map[string]int{
		usedAndForgotten + "http://one.example {\nthrottle used\n}\nhttp://two.example {\nthrottle used\n}":      1,
		usedAndForgotten + "http://one.example {\nthrottle used\n}\nhttp://two.example {\nthrottle forgotten\n}": 0,
		usedAndForgotten + "http:// {\nrespond ok\n}":                                                            2,
		"http:// {\nthrottle used 5 1/s\nhandle_errors {\nthrottle used 5 1/s\nthrottle free 5 1/s\n}\n}":        1, // errors cost nothing
	} {
		s := servertest.Run(t, config)
		s.Warned(t, "limits nothing, because no site uses it", 0) // before all sites are known
		servertest.Start(t, s)
		s.Warned(t, "limits nothing, because no site uses it", want)
		s.Stop()
	}
}

func TestOptionsOfSharedStoresBesideMemoryAreWarnedOf(t *testing.T) {
	for options, want := range map[string]int{"nodes 3": 1, "on_store_error deny\nstore memory": 1, "nodes 3\nstore test_shared": 0, "shadow": 0} {
		s := servertest.Run(t, "{\nthrottle {\n"+options+"\n}\n}\nhttp:// {\nthrottle site 100 1/s\n}")
		s.Warned(t, "nodes, store_timeout and on_store_error change nothing", want)
		s.Stop()
	}
}

func TestAMatcherOfAnUnknownZoneIsAnErrorAtTheStart(t *testing.T) {
	for config, want := range map[string]string{
		"http:// {\n@out throttle_blocked lgoin\nabort @out\nthrottle login 60 10/s\n}":       `throttle_blocked: unknown zone "lgoin": did you mean login?`,
		"http:// {\n@out not throttle_blocked other\nabort @out\nthrottle login 60 10/s\n}":   `throttle_blocked: unknown zone "other": want login`,
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

// JSON of a zone that compiles means the same when it is written anew.
func FuzzZoneJSON(f *testing.F) {
	for _, seed := range []string{
		`{"name":"login","match":[{"path":["/wp-login.php*"]}],"key":{"sources":[{"source":"client_ip"}]},"limit":"5 5/h","cost":[{"match":[{"method":["POST"]}],"value":"2"},{"value":"1"}],"override":[{"parts":["203.0.113.0/24"],"limit":"unlimited"}],"shadow":true}`,
		`{"name":"a","limit":"1e300 1/s"}`,
		`{"name":"a","limit":"30 1/s","settle":{"source":"seconds","debt":-1},"block":{"for":["10m",-1],"everywhere":true}}`,
		`{"name":"a","limit":"3 1/s","key":{"sources":[{"source":"field","name":"log","fold":"wordpress"}]},"trust_devices":{"cookie":"x*","for":"1d"},"read_body":{"most":"-1"}}`,
		`{"name":"a","route":[{}],"cost":[{}],"key":{"sources":[{}]},"override":[{}],"match":[{}],"exempt":[{"not":null}]}`,
	} {
		f.Add(seed)
	}
	plans := map[string]leakybucket.Limit{"gold": {Capacity: 600, Leak: 10}}
	f.Fuzz(func(t *testing.T, text string) {
		var z limit.Zone
		if caddy.StrictUnmarshalJSON([]byte(text), &z) != nil {
			return
		}
		if err := z.Compile(plans); err != nil {
			return
		}
		written := check.Must(json.Marshal(&z))(t)
		var again limit.Zone
		check.OK(t, caddy.StrictUnmarshalJSON(written, &again), "%s compiles, and as %s is no zone", text, written)
		check.NoError(t, again.Compile(plans), "%s compiles, and as %s does not", text, written)
		first, second := z.Definition(), again.Definition()
		check.That(t, first == second, "got the definition\n%s, and written anew\n%s", first, second)
	})
}
