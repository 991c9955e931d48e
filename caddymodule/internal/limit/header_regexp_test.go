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
	s := servertest.RunZone(t, "basic", "match header_regexp Authorization (?i)basic\nlimit 10 1/h", "respond ok")
	for size, want := range map[int]int{1: http.StatusOK, 5: http.StatusNotImplemented} {
		r := servertest.Request(servertest.Someone, servertest.Site0)
		for range size {
			r.Header.Add("Authorization", "Bearer "+strings.Repeat("x", 4000))
		}
		check.Equal(t, s.Do(r).Code, want, "%d fields: status", size)
	}
}
