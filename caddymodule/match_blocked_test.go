package caddymodule_test

import (
	"strings"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/servertest"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
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
	servertest.InBubble(t, func(t *testing.T) {
		s := servertest.Run(t, strings.Replace(blockedSite, "OPTION", "", 1))
		c := s.From(servertest.Someone)
		bodies := func(want map[string]string) {
			t.Helper()
			for path, body := range want {
				check.Equal(t, c.Get(path).Body.String(), body, "%s", path)
			}
		}
		free := map[string]string{
			"/before": "ok {http.throttle.blocked}", "/by_gate": "ok {http.throttle.blocked}",
			"/by_other": "ok {http.throttle.blocked}", "/free": "free", "/other": "ok false",
		}
		bodies(free)
		c.Passes(1, "/login")
		bodies(map[string]string{
			"/before": "blocked by any", "/by_gate": "blocked by gate",
			"/by_other": "ok {http.throttle.blocked}", "/free": "not free", "/other": "ok false",
		})
		servertest.Sleep(time.Hour)
		bodies(free)
	})
}

func TestTheMatcherMatchesNoClientThatIsBlockedInShadowOnly(t *testing.T) {
	servertest.InBubble(t, func(t *testing.T) {
		s := servertest.Run(t, strings.Replace(blockedSite, "OPTION", "shadow", 1))
		c := s.From(servertest.Someone)
		for range 3 {
			check.Equal(t, c.Get("/login").Body.String(), "ok false")
		}
		check.Equal(t, c.Get("/free").Body.String(), "free")
	})
}

func TestTheMatcherSeesBansBeforeTheHandler(t *testing.T) {
	s := servertest.Run(t, `{
		throttle {
			exempt client_ip 203.0.113.9
		}
	}
	http:// {
		@gate throttle_blocked gate
		@any throttle_blocked
		@free throttle_blocked free
		route /gate* {
			respond @gate banned 403
		}
		route /any* {
			respond @any banned 403
		}
		route /free* {
			respond @free banned 403
		}
		throttle /x {
			zone gate {
				limit 5 1/s
			}
			zone free {
				exempt client_ip 203.0.113.8
				limit 5 1/s
			}
		}
		respond ok
	}`)
	wants := func(addr string, gate, anywhere, free int) {
		t.Helper()
		for path, want := range map[string]int{"/gate/1": gate, "/any": anywhere, "/free": free} {
			check.Equal(t, s.From(addr+":1").Get(path).Code, want, "%s from %s", path, addr)
		}
	}
	wants("203.0.113.7", 200, 200, 200)
	s.Changes("/throttle/ban", `{"network": "203.0.113.0/24", "for": "1h"}`)
	wants("203.0.113.7", 403, 403, 403)
	wants("203.0.113.8", 403, 200, 200) // the zone free exempts it
	wants("203.0.113.9", 200, 200, 200) // exempt from everything
	wants("198.51.100.1", 200, 200, 200)
	s.Changes("/throttle/shadow", `{"for": "1h"}`)
	wants("203.0.113.7", 200, 200, 200)
	s.Changes("/throttle/unshadow", `{}`)
	s.Changes("/throttle/unban", `{"network": "203.0.113.0/24"}`)
	wants("203.0.113.7", 200, 200, 200)
}
