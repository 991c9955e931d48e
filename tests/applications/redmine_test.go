package applications

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
	"github.com/caddy-throttle/caddy-throttle/tests/internal/system"
)

// redmine is Redmine from Debian's package under Puma, in two processes with three
// threads each. It has a project with 400 issues, and somebody called alice.
var redmine = application{install: installRedmine}

const (
	redminePackage  = "/usr/share/redmine"
	redminePassword = "correct horse"
)

func installRedmine(t *testing.T, a *application) {
	bundle, puma := system.Need(t, "bundle"), system.Need(t, "puma")
	if _, err := os.Stat(redminePackage); err != nil {
		system.Need(t, "Redmine in "+redminePackage)
	}
	root := filepath.Join(a.dir, "redmine")
	outputOf(t, exec.Command("cp", "--recursive", redminePackage, root))
	// The package links to the one instance of this machine.
	for _, link := range []string{"Gemfile.lock", "instances", "config/database.yml"} {
		check.OK(t, os.Remove(filepath.Join(root, link)))
	}
	gems := check.Must(os.ReadFile(filepath.Join(root, "Gemfile")))(t)
	instance := filepath.Join(root, "instances/default")
	for _, folder := range []string{"config", "tmp", "log", "files"} {
		check.OK(t, os.MkdirAll(filepath.Join(instance, folder), 0o755))
	}
	counts := check.Must(os.ReadFile("testdata/redmine/count.rb"))(t)
	for name, text := range map[string]string{
		filepath.Join(root, "Gemfile"):                         strings.ReplaceAll(string(gems), redminePackage+"/", root+"/"),
		filepath.Join(root, "Gemfile.local"):                   "gem 'puma'\n",
		filepath.Join(root, "config/initializers/counts.rb"):   string(counts),
		filepath.Join(root, "config/initializers/throttle.rb"): recipeCode(t, "rails.md", "ruby"),
		filepath.Join(instance, "config/secret_key.txt"):       strings.Repeat("0123456789abcdef", 4),
		filepath.Join(instance, "config/database.yml"): fmt.Sprintf(
			"production:\n  adapter: sqlite3\n  database: %s/redmine.sqlite\n  timeout: 10000\n", a.dir),
	} {
		check.OK(t, os.WriteFile(name, []byte(text), 0o644))
	}
	seed := check.Must(filepath.Abs("testdata/redmine/seed.rb"))(t)
	command := func(words ...string) *exec.Cmd {
		cmd := exec.Command(bundle, words...)
		cmd.Dir = root
		cmd.Env = append(os.Environ(), "RAILS_ENV=production", "REDMINE_LANG=en", "HOME="+a.dir,
			"PASSWORDS_LOG="+filepath.Join(a.dir, "passwords.log"))
		return cmd
	}
	outputOf(t, command("install", "--local"))
	outputOf(t, command("exec", "rake", "db:migrate"))
	outputOf(t, command("exec", "rake", "redmine:load_default_data"))
	outputOf(t, command("exec", "rails", "runner", seed))
	socket := filepath.Join(a.dir, "puma.sock")
	a.run(t, command("exec", puma, "--config", "-", "--environment", "production", "--workers", "2", "--threads", "3:3",
		"--preload", "--bind", "unix://"+socket, "config.ru"), socket)
}

// startRedmine runs it behind the Caddyfile of the recipe for Rails, with more changes.
func startRedmine(t *testing.T, changes ...string) *system.Trial {
	t.Helper()
	return startPackage(t, "rails.md", &redmine, "localhost:3000", "puma.sock", append([]string{
		"/srv/app/public", redminePackage + "/public",
	}, changes...)...)
}

func redmineChecks(t *testing.T) int {
	t.Helper()
	return len(redmine.lines(t, "passwords.log", ""))
}

// redmineForm returns the login form with a token that may be used again, and the
// cookies that belong to it.
func redmineForm(s *system.Trial, address string) (form url.Values, cookies string) {
	s.T.Helper()
	a := s.Must(system.Request{Address: address, Target: "/login"})
	token := regexp.MustCompile(`name="csrf-token" content="([^"]+)"`).FindStringSubmatch(a.Body)
	check.Assume(s.T, token != nil, "got %d %q, want a form with a token", a.Status, a.Body)
	return url.Values{"authenticity_token": {token[1]}, "username": {"alice"}, "password": {"wrong"}}, cookiesOf(a)
}

func basic(address, name, password, target string) system.Request {
	return system.Request{
		Address: address, Target: target,
		Header: []string{"Authorization", "Basic " + base64.StdEncoding.EncodeToString([]byte(name+":"+password))},
	}
}

// TestRedmineChecksFewGuesses behind the Caddyfile of the recipe for Rails, however
// they are written.
func TestRedmineChecksFewGuesses(t *testing.T) {
	const (
		most  = 12
		oddly = "HTTP Basic, written oddly" // in the bucket of the account and in @unclear
	)
	type way struct {
		name string
		next func(form url.Values, cookies, address string, i int) system.Request
	}
	post := func(target string, change func(form url.Values)) func(url.Values, string, string, int) system.Request {
		return func(form url.Values, cookies, address string, _ int) system.Request {
			changed := url.Values{}
			for name, values := range form {
				changed[name] = values
			}
			if change != nil {
				change(changed)
			}
			return system.Request{Address: address, Method: "POST", Target: target, Header: []string{"Cookie", cookies}, Body: changed.Encode()}
		}
	}
	for _, w := range []way{
		{"the form", post("/login", nil)},
		{"JSON's address", post("/login.json", nil)},
		{"a slash", post("/login/", nil)},
		{"two slashes", post("//login", nil)},
		{"the name in the address", post("/login?username=alice", func(form url.Values) { form.Del("username") })},
		{"the name in brackets in the address", post("/login?%5Busername%5D=alice", func(form url.Values) { form.Del("username") })},
		{"the name twice", post("/login", func(form url.Values) { form["username"] = []string{"bob", "alice"} })},
		{"spellings of the name", func(form url.Values, cookies, address string, i int) system.Request {
			names := []string{"Alice", "ALICE", " alice", "alice\t", "alice\x00", "\x00 alice\x00\x00"}
			return post("/login", func(form url.Values) { form.Set("username", names[i%len(names)]) })(form, cookies, address, i)
		}},
		{"JSON", func(form url.Values, cookies, address string, _ int) system.Request {
			body := check.Must(json.Marshal(map[string]string{"username": "alice", "password": "wrong"}))(t)
			return system.Request{Address: address, Method: "POST", Target: "/login.json", Header: []string{"Content-Type", "application/json"}, Body: string(body)}
		}},
		{"HTTP Basic", func(_ url.Values, _, address string, _ int) system.Request {
			return basic(address, "alice", "wrong", "/users/current.json")
		}},
		{"HTTP Basic at a public page", func(_ url.Values, _, address string, _ int) system.Request {
			return basic(address, "alice", "wrong", "/issues.json?limit=1")
		}},
		{oddly, func(_ url.Values, _, address string, i int) system.Request {
			r := basic(address, []string{"alice", "Alice", " alice"}[i%3], "wrong", "/users/current.json")
			r.Header[1] = []string{"basic ", "BASIC  ", "Basic "}[i%3] + strings.TrimPrefix(r.Header[1], "Basic ") + []string{"", "!", "=="}[i/3%3]
			return r
		}},
	} {
		want := most
		if w.name == oddly {
			want = 2 * most
		}
		t.Run(w.name, func(t *testing.T) {
			s := startRedmine(t)
			form, cookies := redmineForm(s, "203.0.113.1")
			before := redmineChecks(t)
			statuses := s.Attack(200, 20, func(i int) system.Request { return w.next(form, cookies, system.NetworkAddress(i%100), i) })
			checked := redmineChecks(t) - before
			t.Logf("200 guesses by %s from 100 addresses: %d checked, %v by status", w.name, checked, statuses)
			check.That(t, checked <= want && statuses[429]+statuses[400] != 0, "got %d checked and %v by status, want %d checked at most, and some of 400 or 429", checked, statuses, want)
		})
	}
}

// TestRedmineServesSomebodyAtWork who logs in, lists issues, changes one, and searches
// six times.
func TestRedmineServesSomebodyAtWork(t *testing.T) {
	s := startRedmine(t)
	p := newPerson(s, startPeople(s), "203.0.113.20")
	p.visit("/login")
	p.Run(fmt.Sprintf("document.querySelector('#username').value = 'alice'; document.querySelector('#password').value = %q; document.querySelector('#login-submit').click()", redminePassword))
	p.await("document.querySelector('#loggedas')")
	p.visit("/projects/museum/issues")
	p.visit("/issues/7")
	p.visit("/issues/7/edit")
	p.Run("document.querySelector('#issue_notes').value = 'It is mended.'; document.querySelector('#issue-form input[name=commit]').click()")
	p.await("document.querySelector('#history')?.innerText.includes('It is mended.')")
	for _, word := range []string{"pump", "valve", "river", "paper", "ticket", "shelf"} {
		p.visit("/search?q=" + word)
		p.await("document.querySelector('#search-results')")
	}
	s.CheckComfort("203.0.113.20")
}
