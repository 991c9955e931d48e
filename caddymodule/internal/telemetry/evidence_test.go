package telemetry_test

import (
	"fmt"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/evidence"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/servertest"
)

// facts returns what a zone of the site has met.
func facts(s *servertest.Site, zone string) evidence.Facts {
	return s.Engine().Zones[zone].Counts.Evidence.Facts()
}

// words returns the words of evidence that the site's log has.
func words(s *servertest.Site, t *testing.T) (all []string) {
	t.Helper()
	for _, line := range s.Logs.Lines(t, "look whether") {
		if line["level"] != "warn" {
			continue // information
		}
		all = append(all, fmt.Sprint(line["zone"], ": ", line["msg"]))
	}
	return all
}

// wantWords checks that evidence has said, of each zone, what contains these texts, and
// nothing else.
func wantWords(s *servertest.Site, t *testing.T, want ...string) {
	t.Helper()
	got := words(s, t)
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

// aDayLater has the zones judge a day. Two hours of it pass, in which buckets leak, and not
// the ticks of the others, which would take most of the test's time.
func aDayLater(s *servertest.Site) {
	time.Sleep(2 * time.Hour)
	s.Later += 23 * time.Hour
	for _, z := range s.Engine().Zones {
		z.Counts.Evidence.Judge(time.Now().Add(s.Later))
	}
}

func TestFactsAreKnownFromTheFirstRequest(t *testing.T) {
	s := servertest.Run(t, `http:// {
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
		s.From(servertest.Someone).Get("/login")
	}
	s.From("203.0.113.9:1000").Get("/login")
	s.From("198.51.100.1:1000").Get("/login")
	s.From(servertest.Someone).Get("/api")
	s.From(servertest.Someone).With("X-Key", "a").Get("/api")
	for range 13 {
		s.From(servertest.Someone).Get("/other")
	}
	for zone, want := range map[string]evidence.Facts{
		"login": {Requests: 20, Asked: 4, Exempt: 1, Keys: 2, Networks: 2, Charged: 4},
		"api":   {Requests: 20, Asked: 1, Keyless: 1, Keys: 1, Networks: 1},
	} {
		got := facts(s, zone)
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
		{"what a rewrite behind it makes of another address", "zone login {\n match path /is/deep/*\n limit 5 1/h\n}", "/behind", 3, 0},
		{"an error", "zone login {\n match path /missing\n limit 5 1/h\n}", "/a/missing", 3, 0},
		{"another address", "zone login {\n match path /wp-login.php*\n limit 5 1/h\n}", "/page", 3, 0},
		{"the address, and another method", "zone login {\n match {\n path /login*\n method POST\n }\n limit 5 1/h\n}", "/login", 3, 0},
		{"the front page", "zone login {\n match path /\n limit 5 1/h\n}", "/page/", 3, 0},
	} {
		s := servertest.Run(t, "http:// {\n throttle {\n"+test.config+"\n}\nrewrite /rewritten /is/deep/down\nhandle /behind {\nrewrite * /is/deep/down\nrespond ok\n}\n@missing path */missing\nrespond @missing 404\nrespond ok\n}")
		for n := range test.networks {
			for range 5 {
				s.Network(n).Get(test.path)
			}
		}
		var want []string
		if test.path == "/behind" {
			want = append(want, "login: look whether throttle belongs into the block")
		}
		for range test.want {
			want = append(want, "login: ends like one of its paths")
		}
		t.Run(test.about, func(t *testing.T) { wantWords(s, t, want...) })
		s.Stop()
	}
}

// A zone that is met elsewhere does not see what a rewrite behind it makes. Found within 1,000
// requests that show it.
func TestAnAddressThatARewriteBehindTheDirectiveMakesIsNamed(t *testing.T) {
	const zones = "throttle {\nzone login {\nmatch path /wp-login.php*\nlimit 900 1/s\n}\n}\n"
	for _, test := range []struct {
		about, site, path string
		networks, want    int
	}{
		{"a prefix that is stripped", zones + "handle_path /blog/* {\nrespond ok\n}\nrespond ok", "/blog/wp-login.php", 20, 1},
		{"another name", zones + "handle /login {\nrewrite * /wp-login.php\nrespond ok\n}\nrespond ok", "/login", 20, 1},
		{"two networks", zones + "handle_path /blog/* {\nrespond ok\n}\nrespond ok", "/blog/wp-login.php", 2, 0},
		{"another address", zones + "handle_path /blog/* {\nrespond ok\n}\nrespond ok", "/blog/post", 20, 0},
		{"an error", zones + "handle_path /blog/* {\nrespond 404\n}\nrespond ok", "/blog/wp-login.php", 20, 0},
		{"a front controller", strings.Replace(zones, "/wp-login.php*", "/index.php*", 1) + "handle /* {\nrewrite * /index.php\nrespond ok\n}", "/post", 20, 0},
		{"throttle in the block", "handle_path /blog/* {\n" + zones + "respond ok\n}\nrespond ok", "/blog/wp-login.php", 20, 0},
	} {
		s := servertest.Run(t, "http:// {\n"+test.site+"\n}")
		for n := range 1000 {
			s.Network(n % 20).Get("/wp-login.php")
			s.Network(n % test.networks).Get(test.path)
		}
		var want []string
		for range test.want {
			want = append(want, "login: look whether throttle belongs into the block")
		}
		t.Run(test.about, func(t *testing.T) { wantWords(s, t, want...) })
		s.Stop()
	}
}

// A matcher beside the zones is what they match.
func TestANearMissOfADirectivesMatcherIsNamed(t *testing.T) {
	s := servertest.Run(t, "http:// {\n@login path /wp-login.php*\nthrottle @login login 5 1/h\nrespond ok\n}")
	for n := range 3 {
		s.Network(n).Get("/blog/wp-login.php")
	}
	wantWords(s, t, "login: ends like one of its paths")
	if warnings := s.Engine().Warnings.List(); len(warnings) != 1 || warnings[0].Details["address"] != "/blog/wp-login.php" {
		t.Errorf("kept warnings: got %v, want the near miss", warnings)
	}
}

// A misconfigured zone, by what a client that shows it sends.
type shownMistake struct {
	about, zones string
	visit        func(servertest.Client)
	want         string // of the word
}

var shownMistakes = []shownMistake{
	{"exempt matches all", "zone pages {\n limit 5 1/h\n exempt path /a*\n}", visiting("/about"), "pages: matches nearly all"},
	{"exempt as sent", "zone pages {\n limit 5 1/h\n exempt path /assets/*\n}", visiting("/assets/x"), "pages: as clients send them"},
	{"no key", "zone api {\n limit 5 1/h\n key header X-Kee\n}\nzone all {\n limit 99 1/s\n}", visiting("/"), "api: the key is missing"},
	{"one key", "zone api {\n limit 5 1/h\n key header X-Proxy\n}\nzone all {\n limit 99 1/s\n}", func(c servertest.Client) { c.With("X-Proxy", "edge").Get("/") }, "api: the same key"},
	{"no cost header", "zone api {\n limit 50 1/h\n settle header X-Cost\n}", visiting("/"), "api: no response has said"},
	{"no such items", "zone imports {\n limit 50 1/h\n cost body_items rows\n}", func(c servertest.Client) { post(c, "/", "application/json", `{"row": [1, 2, 3]}`) }, "imports: no more than one item"},
	{"a log-in is charged", "zone login {\n limit 50 1/h\n settle status 302 1\n}", visiting("/login"), "login: settle charges redirects"},
}

func visiting(path string) func(servertest.Client) { return func(c servertest.Client) { c.Get(path) } }

// post sends a body.
func post(c servertest.Client, target, kind, body string) {
	r := httptest.NewRequest("POST", "http://example.com"+target, strings.NewReader(body))
	r.RemoteAddr, r.Header = c.Addr, c.Header.Clone()
	r.Header.Set("Content-Type", kind)
	c.Do(r)
}

func (m shownMistake) site(t *testing.T) *servertest.Site {
	return servertest.Run(t, `http:// {
		@login path /login
		header @login Set-Cookie "session=1; HttpOnly"
		rewrite /assets/* /files{uri}
		throttle {
			`+m.zones+`
		}
		respond /login 302
		respond ok
	}`)
}

// Twenty networks are enough, and 1,000 requests, once the day is over.
func TestADayShowsMistakesOnce(t *testing.T) {
	const enough = 24 // and not 20: networks are counted by a hash, which may take two for one
	for _, m := range shownMistakes {
		t.Run(m.about, func(t *testing.T) {
			servertest.InBubble(t, func(t *testing.T) {
				s := m.site(t)
				visits := func(networks int) {
					for n := range networks {
						for range 1000 / networks {
							m.visit(s.Network(n))
						}
					}
				}
				visits(19)
				aDayLater(s)
				wantWords(s, t) // of too few networks
				for day := range 2 {
					visits(enough)
					if day == 0 {
						wantWords(s, t) // before the day is over
					}
					aDayLater(s)
					wantWords(s, t, m.want)
				}
				s.Stop()
			})
		})
	}
}

// A single client, or all of a network, makes none of these words appear.
func TestOneNetworkMakesNoWordAppear(t *testing.T) {
	mistakes := append(shownMistakes, shownMistake{"a near miss", "zone login {\n match path /signin\n limit 5 1/h\n}", visiting("/x/signin"), ""},
		shownMistake{"a near miss of a directory", "zone login {\n match path /signin\n limit 5 1/h\n}", visiting("/signin/"), ""})
	for _, m := range mistakes {
		t.Run(m.about, func(t *testing.T) {
			servertest.InBubble(t, func(t *testing.T) {
				s := m.site(t)
				for range 3 {
					for n := range 1000 {
						m.visit(s.From(fmt.Sprintf("203.0.113.%d:1000", n%250)))
					}
					aDayLater(s)
				}
				wantWords(s, t)
				s.Stop()
			})
		})
	}
}

// A correctSite is the configuration of a page, in front of a stand-in for its application.
type correctSite struct {
	page     string // in docs, or the README
	upstream string // what the stand-in takes the place of
	answers  string // directives of the stand-in, before it answers all others with 200
	pages    []string
	logIn    func(c servertest.Client, name, password string)
}

// form sends a form with a name and a password. The stand-ins read the password in a header.
func form(target, fields string) func(servertest.Client, string, string) {
	return func(c servertest.Client, name, password string) {
		post(c.With("X-Password", password), target, "application/x-www-form-urlencoded", fmt.Sprintf(fields, name, password))
	}
}

const success = `@in {
	method POST
	path /wp-login.php /login /users/sign_in
	header X-Password right
}
handle @in {
	header Set-Cookie "SESSION=1; HttpOnly"
	respond 302
}
`

var correctSites = []correctSite{
	{
		"README.md", "php_fastcgi unix//run/php/php-fpm.sock", strings.Replace(success, "SESSION", "wordpress_logged_in_1", 1),
		[]string{"/", "/a-page", "/style.css", "/missing", "/?s=shoes", "/wp-json/wp/v2/posts"}, form("/wp-login.php", "log=%s&pwd=%s"),
	},
	{
		"recipes/wordpress.md", "php_fastcgi unix//run/php/php-fpm.sock", strings.Replace(success, "SESSION", "wordpress_logged_in_1", 1),
		[]string{"/", "/a-page", "/style.css", "/missing", "/?s=shoes", "/?author=1", "/my-account/", "/wp-cron.php"}, form("/wp-login.php", "log=%s&pwd=%s"),
	},
	{
		"recipes/mediawiki.md", "php_fastcgi unix//run/php/php-fpm.sock", "@wrong header X-Password wrong\nheader X-Failed-Logins 0\nheader @wrong X-Failed-Logins 1\n",
		[]string{"/index.php?title=Main_Page", "/style.css", "/favicon.ico", "/load.php?modules=site", "/index.php?title=X&diff=1", "/api.php?action=opensearch&search=x"},
		form("/index.php?title=Special:UserLogin&throttle=wpName", "wpName=%s&wpPassword=%s"),
	},
	{
		"recipes/rails.md", "reverse_proxy localhost:3000", strings.Replace(success, "SESSION", "remember_user_token", 1),
		[]string{"/", "/issues", "/style.css", "/issues.pdf", "/search?q=x", "/missing"}, form("/users/sign_in", "user[email]=%s@example.com&user[password]=%s"),
	},
	{
		"recipes/apis.md", "reverse_proxy localhost:3000", "",
		[]string{"/v1/things", "/v1/search?q=x", "/v1/reports/1", "/missing"},
		func(c servertest.Client, _, password string) {
			post(c.With("X-Api-Key", map[string]string{"right": "demo-key-of-a-shop"}[password]), "/v1/batch", "application/json", `{"items": [1]}`)
		},
	},
}

// text returns the page.
func (c correctSite) text(t *testing.T) string {
	t.Helper()
	page, err := os.ReadFile(filepath.Join("../../../docs", strings.Replace(c.page, "README.md", "../README.md", 1)))
	if err != nil {
		t.Fatal(err)
	}
	return string(page)
}

// run runs the page's first whole configuration, with more exemptions, a file and the
// stand-in.
func (c correctSite) run(t *testing.T, exemptions string) *servertest.Site {
	t.Helper()
	_, config, _ := strings.Cut(c.text(t), "\nexample.com {\n")
	site, _, whole := strings.Cut(config, "\n}\n```")
	root := regexp.MustCompile(`(?m)^\troot \* .*$`)
	if !whole || !strings.Contains(site, c.upstream) || c.page != "recipes/apis.md" && !root.MatchString(site) {
		t.Fatalf("got no site with a root and %s in %s:\n%s", c.upstream, c.page, site)
	}
	folder := t.TempDir()
	if err := os.WriteFile(filepath.Join(folder, "style.css"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	site = root.ReplaceAllString(site, "root * "+folder)
	site = strings.Replace(site, "exempt static_files\n", "exempt static_files\n"+exemptions, 1)
	site = strings.Replace(site, c.upstream, c.answers+"@unknown path /missing /blog/wp-login.php\nrespond @unknown 404\n@rest not path *.css\nrespond @rest ok", 1)
	return servertest.Run(t, "{\nthrottle {\nplan free 60 1/s\nplan pro 600 20/s\n}\n}\nhttp:// {\n"+strings.NewReplacer("\t\tshadow\n", "", "\n\tlog\n", "\n").Replace(site)+"\n}\n")
}

// Nor does loading it warn, with the page's other exemptions, which are for Debian's packages
// and for files that Caddy does not serve.
func TestTheExemptionsOfAPageAreNotWarnedOf(t *testing.T) {
	exempt := regexp.MustCompile("(?s)```caddyfile\n(exempt \\{.*?)```")
	n := 0
	for _, correct := range correctSites {
		for _, fence := range exempt.FindAllStringSubmatch(correct.text(t), -1) {
			n++
			s := correct.run(t, fence[1])
			s.Warned(t, "exempt", 0)
			s.Stop()
		}
	}
	if n < 4 {
		t.Errorf("got %d exemptions on the pages, want more", n)
	}
}

// A month of a quiet site, and of a busy one, behind each first configuration: readers, feed
// readers, a school behind one address, scanners, hundreds of guesses before the first
// log-in, and an owner who logs in each week. Evidence says nothing.
func TestACorrectSiteIsToldOfNothing(t *testing.T) {
	for _, correct := range correctSites {
		for _, readers := range []int{3, 30} {
			t.Run(fmt.Sprint(correct.page, " ", readers), func(t *testing.T) {
				servertest.InBubble(t, func(t *testing.T) {
					s := correct.run(t, "")
					guesses := 0
					for day := range 30 {
						for n := range readers {
							for _, path := range correct.pages {
								s.Network(n + 7*day).Get(path)
							}
						}
						for n := range 25 {
							s.Network(1000 + n).Get("/feed/")
							s.Network(1030 + n).Get("/robots.txt")
						}
						for range 60 {
							s.From("198.51.100.1:1").Get(correct.pages[1]) // the school
						}
						for n := range 22 {
							scanner := s.Network(2000 + n + day)
							for range 7 {
								correct.logIn(scanner, "admin", "wrong")
								guesses++
							}
							scanner.Send("POST", "/xmlrpc.php")
							for _, path := range []string{"/blog/wp-login.php", "/.env", "/wp-json/wp/v2/users"} {
								scanner.Get(path)
							}
						}
						if day%7 == 6 {
							if guesses < 200 {
								t.Fatalf("got %d guesses before the first log-in, want 200 and more", guesses)
							}
							correct.logIn(s.From("203.0.113.7:1"), "owner", "right")
						}
						aDayLater(s)
					}
					wantWords(s, t)
					if len(s.Engine().Zones) < 3 {
						t.Errorf("got %d zones, want those of the page", len(s.Engine().Zones))
					}
					s.Stop()
				})
			})
		}
	}
}

// The figures of a config begin with it.
func TestAZoneThatIsUnmetForAWeekIsNamed(t *testing.T) {
	servertest.InBubble(t, func(t *testing.T) {
		s := servertest.Run(t, "http:// {\n throttle {\n zone login {\n match path /signin\n limit 5 1/h\n}\n}\nrespond ok\n}")
		for range 8 {
			for range 2600 {
				s.From(servertest.Someone).Get("/")
			}
			time.Sleep(25 * time.Hour)
		}
		for range 1024 { // nobody asks for the facts
			s.From(servertest.Someone).Get("/")
		}
		if lines := s.Logs.Lines(t, "no request has met the zone since"); len(lines) != 1 || lines[0]["level"] != "info" {
			t.Errorf("got %v, want one line of information", lines)
		}
		if len(s.Engine().Warnings.List()) > 0 {
			t.Errorf("got the warnings %v, want none", s.Engine().Warnings.List())
		}
		s.Stop()
	})
}

func TestAnOverrideThatIsUnmetForAWeekIsNamed(t *testing.T) {
	servertest.InBubble(t, func(t *testing.T) {
		s := servertest.Run(t, "http:// {\n throttle {\n zone pages {\n limit 500 5/h\n override 203.0.113.7 900 9/h\n override 192.0.2.0/24 unlimited\n}\n}\nrespond ok\n}")
		for range 9 {
			s.From(servertest.Someone).Get("/")
			s.From("203.0.113.7:1").Get("/")
			aDayLater(s)
		}
		lines := s.Logs.Lines(t, "no request has met some overrides")
		if len(lines) != 1 || lines[0]["level"] != "info" || fmt.Sprint(lines[0]["overrides"]) != "[2]" {
			t.Errorf("got %v, want one line of information about the second override", lines)
		}
		s.Stop()
	})
}
