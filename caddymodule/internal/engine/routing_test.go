package engine_test

import (
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/servertest"
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
	if lines := s.Logs.Lines(t, "several handlers share the budget of the zone"); len(lines) != 0 {
		t.Errorf("before the start: got %v, want nothing said", lines)
	}
	if err := s.Module().Start(); err != nil {
		t.Fatal(err)
	}
	lines := s.Logs.Lines(t, "several handlers share the budget of the zone")
	if len(lines) != 1 || lines[0]["zone"] != "shared" || lines[0]["handlers"] != 2.0 {
		t.Errorf("got %v, want one line about 2 handlers of zone shared", lines)
	}
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

func TestALaterHandlerOfARequestDecidesToo(t *testing.T) {
	s := servertest.Run(t, `http:// {
		route {
			throttle outer 5 1/h
			throttle inner 2 1/h
			respond "{http.throttle.zone} {http.throttle.decision}"
		}
	}`)
	c := s.From(servertest.Someone)
	if got, want := c.Get("/").Body.String(), "inner admitted"; got != want {
		t.Errorf("got %q, want %q: it is the fuller one", got, want)
	}
	c.Passes(1, "/")
}

func TestErrorRoutesAreNotCharged(t *testing.T) {
	s := servertest.Run(t, `http:// {
		throttle /fails site 3 1/h
		error /fails 503
		respond ok
		handle_errors {
			throttle errors 1 1/h
			throttle site 3 1/h
			respond "{err.status_code} {http.throttle.zone}"
		}
	}`)
	c := s.From(servertest.Someone)
	for i, want := range []int{503, 503, 503, 429, 429} {
		if got := c.Get("/fails").Code; got != want {
			t.Errorf("request %d: got %v, want %v", i, got, want)
		}
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
			if got := c.Get(free).Code; got != http.StatusOK {
				t.Fatalf("%s: got %v, want 200", free, got)
			}
		}
		if got := c.With("X-Health", "ok").Get("/app").Code; got != http.StatusOK {
			t.Fatalf("with a header: got %v, want 200", got)
		}
	}
	c.Passes(2, "/app/x")
	for _, charged := range []string{"/", "/assets/x.css"} {
		if got := c.Send(http.MethodPost, charged).Code; got != http.StatusTooManyRequests {
			t.Errorf("POST %s: got %v, want 429", charged, got)
		}
	}
	if got := s.From("192.0.2.1:1").Send(http.MethodPost, "/app/admin").Code; got != http.StatusOK {
		t.Errorf("another address: got %v, want 200", got)
	}
}

func TestAVariableOfTheUsersMakesNoRequestPayTwice(t *testing.T) {
	s := servertest.Run(t, `http:// {
		route {
			throttle site 3 1/h
			vars throttle mine
			throttle site 3 1/h
			respond {vars.throttle}
		}
	}`)
	c := s.From(servertest.Someone)
	if got := c.Get("/").Body.String(); got != "mine" {
		t.Errorf("got %q, want %q", got, "mine")
	}
	c.Passes(2, "/")
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
			for range 20 {
				if c.Get("/").Code == http.StatusOK {
					passed[i%len(passed)].Add(1)
				}
			}
		})
	}
	wait.Wait()
	all := int32(0)
	for i := range passed {
		n := passed[i].Load()
		if n > 30 {
			t.Errorf("client %d: got %v admitted, want at most 30", i, n)
		}
		all += n
	}
	if all != 100 {
		t.Errorf("got %v admitted, want 100", all)
	}
}
