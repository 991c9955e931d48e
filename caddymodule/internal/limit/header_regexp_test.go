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
		for fields, want := range map[int]int{1: http.StatusOK, 5: http.StatusNotImplemented} {
			r := servertest.Request(servertest.Someone, servertest.Site0)
			for range fields {
				r.Header.Add("Authorization", "Bearer "+strings.Repeat("x", 4000))
			}
			check.Equal(t, s.Do(r).Code, want, "%s: %d fields: status", zone, fields)
		}
		long := strings.Repeat("x", 60_000)
		check.Equal(t, s.Do(servertest.Request(servertest.Someone, servertest.Site0, "Authorization", "Negotiate "+long)).Code, http.StatusOK, "%s: Kerberos: status", zone)
		check.Equal(t, s.Do(servertest.Request(servertest.Someone, servertest.Site0, "Cookie", "a="+long)).Code, http.StatusNotImplemented, "%s: cookies: status", zone) // which Go joins
		s.Stop()
	}
}
