package limit

import (
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"testing"
)

// However outer handlers and the next one write a header, no value counts as the response's
// own that was there before, and none is lost that was added.
func TestOwnFields(t *testing.T) {
	values := []string{"a", "b", "c"}
	names := []string{"Set-Cookie", "Location", "X-Ok"}
	for seed := range uint64(2000) {
		random := rand.New(rand.NewPCG(seed, 1))
		header := make(http.Header)
		for range random.IntN(4) {
			header.Add(names[random.IntN(len(names))], values[random.IntN(len(values))])
		}
		before, want := header.Clone(), make(http.Header)
		for range random.IntN(5) {
			name, value := names[random.IntN(len(names))], values[random.IntN(len(values))]
			header.Add(name, value)
			want.Add(name, value)
		}
		if got := ownFields(header, before); !maps.EqualFunc(got, want, slices.Equal[[]string]) {
			t.Fatalf("seed %d: %v, before %v: got %v, want %v", seed, header, before, got, want)
		}
	}
}

func TestOwnFieldsThatReplaceOthers(t *testing.T) {
	before := http.Header{"Same": {"a"}, "Shorter": {"a", "b"}, "Other": {"a"}, "Removed": {"a"}}
	got := ownFields(http.Header{"Same": {"a"}, "Shorter": {"a"}, "Other": {"b"}}, before)
	if want := (http.Header{"Other": {"b"}}); !maps.EqualFunc(got, want, slices.Equal[[]string]) {
		t.Errorf("got %v, want %v", got, want)
	}
}
