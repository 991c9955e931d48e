package caddyfile_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	zonefile "github.com/caddy-throttle/caddy-throttle/caddymodule/internal/caddyfile"
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
	if after, err := adaptFile(t, filepath.Join(folder, "Caddyfile")); err != nil || bytes.Equal(before, after) {
		t.Errorf("got %v and the same config, want another for an edited page", err)
	}
	write("sites/pages/busy.html", strings.Repeat("x", refusal.MostPage+1))
	if _, err := adaptFile(t, filepath.Join(folder, "Caddyfile")); err == nil || !strings.Contains(err.Error(), "the page has 1048577 bytes") {
		t.Errorf("got %v, want an error about a page that is too large", err)
	}
}

func TestTheExampleIsFormattedAndValidWhereverItIsCopied(t *testing.T) {
	text := check.Must(os.ReadFile("../../../Caddyfile.example"))(t)
	if formatted := caddyfile.Format(text); !bytes.Equal(formatted, text) {
		t.Error("caddy fmt would change Caddyfile.example")
	}
	name := filepath.Join(t.TempDir(), "Caddyfile")
	check.OK(t, os.WriteFile(name, text, 0o600))
	t.Chdir(t.TempDir())
	adapted := check.Must(adaptFile(t, name))(t)
	check.NoError(t, golden.Validate(t, adapted))
	check.Equal(t, len(handlersIn(t, appsOf(t, adapted)["http"])), 1, "throttle handlers")
}
