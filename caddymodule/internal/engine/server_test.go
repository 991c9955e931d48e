package engine_test

import (
	"testing"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/servertest"
)

// TestVerdictsAreShown wherever the config of the server names them.
func TestVerdictsAreShown(t *testing.T) {
	for name, rest := range map[string]string{
		"a handler":               "respond {http.throttle.decision}",
		"a matcher of the server": "@admitted vars {http.throttle.decision} admitted\nrespond @admitted admitted\nrespond other",
		"an expression":           "@admitted expression `{http.throttle.decision} == 'admitted'`\nrespond @admitted admitted\nrespond other",
		"a negation":              "@other not vars {http.throttle.decision} admitted\nrespond @other other\nrespond admitted",
		"a route within":          "route /* {\nvars seen {http.throttle.decision}\nrespond {vars.seen}\n}",
	} {
		s := servertest.Run(t, ":80 {\nroute {\nthrottle z 5 1/d\n"+rest+"\n}\n}")
		if got := s.From(servertest.Someone).Get("/").Body.String(); got != "admitted" {
			t.Errorf("%s, in a route: got %q, want admitted", name, got)
		}
		s.Stop()
		s = servertest.Run(t, "{\norder throttle first\n}\n:80 {\nthrottle z 5 1/d\n"+rest+"\n}")
		if got := s.From(servertest.Someone).Get("/").Body.String(); got != "admitted" {
			t.Errorf("%s: got %q, want admitted", name, got)
		}
		s.Stop()
	}
}
