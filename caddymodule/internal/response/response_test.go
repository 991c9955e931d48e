package response

import (
	"context"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

func TestRequestsThatAskForItMayTunnel(t *testing.T) {
	upgrade := httptest.NewRequest("GET", "/", nil)
	upgrade.Header.Set("Upgrade", "websocket")
	for _, test := range []struct {
		r    *http.Request
		want bool
	}{
		{httptest.NewRequest("GET", "/", nil), false},
		{httptest.NewRequest("POST", "/", strings.NewReader("x")), false},
		{upgrade, true},
		{httptest.NewRequest("CONNECT", "http://example.com/", nil), true},
	} {
		check.Equal(t, MayTunnel(test.r), test.want, "%s %v", test.r.Method, test.r.Header)
	}
}

func TestWhatTheHeadersOfAnAnswerSay(t *testing.T) {
	type says struct {
		final, tunnels, bodiless bool
		declared                 int64
	}
	for _, test := range []struct {
		name, method string
		major        int
		status       int
		length       []string
		want         says
	}{
		{"an answer", "GET", 1, 200, []string{"5"}, says{true, false, false, 5}},
		{"without a length", "GET", 2, 200, nil, says{true, false, false, -1}},
		{"with an invalid length", "GET", 1, 200, []string{"5 bytes"}, says{true, false, false, -1}},
		{"to HEAD", "HEAD", 1, 200, []string{"5"}, says{true, false, true, 0}},
		{"no content", "GET", 1, 204, nil, says{true, false, true, 0}},
		{"not modified", "GET", 1, 304, []string{"5"}, says{true, false, true, 0}},
		{"early hints", "GET", 1, 103, []string{"5"}, says{false, false, false, -1}},
		{"a WebSocket", "GET", 1, 101, nil, says{true, true, false, -1}},
		{"a WebSocket over HTTP/2", "CONNECT 101", 2, 200, nil, says{true, true, false, -1}},
		{"a page for one", "CONNECT 200", 2, 200, nil, says{true, false, false, -1}},
		{"a CONNECT that failed", "CONNECT 101", 2, 403, nil, says{true, false, false, -1}},
		{"a CONNECT that no upstream has seen", "CONNECT", 2, 200, nil, says{true, false, false, -1}},
		{"an answer to a CONNECT over HTTP/1", "CONNECT 101", 1, 200, nil, says{true, false, false, -1}},
	} {
		var w Writer
		method, upstream, _ := strings.Cut(test.method, " ")
		to, r := httptest.NewRecorder(), httptest.NewRequest(method, "http://example.com/", nil)
		repl := caddy.NewReplacer()
		if status, err := strconv.Atoi(upstream); err == nil {
			repl.Set("http.reverse_proxy.status_code", status)
		}
		r = r.WithContext(context.WithValue(r.Context(), caddy.ReplacerCtxKey, repl))
		r.ProtoMajor = test.major
		w.Watch(to, r)
		if test.length != nil {
			w.Header()["Content-Length"] = test.length
		}
		got := says{final: w.Final(test.status), declared: w.Declared}
		got.tunnels, got.bodiless = got.final && w.Tunnels(), w.Bodiless()
		check.Equal(t, got, test.want, "%s", test.name)
		check.That(t, w.Final(http.StatusOK) != got.final, "%s: got the next status final, too, or never any", test.name)
	}
}

func TestOnlyWhatNoCacheMayKeepForOthersIsPrivate(t *testing.T) {
	for _, test := range []struct {
		header http.Header
		want   bool
	}{
		{http.Header{}, true},
		{http.Header{"Age": {"0"}}, false},
		{http.Header{"Expires": {"0"}}, false},
		{http.Header{"Cache-Control": {"no-store"}, "Expires": {"0"}}, true},
		{http.Header{"Cache-Control": {"no-cache"}}, true},
		{http.Header{"Cache-Control": {`no-cache="set-cookie", max-age=9`}}, false},
		{http.Header{"Cache-Control": {"max-age=0"}}, true},
		{http.Header{"Cache-Control": {"private", "public"}}, false},
		{http.Header{"Cache-Control": {"private"}, "Cdn-Cache-Control": {"max-age=9"}}, false},
		{http.Header{"Cache-Control": {"private"}, "Cloudflare-Cdn-Cache-Control": {"max-age=9"}}, false},
		{http.Header{"Cache-Control": {"private"}, "Vercel-Cdn-Cache-Control": {"no-store"}}, true},
		{http.Header{"Cache-Control": {"private"}, "Surrogate-Control": {"no-store", "max-age=9"}}, false},
		{http.Header{"Cache-Control": {"private"}, "Edge-Control": {"cache-maxage=9m"}}, false},
		{http.Header{"Cache-Control": {"private"}, "X-Accel-Expires": {"9"}}, false},
		{http.Header{"Cache-Control": {"private"}, "X-Accel-Expires": {"0"}}, true},
	} {
		check.Equal(t, Private(test.header), test.want, "%v: private", test.header)
	}
}

func TestNoCacheMayKeepWhatIsKeptPrivate(t *testing.T) {
	for _, test := range []struct {
		given []string
		want  string
	}{
		{nil, "private"},
		{[]string{"no-cache"}, "no-cache, private"}, // a cache may keep it, and ask whether it is still good
		{[]string{"no-cache, must-revalidate, max-age=0"}, "no-cache, must-revalidate, max-age=0, private"},
		{[]string{"max-age=0", "must-revalidate"}, "max-age=0, must-revalidate, private"},
		{[]string{`private="x-user", no-cache`}, `private="x-user", no-cache, private`},
		{[]string{"max-age=60, Private"}, "max-age=60, Private"},
		{[]string{"no-cache, no-store"}, "no-cache, no-store"},
	} {
		header := http.Header{"Cache-Control": test.given}
		KeepPrivate(header)
		check.Equal(t, strings.Join(header["Cache-Control"], ", "), test.want, "%q", test.given)
	}
}

func TestHeadersForSomeCachesOnlyAreDropped(t *testing.T) {
	header := make(http.Header)
	for _, name := range []string{
		"Cache-Control", "CDN-Cache-Control", "Cloudflare-CDN-Cache-Control", "Surrogate-Control", "Edge-Control", "X-Accel-Expires", "Vary",
	} {
		header.Set(name, "max-age=60")
	}
	DropTargeted(header)
	check.Slices(t, slices.Sorted(maps.Keys(header)), []string{"Cache-Control", "Vary"}, "the headers that are left")
}
