package main

import (
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

func TestThePicturesAreWhatTheCodeDraws(t *testing.T) {
	var drawn []string
	for name, draw := range pictures {
		drawn = append(drawn, name)
		want := draw()
		got, err := os.ReadFile(name)
		check.That(t, err == nil && string(got) == want, "%s is not what the code draws (%v): run go run ./docs/pictures", name, err)
		for reader := xml.NewDecoder(strings.NewReader(want)); ; {
			if _, err := reader.Token(); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
		check.That(t, strings.Contains(want, "prefers-color-scheme:dark"), "%s does not follow the reader's choice of light or dark", name)
	}
	kept, err := filepath.Glob("*.svg")
	slices.Sort(drawn)
	check.That(t, err == nil && slices.Equal(kept, drawn), "got the pictures %v, %v, want %v", kept, err, drawn)
}

// TestThePhonesShowThePage as it is written and coloured.
func TestThePhonesShowThePage(t *testing.T) {
	read := func(name string) string {
		text := check.Must(os.ReadFile(filepath.Join("../../caddymodule/internal/refusal", name)))(t)
		return string(text)
	}
	words, sheet := read("languages.json"), read("page.css")
	for _, s := range screens {
		_, unit, _ := strings.Cut(s.time, " ")
		for _, text := range []string{s.title, strings.Join(s.reason, " "), s.wait + " %s.", strings.Join(s.then, " "), s.code, `" ` + unit + `"`} {
			check.That(t, strings.Contains(words, text), "the page does not say %q", text)
		}
		colours := "--back:" + s.back + ";--card:" + s.card + ";--text:" + s.text + ";--soft:" + s.soft
		check.That(t, strings.Contains(sheet, colours), "the page has not the colours %s", colours)
	}
	check.That(t, strings.Contains(read("page.go"), accent), "the page's accent is not %s", accent)
}

// TestTheReadmeSaysWhatWasMeasured below its picture.
func TestTheReadmeSaysWhatWasMeasured(t *testing.T) {
	readme := check.Must(os.ReadFile("../../README.md"))(t)
	for _, limits := range []string{"shadow", "enforced"} {
		text := fmt.Sprintf("%.1f seconds", typical(limits))
		check.That(t, strings.Contains(string(readme), text), "got no %q in the README, want what was measured", text)
	}
}
