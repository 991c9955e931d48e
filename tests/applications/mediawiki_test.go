package applications

import (
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
	"github.com/caddy-throttle/caddy-throttle/tests/internal/system"
)

// mediaWiki is MediaWiki from Debian's package, with a database and five PHP workers
// of its own, ten articles with ten edits each, and the accounts Alice and Bob. At the
// end of its LocalSettings.php stand the lines of the recipe.
var mediaWiki = application{install: installMediaWiki}

const (
	mediaWikiPackage  = "/usr/share/mediawiki"
	mediaWikiPassword = "correct horse battery staple"
)

func installMediaWiki(t *testing.T, a *application) {
	php := system.Need(t, "php")
	if _, err := os.Stat(mediaWikiPackage); err != nil {
		system.Need(t, "MediaWiki in "+mediaWikiPackage)
	}
	database := a.startMariaDB(t)
	run := func(script string, words ...string) {
		t.Helper()
		cmd := exec.Command(php, append([]string{script}, words...)...)
		cmd.Env = append(os.Environ(), "MEDIAWIKI="+mediaWikiPackage)
		if script != mediaWikiPackage+"/maintenance/install.php" {
			cmd.Env = append(cmd.Env, "MW_CONFIG_FILE="+filepath.Join(a.dir, "LocalSettings.php"))
		}
		outputOf(t, cmd)
	}
	run(mediaWikiPackage+"/maintenance/install.php", "--confpath", a.dir, "--server", "https://localhost", "--scriptpath", "",
		"--dbtype", "mysql", "--dbserver", "localhost:"+database, "--dbname", "site", "--dbuser", "site", "--dbpass", "site",
		"--pass", mediaWikiPassword, "The wiki", "Alice")

	recipe := strings.Join(system.Code(system.Page(t, "docs/recipes/mediawiki.md"), "php"), "")
	check.Assume(t, recipe != "", "got no PHP in mediawiki.md, want the lines for LocalSettings.php")
	ours, err := os.ReadFile("testdata/mediawiki/LocalSettings.php")
	check.OK(t, err)
	settings, err := os.OpenFile(filepath.Join(a.dir, "LocalSettings.php"), os.O_APPEND|os.O_WRONLY, 0)
	check.OK(t, err)
	defer settings.Close()
	check.Must(fmt.Fprintf(settings, "\n%s\n%s", ours, recipe))(t)
	for name, mode := range map[string]os.FileMode{"cache": os.ModeDir, "passwords.log": 0} {
		path := filepath.Join(a.dir, name)
		if mode.IsDir() {
			err = os.Mkdir(path, 0o777)
		} else {
			err = os.WriteFile(path, nil, 0o666)
		}
		if err == nil {
			err = os.Chmod(path, 0o777)
		}
		check.OK(t, err)
	}
	run(mediaWikiPackage+"/maintenance/createAndPromote.php", "Bob", mediaWikiPassword)
	seed, err := filepath.Abs("testdata/mediawiki/seed.php")
	check.OK(t, err)
	run(seed)
	outputOf(t, exec.Command("chmod", "--recursive", "a+rwX", filepath.Join(a.dir, "cache")))
	a.startFPM(t, "env[MW_CONFIG_FILE] = "+filepath.Join(a.dir, "LocalSettings.php"))
}

// startMediaWiki runs it behind the Caddyfile of its recipe, with more changes.
func startMediaWiki(t *testing.T, changes ...string) *system.Trial {
	t.Helper()
	return startPackage(t, "mediawiki.md", &mediaWiki, "unix//run/php/php-fpm.sock", "fpm.sock", append([]string{
		"/var/www/mediawiki", mediaWikiPackage,
	}, changes...)...)
}

// A loginToken is what MediaWiki wants to see in logins, and the cookies that belong
// to it. It may be used again.
type loginToken struct{ token, cookie string }

func askLoginToken(s *system.Trial) loginToken {
	s.T.Helper()
	a := s.Must(system.Request{Address: "203.0.113.1", Target: "/api.php?action=query&meta=tokens&type=login&format=json"})
	var said struct {
		Query struct {
			Tokens struct{ Logintoken string }
		}
	}
	err := json.Unmarshal([]byte(a.Body), &said)
	check.Assume(s.T, err == nil && said.Query.Tokens.Logintoken != "", "got %d %q and %v, want a token", a.Status, a.Body, err)
	return loginToken{said.Query.Tokens.Logintoken, cookiesOf(a)}
}

// cookiesOf returns the cookies that an answer sets, as a browser sends them back.
func cookiesOf(a system.Answer) string {
	var cookies []string
	for _, set := range a.Header.Values("Set-Cookie") {
		cookie, _, _ := strings.Cut(set, ";")
		cookies = append(cookies, cookie)
	}
	return strings.Join(cookies, "; ")
}

// A wikiLogin is a way to log in.
type wikiLogin struct {
	target                string
	name, password, token string // the fields
	more                  string // other fields
}

var wikiLogins = map[string]wikiLogin{
	"query title": {"/index.php?title=Special:UserLogin", "wpName", "wpPassword", "wpLoginToken", "authAction=login"},
	"path":        {"/index.php/Special:UserLogin", "wpName", "wpPassword", "wpLoginToken", "authAction=login"},
	"clientlogin": {"/api.php", "username", "password", "logintoken", "action=clientlogin&format=json&loginreturnurl=https://localhost/"},
	"login":       {"/api.php", "lgname", "lgpassword", "lgtoken", "action=login&format=json"},
}

func (l wikiLogin) try(token loginToken, address, name, password string) system.Request {
	form := url.Values{l.name: {name}, l.password: {password}, l.token: {token.token}}
	return system.Request{
		Address: address, Method: "POST", Target: l.target,
		Header: []string{"Cookie", token.cookie}, Body: form.Encode() + "&" + l.more,
	}
}

func wikiChecks(t *testing.T) int {
	t.Helper()
	return len(mediaWiki.lines(t, "passwords.log", ""))
}

// TestMediaWikiChecksFewGuesses behind the Caddyfile of its recipe, by each of its
// ways to log in.
func TestMediaWikiChecksFewGuesses(t *testing.T) {
	const most = 12
	for way, login := range wikiLogins {
		t.Run(way, func(t *testing.T) {
			s := startMediaWiki(t)
			token, before := askLoginToken(s), wikiChecks(t)
			statuses := s.Attack(200, 20, func(i int) system.Request {
				return login.try(token, system.NetworkAddress(i%100), "Alice", "wrong")
			})
			checked := wikiChecks(t) - before
			t.Logf("200 guesses by %s from 100 addresses: %d checked, %v by status", way, checked, statuses)
			check.That(t, checked != 0 && checked <= most, "got %d checked, want some, and %d at most", checked, most)
			s.Must(login.try(token, "203.0.113.2", "Bob", mediaWikiPassword))
			check.Equal(t, wikiChecks(t)-before-checked, 1, "checked of the login to another account")
		})
	}
}

// TestMediaWikiChecksAsFewGuessesWhenTheyAreHidden: each comes from an address of its
// own.
func TestMediaWikiChecksAsFewGuessesWhenTheyAreHidden(t *testing.T) {
	const most = 12
	plain := wikiLogins["query title"]
	for name, disguise := range map[string]func(i int, r *system.Request){
		"spellings of the name": func(i int, r *system.Request) {
			names := []string{"alice", "ALICE", " Alice", "Alice_", "User:Alice", "user:alice", "Al\u200eice", "Alice\u00a0", "\u00adAlice", "Alice  "}
			r.Body = strings.Replace(r.Body, "wpName=Alice", "wpName="+url.QueryEscape(names[i%len(names)]), 1)
		},
		"references in the name": func(i int, r *system.Request) {
			r.Body = strings.Replace(r.Body, "wpName=Alice", "wpName=Alice"+strings.Repeat("%26nbsp%3B", i), 1)
		},
		"the title in the form": func(_ int, r *system.Request) {
			r.Target, r.Body = "/index.php?title=Pump_1&action=submit", r.Body+"&title=Special:UserLogin"
		},
		"the name in the address": func(_ int, r *system.Request) {
			r.Target, r.Body = r.Target+"&wpName=Alice", strings.Replace(r.Body, "wpName=Alice", "x=y", 1)
		},
		"the name twice": func(_ int, r *system.Request) { r.Body = "wpName=Bob&" + r.Body },
		"an encoding":    func(_ int, r *system.Request) { r.Header = append(r.Header, "Content-Encoding", "gzip") },
		"an odd type": func(_ int, r *system.Request) {
			r.Header = append(r.Header, "Content-Type", system.Urlencoded+" x; a=b")
		},
		"post":                   func(_ int, r *system.Request) { r.Method = "post" },
		"get":                    func(_ int, r *system.Request) { r.Method = "get" },
		"a broken query":         func(_ int, r *system.Request) { r.Target = "/index.php?title=Special:UserLogin&%zz" },
		"another case of a path": func(_ int, r *system.Request) { r.Target = "/API.PHP/x?title=Special:UserLogin" },
	} {
		t.Run(name, func(t *testing.T) {
			s := startMediaWiki(t)
			token, before := askLoginToken(s), wikiChecks(t)
			statuses := s.Attack(60, 10, func(i int) system.Request {
				r := plain.try(token, system.NetworkAddress(i), "Alice", "wrong")
				disguise(i, &r)
				return r
			})
			checked := wikiChecks(t) - before
			t.Logf("60 guesses with %s, from 60 addresses: %d checked, %v by status", name, checked, statuses)
			check.That(t, checked <= most, "got %d checked, want %d at most", checked, most)
		})
	}
}

// TestMediaWikiTrustsABrowserWithItsOwnAccount, and not with another that the request names, too.
func TestMediaWikiTrustsABrowserWithItsOwnAccount(t *testing.T) {
	s := startMediaWiki(t)
	for i, test := range []struct {
		way, name, more string
		trusted         bool
	}{
		{"query title", "bob", "", true},
		{"login", "Bob", "?wpName=Alice&wpPassword=x", false},
		{"login", "Bob", "?wp-name=Alice&wpPassword=x", false},
	} {
		r := wikiLogins[test.way].try(askLoginToken(s), system.NetworkAddress(i), test.name, mediaWikiPassword)
		r.Target += test.more
		cookies := cookiesOf(s.Must(r))
		check.That(t, strings.Contains(cookies, "logged_in_now="), "%s%s: got the cookies %q, want a login", test.way, test.more, cookies)
		check.Equal(t, strings.Contains(cookies, "throttle-device-account="), test.trusted, "%s%s: trusted, with the cookies %q", test.way, test.more, cookies)
	}
}

// TestMediaWikiServesAnEditor who logs in, previews an edit four times, saves it, and
// looks at its history and at a diff.
func TestMediaWikiServesAnEditor(t *testing.T) {
	s := startMediaWiki(t)
	p := newPerson(s, startPeople(s), "203.0.113.20")
	click := func(query, then string) {
		t.Helper()
		p.await(fmt.Sprintf("document.readyState === 'complete' && document.querySelector(%q)", query))
		p.Run(fmt.Sprintf("document.querySelector(%q).click()", query))
		p.await("document.readyState === 'complete' && " + then)
	}
	p.visit("/index.php?title=Special:UserLogin")
	p.Run(fmt.Sprintf("document.querySelector('#wpName1').value = 'Bob'; document.querySelector('#wpPassword1').value = %q", mediaWikiPassword))
	click("#wpLoginAttempt", "mw.config.get('wgUserName') === 'Bob'")
	p.visit("/index.php?title=Pump_1")
	p.visit("/index.php?title=Pump_1&action=edit")
	for n := range 4 {
		p.await("document.querySelector('#wpTextbox1')")
		p.Run(fmt.Sprintf("document.querySelector('#wpTextbox1').value += '\\n\\nPreview %d.'", n))
		click("#wpPreview", fmt.Sprintf("document.querySelector('#wikiPreview')?.innerText.includes('Preview %d.')", n))
	}
	click("#wpSave", "mw.config.get('wgAction') === 'view' && document.body.innerText.includes('Preview 3.')")
	click("#ca-history a", "mw.config.get('wgAction') === 'history'")
	click(".mw-history-compareselectedversions-button", "document.querySelector('table.diff')")
	s.CheckComfort("203.0.113.20")
}
