package option

import (
	"fmt"
	"strings"
	"testing"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

func TestAnUnknownWordListsNoThousands(t *testing.T) {
	var known []string
	for i := range 6000 {
		known = append(known, fmt.Sprintf("pages-%04d", i))
	}
	got := Unknown("zone", "x", "", known).Error()
	check.That(t, len(got) < 600 && strings.HasSuffix(got, "pages-0039, and 5960 more"), "got %d bytes, want 40 names: %.600s", len(got), got)
	check.Equal(t, known[mostListed], "pages-0040", "what was given")
}
