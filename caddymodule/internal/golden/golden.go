// Package golden tests Caddyfiles against files with the expected JSON or error.
package golden

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

var placeInCaddyfile = regexp.MustCompile(`Caddyfile:\d+`)

// Run checks each file in testdata/adapt: a Caddyfile, and the JSON that it
// adapts to. Files that begin with error_ have the adapter's error instead, which
// names the line. Files that begin with invalid_ have the error of loading the
// adapted config.
func Run(t *testing.T) {
	for name, caddyfile := range Caddyfiles(t) {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join("testdata", "adapt", name)
			got, kind := outcome(t, caddyfile)
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
			named, _, _ := strings.Cut(name, "_")
			if named != "error" && named != "invalid" {
				named = ""
			}
			if named != kind {
				t.Errorf("got an outcome of the kind %q, which the file's name denies", kind)
			}
		})
	}
}

// Caddyfiles returns the Caddyfiles by the names of their files.
func Caddyfiles(t testing.TB) map[string]string {
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

// outcome returns the JSON that a Caddyfile adapts to, or the error of adapting
// or loading it.
func outcome(t *testing.T, caddyfile string) (text, kind string) {
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { text = strings.ReplaceAll(text, here, "/etc/caddy") }() // which is elsewhere on another machine
	adapted, _, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte(caddyfile), map[string]any{"filename": "Caddyfile"})
	if err == nil {
		var indented bytes.Buffer
		if err := json.Indent(&indented, adapted, "", "\t"); err != nil {
			t.Fatal(err)
		}
		if err := Validate(t, adapted); err != nil {
			return err.Error() + "\n", "invalid"
		}
		return indented.String() + "\n", ""
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
	return err.Error() + "\n", "error"
}

// Validate provisions a config without starting it, as caddy validate does.
func Validate(t testing.TB, config []byte) error {
	t.Helper()
	var adapted caddy.Config
	if err := json.Unmarshal(config, &adapted); err != nil {
		t.Fatal(err)
	}
	silent := &caddy.CustomLog{}
	silent.WriterRaw = json.RawMessage(`{"output":"discard"}`)
	return caddy.Validate(&caddy.Config{
		Logging: &caddy.Logging{Logs: map[string]*caddy.CustomLog{"default": silent}},
		AppsRaw: adapted.AppsRaw,
	})
}
