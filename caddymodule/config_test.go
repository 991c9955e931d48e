package caddymodule_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/engine"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/servertest"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/stores"
)

func TestJSONThatNoCaddyfileCouldSayIsRefusedToo(t *testing.T) {
	const limit = `"limit":"5 1/s"`
	for _, test := range []struct {
		name string
		app  string // the throttle app
		zone string // of a handler
		want string
	}{
		{name: "unknown field of the app", app: `{"zones":[]}`, want: `unknown field "zones"`},
		{name: "unknown field of a zone", zone: `{"name":"a",` + limit + `,"burst":5}`, want: `unknown field "burst"`},
		{name: "null zone in a handler", zone: `null`, want: "a zone is null"},
		{name: "null zone in the app", app: `{"zone":[null]}`, want: "a zone is null"},
		{name: "empty zone", zone: `{}`, want: `unknown zone ""`},
		{name: "zone without a name", zone: `{` + limit + `}`, want: `invalid zone name ""`},
		{name: "reference to a zone that is not defined", zone: `{"name":"a"}`, want: `unknown zone "a"`},
		{name: "reference with a shadow", app: `{"zone":[{"name":"a",` + limit + `}]}`, zone: `{"name":"a","shadow":{}}`, want: `zone "a": no limit given`},
		{name: "zone twice in the app", app: `{"zone":[{"name":"a",` + limit + `},{"name":"a",` + limit + `}]}`, want: `zone "a" is defined twice in the global options`},
		{name: "zone differs in app and handler", app: `{"zone":[{"name":"a",` + limit + `}]}`, zone: `{"name":"a","limit":"6 1/s"}`, want: `zone "a" is defined twice, and differently`},
		{name: "exempt of the app with an empty set of matchers", app: `{"exempt":[{}]}`, want: "a set without matchers"},
		{name: "matcher unknown", zone: `{"name":"a",` + limit + `,"match":[{"paht":["/x"]}]}`, want: "unknown module: http.matchers.paht"},
		{name: "matcher that cannot be provisioned", zone: `{"name":"a",` + limit + `,"match":[{"remote_ip":{"ranges":["home"]}}]}`, want: "home"},
		{name: "plan that is no limit", app: `{"plan":{"p":"fast"}}`, want: `plan "p": invalid limit "fast"`},
		{name: "plan with a reserved name", app: `{"plan":{"deny":"5 1/s"}}`, want: `invalid plan name "deny"`},
		{name: "throttle_blocked within the app", app: `{"exempt":[{"throttle_blocked":{}}]}`, want: "cannot be used inside throttle"},
		{name: "exempt of the app with everything", app: `{"exempt":[{"path":["/*"]}]}`, want: "exempts all requests"},
		{name: "store unknown", app: `{"store":{"module":"paper"}}`, want: "unknown module: throttle.stores.paper"},
		{name: "store without a name", app: `{"store":{}}`, want: "module"},
		{name: "store null", app: `{"store":null}`, want: "module"},
		{name: "max_buckets negative", app: `{"store":{"module":"memory","max_buckets":-1}}`, want: "invalid max_buckets -1"},
		{name: "max_buckets too many", app: `{"store":{"module":"memory","max_buckets":100000001}}`, want: "invalid max_buckets 100000001"},
		{name: "snapshot_interval too short", app: `{"store":{"module":"memory","snapshot_interval":"10ms"}}`, want: "invalid snapshot_interval 10ms"},
		{name: "snapshot with an unknown placeholder", app: `{"store":{"module":"memory","snapshot":"{env.NO_SUCH_VARIABLE}/x"}}`, want: "snapshot: filling in placeholders"},
		{name: "max_buckets with a fraction", app: `{"store":{"module":"memory","max_buckets":0.5}}`, want: "max_buckets"},
	} {
		t.Run(test.name, func(t *testing.T) {
			apps := make(map[string]string)
			if test.app != "" {
				apps["throttle"] = test.app
			}
			if test.zone != "" {
				apps["http"] = servertest.WithHandlers(`{"handler":"throttle","zone":[` + test.zone + `]}`)
			}
			err := servertest.Provision(t, apps)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want an error with %q", err, test.want)
			}
		})
	}
}

func TestHandlersThatDisagreeAreRefused(t *testing.T) {
	for _, test := range []struct {
		name     string
		handlers []string
		want     string
	}{
		{"no zone", []string{`{"handler":"throttle"}`}, "no zone given"},
		{"same zone twice", []string{`{"handler":"throttle","zone":[{"name":"a","limit":"5 1/s"},{"name":"a","limit":"5 1/s"}]}`}, `zone "a" is given twice in one handler`},
		{"two definitions", []string{
			`{"handler":"throttle","zone":[{"name":"a","limit":"5 1/s"}]}`,
			`{"handler":"throttle","zone":[{"name":"a","limit":"5 2/s"}]}`,
		}, `zone "a" is defined twice, and differently: a name is one budget, so give one of them another name: {"enforce":100,`},
		{"reference to a zone of another handler", []string{
			`{"handler":"throttle","zone":[{"name":"a","limit":"5 1/s"}]}`,
			`{"handler":"throttle","zone":[{"name":"a"}]}`,
		}, `unknown zone "a"`},
	} {
		t.Run(test.name, func(t *testing.T) {
			err := servertest.Provision(t, map[string]string{"http": servertest.WithHandlers(test.handlers...)})
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want an error with %q", err, test.want)
			}
		})
	}
}

func TestEqualDefinitionsAreOneZoneHoweverTheyAreSpelled(t *testing.T) {
	err := servertest.Provision(t, map[string]string{
		"throttle": `{"zone":[{"name":"a","limit":"5 1/s","match":[{"path":["/x"],"method":["GET"]}]}]}`,
		"http": servertest.WithHandlers(
			`{"handler":"throttle","zone":[{"name":"a"}]}`,
			`{"handler":"throttle","zone":[{"match":[{"method":[ "GET" ],"path":["/x"]}],"limit":"5.0 1/s","name":"a","refusal":{"status":429},"key":{"sources":[{"source":"client_ip"}]}}]}`),
	})
	if err != nil {
		t.Errorf("got %v, want no error", err)
	}
}

func TestDefinitionsInANamedRouteAndASiteMustAgree(t *testing.T) {
	adapted := servertest.Adapt(t, `
	&(app) {
		throttle a 5 1/s
	}
	http://one.example.com {
		invoke app
	}
	http://two.example.com {
		throttle a 6 1/s
	}`)
	var config caddy.Config
	if err := json.Unmarshal(adapted, &config); err != nil {
		t.Fatal(err)
	}
	err := servertest.Provision(t, map[string]string{"http": string(config.AppsRaw["http"])})
	if want := `zone "a" is defined twice, and differently`; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want an error with %q", err, want)
	}
}

func TestARefusedConfigLeavesNothingBehind(t *testing.T) {
	err := servertest.Provision(t, map[string]string{
		"throttle": `{"zone":[{"name":"left","limit":"5 1/s"}]}`,
		"http":     servertest.WithHandlers(`{"handler":"throttle","zone":[{"name":"undefined"}]}`),
	})
	if err == nil {
		t.Fatal("got no error, want one")
	}
	if _, kept := stores.Process.References(stores.MemoryKey); kept {
		t.Error("the memory store is kept")
	}
	if _, kept := stores.Process.References(engine.StateKey("left")); kept {
		t.Error("the zone's counters are kept")
	}
}

func TestValidatingKeepsNothing(t *testing.T) {
	err := servertest.Provision(t, map[string]string{"throttle": `{"zone":[{"name":"left","limit":"5 1/s"}]}`})
	if err != nil {
		t.Fatal(err)
	}
	if _, kept := stores.Process.References(stores.MemoryKey); kept {
		t.Error("the memory store is kept")
	}
	if _, kept := stores.Process.References(engine.StateKey("left")); kept {
		t.Error("the zone's counters are kept")
	}
}
