package applications

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"mime/multipart"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
	"github.com/caddy-throttle/caddy-throttle/tests/internal/system"
)

// checked returns how many passwords WordPress checks because of an attack.
func checked(t *testing.T, attack func()) int {
	t.Helper()
	before := passwordChecks(t)
	attack()
	return passwordChecks(t) - before
}

func passwordChecks(t *testing.T) int {
	t.Helper()
	return len(wordPress.lines(t, "passwords.log", ""))
}

// guess is a login with a wrong password.
func guess(address, name string) system.Request {
	form := url.Values{"log": {name}, "pwd": {"wrong"}, "wp-submit": {"Log In"}}
	return system.Request{Address: address, Method: "POST", Target: "/wp-login.php", Body: form.Encode()}
}

// Of one address, and at one account from all addresses.
const mostByAddress, mostByAccount = 6, 12

// wordPressChecksFewGuesses from one address, and at one account from many.
func wordPressChecksFewGuesses(t *testing.T) {
	t.Run("from one address", func(t *testing.T) {
		s := startWordPress(t)
		var statuses map[int]int
		n := checked(t, func() {
			statuses = s.Attack(500, 20, func(i int) system.Request { return guess("198.51.100.1", fmt.Sprint("user", i)) })
		})
		t.Logf("500 wrong logins from one address: %d checked, %v by status", n, statuses)
		check.That(t, n <= mostByAddress && n != 0, "got %d checked, want 1 to %d", n, mostByAddress)
		for _, page := range []string{"/", "/wp-login.php", "/kettle-1/"} {
			check.Equal(t, s.Must(system.Request{Address: "198.51.100.1", Target: page}).Status, 200, "%s: for others in that office", page)
		}
	})

	t.Run("from 200 addresses at one account", func(t *testing.T) {
		s := startWordPress(t)
		owner := newPerson(s, startPeople(s), "203.0.113.1")
		owner.logIn("admin")
		owners := 1 // its own logins
		var statuses map[int]int
		n := checked(t, func() {
			for range 4 {
				statuses = s.Attack(125, 20, func(i int) system.Request { return guess(system.NetworkAddress(i%200), "admin") })
				owner.visit("/wp-login.php?reauth=1") // forgets that it is logged in
				owner.logIn("admin")
				owners++
			}
		}) - owners + 1
		t.Logf("500 wrong logins from 200 addresses at one account: %d checked, the last by status: %v; the owner got in %d times with a device cookie", n, statuses, owners)
		check.That(t, n <= mostByAccount && n != 0, "got %d checked, want 1 to %d", n, mostByAccount)
		if refused := s.Refusals(owner.address); len(refused) > 0 {
			t.Errorf("got %q refused, want nothing of the owner", refused)
		}

		// From another browser, the owner waits for the account's bucket.
		elsewhere := guess("203.0.113.2", "admin")
		elsewhere.Body = "log=admin&pwd=right"
		s.Attack(20, 1, func(i int) system.Request { return guess(system.NetworkAddress(i), "admin") }) // takes what has leaked meanwhile
		refused := s.Must(elsewhere)
		check.Need(t, refused.Status, 429, "without a device cookie")
		wait := refused.RetryAfter(t)
		t.Logf("without a device cookie, the owner gets in %v after the guessing stops", wait)
		check.That(t, wait <= 10*time.Minute, "got a wait of %v, want ten minutes at most", wait)
		if system.Long() {
			time.Sleep(wait)
			check.Equal(t, s.Must(elsewhere).Status, 302, "after the wait")
		}
	})
}

// wordPressSeesGuessesInDisguise checks no more passwords of them than of plain
// ones.
func wordPressSeesGuessesInDisguise(t *testing.T) {
	s := startWordPress(t)
	addresses := 0
	fresh := func() string { addresses++; return system.NetworkAddress(1000 + addresses) }
	within := func(t *testing.T, what string, most int, attack func()) {
		t.Helper()
		n := checked(t, attack)
		t.Logf("%s: %d checked", what, n)
		check.That(t, n <= most, "%s: got %d checked, want %d at most", what, n, most)
	}

	for _, method := range []string{"post", "Post", "get", "gEt"} {
		address := fresh()
		within(t, "method "+method, mostByAddress, func() {
			s.Attack(40, 10, func(i int) system.Request {
				g := guess(address, fmt.Sprint(method, i))
				g.Method = method
				return g
			})
		})
	}

	t.Run("paths", func(t *testing.T) {
		reached := 0
		for i, path := range loginSpellings {
			address := fresh()
			n := 0
			for guesses := range mostByAddress + 2 {
				n += checked(t, func() {
					form := fmt.Sprintf("log=path%d-%d&pwd=wrong", i, guesses)
					s.Raw(fmt.Sprintf("POST %s HTTP/1.1\r\nHost: %s\r\nX-Forwarded-For: %s\r\nContent-Type: %s\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s",
						path, s.Host, address, system.Urlencoded, len(form), form))
				})
				if n == 0 {
					break // it does not lead to the login
				}
			}
			if n > 0 {
				reached++
			}
			check.That(t, n <= mostByAddress, "%s: got %d checked, want %d at most", path, n, mostByAddress)
		}
		t.Logf("%d path spellings: %d reached the login, none more than %d times", len(loginSpellings), reached, mostByAddress)
		check.That(t, reached >= 5, "got %d spellings that reach the login, want 5 and more for the test to mean something", reached)
	})

	t.Run("names", func(t *testing.T) {
		// Three of them nobody types, which share a budget of their own.
		within(t, "6 spellings of a name", 2*mostByAccount, func() {
			spellings := []string{"Author", " author ", "author&x1;", "<b>author", "%41author", "aúthor"}
			s.Attack(60, 10, func(i int) system.Request { return guess(system.NetworkAddress(2000+i), spellings[i%len(spellings)]) })
		})
	})

	t.Run("fields", func(t *testing.T) {
		tricks := 0
		for what, hide := range hiddenFields(t) {
			tricks++
			within(t, what, mostByAccount, func() {
				s.Attack(30, 10, func(i int) system.Request {
					g := hide()
					g.Address, g.Method, g.Target = system.NetworkAddress(3000+100*tricks+i), "POST", "/wp-login.php"
					return g
				})
			})
		}
	})
}

// loginSpellings are paths that may lead to wp-login.php.
var loginSpellings = []string{
	"/wp-login.php", "/wp-login.php/", "/wp-login.php/x", "/wp-login.php/x.css", "/wp-login.php?x", "//wp-login.php",
	"///wp-login.php", "/./wp-login.php", "/x/../wp-login.php", "/wp-admin/../wp-login.php", "/%77p-login.php",
	"/wp-login%2ephp", "/wp%2dlogin.php", "/%2fwp-login.php", "/%2e/wp-login.php", "/x/%2e%2e/wp-login.php",
	"/wp-login.php%2f", "/wp-login.php%2fx", "/wp-login.php%00", "/wp-login.php%20", "/wp-login.php.", "/wp-login.php;x=1",
	"/wp-login.php%3fx", "/wp-login.php%23", "/WP-LOGIN.PHP", "/Wp-Login.php", "/wp-login.pHp", "/wp-login.php//",
	"/wp-login.php/.", "/wp-login.php/..%2f", `/\wp-login.php`, "/%5cwp-login.php", "/index.php/wp-login.php",
	"/wp-login", "/login", "/wp-login.php/index.php", "/wp-login.php/wp-login.php", "/wp-includes/..%2fwp-login.php",
}

// hiddenFields are forms that hide from which account a password is guessed.
func hiddenFields(t *testing.T) map[string]func() system.Request {
	t.Helper()
	form := func(body string, header ...string) func() system.Request {
		return func() system.Request { return system.Request{Body: body, Header: header} }
	}
	var zipped bytes.Buffer
	zip := gzip.NewWriter(&zipped)
	check.Must(zip.Write([]byte("log=colleague&pwd=wrong")))(t)
	check.OK(t, zip.Close())
	var parts bytes.Buffer
	m := multipart.NewWriter(&parts)
	m.SetBoundary("=_odd boundary")
	for _, field := range [][2]string{{"log", "nobody"}, {"log", "colleague"}, {"pwd", "wrong"}} {
		check.OK(t, m.WriteField(field[0], field[1]))
	}
	m.Close()
	return map[string]func() system.Request{
		"the field twice":        form("log=nobody&log=colleague&pwd=wrong"),
		"a blank before it":      form("+log=colleague&pwd=wrong"),
		"a zero byte after it":   form("log%00x=colleague&pwd=wrong"),
		"an encoded letter":      form("%6cog=colleague&pwd=wrong"),
		"70 kB before it":        form("x=" + strings.Repeat("x", 70_000) + "&log=colleague&pwd=wrong"),
		"a gzipped body":         form(zipped.String(), "Content-Encoding", "gzip"),
		"gzip that is none":      form("log=colleague&pwd=wrong", "Content-Encoding", "gzip"),
		"an odd content type":    form("log=colleague&pwd=wrong", "Content-Type", "Application/X-WWW-Form-Urlencoded ; charset=utf-7"),
		"content type text":      form("log=colleague&pwd=wrong", "Content-Type", "text/plain"),
		"multipart, twice":       form(parts.String(), "Content-Type", m.FormDataContentType()),
		"two separators":         form("pwd=wrong&&log=colleague"),
		"the field as an array":  form("log[]=nobody&log=colleague&pwd=wrong"),
		"a semicolon before it":  form("x=1;log=nobody&log=colleague&pwd=wrong"),
		"no field but the query": form("pwd=wrong"),
	}
}

// callXMLRPC guesses a password by a call, or many by many calls in one request.
func callXMLRPC(address string, guesses int) system.Request {
	one := `<methodCall><methodName>wp.getUsersBlogs</methodName><params><param><value>admin</value></param><param><value>wrong</value></param></params></methodCall>`
	if guesses > 1 {
		one = `<methodCall><methodName>system.multicall</methodName><params><param><value><array><data>` +
			strings.Repeat(`<value><struct><member><name>methodName</name><value>wp.getUsersBlogs</value></member><member><name>params</name><value><array><data><value>admin</value><value>wrong</value></data></array></value></member></struct></value>`, guesses) +
			`</data></array></value></param></params></methodCall>`
	}
	return system.Request{Address: address, Method: "POST", Target: "/xmlrpc.php", Header: []string{"Content-Type", "text/xml"}, Body: one}
}

// wordPressChecksFewGuessesByXMLRPC at one method, at several in one request, and
// from many addresses.
func wordPressChecksFewGuessesByXMLRPC(t *testing.T) {
	for _, attack := range []struct {
		name                         string
		requests, addresses, guesses int
	}{
		{"one guess a request, from one address", 200, 1, 1},
		{"one guess a request, from 200 addresses", 400, 200, 1},
		{"500 guesses in a request, from 200 addresses", 50, 200, 500},
	} {
		t.Run(attack.name, func(t *testing.T) {
			s := startWordPress(t)
			var statuses map[int]int
			n := checked(t, func() {
				statuses = s.Attack(attack.requests, 20, func(i int) system.Request {
					return callXMLRPC(system.NetworkAddress(i%attack.addresses), attack.guesses)
				})
			})
			t.Logf("XML-RPC, %s: %d checked, %v by status", attack.name, n, statuses)
			check.That(t, n <= mostByAccount && n != 0, "got %d checked, want 1 to %d", n, mostByAccount)
		})
	}
}

// mostByBasic is how many guesses by HTTP Basic pass at one account: its zone leaks two a
// minute.
func mostByBasic(since time.Time) int { return mostByAccount + int(2*time.Since(since).Minutes()) }

// wordPressChecksFewPasswordsOfPages, by each of their addresses.
func wordPressChecksFewPasswordsOfPages(t *testing.T) {
	s := startWordPress(t)
	for i, form := range []system.Request{
		{Target: "/wp-login.php?action=postpass", Body: "post_password=wrong"},
		{Target: "/wp-login.php", Body: "action=postpass&post_password=wrong"},
	} {
		form.Address, form.Method = system.NetworkAddress(i), "POST"
		form.Header = []string{"Referer", s.URL + "/members/"}
		statuses := s.Attack(100, 10, func(int) system.Request { return form })
		t.Logf("the password of a page, %s: %v by status", form.Target, statuses)
		passed := 100 - statuses[429]
		check.That(t, passed <= 21, "got %d guesses through, want 20 at once", passed)
		check.That(t, statuses[302] != 0, "got no 302, want one for each guess")
	}
}

// wordPressChecksFewGuessesInAShop that takes logins as WooCommerce does.
func wordPressChecksFewGuessesInAShop(t *testing.T) {
	s := startWordPress(t)
	login := func(address, target, name, password string) system.Request {
		form := url.Values{"username": {name}, "password": {password}, "login": {"Log in"}}
		return system.Request{Address: address, Method: "POST", Target: target, Body: form.Encode()}
	}
	check.Need(t, s.Must(login("203.0.113.1", "/my-account/", "author", "right")).Status, 302, "for a customer's login")
	for _, attack := range []struct {
		name string
		most int
		each func(i int) system.Request
	}{
		{"from one address", mostByAddress, func(i int) system.Request {
			return login("198.51.100.1", "/my-account/", fmt.Sprint("customer", i), "wrong")
		}},
		{"from 200 addresses at one account", mostByAccount, func(i int) system.Request {
			return login(system.NetworkAddress(i), "/my-account/", "colleague", "wrong")
		}},
		{"on other pages", mostByAccount, func(i int) system.Request {
			targets := []string{"/", "/checkout/", "/my-account/x/", "//my-account/", "/my-account/../", "/MY-ACCOUNT/", "/index.php", "/kettle-1/"}
			return login(system.NetworkAddress(200+i), targets[i%len(targets)], "admin", "wrong")
		}},
		{"beside registrations", 22, func(i int) system.Request {
			r := login("198.51.100.2", "/", fmt.Sprint("customer", i), "wrong")
			r.Body += fmt.Sprintf("&register=1&email=new%d@example.com", i)
			return r
		}},
		{"beside registrations, from 200 addresses at one account", mostByAccount, func(i int) system.Request {
			r := login(system.NetworkAddress(400+i), "/", "author", "wrong")
			r.Body += fmt.Sprintf("&register=1&email=newer%d@example.com", i)
			return r
		}},
	} {
		n := checked(t, func() { s.Attack(200, 1, attack.each) })
		t.Logf("200 guesses at a shop, %s: %d checked", attack.name, n)
		if n > attack.most || n == 0 && attack.most > 0 {
			t.Errorf("%s: got %d checked, want %d at most", attack.name, n, attack.most)
		}
	}
}
