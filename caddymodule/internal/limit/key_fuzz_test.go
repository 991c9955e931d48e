package limit_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/servertest"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

// Different values are different keys, whatever they contain, and no value is a
// fallback.
func FuzzKey(f *testing.F) {
	for _, seed := range []string{"", "k", "@share", "@client_ip/203.0.113.7", "a/b", "a%2Fb", "\x00\xff\n", strings.Repeat("ü", 200), "{client_ip}"} {
		f.Add(seed, seed, "203.0.113.7")
		f.Add(seed, "", "::ffff:203.0.113.7%x")
	}
	s := servertest.Run(f, `http:// {
		throttle {
			zone plain {
				key header X-A {header.X-B}-{header.X-A} header X-B client_ip plain
				limit 1000000000 1000000000/s
			}
		}
		respond {http.throttle.key}
	}`)
	seen := make(map[string]string) // the value of each key
	f.Fuzz(func(t *testing.T, a, b, addr string) {
		r := servertest.Request(addr+":1", servertest.Site0, "X-A", a, "X-B", b)
		w := s.Do(r)
		key, parts := w.Body.String(), strings.Count(w.Body.String(), "/")+1
		check.Assume(t, w.Code == http.StatusOK && key != "", "got %v and key %q", w.Code, key)
		check.That(t, len(key) <= 6*256+len("/-//")+3, "got a key of %d bytes", len(key))
		if strings.HasPrefix(key, "@client_ip/") || key == "@share" {
			if a != "" && b != "" && parts > 2 {
				t.Errorf("got the fallback %q for complete keys %q and %q", key, a, b)
			}
			return
		}
		if want := 6; parts != want {
			t.Errorf("%q, %q: got %d parts in %q, want %d", a, b, parts, key, want)
		}
		who := fmt.Sprintf("%q %q", a, b)
		if other, taken := seen[key]; taken && other != who {
			t.Errorf("got key %q for %s and for %s", key, who, other)
		}
		seen[key] = who
	})
}
