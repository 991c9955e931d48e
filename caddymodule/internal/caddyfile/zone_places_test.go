package caddyfile_test

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"

	zonefile "github.com/caddy-throttle/caddy-throttle/caddymodule/internal/caddyfile"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/golden"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/limit"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/servertest"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

// samples has a zone for each option, without its braces.
var samples = map[string]string{
	"match":                "match path /a*\nlimit 60 10/s",
	"exempt":               "exempt method OPTIONS\nexempt static_files /srv\nlimit 60 10/s",
	"key":                  "key field log fold wordpress basic_user text x\nlimit 60 10/s",
	"key missing":          "key header X-Key missing share\nlimit 60 10/s",
	"key unlisted":         "key header X-Key unlisted refuse\noverride gold 600 100/s\nlimit 60 10/s",
	"key plain":            "key header X-Key plain\nlimit 60 10/s",
	"key ipv4":             "key client_ip ipv4 24\nlimit 60 10/s",
	"key ipv6":             "key client_ip {\nipv6 56\n}\nlimit 60 10/s",
	"field":                "field pwd user[password]\nlimit 60 10/s",
	"route":                "key route\nroute login /login*\nlimit 60 10/s",
	"limit":                "limit 60 10/s",
	"override":             "override 192.0.2.0/24 unlimited\noverride 198.51.100.7 600 10/s as office\nlimit 60 10/s",
	"cost":                 "cost 5 {\npath /search*\n}\ncost 2\nlimit 60 10/s",
	"read_body":            "cost body_items\nread_body 16KiB\nlimit 60 10/s",
	"read_body else":       "cost body_items\nread_body 64KiB else 5\nlimit 60 10/s",
	"settle":               "settle seconds\nlimit 60 10/s",
	"settle after":         "settle status 401 1 after\nlimit 60 10/s",
	"settle debt":          "settle bytes 1MiB debt 5\nlimit 60 10/s",
	"refund":               "refund status 302 4xx\nrefund header Location */home*\nrefund {\nstatus 2xx\nheader X-User *\n}\nrefund cookie sid_*\nlimit 60 10/s",
	"trust_devices":        "trust_devices sid_* 30d\nkey field log\nrefund cookie sid_*\nlimit 60 10/s",
	"delay":                "delay 2\nlimit 60 10/s",
	"delay wait":           "delay wait 3s\nlimit 60 10/s",
	"delay queue":          "delay queue 50\nlimit 60 10/s",
	"block":                "block 10m 1h\nlimit 60 10/s",
	"block everywhere":     "block 10m 1h everywhere\nlimit 60 10/s",
	"on_store_error":       "on_store_error deny\nlimit 60 10/s",
	"refusal":              "refusal retry_after fit status 503\nlimit 60 10/s",
	"refusal retry_after":  "refusal retry_after fit\nlimit 60 10/s",
	"refusal status":       "refusal status 503\nlimit 60 10/s",
	"refusal message":      "refusal message \"Too many logins.\"\nlimit 60 10/s",
	"refusal page":         "refusal {\npage {\ntitle Shop\naccent 0a7f5c\ntext Sorry.\n}\n}\nlimit 60 10/s",
	"refusal error":        "refusal error\nlimit 60 10/s",
	"refusal code":         "refusal code off\nlimit 60 10/s",
	"refusal log":          "refusal log 10/s\nlimit 60 10/s",
	"shadow":               "shadow\nlimit 60 10/s",
	"shadow server_timing": "shadow server_timing\nlimit 60 10/s",
	"enforce":              "enforce 10\nlimit 60 10/s",
}

// zoneIn adapts a Caddyfile and returns the zone of the handler, or of the app, as JSON.
func zoneIn(t *testing.T, app, caddyfile string) (zone map[string]any, adapted []byte) {
	t.Helper()
	adapted = servertest.Adapt(t, caddyfile)
	apps := appsOf(t, adapted)
	raw := apps["throttle"]
	if app == "http" {
		handlers := handlersIn(t, apps["http"])
		check.Need(t, len(handlers), 1, "handlers")
		var err error
		if raw, err = json.Marshal(handlers[0]); err != nil {
			t.Fatal(err)
		}
	}
	var holder struct {
		Zone []map[string]any `json:"zone"`
	}
	err := json.Unmarshal(raw, &holder)
	check.Assume(t, err == nil && len(holder.Zone) == 1, "got %s, %v, want one zone in it", raw, err)
	return holder.Zone[0], adapted
}

// Everything that a zone can say, it says alike in a site, on the line of the directive,
// in the global options, and in JSON.
func TestEveryOptionOfAZoneMeansTheSameWhereverItStands(t *testing.T) {
	fields := make(map[string]bool)
	for name, sample := range samples {
		site, adapted := zoneIn(t, "http", "http://example.com {\nthrottle {\nzone pages {\n"+sample+"\n}\n}\n}")
		check.NoError(t, golden.Validate(t, adapted), "%s", name)
		global, adapted := zoneIn(t, "throttle", "{\nthrottle {\nzone pages {\n"+sample+"\n}\n}\n}\nhttp://example.com {\nthrottle pages\n}")
		check.NoError(t, golden.Validate(t, adapted), "%s in the global options", name)
		check.That(t, reflect.DeepEqual(global, site), "%s: got %v in the global options, want %v", name, global, site)
		if rest, limited := strings.CutSuffix(sample, "\nlimit 60 10/s"); limited && !strings.Contains(rest, "key ") {
			line, _ := zoneIn(t, "http", "http://example.com {\nthrottle pages 60 10/s {\n"+rest+"\n}\n}")
			check.That(t, reflect.DeepEqual(line, site), "%s: got %v in the block behind a line, want %v", name, line, site)
		}
		raw := check.Must(json.Marshal(site))(t)
		z := new(limit.Zone)
		check.OK(t, caddy.StrictUnmarshalJSON(raw, z))
		check.NoError(t, z.Compile(nil), "%s in JSON", name)
		for field := range site {
			fields[field] = true
		}
	}
	zone := reflect.TypeFor[limit.Zone]()
	for i := range zone.NumField() {
		name, _, _ := strings.Cut(zone.Field(i).Tag.Get("json"), ",")
		if zone.Field(i).IsExported() && name != "-" && !fields[name] {
			t.Errorf("%s: got no sample that sets the field, want one", name)
		}
	}
}

// Options beside the zones are written into each zone, in a site and in the global
// options.
func TestEveryOptionBesideZonesIsThatOfEachZone(t *testing.T) {
	for _, o := range zonefile.ZoneOptions {
		if !o.Beside {
			continue
		}
		option := slices.DeleteFunc(strings.Split(samples[o.Name], "\n"), func(line string) bool {
			return strings.HasPrefix(line, "limit ") || strings.HasPrefix(line, "key ")
		})
		beside, inside := strings.Join(option, "\n"), "zone pages {\nkey header X-Key\nlimit 60 10/s\n"
		want, _ := zoneIn(t, "http", "http://example.com {\nthrottle {\n"+inside+beside+"\n}\n}\n}")
		got, _ := zoneIn(t, "http", "http://example.com {\nthrottle {\n"+beside+"\n"+inside+"}\n}\n}")
		check.That(t, reflect.DeepEqual(got, want), "%s beside the zones of a site: got %v, want %v", o.Name, got, want)
		if slices.Contains([]string{"exempt", "on_store_error", "shadow"}, o.Name) {
			continue // holds for all sites, without being written into the zones
		}
		got, _ = zoneIn(t, "throttle", "{\nthrottle {\n"+beside+"\n"+inside+"}\n}\n}\nhttp://example.com {\nthrottle pages\n}")
		check.That(t, reflect.DeepEqual(got, want), "%s beside the zones of the global options: got %v, want %v", o.Name, got, want)
	}
}

func TestNoOptionAndNoDetailIsTakenTwice(t *testing.T) {
	for _, o := range zonefile.ZoneOptions {
		if o.Repeats {
			continue
		}
		text := samples[o.Name] + "\n" + samples[o.Name]
		_, got := (mistake{in: "zone", text: text}).adapt()
		check.That(t, strings.Contains(got, o.Name+" is given twice, at Caddyfile:"), "%s\ngot %s", text, got)
	}
	for text, want := range map[string]string{
		"key client_ip plain plain":                                      "plain is given twice",
		"key client_ip missing share {\nmissing skip\n}":                 "missing is given twice",
		"delay wait 1s {\nwait 2s\n}":                                    "wait is given twice",
		"block 1h everywhere everywhere":                                 "everywhere is given twice",
		"refusal {\npage testdata/page.html\npage testdata/page.html\n}": "page is given twice",
	} {
		_, got := (mistake{in: "zone", text: text}).adapt()
		check.That(t, strings.Contains(got, want+", at Caddyfile:"), "%s\ngot  %s\nwant %s", text, got, want)
	}
}

// Every option has an example of wrong use, beside that of giving it twice.
func TestEveryOptionOfAZoneHasAnErrorOfWrongUse(t *testing.T) {
	caddyfiles := golden.Caddyfiles(t)
	for _, o := range zonefile.ZoneOptions {
		shown := slices.ContainsFunc(mistakes, func(m mistake) bool { return strings.Contains("\n"+m.text, "\n"+o.Name) })
		for name, caddyfile := range caddyfiles {
			shown = shown || strings.HasPrefix(name, "error_"+o.Name) && strings.Contains(caddyfile, "\t"+o.Name)
		}
		check.That(t, shown, "%s: got no example of wrong use, want one", o.Name)
	}
}
