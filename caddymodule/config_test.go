package caddymodule

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/engine"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/stores"
)

// provision provisions a JSON config as a reload does, does not start it, and
// releases it.
func provision(t *testing.T, apps map[string]string) error {
	t.Helper()
	cfg := &caddy.Config{Logging: newMemoryLog(t).logging(), AppsRaw: make(caddy.ModuleMap)}
	for name, app := range apps {
		cfg.AppsRaw[name] = json.RawMessage(app)
	}
	return caddy.Validate(cfg)
}

// withHandlers returns an http app of one route for each throttle handler.
func withHandlers(handlers ...string) string {
	var routes []string
	for _, handler := range handlers {
		routes = append(routes, `{"handle":[`+handler+`]}`)
	}
	return `{"servers":{"s":{"listen":[":8080"],"routes":[` + strings.Join(routes, ",") + `]}}}`
}

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
		{name: "unknown field of an override", zone: `{"name":"a",` + limit + `,"override":[{"key":["203.0.113.7"],"limit":"deny"}]}`, want: `unknown field "key"`},
		{name: "unknown field of a cost", zone: `{"name":"a",` + limit + `,"cost":[{"cost":"2"}]}`, want: `unknown field "cost"`},
		{name: "null zone in a handler", zone: `null`, want: "a zone is null"},
		{name: "null zone in the app", app: `{"zone":[null]}`, want: "a zone is null"},
		{name: "empty zone", zone: `{}`, want: `unknown zone ""`},
		{name: "zone without a name", zone: `{` + limit + `}`, want: `invalid zone name ""`},
		{name: "reference to a zone that is not defined", zone: `{"name":"a"}`, want: `unknown zone "a"`},
		{name: "reference with a shadow", app: `{"zone":[{"name":"a",` + limit + `}]}`, zone: `{"name":"a","shadow":{}}`, want: `zone "a": no limit given`},
		{name: "zone twice in the app", app: `{"zone":[{"name":"a",` + limit + `},{"name":"a",` + limit + `}]}`, want: `zone "a" is defined twice in the global options`},
		{name: "zone differs in app and handler", app: `{"zone":[{"name":"a",` + limit + `}]}`, zone: `{"name":"a","limit":"6 1/s"}`, want: `zone "a" is defined twice, and differently`},
		{name: "no limit", zone: `{"name":"a","enforce":5}`, want: "no limit given"},
		{name: "negative capacity", zone: `{"name":"a","limit":"-5 1/s"}`, want: `invalid capacity "-5"`},
		{name: "capacity above all numbers", zone: `{"name":"a","limit":"1e309 1/s"}`, want: "1e309"},
		{name: "no leak", zone: `{"name":"a","limit":"5"}`, want: `invalid limit "5"`},
		{name: "limit as a number", zone: `{"name":"a","limit":5}`, want: "limit"},
		{name: "leak without unit", zone: `{"name":"a","limit":"5 1"}`, want: `parsing limit: invalid rate "1"`},
		{name: "drains for decades", zone: `{"name":"a","limit":"1000000 1/d"}`, want: "within 20 years"},
		{name: "prefix out of range", zone: `{"name":"a",` + limit + `,"key":{"ipv4":33}}`, want: "invalid ipv4 33"},
		{name: "negative prefix", zone: `{"name":"a",` + limit + `,"key":{"ipv6":-1}}`, want: "invalid ipv6 -1"},
		{name: "status out of range", zone: `{"name":"a",` + limit + `,"refusal":{"status":200}}`, want: "invalid status 200"},
		{name: "source unknown", zone: `{"name":"a",` + limit + `,"key":{"sources":[{"source":"ip"}]}}`, want: `unknown key source "ip"`},
		{name: "source empty", zone: `{"name":"a",` + limit + `,"key":{"sources":[{}]}}`, want: `unknown key source ""`},
		{name: "source without name", zone: `{"name":"a",` + limit + `,"key":{"sources":[{"source":"header"}]}}`, want: `key source "header" has no name`},
		{name: "source with a name too many", zone: `{"name":"a",` + limit + `,"key":{"sources":[{"source":"host","name":"X"}]}}`, want: `key source "host" takes no name: unexpected "X"`},
		{name: "source with a text too many", zone: `{"name":"a",` + limit + `,"key":{"sources":[{"source":"host","text":"x"}]}}`, want: `key source "host" takes no text: unexpected "x"`},
		{name: "cost as a number", zone: `{"name":"a",` + limit + `,"cost":[{"value":2}]}`, want: "value"},
		{name: "cost without value", zone: `{"name":"a",` + limit + `,"cost":[{}]}`, want: `invalid cost ""`},
		{name: "cost with an empty set of matchers", zone: `{"name":"a",` + limit + `,"cost":[{"match":[{}],"value":"2"}]}`, want: "a set without matchers"},
		{name: "match with an empty set of matchers", zone: `{"name":"a",` + limit + `,"match":[{}]}`, want: "a set without matchers"},
		{name: "exempt with an empty set of matchers", zone: `{"name":"a",` + limit + `,"exempt":[{"path":["/x"]},{}]}`, want: "a set without matchers"},
		{name: "exempt of the app with an empty set of matchers", app: `{"exempt":[{}]}`, want: "a set without matchers"},
		{name: "matcher unknown", zone: `{"name":"a",` + limit + `,"match":[{"paht":["/x"]}]}`, want: "unknown module: http.matchers.paht"},
		{name: "matcher that cannot be provisioned", zone: `{"name":"a",` + limit + `,"match":[{"remote_ip":{"ranges":["home"]}}]}`, want: "home"},
		{name: "route without paths", zone: `{"name":"a",` + limit + `,"key":{"sources":[{"source":"route"}]},"route":[{"name":"r"}]}`, want: "incomplete route"},
		{name: "override without parts", zone: `{"name":"a",` + limit + `,"override":[{"limit":"deny"}]}`, want: "no key given"},
		{name: "override without limit", zone: `{"name":"a",` + limit + `,"override":[{"parts":["203.0.113.7"]}]}`, want: `unknown plan ""`},
		{name: "override that is NaN", zone: `{"name":"a",` + limit + `,"override":[{"parts":["203.0.113.7"],"limit":"NaN 1/s"}]}`, want: `invalid capacity "NaN"`},
		{name: "plan that is no limit", app: `{"plan":{"p":"fast"}}`, want: `plan "p": invalid limit "fast"`},
		{name: "plan with a reserved name", app: `{"plan":{"deny":"5 1/s"}}`, want: `invalid plan name "deny"`},
		{name: "page as a file", zone: `{"name":"a",` + limit + `,"refusal":{"page":"no/such.html"}}`, want: `unknown field "page"`},
		{name: "page with refuse error", zone: `{"name":"a",` + limit + `,"refusal":{"page_html":"busy","error":true}}`, want: "exclude each other"},
		{name: "retry_after as a number", zone: `{"name":"a",` + limit + `,"refusal":{"retry_after":30}}`, want: "retry_after"},
		{name: "negative delay", zone: `{"name":"a",` + limit + `,"delay":{"undelayed":-1}}`, want: "invalid delay -1"},
		{name: "delay as a text", zone: `{"name":"a",` + limit + `,"delay":"1"}`, want: "delay"},
		{name: "delay without room", zone: `{"name":"a",` + limit + `,"delay":{"undelayed":4}}`, want: "delay 4 delays nothing"},
		{name: "negative wait", zone: `{"name":"a",` + limit + `,"delay":{"wait":"-1s"}}`, want: "invalid wait -1s"},
		{name: "negative wait for a slot", zone: `{"name":"a","in_flight":{"slots":1,"wait":-1}}`, want: "invalid wait -1ns"},
		{name: "wait for a slot beside a limit", zone: `{"name":"a",` + limit + `,"in_flight":{"slots":1,"wait":"1s"}}`, want: "wait has no meaning beside limit"},
		{name: "negative queue", zone: `{"name":"a",` + limit + `,"delay":{"queue":-1}}`, want: "invalid queue -1"},
		{name: "queue without wait", zone: `{"name":"a","in_flight":{"slots":1,"queue":1}}`, want: "queue has no meaning without wait"},
		{name: "negative in_flight", zone: `{"name":"a",` + limit + `,"in_flight":{"slots":-1}}`, want: "invalid in_flight -1"},
		{name: "negative in_flight alone", zone: `{"name":"a","in_flight":{"slots":-1}}`, want: "invalid in_flight -1"},
		{name: "in_flight 0 alone", zone: `{"name":"a","in_flight":{},"shadow":{}}`, want: "invalid in_flight 0"},
		{name: "in_flight with a fraction", zone: `{"name":"a",` + limit + `,"in_flight":{"slots":0.5}}`, want: "in_flight"},
		{name: "in_flight with a default cost that is spelled out", zone: `{"name":"a","in_flight":{"slots":1},"cost":[{"value":"1"}]}`, want: "cost has no meaning without limit"},
		{name: "in_flight with an override that is a plan", app: `{"plan":{"p":"5 1/s"}}`, zone: `{"name":"a","in_flight":{"slots":1},"override":[{"parts":["203.0.113.7"],"limit":"p"}]}`, want: "the override gives a limit"},
		{name: "zone with the name of a key source", zone: `{"name":"client_ip",` + limit + `}`, want: "no zone name before client_ip"},
		{name: "key of an unknown header", zone: `{"name":"a",` + limit + `,"key":{"sources":[{"source":"X-Api-Key"}]}}`, want: "did you mean header X-Api-Key?"},
		{name: "workers of bytes", zone: `{"name":"a",` + limit + `,"settle":{"source":"bytes","unit":"1","workers":5}}`, want: "workers have no meaning here"},
		{name: "negative workers", zone: `{"name":"a",` + limit + `,"settle":{"source":"seconds","workers":-1}}`, want: "invalid workers -1"},
		{name: "too many workers", zone: `{"name":"a",` + limit + `,"settle":{"source":"seconds","workers":1000001}}`, want: "invalid workers 1000001"},
		{name: "workers with a fraction", zone: `{"name":"a",` + limit + `,"settle":{"source":"seconds","workers":2.5}}`, want: "workers"},
		{name: "negative buffer", zone: `{"name":"a","in_flight":{"slots":1,"buffer":"-1"}}`, want: `invalid size "-1"`},
		{name: "buffer too large", zone: `{"name":"a","in_flight":{"slots":1,"buffer":"67108865"}}`, want: `invalid size "67108865"`},
		{name: "negative block", zone: `{"name":"a",` + limit + `,"block":{"for":["-1m"]}}`, want: "invalid block of -1m0s"},
		{name: "block of nothing", zone: `{"name":"a",` + limit + `,"block":{"for":[0]}}`, want: "invalid block of 0s"},
		{name: "block as a text", zone: `{"name":"a",` + limit + `,"block":"1m"}`, want: "block"},
		{name: "unknown field of a block", zone: `{"name":"a",` + limit + `,"block":{"durations":["1m"]}}`, want: `unknown field "durations"`},
		{name: "block with too many steps", zone: `{"name":"a",` + limit + `,"block":{"for":[` + manySteps(101) + `]}}`, want: "101 durations: want at most 100"},
		{name: "block everywhere by header", zone: `{"name":"a",` + limit + `,"key":{"sources":[{"source":"header","name":"X"}]},"block":{"everywhere":true}}`, want: "everywhere needs the key client_ip alone"},
		{name: "throttle_blocked within a zone", zone: `{"name":"a",` + limit + `,"match":[{"not":[{"throttle_blocked":{}}]}]}`, want: "cannot be used inside throttle"},
		{name: "throttle_blocked within the app", app: `{"exempt":[{"throttle_blocked":{}}]}`, want: "cannot be used inside throttle"},
		{name: "verified_crawler without a crawler", zone: `{"name":"a",` + limit + `,"match":[{"verified_crawler":{}}]}`, want: "verified_crawler names no crawler"},
		{name: "exempt of the app with everything", app: `{"exempt":[{"path":["/*"]}]}`, want: "exempts all requests"},
		{name: "an override_file that is missing", zone: `{"name":"a",` + limit + `,"override_file":"/no/such/file"}`, want: "reading override_file: stat /no/such/file"},
		{name: "verified_crawler of an unknown crawler", app: `{"exempt":[{"verified_crawler":{"crawlers":["gogglebot"]}}]}`, want: `unknown crawler "gogglebot": did you mean googlebot?`},
		{name: "verified_crawler with a list over plain http", app: `{"exempt":[{"verified_crawler":{"crawlers":["http://example.com/a"]}}]}`, want: "over plain http"},
		{name: "verified_crawler with a resolver without a port", app: `{"exempt":[{"verified_crawler":{"crawlers":["bingbot"],"resolver":"127.0.0.1"}}]}`, want: `invalid resolver "127.0.0.1"`},
		{name: "throttle_blocked of a cost", zone: `{"name":"a",` + limit + `,"cost":[{"match":[{"throttle_blocked":{}}],"value":"2"}]}`, want: "cannot be used inside throttle"},
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
				apps["http"] = withHandlers(`{"handler":"throttle","zone":[` + test.zone + `]}`)
			}
			err := provision(t, apps)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want an error with %q", err, test.want)
			}
		})
	}
}

// manySteps returns a ladder of n steps, in nanoseconds.
func manySteps(n int) string {
	var steps []string
	for i := range n {
		steps = append(steps, fmt.Sprint((i+1)*1000))
	}
	return strings.Join(steps, ",")
}

func TestAMatcherOfAnUnknownZoneKeepsCaddyFromStarting(t *testing.T) {
	addr := freeAddress(t)
	const want = `throttle_blocked asks about zone "other", which is not defined`
	err := load(t, fmt.Sprintf("http://%s {\n@blocked throttle_blocked other\nabort @blocked\nthrottle site 5 1/s\n}", addr))
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want an error with %q", err, want)
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
			err := provision(t, map[string]string{"http": withHandlers(test.handlers...)})
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want an error with %q", err, test.want)
			}
		})
	}
}

func TestEqualDefinitionsAreOneZoneHoweverTheyAreSpelled(t *testing.T) {
	err := provision(t, map[string]string{
		"throttle": `{"zone":[{"name":"a","limit":"5 1/s","match":[{"path":["/x"],"method":["GET"]}]}]}`,
		"http": withHandlers(
			`{"handler":"throttle","zone":[{"name":"a"}]}`,
			`{"handler":"throttle","zone":[{"match":[{"method":[ "GET" ],"path":["/x"]}],"limit":"5.0 1/s","name":"a","refusal":{"status":429},"key":{"sources":[{"source":"client_ip"}]}}]}`),
	})
	if err != nil {
		t.Errorf("got %v, want no error", err)
	}
}

func TestDefinitionsInANamedRouteAndASiteMustAgree(t *testing.T) {
	adapted := adapt(t, `
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
	err := provision(t, map[string]string{"http": string(config.AppsRaw["http"])})
	if want := `zone "a" is defined twice, and differently`; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want an error with %q", err, want)
	}
}

func TestAPageThatIsTooLargeIsRefused(t *testing.T) {
	err := provision(t, map[string]string{"http": withHandlers(
		`{"handler":"throttle","zone":[{"name":"a","limit":"5 1/s","refusal":{"page_html":"` + strings.Repeat("x", 1<<20+1) + `"}}]}`)})
	if want := "has 1048577 bytes: want at most 1048576"; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want an error with %q", err, want)
	}
}

func TestARefusedConfigLeavesNothingBehind(t *testing.T) {
	err := provision(t, map[string]string{
		"throttle": `{"zone":[{"name":"left","limit":"5 1/s"}]}`,
		"http":     withHandlers(`{"handler":"throttle","zone":[{"name":"undefined"}]}`),
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
	err := provision(t, map[string]string{"throttle": `{"zone":[{"name":"left","limit":"5 1/s"}]}`})
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
