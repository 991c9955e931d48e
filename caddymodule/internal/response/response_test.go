package response

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

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
		{"a WebSocket over HTTP/2", "CONNECT", 2, 200, nil, says{true, true, false, -1}},
		{"a CONNECT that failed", "CONNECT", 2, 403, nil, says{true, false, false, -1}},
		{"an answer to a CONNECT over HTTP/1", "CONNECT", 1, 200, nil, says{true, false, false, -1}},
	} {
		var w Writer
		to, r := httptest.NewRecorder(), httptest.NewRequest(test.method, "http://example.com/", nil)
		r.ProtoMajor = test.major
		w.Watch(to, r)
		if test.length != nil {
			w.Header()["Content-Length"] = test.length
		}
		got := says{final: w.Final(test.status), declared: w.Declared}
		got.tunnels, got.bodiless = got.final && w.Tunnels(), w.Bodiless()
		check.Equal(t, got, test.want, "%s", test.name)
		if w.Final(http.StatusOK) == got.final {
			t.Errorf("%s: got the next status final, too, or never any", test.name)
		}
	}
}
