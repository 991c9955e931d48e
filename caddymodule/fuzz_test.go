package caddymodule

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/admin"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/config"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/golden"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// The module must be able to load every Caddyfile that adapts, so that all errors
// are reported with their line.
func FuzzCaddyfileBlock(f *testing.F) {
	for _, caddyfile := range golden.Caddyfiles(f) {
		for _, block := range blocksOf(caddyfile) {
			f.Add(block)
		}
	}
	f.Fuzz(func(t *testing.T, block string) {
		if strings.Contains(block, "import") {
			t.Skip("it may read any file")
		}
		for _, caddyfile := range []string{
			"{\nthrottle {\nplan partner 100 10/s\nzone login {\nlimit 5 1/s\n}\n}\n}\n" +
				"http://example.com {\n@search path /search\nthrottle {\n" + block + "\n}\n}\n",
			"{\nthrottle {\n" + block + "\n}\n}\n",
		} {
			adapted, _, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte(caddyfile), nil)
			if err != nil {
				continue
			}
			var loaded struct {
				Apps map[string]json.RawMessage `json:"apps"`
			}
			if err := json.Unmarshal(adapted, &loaded); err != nil {
				t.Fatal(err)
			}
			app := new(App)
			if raw := loaded.Apps["throttle"]; raw != nil {
				if err := caddy.StrictUnmarshalJSON(raw, app); err != nil {
					t.Fatalf("%s\nadapts, and is no app: %v", caddyfile, err)
				}
			}
			plans, err := config.ParsePlans(app.Plan)
			if err != nil {
				t.Fatalf("%s\nadapts, and has no plans: %v", caddyfile, err)
			}
			zones := app.Zone
			for _, handler := range handlersIn(t, loaded.Apps["http"]) {
				zones = append(zones, handler.Zone...)
			}
			for _, z := range zones {
				if z.Reference() {
					continue
				}
				if _, err := z.Compile(plans); err != nil {
					t.Errorf("%s\nadapts, and does not compile: %v", caddyfile, err)
				}
			}
		}
	})
}

// blocksOf returns the throttle blocks of a Caddyfile.
func blocksOf(caddyfile string) (blocks []string) {
	for i, after := range strings.Split(caddyfile, "throttle") {
		line, rest, _ := strings.Cut(after, "\n")
		if i == 0 || !strings.HasSuffix(line, "{") {
			continue
		}
		open := 1
		for at, c := range rest {
			switch c {
			case '{':
				open++
			case '}':
				open--
			}
			if open == 0 {
				blocks = append(blocks, rest[:at])
				break
			}
		}
	}
	return blocks
}

// handlersIn returns the throttle handlers of an http app.
func handlersIn(t *testing.T, raw json.RawMessage) (handlers []*Handler) {
	var object map[string]json.RawMessage
	var array []json.RawMessage
	switch {
	case json.Unmarshal(raw, &array) == nil:
		for _, element := range array {
			handlers = append(handlers, handlersIn(t, element)...)
		}
	case json.Unmarshal(raw, &object) == nil:
		if string(object["handler"]) == `"throttle"` {
			delete(object, "handler")
			raw, err := json.Marshal(object)
			if err != nil {
				t.Fatal(err)
			}
			handler := new(Handler)
			if err := caddy.StrictUnmarshalJSON(raw, handler); err != nil {
				t.Fatalf("%s is no handler: %v", raw, err)
			}
			return []*Handler{handler}
		}
		for _, value := range object {
			handlers = append(handlers, handlersIn(t, value)...)
		}
	}
	return handlers
}

// Different values are different keys, whatever they contain, and no value is a
// fallback.
func FuzzKey(f *testing.F) {
	for _, seed := range []string{"", "k", "@share", "@client_ip/203.0.113.7", "a/b", "a%2Fb", "\x00\xff\n", strings.Repeat("ü", 200), "{client_ip}"} {
		f.Add(seed, seed, "203.0.113.7")
		f.Add(seed, "", "::ffff:203.0.113.7%x")
	}
	s := run(f, `http:// {
		throttle {
			zone plain {
				key header X-A {header.X-B}-{header.X-A} header X-B client_ip plain
				limit 1000000000 1000000000/s
			}
		}
		respond {http.throttle.key}
	}`)
	seen := make(map[string]string) // the value of each key
	f.Fuzz(func(t *testing.T, a, b, addr string) {
		r := request(addr+":1", site0, "X-A", a, "X-B", b)
		w := s.do(r)
		key, parts := w.Body.String(), strings.Count(w.Body.String(), "/")+1
		if w.Code != http.StatusOK || key == "" {
			t.Fatalf("got %v and key %q", w.Code, key)
		}
		if len(key) > 6*256+len("/-//")+3 {
			t.Errorf("got a key of %d bytes", len(key))
		}
		if strings.HasPrefix(key, "@client_ip/") || key == "@share" {
			if a != "" && b != "" && parts > 2 {
				t.Errorf("got the fallback %q for complete keys %q and %q", key, a, b)
			}
			return
		}
		if want := 6; parts != want {
			t.Errorf("%q, %q: got %d parts in %q, want %d", a, b, parts, key, want)
		}
		who := fmt.Sprintf("%q %q", a, b)
		if other, taken := seen[key]; taken && other != who {
			t.Errorf("got key %q for %s and for %s", key, who, other)
		}
		seen[key] = who
	})
}

// JSON of a zone that compiles means the same when it is written anew.
func FuzzZoneJSON(f *testing.F) {
	for _, seed := range []string{
		`{"name":"login","match":[{"path":["/wp-login.php*"]}],"key":{"sources":[{"source":"client_ip"}]},"limit":"5 5/h","cost":[{"match":[{"method":["POST"]}],"value":"2"},{"value":"1"}],"override":[{"parts":["203.0.113.0/24"],"limit":"unlimited"}],"shadow":true}`,
		`{"name":"php","in_flight":{"slots":5,"share":[{"source":"client_ip"}],"rank":[{"rank":"member","issued":["wordpress_logged_in_*"]},{"rank":"crawler","match":[{"verified_crawler":{"crawlers":["googlebot"]}}]}],"warm_up":"30s"}}`,
		`{"name":"a","limit":"1e300 1/s"}`,
		`{"name":"a","limit":"30 1/s","settle":{"source":"seconds","workers":5,"debt":-1},"block":{"for":["10m",-1],"everywhere":true}}`,
		`{"name":"a","limit":"3 1/s","key":{"sources":[{"source":"form","name":"log","fold":"wordpress"}]},"trust_devices":{"cookie":"x*","for":"1d"},"read_body":{"most":"-1"}}`,
		`{"name":"a","route":[{}],"cost":[{}],"key":{"sources":[{}]},"in_flight":{"rank":[{}],"share":[{}]},"override":[{}],"match":[{}],"exempt":[{"not":null}]}`,
	} {
		f.Add(seed)
	}
	plans := map[string]leakybucket.Limit{"gold": {Capacity: 600, Leak: 10}}
	f.Fuzz(func(t *testing.T, text string) {
		var z config.Zone
		if caddy.StrictUnmarshalJSON([]byte(text), &z) != nil {
			return
		}
		if _, err := z.Compile(plans); err != nil {
			return
		}
		written, err := json.Marshal(&z)
		if err != nil {
			t.Fatal(err)
		}
		var again config.Zone
		if err := caddy.StrictUnmarshalJSON(written, &again); err != nil {
			t.Fatalf("%s compiles, and as %s is no zone: %v", text, written, err)
		}
		if _, err := again.Compile(plans); err != nil {
			t.Errorf("%s compiles, and as %s does not: %v", text, written, err)
		}
		if first, second := z.Definition(), again.Definition(); first != second {
			t.Errorf("got the definition\n%s, and written anew\n%s", first, second)
		}
	})
}

// Whatever somebody asks the admin API, it answers with JSON, or says what is wrong with
// the question.
func FuzzAdminAPI(f *testing.F) {
	var paths []string
	for path, call := range admin.Calls {
		if call.Method == http.MethodPost && path != "/throttle/revoke" { // which asks the storage
			paths = append(paths, path)
		}
	}
	slices.Sort(paths)
	for i := range paths {
		for _, body := range []string{
			`{"zone": "pages", "key": "203.0.113.7", "limit": "x0.5", "for": "1h", "note": "n"}`,
			`{"zone": "pages", "limit": 5, "sort": "key", "after": "1-2-3", "prefix": "\u0000", "min_fraction": -1}`,
			`{"client": "alice", "zone": "account"}`, `{"client": "7k2m-q8xd"}`, `{"network": "203.0.113.0/24", "for": "2h"}`,
			`{"client_ip": "203.0.113.7", "method": "POST", "url": "http://example.com/?a=b", "headers": {"X-Api-Key": "k"}, "body": "log=alice"}`,
			`{"zone": "account", "values": ["alice", ""]}`, `{"by": "/24"}`, `{}`, `null`, `[]`,
		} {
			f.Add(i, body)
		}
	}
	s := run(f, `http:// {
		throttle {
			zone pages {
				limit 60 2/s
			}
			zone account {
				key form log fold wordpress
				limit 10 10/h
				block 1h
			}
			zone php {
				in_flight 5 {
					share
					pass off
				}
			}
		}
		respond ok
	}`)
	for _, addr := range []string{"203.0.113.7:1", "[2001:db8::1]:1"} {
		s.from(addr).get("/")
	}
	a := s.app()
	a.Control.Start(a)
	f.Cleanup(func() { a.Control.Stop(a) })
	f.Fuzz(func(t *testing.T, i int, body string) {
		path := paths[int(uint(i)%uint(len(paths)))]
		r := httptest.NewRequest(http.MethodPost, path, strings.NewReader(body))
		r.Header.Set("Content-Type", "application/json")
		w := httptest.NewRecorder()
		if err := serveAdmin(w, r); err != nil {
			var api caddy.APIError
			if !errors.As(err, &api) || api.HTTPStatus < 400 || api.HTTPStatus > 499 || api.Error() == "" {
				t.Errorf("%s %q: got %v, want an error of the caller", path, body, err)
			}
			return
		}
		if !json.Valid(w.Body.Bytes()) || strings.ContainsAny(w.Body.String(), "\x00\x1b<>") {
			t.Errorf("%s %q: got %q, want JSON without control bytes", path, body, w.Body)
		}
	})
}
