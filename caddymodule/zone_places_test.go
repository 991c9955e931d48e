package caddymodule

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/golden"
)

// samples has a zone for each option, without its braces.
var samples = map[string]string{
	"match":            "match path /a*\nlimit 60 10/s",
	"exempt":           "exempt method OPTIONS\nexempt static_files /srv\nlimit 60 10/s",
	"key":              "key form log fold wordpress basic_user text x\nlimit 60 10/s",
	"missing_key":      "key header X-Key\nmissing_key share\nlimit 60 10/s",
	"unlisted_key":     "key header X-Key\nunlisted_key refuse\noverride gold 600 100/s\nlimit 60 10/s",
	"plain_keys":       "key header X-Key\nplain_keys\nlimit 60 10/s",
	"ipv4_prefix":      "ipv4_prefix 24\nlimit 60 10/s",
	"ipv6_prefix":      "ipv6_prefix 56\nlimit 60 10/s",
	"route":            "key route\nroute login /login*\nlimit 60 10/s",
	"limit":            "limit 60 10/s",
	"capacity":         "capacity 60\nleak 10/s",
	"leak":             "capacity 60\nleak 300/5m",
	"override":         "override 192.0.2.0/24 unlimited\noverride 198.51.100.7 600 10/s as office\nlimit 60 10/s",
	"override_file":    "key header X-Key\noverride_file testdata/overrides/customers\nlimit 60 10/s",
	"cost":             "cost 5 {\npath /search*\n}\ncost 2\nlimit 60 10/s",
	"max_body":         "key form log\nmax_body 16KiB\nlimit 60 10/s",
	"unread_body_cost": "key form log\nunread_body_cost 5\nlimit 60 10/s",
	"settle":           "settle seconds 5\nlimit 60 10/s",
	"count_only":       "count_only status 401\nlimit 60 10/s",
	"debt":             "settle bytes 1MiB\ndebt 5\nlimit 60 10/s",
	"trust_devices":    "key form log\ntrust_devices sid_* 30d\nlimit 60 10/s",
	"delay":            "delay 2\nlimit 60 10/s",
	"max_wait":         "delay\nmax_wait 3s\nlimit 60 10/s",
	"max_waiting":      "delay\nmax_waiting 50\nlimit 60 10/s",
	"in_flight":        "in_flight 5",
	"rank":             "in_flight 5\nshare\nrank member issued wordpress_logged_in_* *UserID\nrank member told X-User\nrank crawler {\nclient_ip 192.0.2.0/24\n}",
	"pass":             "in_flight 5\nshare\npass off",
	"share":            "in_flight 5\nshare client_ip header X-Tenant",
	"warm_up":          "in_flight 5\nwarm_up 30s",
	"request_buffer":   "in_flight 5\nrequest_buffer 1MiB",
	"block":            "block 10m 1h everywhere\nlimit 60 10/s",
	"on_store_error":   "on_store_error deny\nlimit 60 10/s",
	"retry_after":      "retry_after fit\nlimit 60 10/s",
	"retry_jitter":     "retry_jitter 20\nlimit 60 10/s",
	"status":           "status 503\nlimit 60 10/s",
	"message":          "message \"Too many log-ins.\"\nlimit 60 10/s",
	"page":             "page {\ntitle Shop\naccent 0a7f5c\ntext Sorry.\n}\nlimit 60 10/s",
	"refuse":           "refuse error\nlimit 60 10/s",
	"support_code":     "support_code off\nlimit 60 10/s",
	"zone_header":      "zone_header\nlimit 60 10/s",
	"shadow":           "shadow\nlimit 60 10/s",
	"log_refused":      "log_refused 10/s\nlimit 60 10/s",
	"server_timing":    "server_timing\nlimit 60 10/s",
	"enforce":          "enforce 10\nlimit 60 10/s",
}

// zoneIn adapts a Caddyfile and returns the zone of the handler, or of the app, as JSON.
func zoneIn(t *testing.T, app, caddyfile string) (zone map[string]any, adapted []byte) {
	t.Helper()
	adapted = adapt(t, caddyfile)
	var config struct {
		Apps map[string]json.RawMessage `json:"apps"`
	}
	if err := json.Unmarshal(adapted, &config); err != nil {
		t.Fatal(err)
	}
	raw := config.Apps["throttle"]
	if app == "http" {
		handlers := handlersIn(t, config.Apps["http"])
		if len(handlers) != 1 {
			t.Fatalf("got %d handlers, want 1", len(handlers))
		}
		var err error
		if raw, err = json.Marshal(handlers[0]); err != nil {
			t.Fatal(err)
		}
	}
	var holder struct {
		Zone []map[string]any `json:"zone"`
	}
	if err := json.Unmarshal(raw, &holder); err != nil || len(holder.Zone) != 1 {
		t.Fatalf("got %s, %v, want one zone in it", raw, err)
	}
	return holder.Zone[0], adapted
}

// Everything that a zone can say, it says alike in a site, on the line of the directive,
// in the global options, and in JSON.
func TestEveryOptionOfAZoneMeansTheSameWhereverItStands(t *testing.T) {
	fields := make(map[string]bool)
	for _, o := range zoneOptions {
		sample, found := samples[o.name]
		if !found {
			t.Errorf("%s: got no sample, want one", o.name)
			continue
		}
		site, adapted := zoneIn(t, "http", "http://example.com {\nthrottle {\nzone pages {\n"+sample+"\n}\n}\n}")
		if err := golden.Validate(t, adapted); err != nil {
			t.Errorf("%s: got %v, want it valid", o.name, err)
		}
		global, adapted := zoneIn(t, "throttle", "{\nthrottle {\nzone pages {\n"+sample+"\n}\n}\n}\nhttp://example.com {\nthrottle pages\n}")
		if err := golden.Validate(t, adapted); err != nil {
			t.Errorf("%s in the global options: got %v, want it valid", o.name, err)
		}
		if !reflect.DeepEqual(global, site) {
			t.Errorf("%s: got %v in the global options, want %v", o.name, global, site)
		}
		if rest, limited := strings.CutSuffix(sample, "\nlimit 60 10/s"); limited && !strings.Contains(rest, "key ") {
			line, _ := zoneIn(t, "http", "http://example.com {\nthrottle pages 60 10/s {\n"+rest+"\n}\n}")
			if !reflect.DeepEqual(line, site) {
				t.Errorf("%s: got %v in the block behind a line, want %v", o.name, line, site)
			}
		}
		raw, err := json.Marshal(site)
		if err != nil {
			t.Fatal(err)
		}
		z := new(Zone)
		if err := caddy.StrictUnmarshalJSON(raw, z); err != nil {
			t.Fatal(err)
		}
		if _, err := z.compile(nil); err != nil {
			t.Errorf("%s in JSON: got %v", o.name, err)
		}
		for field := range site {
			fields[field] = true
		}
	}
	// What only JSON has.
	fields["page"], fields["page_html"], fields["shadow_together"] = true, true, true
	zone := reflect.TypeFor[Zone]()
	for i := range zone.NumField() {
		name, _, _ := strings.Cut(zone.Field(i).Tag.Get("json"), ",")
		if zone.Field(i).IsExported() && !fields[name] {
			t.Errorf("%s: got no sample that sets the field, want one", name)
		}
	}
}

// Options beside the zones are written into each zone, in a site and in the global
// options.
func TestEveryOptionBesideZonesIsThatOfEachZone(t *testing.T) {
	for _, o := range zoneOptions {
		if !o.beside {
			continue
		}
		option := slices.DeleteFunc(strings.Split(samples[o.name], "\n"), func(line string) bool {
			return strings.HasPrefix(line, "limit ") || strings.HasPrefix(line, "key ")
		})
		beside, inside := strings.Join(option, "\n"), "zone pages {\nkey header X-Key\nlimit 60 10/s\n"
		want, _ := zoneIn(t, "http", "http://example.com {\nthrottle {\n"+inside+beside+"\n}\n}\n}")
		got, _ := zoneIn(t, "http", "http://example.com {\nthrottle {\n"+beside+"\n"+inside+"}\n}\n}")
		if o.name == "shadow" {
			delete(got, "shadow_together") // by which the word beside zones is told from that in the zone
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s beside the zones of a site: got %v, want %v", o.name, got, want)
		}
		if slices.Contains(globalWords, o.name) {
			continue // holds for all sites, without being written into the zones
		}
		got, _ = zoneIn(t, "throttle", "{\nthrottle {\n"+beside+"\n"+inside+"}\n}\n}\nhttp://example.com {\nthrottle pages\n}")
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s beside the zones of the global options: got %v, want %v", o.name, got, want)
		}
	}
}

// Every option has a golden file with an error of wrong use, beside that of giving it
// twice.
func TestEveryOptionOfAZoneHasAnErrorOfWrongUse(t *testing.T) {
	files, err := filepath.Glob("testdata/adapt/error_*.caddyfiletest")
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range zoneOptions {
		shown := false
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			caddyfile, _, _ := strings.Cut(string(text), "----------\n")
			shown = shown || !strings.HasPrefix(filepath.Base(file), "error_twice_") && strings.Contains(filepath.Base(file), o.name) && strings.Contains(caddyfile, "\t"+o.name)
		}
		shown = shown || slices.ContainsFunc(mistakes, func(m mistake) bool { return strings.Contains("\n"+m.text, "\n"+o.name) })
		if !shown {
			t.Errorf("%s: got no example of wrong use, want one", o.name)
		}
	}
}
