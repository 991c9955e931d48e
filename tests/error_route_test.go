package tests

import (
	"bytes"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
)

// crowded is how many requests of a crowd come at once.
const crowded = 24

// crowd makes requests at once, of which each must get that status, and returns how many
// got another page than that of the upstream.
func (v *visitor) crowd(t *testing.T, url string, status int, page string) (built int) {
	t.Helper()
	var all sync.WaitGroup
	var mu sync.Mutex
	for range crowded {
		all.Go(func() {
			method, body := http.MethodGet, io.Reader(nil)
			if strings.HasSuffix(url, "upload") || strings.HasSuffix(url, "large") {
				size := 10
				if strings.HasSuffix(url, "large") {
					size = 1000
				}
				method, body = http.MethodPost, bytes.NewReader(make([]byte, size))
			}
			r, _ := http.NewRequest(method, url, body)
			a, err := v.do(r)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err != nil || a.status != status:
				t.Errorf("%s over %s: got %d, %v, want %d", url, v.protocol, a.status, err, status)
			case page != "" && a.body != page:
				t.Errorf("%s over %s: got %q, want %q", url, v.protocol, a.body, page)
			case a.body != "by the upstream":
				built++
			}
		})
	}
	all.Wait()
	return built
}
