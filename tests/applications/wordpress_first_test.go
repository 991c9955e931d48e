package applications

import (
	"encoding/base64"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
	"github.com/caddy-throttle/caddy-throttle/tests/internal/system"
)

// startFirst runs WordPress behind the first configuration of the README with its names, enforced,
// with more changes.
func startFirst(t *testing.T, changes ...string) *system.Trial {
	t.Helper()
	wordPress.use(t)
	envelope := regexp.MustCompile(`(?m)^\t@envelope .*\n\trespond @envelope .*\n`).FindString(system.Page(t, "docs/recipes/wordpress.md"))
	check.Assume(t, envelope != "", "got no @envelope in wordpress.md")
	closed := envelope + system.ConfigsUnder(t, "recipes/wordpress.md", "## XML-RPC", 1)[0]
	return system.RunTrial(t, "README.md", "{\n}\n"+firstConfiguration(t), slices.Concat(namesOf(t, "WordPress").changes(""), []string{
		"\troot * /srv/www\n", "\troot * " + filepath.Join(wordPress.dir, "wordpress") + "\n" + closed,
		"unix//run/php/php-fpm.sock", "unix/" + filepath.Join(wordPress.dir, "fpm.sock"),
		"key basic_user ", "key basic_user fold wordpress ",
	}, changes)...)
}

// firstConfigurationHolds: whoever guesses, from one address or from 200,
// gets few passwords checked, and the owner of the account gets in.
func firstConfigurationHolds(t *testing.T) {
	basic := func(address string) system.Request {
		return system.Request{
			Address: address, Target: "/wp-json/wp/v2/users/me",
			Header: []string{"Authorization", "Basic " + base64.StdEncoding.EncodeToString([]byte("author:wrong"))},
		}
	}
	at := func(path string, r system.Request) system.Request {
		r.Target = path + r.Target
		return r
	}
	for _, attack := range []struct {
		name  string
		least int
		most  int
		guess func(i int) system.Request
	}{
		{"forms from one address, for many accounts", 1, mostByAddress, func(i int) system.Request { return guess("198.51.100.1", fmt.Sprint("first", i)) }},
		{"forms from 200 addresses", 1, mostByAccount, func(i int) system.Request { return guess(system.NetworkAddress(i%200), "author") }},
		{"forms in a folder of a multisite", 1, mostByAccount, func(i int) system.Request { return at("/site1", guess(system.NetworkAddress(i%200), "author")) }},
		{"HTTP Basic from one address", 1, mostByAccount, func(int) system.Request { return basic("198.51.100.1") }},
		{"HTTP Basic from 200 addresses", 1, mostByAccount, func(i int) system.Request { return basic(system.NetworkAddress(i % 200)) }},
		{"XML-RPC", 0, 0, func(i int) system.Request { return callXMLRPC(system.NetworkAddress(i%200), 1) }},
		{"XML-RPC in a folder", 0, 0, func(i int) system.Request { return at("/site1", callXMLRPC(system.NetworkAddress(i%200), 1)) }},
		{"XML-RPC, 500 guesses in each", 0, 0, func(i int) system.Request { return callXMLRPC(system.NetworkAddress(i%200), 500) }},
	} {
		t.Run(attack.name, func(t *testing.T) {
			s := startFirst(t, "\tlog\n", "\tlog\n"+foldersOfMultisite(t))
			var statuses map[int]int
			began := time.Now()
			n := checked(t, func() { statuses = s.Attack(500, 20, attack.guess) })
			if strings.HasPrefix(attack.name, "HTTP Basic") {
				attack.most = mostByBasic(began)
			}
			t.Logf("%s: %d of 500 checked, %v by status", attack.name, n, statuses)
			check.That(t, n >= attack.least && n <= attack.most, "%s: got %d of 500 checked, want %d to %d", attack.name, n, attack.least, attack.most)
		})
	}

	t.Run("the owner", func(t *testing.T) {
		s := startFirst(t)
		owner := newPerson(s, startPeople(s), "203.0.113.1")
		owner.logIn("admin")
		for range 3 {
			s.Attack(100, 20, func(i int) system.Request { return guess(system.NetworkAddress(i), "admin") })
			owner.visit("/wp-login.php?reauth=1") // forgets that it is logged in
			owner.logIn("admin")
		}
		if refused := s.Refusals(owner.address); len(refused) > 0 {
			t.Errorf("got %q refused, want nothing of the owner", refused)
		}
	})
}
