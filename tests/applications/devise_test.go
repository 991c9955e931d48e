package applications

import (
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
	"github.com/caddy-throttle/caddy-throttle/tests/internal/system"
)

// devise is a small Rails application with Devise, from Debian's packages, under Puma
// with five threads. Its ApplicationController has the lines of the recipe.
var devise = application{install: installDevise}

func installDevise(t *testing.T, a *application) {
	ruby, puma := system.Need(t, "ruby"), system.Need(t, "puma")
	if err := exec.Command(ruby, "-e", "gem 'devise'; gem 'rails'; gem 'sqlite3'").Run(); err != nil {
		system.Need(t, "Devise, Rails and sqlite3 for Ruby")
	}
	root := filepath.Join(a.dir, "devise")
	check.OK(t, os.CopyFS(root, os.DirFS("testdata/devise")))
	controller := "class ApplicationController < ActionController::Base\n" + recipeCode(t, "rails.md", "rb") + "end\n"
	check.OK(t, os.WriteFile(filepath.Join(root, "app/controllers/application_controller.rb"), []byte(controller), 0o644))
	command := func(name string, words ...string) *exec.Cmd {
		cmd := exec.Command(name, words...)
		cmd.Dir = root
		return cmd
	}
	outputOf(t, command(ruby, "seed.rb"))
	socket := filepath.Join(a.dir, "puma.sock")
	a.run(t, command(puma, "--config", "-", "--environment", "production", "--threads", "5:5", "--bind", "unix://"+socket, "config.ru"), socket)
}

func TestTheRecipeOfDeviseKnowsWhoHasLoggedIn(t *testing.T) {
	t.Parallel()
	devise.use(t)
	s := system.StartTrial(t, "rails.md", append([]string{
		"/srv/app/public", t.TempDir(),
		"localhost:3000", "unix/" + filepath.Join(devise.dir, "puma.sock"),
	}, beforeWorkers(recipeCode(t, "rails.md", "caddyfile"))...)...)
	alice := openSession(s, "203.0.113.1", "theme=dark")
	check.Need(t, alice.logsInToDevise("wrong"), 200, "for a wrong password, want the form again")
	check.Need(t, alice.logsInToDevise("right"), 302, "want a login")
	alice.wantMember("rails", "/account")
	alice.wantNoMemberAfter("rails", func() system.Answer {
		form := url.Values{"_method": {"delete"}, "authenticity_token": {alice.opens("GET", "/", "").Body}}
		return alice.opens("POST", "/users/sign_out", form.Encode())
	})
}

// logsInToDevise returns the status of a login as alice.
func (b session) logsInToDevise(password string) int {
	b.T.Helper()
	form := url.Values{"authenticity_token": {b.opens("GET", "/", "").Body}, "user[email]": {"alice@example.com"}, "user[password]": {password}}
	return b.opens("POST", "/users/sign_in", form.Encode()).Status
}

// guessDevise is a login with a wrong password, and without the token of a form.
func guessDevise(address, account string) system.Request {
	form := url.Values{"user[email]": {account}, "user[password]": {"wrong"}}
	return system.Request{Address: address, Method: "POST", Target: "/users/sign_in", Body: form.Encode()}
}
