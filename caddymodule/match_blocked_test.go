package caddymodule

import (
	"net/http"
	"strings"
	"testing"
	"time"
)

const blockedSite = `http:// {
	route /before* {
		@blocked throttle_blocked
		respond @blocked "blocked by any" 403
	}
	route /by_gate {
		@blocked throttle_blocked gate
		respond @blocked "blocked by gate" 403
	}
	route /by_other {
		@blocked throttle_blocked other
		respond @blocked "blocked by other" 403
	}
	route /free {
		@free not throttle_blocked
		respond @free free
		respond "not free" 403
	}
	throttle /login {
		zone gate {
			limit 1 1/d
			block 1h
			OPTION
		}
	}
	throttle /other {
		zone other {
			key client_ip
			limit 100 1/d
			block
		}
	}
	route /login {
		@blocked throttle_blocked
		respond @blocked "let through, and blocked"
	}
	respond "ok {http.throttle.blocked}"
	handle_errors {
		@blocked throttle_blocked gate
		abort @blocked
		respond "{err.status_code} {http.throttle.blocked}"
	}
}`

func TestTheMatcherMatchesBeforeThrottleWhatItWouldFindBlocked(t *testing.T) {
	inSettleBubble(t, func(t *testing.T) {
		s := run(t, strings.Replace(blockedSite, "OPTION", "", 1))
		c := s.from(someone)
		bodies := func(want map[string]string) {
			t.Helper()
			for path, body := range want {
				if got := c.get(path).Body.String(); got != body {
					t.Errorf("%s: got %q, want %q", path, got, body)
				}
			}
		}
		free := map[string]string{
			"/before": "ok {http.throttle.blocked}", "/by_gate": "ok {http.throttle.blocked}",
			"/by_other": "ok {http.throttle.blocked}", "/free": "free", "/other": "ok false",
		}
		bodies(free)
		c.passes(1, "/login")
		bodies(map[string]string{
			"/before": "blocked by any", "/by_gate": "blocked by gate",
			"/by_other": "ok {http.throttle.blocked}", "/free": "not free", "/other": "ok false",
		})
		pass(time.Hour)
		bodies(free)
		s.stop()
	})
}

func TestTheMatcherMatchesNoClientThatIsBlockedInShadowOnly(t *testing.T) {
	inSettleBubble(t, func(t *testing.T) {
		s := run(t, strings.Replace(blockedSite, "OPTION", "shadow", 1))
		c := s.from(someone)
		for range 3 {
			if got, want := c.get("/login").Body.String(), "ok false"; got != want {
				t.Errorf("got %q, want %q", got, want)
			}
		}
		if got, want := c.get("/free").Body.String(), "free"; got != want {
			t.Errorf("got %q, want %q", got, want)
		}
		s.stop()
	})
}

func TestErrorRoutesCanAbortBlockedClients(t *testing.T) {
	inSettleBubble(t, func(t *testing.T) {
		s := run(t, strings.Replace(blockedSite, "OPTION", "refusal error", 1))
		c := s.from(someone)
		c.get("/login")
		for range 2 { // the one that begins the block, and one within it
			aborted := func() (panicked any) {
				defer func() { panicked = recover() }()
				w := c.get("/login")
				t.Errorf("got %v with %q, want the connection closed", w.Code, w.Body)
				return nil
			}()
			if aborted != http.ErrAbortHandler {
				t.Errorf("got the panic %v, want that of a closed connection", aborted)
			}
		}
		s.stop()
	})
}

func TestTheMatcherHonoursExemptions(t *testing.T) {
	inSettleBubble(t, func(t *testing.T) {
		s := run(t, strings.Replace(blockedSite, "OPTION", "exempt {\nheader X-Free *\n}", 1))
		c := s.from(someone)
		c.passes(1, "/login")
		if got := c.with("X-Free", "1").get("/by_gate").Code; got != http.StatusOK {
			t.Errorf("got %v, want 200 for who is exempt", got)
		}
		if got := c.get("/by_gate").Code; got != http.StatusForbidden {
			t.Errorf("got %v, want 403", got)
		}
		s.stop()
	})
}

func TestThePlaceholderTellsWhetherTheClientIsBlocked(t *testing.T) {
	for _, test := range []struct{ options, want string }{
		{"block 1h", "429 capacity true"},
		{"", "429 capacity false"},
	} {
		s := run(t, `http:// {
			throttle {
				zone gate {
					limit 1 1/d
					refusal error
					`+test.options+`
				}
			}
			respond ok
			handle_errors {
				respond "{err.status_code} {http.throttle.reason} {http.throttle.blocked}"
			}
		}`)
		c := s.from(someone)
		c.get("/")
		if got := c.get("/").Body.String(); got != test.want {
			t.Errorf("%q: got %q, want %q", test.options, got, test.want)
		}
		s.stop()
	}
}
