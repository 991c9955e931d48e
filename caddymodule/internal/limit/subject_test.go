package limit

import (
	"net/http"
	"testing"
)

// The reverse proxy rewrites these before FastCGI sees them.
func TestWebSocketsThatOpenWithCONNECTAreGETAtTheUpstream(t *testing.T) {
	for _, test := range []struct {
		r    http.Request
		want string
	}{
		{http.Request{Method: "CONNECT", ProtoMajor: 2, Proto: "HTTP/2.0", Header: http.Header{":protocol": {"websocket"}}}, "GET"},
		{http.Request{Method: "CONNECT", ProtoMajor: 3, Proto: "websocket"}, "GET"},
		{http.Request{Method: "CONNECT", ProtoMajor: 2, Proto: "HTTP/2.0", Header: http.Header{":protocol": {"connect-udp"}}}, "CONNECT"},
		{http.Request{Method: "CONNECT", ProtoMajor: 3, Proto: "HTTP/3.0"}, "CONNECT"},
		{http.Request{Method: "CONNECT", ProtoMajor: 1, Proto: "HTTP/1.1"}, "CONNECT"},
		{http.Request{Method: "connect", ProtoMajor: 3, Proto: "websocket"}, "CONNECT"},
		{http.Request{Method: ""}, "POST"},
	} {
		if got := judged(&test.r).Method; got != test.want {
			t.Errorf("%+v: got %s, want %s", test.r, got, test.want)
		}
	}
}

func TestOnlyRequestsWithOddMethodsAreCopied(t *testing.T) {
	for method, copied := range map[string]bool{"GET": false, "POST": false, "PUT": false, "PROPFIND": false, "CONNECT": false, "get": true, "put": true} {
		r := &http.Request{Method: method}
		if s := NewSubject(r); (s.Judged != r) != copied || s.Request != r || r.Method != method {
			t.Errorf("%s: got a copy: %v, want %v", method, s.Judged != r, copied)
		}
	}
}
