package caddymodule

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/evidence"
)

// facts returns what a zone of the site has met.
func (s *site) facts(zone string) evidence.Facts { return s.app().Zones[zone].Counts.Evidence.Facts() }

// network returns a client of the n-th network.
func (s *site) network(n int) client { return s.from(fmt.Sprintf("198.%d.%d.7:1000", 18+n/250, n%250)) }

// words returns the words of evidence that the site's log has.
func (s *site) words(t *testing.T) (all []string) {
	t.Helper()
	for _, line := range s.logs.lines(t, "look whether") {
		if line["level"] != "warn" {
			continue // information
		}
		all = append(all, fmt.Sprint(line["zone"], ": ", line["msg"]))
	}
	return all
}

// wantWords checks that evidence has said, of each zone, what contains these texts, and
// nothing else.
func (s *site) wantWords(t *testing.T, want ...string) {
	t.Helper()
	got := s.words(t)
	if len(got) != len(want) {
		t.Fatalf("words of evidence: got %q, want %q", got, want)
	}
	for i := range want {
		zone, text, _ := strings.Cut(want[i], ": ")
		if !strings.HasPrefix(got[i], zone+": ") || !strings.Contains(got[i], text) {
			t.Errorf("words of evidence: got %q, want %q", got[i], want[i])
		}
	}
}

// aDayLater lets the day pass, and has the zones judge it.
func (s *site) aDayLater() {
	time.Sleep(25 * time.Hour)
	for _, z := range s.app().Zones {
		z.Counts.Evidence.Judge(time.Now())
	}
}

func TestFactsAreKnownFromTheFirstRequest(t *testing.T) {
	s := run(t, `http:// {
		throttle {
			zone login {
				match path /login
				limit 10 1/h
				settle status 401 1
				exempt client_ip 203.0.113.9
			}
			zone api {
				match path /api
				key header X-Key missing skip
				limit 10 1/h
			}
		}
		respond /login 401
		respond ok
	}`)
	for range 3 {
		s.from(someone).get("/login")
	}
	s.from("203.0.113.9:1000").get("/login")
	s.from("198.51.100.1:1000").get("/login")
	s.from(someone).get("/api")
	s.from(someone).with("X-Key", "a").get("/api")
	for range 13 {
		s.from(someone).get("/other")
	}
	for zone, want := range map[string]evidence.Facts{
		"login": {Requests: 20, Asked: 4, Exempt: 1, Keys: 2, Networks: 2, Charged: 4},
		"api":   {Requests: 20, Asked: 1, Keyless: 1, Keys: 1, Networks: 1},
	} {
		got := s.facts(zone)
		got.Since = want.Since
		if got != want {
			t.Errorf("zone %s: got %+v, want %+v", zone, got, want)
		}
	}
}

func TestAZoneThatNoRequestMeetsNamesANearMiss(t *testing.T) {
	for _, test := range []struct {
		about, config, path string
		networks, want      int
	}{
		{"another folder", "zone login {\n match path /wp-login.php*\n limit 5 1/h\n}", "/blog/wp-login.php", 3, 1},
		{"a slash at the end", "zone login {\n match path /login\n limit 5 1/h\n}", "/login/", 3, 1},
		{"two networks", "zone login {\n match path /login\n limit 5 1/h\n}", "/login/", 2, 0},
		{"what a rewrite behind it serves", "zone login {\n match path /deep/down\n limit 5 1/h\n}", "/rewritten", 3, 1},
		{"an error", "zone login {\n match path /missing\n limit 5 1/h\n}", "/a/missing", 3, 0},
		{"another address", "zone login {\n match path /wp-login.php*\n limit 5 1/h\n}", "/page", 3, 0},
		{"the address, and another method", "zone login {\n match {\n path /login*\n method POST\n }\n limit 5 1/h\n}", "/login", 3, 0},
		{"the front page", "zone login {\n match path /\n limit 5 1/h\n}", "/page/", 3, 0},
	} {
		s := run(t, "http:// {\n throttle {\n"+test.config+"\n}\nrewrite /rewritten /is/deep/down\n@missing path */missing\nrespond @missing 404\nrespond ok\n}")
		for n := range test.networks {
			for range 5 {
				s.network(n).get(test.path)
			}
		}
		var want []string
		for range test.want {
			want = append(want, "login: ends like one of its paths")
		}
		t.Run(test.about, func(t *testing.T) { s.wantWords(t, want...) })
		s.stop()
	}
}

// A matcher beside the zones is what they match.
func TestANearMissOfADirectivesMatcherIsNamed(t *testing.T) {
	s := run(t, "http:// {\n@login path /wp-login.php*\nthrottle @login login 5 1/h\nrespond ok\n}")
	for n := range 3 {
		s.network(n).get("/blog/wp-login.php")
	}
	s.wantWords(t, "login: ends like one of its paths")
	if warnings := s.app().Warnings.List(); len(warnings) != 1 || warnings[0].Details["address"] != "/blog/wp-login.php" {
		t.Errorf("kept warnings: got %v, want the near miss", warnings)
	}
}

func TestADayShowsMistakesOnce(t *testing.T) {
	get := func(path string) func(client) { return func(c client) { c.get(path) } }
	for _, test := range []struct {
		about, config string
		visit         func(client)
		want          string
	}{
		{"exempt matches all", "zone pages {\n limit 5 1/h\n exempt path /a*\n}", get("/about"), "pages: matches nearly all"},
		{"exempt as sent", "zone pages {\n limit 5 1/h\n exempt path /assets/*\n}", get("/assets/x"), "pages: as clients send them"},
		{"no key", "zone api {\n limit 5 1/h\n key header X-Kee\n}\nzone all {\n limit 99 1/s\n}", get("/"), "api: the key is missing"},
		{"one key", "zone api {\n limit 5 1/h\n key header X-Proxy\n}\nzone all {\n limit 99 1/s\n}", func(c client) { c.with("X-Proxy", "edge").get("/") }, "api: the same key"},
		{"no cost header", "zone api {\n limit 50 1/h\n settle header X-Cost\n}", get("/"), "api: no response has said"},
		{"a log-in is charged", "zone login {\n limit 50 1/h\n settle status 302 1\n}", get("/login"), "login: settle charges redirects"},
	} {
		t.Run(test.about, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := run(t, `http:// {
					@login path /login
					header @login Set-Cookie "session=1; HttpOnly"
					rewrite /assets/* /files{uri}
					throttle {
						`+test.config+`
					}
					respond /login 302
					respond ok
				}`)
				for n := range 18 {
					for range 5 {
						test.visit(s.network(n))
					}
				}
				s.aDayLater()
				s.wantWords(t) // of too few networks
				for day := range 2 {
					for n := range 25 {
						test.visit(s.network(n))
						test.visit(s.network(n))
					}
					if day == 0 {
						s.wantWords(t) // before the day is over
					}
					s.aDayLater()
					s.wantWords(t, test.want)
				}
				s.stop()
			})
		})
	}
}

// A month of a quiet blog, and of a busy one: readers, feed readers, a school behind one
// address, crawlers, scanners that guess passwords before the owner has logged in once, and
// an owner who logs in each week. Everything is as it should be, and evidence says nothing.
func TestACorrectSiteIsToldOfNothing(t *testing.T) {
	for _, readers := range []int{3, 60} {
		config := readmeSite(t, 3)
		for _, change := range [][2]string{
			{"@php not path *.css\n\trespond @php ok", `@in {
				method POST
				path */wp-login.php
				header X-Password right
			}
			handle @in {
				header Set-Cookie "wordpress_logged_in=1; HttpOnly"
				respond 302
			}
			@unknown path /missing* /blog/wp-login.php
			respond @unknown 404
			@php not path *.css
			respond @php ok`},
			{"zone login {", `zone api {
				match path /wp-json/*
				key header X-Api-Key missing client_ip unlisted client_ip
				limit 60 1/s
				override partner 600 10/s
			}
			zone heavy {
				match path /export
				limit 10 1/m
				settle seconds
			}
			zone login {`},
		} {
			if !strings.Contains(config, change[0]) {
				t.Fatalf("the README's configuration has no %q", change[0])
			}
			config = strings.Replace(config, change[0], change[1], 1)
		}
		synctest.Test(t, func(t *testing.T) {
			s := run(t, config)
			for day := range 30 {
				for n := range readers {
					c := s.network(n + 7*day)
					for _, path := range []string{"/", "/0.css", "/1.css", "/2.css", "/a-page", "/missing", "/export"} {
						c.get(path)
					}
				}
				for n := range 25 {
					s.network(1000 + n).get("/feed/")
					s.network(1030 + n).get("/robots.txt")
				}
				for range 60 {
					s.from("198.51.100.1:1").get(fmt.Sprintf("/course?day=%d", day)) // the school
				}
				for n := range 22 {
					scanner := s.network(2000 + n + day)
					for range 7 {
						scanner.send("POST", "/wp-login.php")
					}
					scanner.send("POST", "/xmlrpc.php")
					scanner.get("/blog/wp-login.php")
					scanner.get("/wp-json/wp/v2/users")
				}
				if day%7 == 6 {
					s.from("203.0.113.7:1").with("X-Password", "right").send("POST", "/wp-login.php")
					s.from("203.0.113.8:1").with("X-Api-Key", "partner").get("/wp-json/x")
				}
				s.aDayLater()
			}
			if facts := s.facts("heavy"); facts.Asked == 0 || facts.Charged+facts.Refunded != facts.Asked {
				t.Errorf("got %+v, want requests that were settled", facts)
			}
			s.wantWords(t)
			s.stop()
		})
	}
}

// A single client makes no word appear, whatever it sends.
func TestOneNetworkMakesNoWordAppear(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := run(t, `http:// {
			throttle {
				zone login {
					match path /login
					limit 5 1/h
				}
				zone api {
					limit 1000 1/s
					key header X-Key
					exempt path /a*
					settle header X-Cost
				}
				zone all {
					limit 9999 9/s
				}
			}
			respond ok
		}`)
		for range 3 {
			for n := range 400 {
				c := s.from(fmt.Sprintf("203.0.113.%d:1000", n%250))
				c.get("/x/login")
				c.get("/login/")
				c.get("/a")
				c.with("X-Key", "k").get("/b")
			}
			s.aDayLater()
		}
		s.wantWords(t)
		s.stop()
	})
}

// The figures of a config begin with it.
func TestAZoneThatIsUnmetForAWeekIsNamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := run(t, "http:// {\n throttle {\n zone login {\n match path /signin\n limit 5 1/h\n}\n}\nrespond ok\n}")
		for range 8 {
			for range 2600 {
				s.from(someone).get("/")
			}
			time.Sleep(25 * time.Hour)
		}
		for range 1024 { // nobody asks for the facts
			s.from(someone).get("/")
		}
		if lines := s.logs.lines(t, "no request has met the zone since"); len(lines) != 1 || lines[0]["level"] != "info" {
			t.Errorf("got %v, want one line of information", lines)
		}
		if len(s.app().Warnings.List()) > 0 {
			t.Errorf("got the warnings %v, want none", s.app().Warnings.List())
		}
		s.stop()
	})
}

func TestAnOverrideThatIsUnmetForAWeekIsNamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := run(t, "http:// {\n throttle {\n zone pages {\n limit 500 5/h\n override 203.0.113.7 900 9/h\n override 192.0.2.0/24 unlimited\n}\n}\nrespond ok\n}")
		for range 9 {
			s.from(someone).get("/")
			s.from("203.0.113.7:1").get("/")
			s.aDayLater()
		}
		lines := s.logs.lines(t, "no request has met some overrides")
		if len(lines) != 1 || lines[0]["level"] != "info" || fmt.Sprint(lines[0]["overrides"]) != "[2]" {
			t.Errorf("got %v, want one line of information about the second override", lines)
		}
		s.stop()
	})
}
