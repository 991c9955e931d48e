package caddymodule

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
)

var update = flag.Bool("update", false, "rewrite what testdata/adapt expects")

const separator = "----------\n"

// Each file in testdata/adapt is a Caddyfile, and what becomes of it: JSON, or
// an error as a user sees it.
func TestCaddyfilesAdaptAsTheGoldenFilesSay(t *testing.T) {
	for name, caddyfile := range goldenCaddyfiles(t) {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join("testdata", "adapt", name)
			got, adapted := adaptGolden(t, caddyfile)
			if *update {
				if err := os.WriteFile(file, []byte(caddyfile+separator+got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			golden, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if _, want, _ := strings.Cut(string(golden), separator); got != want {
				t.Errorf("got\n%s\nwant\n%s", got, want)
			}
			if isError := strings.HasPrefix(name, "error_"); isError != (adapted == nil) {
				t.Errorf("got an error: %v, which the file's name denies", !isError)
			}
		})
	}
}

// goldenCaddyfiles returns the Caddyfiles by the names of their files.
func goldenCaddyfiles(t testing.TB) map[string]string {
	files, err := filepath.Glob("testdata/adapt/*.caddyfiletest")
	if err != nil || len(files) == 0 {
		t.Fatalf("golden files: got %v, %v", files, err)
	}
	caddyfiles := make(map[string]string)
	for _, file := range files {
		golden, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		caddyfiles[filepath.Base(file)], _, _ = strings.Cut(string(golden), separator)
	}
	return caddyfiles
}

var placeInCaddyfile = regexp.MustCompile(`Caddyfile:\d+`)

// adaptGolden returns what a golden file expects, and the JSON if it is that.
func adaptGolden(t *testing.T, caddyfile string) (golden string, adapted []byte) {
	adapted, _, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte(caddyfile), map[string]any{"filename": "Caddyfile"})
	if err == nil {
		var indented bytes.Buffer
		if err := json.Indent(&indented, adapted, "", "\t"); err != nil {
			t.Fatal(err)
		}
		valid(t, adapted)
		return indented.String() + "\n", adapted
	}
	places := placeInCaddyfile.FindAllString(err.Error(), -1)
	if len(places) == 0 {
		t.Errorf("got %q, which names no line", err)
	}
	for i, place := range places {
		if i > 0 && place == places[i-1] {
			t.Errorf("got %q, which names %s twice", err, place)
		}
	}
	return err.Error() + "\n", nil
}

// valid checks a config as caddy validate does: it is provisioned, and nothing
// is dialed or listened on.
func valid(t *testing.T, config []byte) {
	t.Helper()
	cfg := &caddy.Config{Logging: newMemoryLog(t).logging()}
	var adapted caddy.Config
	if err := json.Unmarshal(config, &adapted); err != nil {
		t.Fatal(err)
	}
	cfg.AppsRaw = adapted.AppsRaw
	if err := caddy.Validate(cfg); err != nil {
		t.Errorf("validating what was adapted: got %v", err)
	}
}
