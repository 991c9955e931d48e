package engine_test

import (
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/servertest"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

func TestTwoSitesThatNameOneZoneHaveOneBudget(t *testing.T) {
	s := servertest.Run(t, `
	http://one.example.com {
		throttle shared 4 1/h
		respond ok
	}
	http://two.example.com {
		throttle shared 4 1/h
		respond ok
	}
	http://three.example.com {
		throttle own 4 1/h
		respond ok
	}`)
	c := s.From(servertest.Someone)
	c.Passes(4, "http://one.example.com/")
	c.Passes(0, "http://two.example.com/")
	c.Passes(4, "http://three.example.com/")
}

func TestARequestIsChargedOnceHoweverItIsRouted(t *testing.T) {
	s := servertest.Run(t, `{
		throttle {
			zone once {
				limit 3 1/h
			}
		}
	}
	&(app) {
		throttle once
		respond ok
	}
	http:// {
		throttle once
		handle /nested* {
			throttle {
				zone once
				zone other {
					limit 3 2/h
				}
			}
			route {
				throttle once
				throttle once
				respond ok
			}
		}
		handle_path /prefix/* {
			throttle once
			rewrite /elsewhere
			throttle once
			invoke app
		}
		handle {
			invoke app
		}
	}`)
	for i, path := range []string{"/", "/nested", "/prefix/x"} {
		c := s.From([]string{"203.0.113.1:1", "203.0.113.2:1", "203.0.113.3:1"}[i])
		c.Passes(3, path)
	}
}

func TestExemptRequestsAreNotCharged(t *testing.T) {
	s := servertest.Run(t, `{
		throttle {
			exempt {
				path /assets/*
				method GET
			}
			exempt {
				header X-Health ok
			}
		}
	}
	http:// {
		throttle {
			zone site {
				match {
					path /app* /assets/*
				}
				match {
					method POST
				}
				exempt path /app/free /app/ping
				exempt {
					path /app/admin
					remote_ip 203.0.113.0/24
				}
				limit 2 1/h
			}
		}
		respond ok
	}`)
	c := s.From(servertest.Someone)
	for range 5 {
		for _, free := range []string{"/", "/assets/x.css", "/app/free", "/app/ping", "/app/admin"} {
			check.Need(t, c.Get(free).Code, http.StatusOK, "%s", free)
		}
		check.Need(t, c.With("X-Health", "ok").Get("/app").Code, http.StatusOK, "with a header")
	}
	c.Passes(2, "/app/x")
	for _, charged := range []string{"/", "/assets/x.css"} {
		check.Equal(t, c.Send(http.MethodPost, charged).Code, http.StatusTooManyRequests, "POST %s", charged)
	}
	check.Equal(t, s.From("192.0.2.1:1").Send(http.MethodPost, "/app/admin").Code, http.StatusOK, "another address")
}

func TestConcurrentRequestsAreAdmittedUpToTheCapacity(t *testing.T) {
	s := servertest.Run(t, `http:// {
		throttle {
			zone everybody {
				key text all
				limit 100 1/d
			}
			zone client {
				limit 30 1/d
			}
			zone tried {
				limit 10 1/d
				shadow
			}
		}
		respond ok
	}`)
	var wait sync.WaitGroup
	var passed [5]atomic.Int32
	for i := range 50 {
		wait.Go(func() {
			c := s.From(fmt.Sprintf("203.0.113.%d:1", i%len(passed)))
			passed[i%len(passed)].Add(int32(c.Statuses(20, "/")[http.StatusOK]))
		})
	}
	wait.Wait()
	all := int32(0)
	for i := range passed {
		n := passed[i].Load()
		check.That(t, n <= 30, "client %d: got %v admitted, want at most 30", i, n)
		all += n
	}
	check.Equal(t, all, 100, "admitted")
}

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
		check.Equal(t, s.From(servertest.Someone).Get("/").Body.String(), "admitted", "%s, in a route", name)
		s.Stop()
		s = servertest.Run(t, "{\norder throttle first\n}\n:80 {\nthrottle z 5 1/d\n"+rest+"\n}")
		check.Equal(t, s.From(servertest.Someone).Get("/").Body.String(), "admitted", "%s", name)
		s.Stop()
	}
	const other = "http://other.example.com {\nrespond other\n}\n"
	for name, site := range map[string]string{
		"a named route":                   "&(limits) {\nthrottle z 5 1/d\n}\n" + other + "http://example.com {\nroute {\ninvoke limits\nrespond {http.throttle.decision}\n}\n}",
		"a named route that shows it":     "&(shows) {\nrespond {http.throttle.decision}\n}\n" + other + "http://example.com {\nroute {\nthrottle z 5 1/d\ninvoke shows\n}\n}",
		"one site of several":             other + "http://example.com {\nroute {\nthrottle z 5 1/d\nrespond {http.throttle.decision}\n}\n}",
		"one site of several that limit":  "http://other.example.com {\nthrottle o 5 1/d\nrespond other\n}\nhttp://example.com {\nroute {\nthrottle z 5 1/d\nrespond {http.throttle.decision}\n}\n}",
		"a global zone with its own page": "{\nthrottle {\nzone z {\nlimit 5 1/d\nrefusal {\npage {\ntext \"{http.throttle.zone}\"\n}\n}\n}\n}\n}\n" + other + "http://example.com {\nroute {\nthrottle z\nvars a admitted\nrespond {vars.a}\n}\n}",
	} {
		s := servertest.Run(t, site)
		check.Equal(t, s.From(servertest.Someone).Get("/").Body.String(), "admitted", "%s", name)
		s.Stop()
	}
}

func TestAClientThatWaitsAsLongAsRetryAfterSaysPasses(t *testing.T) {
	for _, test := range []struct {
		retryAfter, first, later string // what Retry-After says at once, and half a second later
		after                    int    // how many pass after that long
	}{
		{"empty", "4", "4", 8},
		{"fit", "1", "1", 2},
		{"3s", "3", "3", 6},
		{"100ms", "1", "1", 2},
	} {
		t.Run(test.retryAfter, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := servertest.RunZone(t, "site", "limit 8 2/s\nrefusal retry_after "+test.retryAfter, "respond ok")
				c := s.From(servertest.Someone)
				c.Passes(8, "/")
				first := c.Get("/").Header().Get("Retry-After")
				<-time.After(100 * time.Millisecond)
				later := c.Get("/").Header().Get("Retry-After")
				check.Assume(t, first == test.first && later == test.later, "Retry-After: got %q and then %q, want %q and %q", first, later, test.first, test.later)
				wait := check.Must(time.ParseDuration(later + "s"))(t)
				time.Sleep(wait)
				c.Passes(test.after, "/")
			})
		})
	}
}
