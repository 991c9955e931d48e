package inspector

import (
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
)

func TestOnlyMatchersOfCertainNamesNameHosts(t *testing.T) {
	for hosts, want := range map[string]bool{
		"a.example": true, "a.example b.example": true, "*.a.example": true, "localhost": true, "192.0.2.1": true,
		"": false, "*": false, "*.*": false, "*.example": false, "a.example *": false, "*.*.example": false, "a.*.example": false,
	} {
		if got := namesHosts(caddyhttp.MatchHost(strings.Fields(hosts))); got != want {
			t.Errorf("%q: got %v, want %v", hosts, got, want)
		}
	}
}
