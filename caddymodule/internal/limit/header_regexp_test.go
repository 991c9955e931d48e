package limit_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/servertest"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

// By HPACK, a client repeats a long field for a byte each.
func TestHeadersThatAreTooLongToMatchAreRefused(t *testing.T) {
	for _, zone := range []string{
		"match header_regexp Authorization (?i)basic", "match not header_regexp Authorization (?i)basic",
		"match expression `header_regexp('Authorization', '(?i)basic')`", "match vars_regexp {header.Authorization} (?i)basic",
		"cost 0 {\nheader_regexp Authorization (?i)basic\n}",
	} {
		s := servertest.RunZone(t, "basic", zone+"\nlimit 10 1/h", "respond ok")
		for _, test := range []struct {
			proto  int
			name   string
			values int
			bytes  int
			want   int
		}{
			{2, "Authorization", 1, 4000, http.StatusOK},
			{2, "Authorization", 5, 4000, http.StatusNotImplemented},
			{2, "Authorization", 1, 60_000, http.StatusOK},      // as Kerberos has
			{2, "Cookie", 1, 60_000, http.StatusNotImplemented}, // which Go joins
			{1, "Authorization", 5, 4000, http.StatusOK},        // which the client has paid for
		} {
			r := servertest.Request(servertest.Someone, servertest.Site0)
			r.ProtoMajor = test.proto
			for range test.values {
				r.Header.Add(test.name, "x="+strings.Repeat("x", test.bytes))
			}
			check.Equal(t, s.Do(r).Code, test.want, "%s: %+v: status", zone, test)
		}
		s.Stop()
	}
}
