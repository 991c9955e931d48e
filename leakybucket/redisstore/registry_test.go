package redisstore

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/store"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/servertest"
)

// TestRegistryJunk writes what is none of ours into the hash. Texts are written and read all the
// same, and the junk is returned with the number 0.
func TestRegistryJunk(t *testing.T) {
	server := servertest.StartRedis(t)
	end := leakybucket.Instant(time.Now().Add(time.Hour).UnixMicro())
	for field, junk := range map[string][]string{
		"":     {"", "junk", "-1", "1e300", "99999999999999999999", "9007199254740993", "4503599627370496", "1125899906842624 and more"},
		"name": {"", "junk", "-1", "1e300", "1", "1 2", "1 x text", "99999999999999999999 9 text", "4503599627370496 9999999999999999 text", "0 9999999999999999 text"},
	} {
		for i, value := range junk {
			s := open(t, "redis://"+server.Addr, Options{Prefix: fmt.Sprint("junk", i, field, ":")})
			server.Do("hset", s.registryKey(), field, value)
			server.Do("hset", s.registryKey(), "other", "junk")
			all, err := s.Texts(t.Context(), -1)
			if err != nil || all.Count != len(all.Texts) || all.Count == 0 {
				t.Fatalf("%q %q: got %+v, error %v, want the junk counted", field, value, all, err)
			}
			for _, text := range all.Texts {
				if text.Number != 0 || text.Text != "" {
					t.Errorf("%q %q: got %+v, want the number 0", field, value, text)
				}
			}
			want := store.Text{Name: "name", Number: 2, End: end, Text: "ours"}
			before, last, err := s.PutTexts(t.Context(), []store.Text{want})
			if err != nil || last == before {
				t.Fatalf("%q %q: got numbers %d and %d, error %v, want it written", field, value, before, last, err)
			}
			if all, err = s.Texts(t.Context(), before); err != nil || all.Last != last || len(all.Texts) != 2 || all.Texts[0] != want && all.Texts[1] != want {
				t.Errorf("%q %q: got %+v, error %v, want ours and one junk", field, value, all, err)
			}
		}
	}
}

// TestRegistryFlood: more short fields of others than a reply may have are no error, and what is
// written stands.
func TestRegistryFlood(t *testing.T) {
	const flood = 70_000
	server := servertest.StartRedis(t)
	s := open(t, "redis://"+server.Addr, Options{})
	for from := 0; from < flood; from += 1000 {
		args := []string{"hset", s.registryKey()}
		for i := range 1000 {
			args = append(args, fmt.Sprint("=a", from+i), "1000000000000001 x")
		}
		server.Do(args...)
	}
	end := leakybucket.Instant(time.Now().Add(time.Hour).UnixMicro())
	before, last, err := s.PutTexts(t.Context(), []store.Text{{Name: "name", Number: 2, End: end, Text: "ours"}})
	if err != nil || last == before {
		t.Fatalf("got marks %d and %d, error %v, want it written", before, last, err)
	}
	all, err := s.Texts(t.Context(), before)
	if err != nil || all.Last != last || all.Count != flood+1 || len(all.Texts) != store.MostTexts {
		t.Errorf("got %d of %d texts, last write %d, error %v, want %d of %d and %d", len(all.Texts), all.Count, all.Last, err, store.MostTexts, flood+1, last)
	}
}

// TestRegistryOfAnotherType names the key, so that its owner can delete it.
func TestRegistryOfAnotherType(t *testing.T) {
	server := servertest.StartRedis(t)
	s := open(t, "redis://"+server.Addr, Options{Prefix: "shop:"})
	server.Do("lpush", "shop:@changes", "junk")
	_, err := s.Texts(t.Context(), -1)
	if err == nil || !strings.Contains(err.Error(), "shop:@changes") || !strings.Contains(err.Error(), "delete it") {
		t.Errorf("got error %v, want the key and what to do", err)
	}
}

// FuzzParseText reads whatever a field may hold.
func FuzzParseText(f *testing.F) {
	for _, value := range []string{"", "1 2 text", "1 2", "x", "4503599627370496 1 x"} {
		f.Add("name", value)
	}
	f.Fuzz(func(t *testing.T, name, value string) {
		text := parseText(name, value)
		if text.Name != name || text.Number < 0 || text.Number >= store.MostNumber || text.Number == 0 && text.Text != "" {
			t.Errorf("%q: got %+v, want a number in range, and no text without one", value, text)
		}
	})
}
