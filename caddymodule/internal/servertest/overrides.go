package servertest

import (
	"path/filepath"
	"testing"
)

// OverrideText writes an override file and returns its name.
func OverrideText(t testing.TB, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "customers")
	WriteFile(t, name, text)
	return name
}

// Looks lets the site look at its override files, as often as a change needs.
func (s *Site) Looks() {
	s.Helper()
	for range 2 {
		for _, f := range s.Engine().OverrideFiles {
			f.Refresh()
		}
	}
}
