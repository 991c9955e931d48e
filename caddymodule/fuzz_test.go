package caddymodule_test

import (
	"encoding/json"
	"testing"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/limit"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

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
		written, err := json.Marshal(&z)
		if err != nil {
			t.Fatal(err)
		}
		var again limit.Zone
		if err := caddy.StrictUnmarshalJSON(written, &again); err != nil {
			t.Fatalf("%s compiles, and as %s is no zone: %v", text, written, err)
		}
		if err := again.Compile(plans); err != nil {
			t.Errorf("%s compiles, and as %s does not: %v", text, written, err)
		}
		if first, second := z.Definition(), again.Definition(); first != second {
			t.Errorf("got the definition\n%s, and written anew\n%s", first, second)
		}
	})
}
