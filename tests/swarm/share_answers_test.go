package swarm

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/servertest"
	"github.com/caddy-throttle/caddy-throttle/tests/internal/system"
)

// largeAnswer is larger than the buffers of net/http, and less than an answer may hold.
var largeAnswer = strings.Repeat("0123456789abcdef-0123456789abcde\n", 6000)

// answerInManyWays is an upstream.
func answerInManyWays(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/page":
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		w.Header().Add("Set-Cookie", "one=1")
		w.Header().Add("Set-Cookie", "two=2")
		_, _ = io.WriteString(w, "<p>asked with {{.Req.Method}}</p>\n")
	case "/large":
		http.ServeContent(w, r, "large.txt", time.Unix(1e9, 0), strings.NewReader(largeAnswer))
	case "/missing":
		http.Error(w, "none", http.StatusNotFound)
	case "/broken":
		_, _ = io.WriteString(w, largeAnswer[:100_000])
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}
}

// TestClientsSeeTheSameAnswersWithShareAndWithout, with other handlers of Caddy around the zone
// and within. Answers of an upstream alone are tested with package call.
func TestClientsSeeTheSameAnswersWithShareAndWithout(t *testing.T) {
	t.Parallel()
	files := t.TempDir()
	check.OK(t, os.WriteFile(filepath.Join(files, "large"), []byte(largeAnswer), 0o644))
	proxy := "reverse_proxy " + system.StartUpstream(t, answerInManyWays).Address
	const intercept = "intercept {\n@bad status 404\nhandle_response @bad {\nrespond gone 410\n}\n}\n"
	variants := map[string]string{ // ZONE is where the zone is
		"proxy":        "ZONE\n" + proxy,
		"dead":         fmt.Sprintf("ZONE\nreverse_proxy 127.0.0.1:%d", servertest.FreePort(t)),
		"gzipOut":      "encode gzip\nZONE\n" + proxy,
		"gzipIn":       "ZONE\nencode gzip\n" + proxy,
		"templateOut":  "templates\nZONE\n" + proxy,
		"templateIn":   "ZONE\ntemplates\n" + proxy,
		"headerOut":    "header >X-Late {http.response.header.Last-Modified}\nZONE\n" + proxy,
		"interceptIn":  "ZONE\n" + intercept + proxy,
		"interceptOut": intercept + "ZONE\n" + proxy,
		"copied":       "ZONE\n" + proxy + " {\n@ok status 200\nhandle_response @ok {\nheader X-Copied yes\ncopy_response_headers\ncopy_response\n}\n}",
		"files":        "ZONE\nroot " + files + "\nfile_server",
		"flush":        "ZONE\n" + proxy + " {\nflush_interval 5ms\n}",
	}
	zone := "throttle {\nzone seconds {\nlimit 1000 1000/s\nsettle seconds\n}\n}\nin_flight php 3 {\nwait 60s\nshare\n}"
	var routes strings.Builder
	for name, route := range variants {
		for side, throttle := range map[string]string{"with": zone, "without": ""} {
			fmt.Fprintf(&routes, "handle_path /%s/%s/* {\nroute {\n%s\n}\n}\n", side, name, strings.Replace(route, "ZONE", throttle, 1))
		}
	}
	port := servertest.FreePort(t)
	c := system.StartCaddy(t, system.Config{Sites: fmt.Sprintf("http://:%d {\n%s\nhandle_errors {\nrespond \"error {err.status_code}\"\n}\n}", port, routes.String())})
	for _, protocol := range system.Protocols {
		v := system.NewVisitor(t, protocol)
		for name := range variants {
			for _, path := range []string{"/page", "/large", "/missing", "/broken"} {
				ask := func(side string) (system.Answer, bool) {
					a, err := v.Try("GET", fmt.Sprintf("http://127.0.0.1:%d/%s/%s%s", port, side, name, path), "Accept-Encoding", "gzip")
					a.Header.Del("Date")
					if unzip, isNone := gzip.NewReader(strings.NewReader(a.Body)); isNone == nil {
						a.Header.Del("Content-Length") // where it was flushed may differ
						var plain bytes.Buffer
						_, _ = plain.ReadFrom(unzip)
						a.Body = plain.String()
					}
					return a, err != nil
				}
				want, wantBroken := ask("without")
				got, broken := ask("with")
				if broken != wantBroken || !broken && (got.Status != want.Status || got.Body != want.Body || !maps.EqualFunc(got.Header, want.Header, slices.Equal)) {
					t.Errorf("%s%s over %s: got %d, broken %v, %v and %d bytes, want %d, %v, %v and %d", name, path, protocol,
						got.Status, broken, got.Header, len(got.Body), want.Status, wantBroken, want.Header, len(want.Body))
				}
			}
		}
	}
	system.Eventually(t, "all slots to be free", func() bool { return c.Served(t, "php") == 0 })
}
