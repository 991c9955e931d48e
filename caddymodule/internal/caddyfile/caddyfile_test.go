package caddyfile_test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	"github.com/caddy-throttle/caddy-throttle/caddymodule"
	zonefile "github.com/caddy-throttle/caddy-throttle/caddymodule/internal/caddyfile"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/config"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/golden"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/option"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/refusal"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

func TestCaddyfilesAdaptAsTheGoldenFilesSay(t *testing.T) { golden.Run(t) }

// Every option has a golden file that shows what it adapts to.
func TestEveryOptionOfAZoneHasGoldenFiles(t *testing.T) {
	caddyfiles := golden.Caddyfiles(t)
	for _, o := range zonefile.ZoneOptions {
		shown := false
		for name, caddyfile := range caddyfiles {
			shown = shown || !strings.HasPrefix(name, "error_") && strings.Contains(caddyfile, "\t"+o.Name)
		}
		check.That(t, shown, "%s is in no golden file that adapts", o.Name)
	}
}

func TestAMisspelledWordIsMeantToBeItsNeighbour(t *testing.T) {
	all := optionNames()
	for word, want := range map[string]string{
		"limti": "limit", "limitt": "limit", "Limit": "limit", "refsual": "refusal", "rout": "route", "readbody": "read_body", "shaodw": "shadow", "costs": "cost", "keys": "key",
		"lmts": "", "x": "", "": "", "frobnicate": "", "é": "", strings.Repeat("x", 1000): "",
	} {
		check.Equal(t, option.Nearest(word, all), want, "nearest(%.20q)", word)
	}
}

// adaptFile adapts a Caddyfile as Caddy does when it is given its name.
func adaptFile(t *testing.T, name string) ([]byte, error) {
	t.Helper()
	text, err := os.ReadFile(name)
	check.OK(t, err)
	adapted, _, err := caddyconfig.GetAdapter("caddyfile").Adapt(text, map[string]any{"filename": name})
	return adapted, err
}

func TestAPageIsRelativeToTheFileThatNamesIt(t *testing.T) {
	folder := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		name = filepath.Join(folder, name)
		check.OK(t, os.MkdirAll(filepath.Dir(name), 0o755))
		check.OK(t, os.WriteFile(name, []byte(text), 0o600))
	}
	write("Caddyfile", "http://example.com {\nimport sites/limits\n}\n")
	write("sites/limits", "throttle {\nrefusal {\n\tpage pages/busy.html\n}\nzone site {\nlimit 5 1/s\n}\n}\n")
	write("sites/pages/busy.html", "old")
	before, err := adaptFile(t, filepath.Join(folder, "Caddyfile"))
	check.Assume(t, err == nil && bytes.Contains(before, []byte(`"page_html":"old"`)), "got %s, %v, want the page in it", before, err)
	write("sites/pages/busy.html", "new")
	after, err := adaptFile(t, filepath.Join(folder, "Caddyfile"))
	check.That(t, err == nil && !bytes.Equal(before, after), "got %v and the same config, want another for an edited page", err)
	write("sites/pages/busy.html", strings.Repeat("x", refusal.MostPage+1))
	_, err = adaptFile(t, filepath.Join(folder, "Caddyfile"))
	check.That(t, err != nil && strings.Contains(err.Error(), "the page has 1048577 bytes"), "got %v, want an error about a page that is too large", err)
}

func TestTheExampleIsFormattedAndValidWhereverItIsCopied(t *testing.T) {
	text := check.Must(os.ReadFile("../../../Caddyfile.example"))(t)
	check.That(t, bytes.Equal(caddyfile.Format(text), text), "caddy fmt would change Caddyfile.example")
	name := filepath.Join(t.TempDir(), "Caddyfile")
	check.OK(t, os.WriteFile(name, text, 0o600))
	t.Chdir(t.TempDir())
	adapted := check.Must(adaptFile(t, name))(t)
	check.NoError(t, golden.Validate(t, adapted))
	check.Equal(t, len(handlersIn(t, appsOf(t, adapted)["http"])), 1, "throttle handlers")
}

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
			app, apps := new(caddymodule.App), appsOf(t, adapted)
			if raw := apps["throttle"]; raw != nil {
				check.OK(t, caddy.StrictUnmarshalJSON(raw, app), "%s\nadapts, and is no app", caddyfile)
			}
			plans, err := config.ParsePlans(app.Plan)
			check.OK(t, err, "%s\nadapts, and has no plans", caddyfile)
			zones := app.Zone
			for _, handler := range handlersIn(t, apps["http"]) {
				zones = append(zones, handler.Zone...)
			}
			for _, z := range zones {
				if z.Reference() {
					continue
				}
				check.NoError(t, z.Compile(plans), "%s\nadapts, and does not compile", caddyfile)
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

// appsOf returns the apps of a config.
func appsOf(t *testing.T, adapted []byte) map[string]json.RawMessage {
	t.Helper()
	var config struct {
		Apps map[string]json.RawMessage `json:"apps"`
	}
	check.OK(t, json.Unmarshal(adapted, &config))
	return config.Apps
}

// handlersIn returns the throttle handlers of an http app.
func handlersIn(t *testing.T, raw json.RawMessage) (handlers []*caddymodule.Handler) {
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
			raw := check.Must(json.Marshal(object))(t)
			handler := new(caddymodule.Handler)
			check.OK(t, caddy.StrictUnmarshalJSON(raw, handler), "%s is no handler", raw)
			return []*caddymodule.Handler{handler}
		}
		for _, value := range object {
			handlers = append(handlers, handlersIn(t, value)...)
		}
	}
	return handlers
}
