package tests

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// errorSite has requests that err before and behind in_flight, and an upstream that writes
// the error pages.
const errorSite = `
https://localhost:%d {
	tls internal
	route {
		request_body {
			max_size 10
		}
		error /early* 404
		in_flight workers
		error /denied* 403
		error /upload* 413
		reverse_proxy /large* %[4]s
		root * /nonexistent
		file_server
	}
	handle_errors {
		%[3]s
		rewrite * /error?status={err.status_code}
		reverse_proxy %[2]s
	}
}`

// TestErrorPagesOfTheUpstreamTakeSlots: no way to an error page gets more than in_flight
// requests to the upstream, over any protocol.
func TestErrorPagesOfTheUpstreamTakeSlots(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		path, routed string // what the error route has before the upstream
		status       int
		page         string // of each answer; "" if they differ
	}{
		{"missing", "", 404, "by the upstream"},
		{"missing", "in_flight workers", 404, "by the upstream"},
		{"denied", "", 403, "by the upstream"},
		{"upload", "", 413, "by the upstream"},
		{"large", "", 413, ""}, // whose error page breaks off at the upstream, for the same reason
		{"early", "in_flight workers", 404, ""},
	} {
		for _, share := range []string{"", "share client_ip"} {
			t.Run(fmt.Sprintf("%s %s %s", test.path, test.routed, share), func(t *testing.T) {
				u := startUpstream(t, func(w http.ResponseWriter, r *http.Request) {
					_, _ = io.Copy(io.Discard, r.Body)
					time.Sleep(20 * time.Millisecond) // a page takes its time
					status, _ := strconv.Atoi(r.URL.Query().Get("status"))
					w.WriteHeader(max(status, 200))
					fmt.Fprint(w, "by the upstream")
				})
				reader := startUpstream(t, func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) })
				port := freePort(t)
				c := startCaddy(t, config{
					throttle:  "in_flight workers 2 {\nwait 2m\nqueue 1000\n" + share + "\n}",
					sites:     fmt.Sprintf(errorSite, port, u.address, test.routed, reader.address),
					protocols: "h1 h2 h3",
				})
				url := fmt.Sprintf("https://localhost:%d/", port)
				quic := newQUICVisitor(t, nil)
				eventually(t, "a certificate", func() bool {
					_, err := quic.try(http.MethodGet, url)
					return err == nil
				})
				for _, v := range []*visitor{newVisitorFrom(t, "h1", "127.0.0.1"), newVisitorFrom(t, "h2", "127.0.0.1"), quic} {
					built := v.crowd(t, url+test.path, test.status, test.page)
					if _, most := u.serving(); most > 2 && test.path != "large" {
						t.Errorf("over %s: got %d requests in the upstream, want at most 2", v.protocol, most)
					}
					if test.path == "early" && (built == 0 || built == crowded) {
						t.Errorf("over %s: got %d of %d built-in pages, want some", v.protocol, built, crowded)
					}
				}
				eventually(t, "all slots free", func() bool { return c.metric(t, "caddy_throttle_in_flight", `zone="workers"`) == 0 })
			})
		}
	}
}

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
