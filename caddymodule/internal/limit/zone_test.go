package limit

import (
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/refusal"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

// loaded returns the error of decoding a zone as strictly as Caddy does, compiling it and loading it.
func loaded(text string) error {
	z, decoder := new(Zone), json.NewDecoder(strings.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(z); err != nil {
		return err
	}
	if err := z.Compile(nil); err != nil {
		return err
	}
	ctx, cancel := caddy.NewContext(caddy.Context{Context: context.Background()})
	defer cancel()
	return z.Load(ctx, Given{})
}

func TestJSONOfAZoneThatNoCaddyfileCouldSayIsRefusedToo(t *testing.T) {
	const limit = `"limit":"5 1/s"`
	for _, test := range []struct{ name, zone, want string }{
		{"unknown field of an override", `{"name":"a",` + limit + `,"override":[{"key":["203.0.113.7"],"limit":"deny"}]}`, `unknown field "key"`},
		{"unknown field of a cost", `{"name":"a",` + limit + `,"cost":[{"cost":"2"}]}`, `unknown field "cost"`},
		{"no limit", `{"name":"a","enforce":5}`, "no limit given"},
		{"negative capacity", `{"name":"a","limit":"-5 1/s"}`, `invalid capacity "-5"`},
		{"limit as a number", `{"name":"a","limit":5}`, "limit"},
		{"leak without unit", `{"name":"a","limit":"5 1"}`, `parsing limit: invalid rate "1"`},
		{"prefix out of range", `{"name":"a",` + limit + `,"key":{"ipv4":33}}`, "invalid ipv4 33"},
		{"negative prefix", `{"name":"a",` + limit + `,"key":{"ipv6":-1}}`, "invalid ipv6 -1"},
		{"status out of range", `{"name":"a",` + limit + `,"refusal":{"status":200}}`, "invalid status 200"},
		{"source unknown", `{"name":"a",` + limit + `,"key":{"sources":[{"source":"ip"}]}}`, `unknown key source "ip"`},
		{"source empty", `{"name":"a",` + limit + `,"key":{"sources":[{}]}}`, `unknown key source ""`},
		{"source without name", `{"name":"a",` + limit + `,"key":{"sources":[{"source":"header"}]}}`, `key source "header" has no name`},
		{"source with a name too many", `{"name":"a",` + limit + `,"key":{"sources":[{"source":"host","name":"X"}]}}`, `key source "host" takes no name: unexpected "X"`},
		{"source with a text too many", `{"name":"a",` + limit + `,"key":{"sources":[{"source":"host","text":"x"}]}}`, `key source "host" takes no text: unexpected "x"`},
		{"cost as a number", `{"name":"a",` + limit + `,"cost":[{"value":2}]}`, "value"},
		{"cost without value", `{"name":"a",` + limit + `,"cost":[{}]}`, `invalid cost ""`},
		{"cost with an empty set of matchers", `{"name":"a",` + limit + `,"cost":[{"match":[{}],"value":"2"}]}`, "a set without matchers"},
		{"match with an empty set of matchers", `{"name":"a",` + limit + `,"match":[{}]}`, "a set without matchers"},
		{"exempt with an empty set of matchers", `{"name":"a",` + limit + `,"exempt":[{"path":["/x"]},{}]}`, "a set without matchers"},
		{"route without paths", `{"name":"a",` + limit + `,"key":{"sources":[{"source":"route"}]},"route":[{"name":"r"}]}`, "incomplete route"},
		{"override without parts", `{"name":"a",` + limit + `,"override":[{"limit":"deny"}]}`, "no key given"},
		{"override without limit", `{"name":"a",` + limit + `,"override":[{"parts":["203.0.113.7"]}]}`, `unknown plan ""`},
		{"page as a file", `{"name":"a",` + limit + `,"refusal":{"page":"no/such.html"}}`, `unknown field "page"`},
		{"page with refuse error", `{"name":"a",` + limit + `,"refusal":{"page_html":"busy","error":true}}`, "exclude each other"},
		{"retry_after as a number", `{"name":"a",` + limit + `,"refusal":{"retry_after":30}}`, "retry_after"},
		{"negative delay", `{"name":"a",` + limit + `,"delay":{"undelayed":-1}}`, "invalid delay -1"},
		{"delay as a text", `{"name":"a",` + limit + `,"delay":"1"}`, "delay"},
		{"delay without room", `{"name":"a",` + limit + `,"delay":{"undelayed":4}}`, "delay 4 delays nothing"},
		{"negative wait", `{"name":"a",` + limit + `,"delay":{"wait":"-1s"}}`, "invalid wait -1s"},
		{"negative queue", `{"name":"a",` + limit + `,"delay":{"queue":-1}}`, "invalid queue -1"},
		{"key of an unknown header", `{"name":"a",` + limit + `,"key":{"sources":[{"source":"X-Api-Key"}]}}`, "want client_ip, header <name>"},
		{"negative block", `{"name":"a",` + limit + `,"block":{"for":["-1m"]}}`, "invalid block of -1m0s"},
		{"block of nothing", `{"name":"a",` + limit + `,"block":{"for":[0]}}`, "invalid block of 0s"},
		{"block as a text", `{"name":"a",` + limit + `,"block":"1m"}`, "block"},
		{"unknown field of a block", `{"name":"a",` + limit + `,"block":{"durations":["1m"]}}`, `unknown field "durations"`},
		{"block with too many steps", `{"name":"a",` + limit + `,"block":{"for":[` + manySteps(101) + `]}}`, "101 durations: want at most 100"},
		{"block everywhere by header", `{"name":"a",` + limit + `,"key":{"sources":[{"source":"header","name":"X"}]},"block":{"everywhere":true}}`, "everywhere needs the key client_ip alone"},
		{"throttle_blocked within a zone", `{"name":"a",` + limit + `,"match":[{"not":[{"throttle_blocked":{}}]}]}`, "cannot be used inside throttle"},
		{"a verdict within a zone", `{"name":"a",` + limit + `,"match":[{"not":[{"expression":"{http.throttle.zone} == 'a'"}]}]}`, "cannot be used inside throttle"},
		{"throttle_blocked of a cost", `{"name":"a",` + limit + `,"cost":[{"match":[{"throttle_blocked":{}}],"value":"2"}]}`, "cannot be used inside throttle"},
	} {
		t.Run(test.name, func(t *testing.T) {
			err := loaded(test.zone)
			check.That(t, err != nil && strings.Contains(err.Error(), test.want), "got %v, want an error with %q", err, test.want)
		})
	}
}

// What Caddy accepts without a word is refused in JSON as in a Caddyfile.
func TestEmptiedMatcher(t *testing.T) {
	const limit = `{"name":"a","limit":"5 1/s"`
	for _, set := range []string{
		`"client_ip":{"ranges":[]}`, `"client_ip":{}`, `"client_ip":null`, `"client_ip":{"ranges":[""]}`, `"remote_ip":{"ranges":null}`, `"path":[]`, `"path":null`,
		`"host":[]`, `"method":[]`, `"query":{}`, `"header":{}`, `"vars":{}`, `"header_regexp":{}`, `"header_regexp":{"A":{"pattern":""}}`, `"header_regexp":{"X-Api-Key":{"pattern":""}}`, `"vars_regexp":{"{http.vars.x}":{"pattern":""}}`,
		`"vars_regexp":{}`, `"path_regexp":{}`, `"path_regexp":{"pattern":""}`, `"expression":""`, `"expression":{"expr":""}`, `"protocol":""`, `"not":[]`, `"not":[{}]`,
		`"not":[{"client_ip":{"ranges":[]},"path":["/a"]}]`, `"verified_crawler":{}`,
	} {
		for _, zone := range []string{
			limit + `,"match":[{` + set + `}]}`, limit + `,"exempt":[{` + set + `}]}`, limit + `,"cost":[{"match":[{` + set + `}],"value":"2"}]}`,
		} {
			err := loaded(zone)
			check.That(t, err != nil && strings.Contains(err.Error(), "nothing stands after it"), "%s: got %v", zone, err)
		}
	}
	for _, set := range []string{`"file":{}`, `"tls":{}`, `"header":{"A":null}`, `"query":{"a":[""]}`, `"vars":{"a":[""]}`} {
		check.NoError(t, (&Zone{Name: "a", LimitRaw: "5 1/s", MatchRaw: caddyhttp.RawMatcherSets{sets(t, set)}}).Compile(nil), "%s", set)
	}
}

func sets(t *testing.T, set string) (matchers caddy.ModuleMap) {
	t.Helper()
	check.OK(t, json.Unmarshal([]byte("{"+set+"}"), &matchers))
	return matchers
}

// Nothing but a name is a reference: each field makes it a zone of its own.
func TestReference(t *testing.T) {
	check.That(t, (&Zone{Name: "a"}).Reference(), "a name alone is no reference")
	zone := reflect.TypeFor[Zone]()
	for i := range zone.NumField() {
		z := Zone{Name: "a"}
		field := reflect.ValueOf(&z).Elem().Field(i)
		if zone.Field(i).Name == "Name" || !field.CanSet() || zone.Field(i).Tag.Get("json") == "-" {
			continue
		}
		switch field.Kind() {
		case reflect.Pointer:
			field.Set(reflect.New(field.Type().Elem()))
		case reflect.Slice:
			field.Set(reflect.MakeSlice(field.Type(), 1, 1))
		case reflect.String:
			field.SetString("x")
		default:
			field.Set(reflect.ValueOf(1).Convert(field.Type()))
		}
		check.That(t, !z.Reference(), "with %s: got a reference", zone.Field(i).Name)
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

func TestAPageThatIsTooLargeIsRefused(t *testing.T) {
	for n, want := range map[int]string{refusal.MostPage: "", refusal.MostPage + 1: "has 1048577 bytes: want at most 1048576"} {
		err := loaded(`{"name":"a","limit":"5 1/s","refusal":{"page_html":"` + strings.Repeat("x", n) + `"}}`)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("a page of %d bytes: got %v, want the error %q", n, err, want)
		}
	}
}
