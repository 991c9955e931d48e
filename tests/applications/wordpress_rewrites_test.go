package applications

import (
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/servertest"
	"github.com/caddy-throttle/caddy-throttle/tests/internal/system"
)

// foldersOfMultisite returns the recipe's lines for sites in folders.
func foldersOfMultisite(t *testing.T) string {
	t.Helper()
	return system.ConfigsUnder(t, "recipes/wordpress.md", "## Multisite", 1)[0]
}

// wordPressChecksFewGuessesBehindRewrites, by whatever address they are sent: a zone for
// /wp-login.php sees a login that a rewrite makes, and a zone for /login one that a front
// controller gets.
func wordPressChecksFewGuessesBehindRewrites(t *testing.T) {
	wordPress.use(t)
	const limit = "limit 5 5/h"
	folders := foldersOfMultisite(t)
	zone := func(name, match string) string {
		return fmt.Sprintf("throttle {\nzone %s {\nmatch {\nmethod POST\n%s\n}\n%s\n}\n}\n", name, match, limit)
	}
	root := filepath.Join(wordPress.dir, "wordpress")
	front := t.TempDir() // a front controller, which routes by the address as sent
	check.OK(t, os.Chmod(filepath.Dir(front), 0o755))
	controller := fmt.Sprintf(`<?php
if ( preg_match( '#^/login#', $_SERVER['REQUEST_URI'] ) && isset( $_POST['log'] ) ) {
	file_put_contents( '%s/passwords.log', json_encode( array( 'name' => $_POST['log'] ) ) . "\n", FILE_APPEND | LOCK_EX );
}`, wordPress.dir)
	check.OK(t, os.WriteFile(filepath.Join(front, "index.php"), []byte(controller), 0o644))

	tests := []struct {
		name, root string
		site       string // ZONE is replaced by the directive of the zone
		match      string // of the zone
		target     string
	}{
		{"plain", root, "ZONE", "path /wp-login.php*", "/wp-login.php"},
		{"folder", root, folders + "\nZONE", "path /wp-login.php*", "/site1/wp-login.php"},
		{"folder-twice", root, folders + "\nZONE", "path /wp-login.php*", "/site1//wp-login.php"},
		{"folder-xmlrpc", root, folders + "\nZONE", "path /xmlrpc.php*", "/site1/xmlrpc.php"},
		{"alias", root, "rewrite /login /wp-login.php\nZONE", "path /wp-login.php*", "/login"},
		{"tried", root, "try_files {path} /index.php?{query}\nZONE", "path /wp-login.php*", "/wp-login.php"},
		{"handle-path", root, "handle_path /blog/* {\nZONE\nphp_fastcgi unix/SOCKET\n}", "path /wp-login.php*", "/blog/wp-login.php"},
		{"strip-prefix", root, "handle /blog/* {\nuri strip_prefix /blog\nZONE\nphp_fastcgi unix/SOCKET\n}", "path /wp-login.php*", "/blog/wp-login.php"},
		{"front", front, "try_files {path} /index.php?{query}\nZONE", "path /login*", "/login"},
	}
	var sites strings.Builder
	ports := make([]int, len(tests))
	replace := strings.NewReplacer("SOCKET", filepath.Join(wordPress.dir, "fpm.sock"))
	for i, test := range tests {
		ports[i] = servertest.FreePort(t)
		fmt.Fprintf(&sites, "http://:%d {\n\troot * %s\n\t%s\n\tphp_fastcgi unix/SOCKET\n}\n", ports[i], test.root, strings.ReplaceAll(test.site, "ZONE", zone(test.name, test.match)))
	}
	static := servertest.FreePort(t)
	fmt.Fprintf(&sites, "http://:%d {\n\troot * %s\n\t%s\n\tthrottle {\n\texempt static_files\n\tzone pages {\n%s\n}\n}\n\tphp_fastcgi unix/SOCKET\n\tfile_server\n}\n", static, root, folders, limit)
	system.StartCaddy(t, system.Config{Sites: replace.Replace(sites.String())})

	const guesses = 12
	for i, test := range tests {
		name := "guesser-" + test.name
		refused := 0
		for range guesses {
			form, kind := url.Values{"log": {name}, "pwd": {"wrong"}, "wp-submit": {"Log In"}}.Encode(), system.Urlencoded
			if strings.HasSuffix(test.target, "xmlrpc.php") {
				kind = "text/xml"
				form = "<methodCall><methodName>wp.getUsersBlogs</methodName><params><param><value>" + name + "</value></param><param><value>wrong</value></param></params></methodCall>"
			}
			resp := check.Must(http.Post(fmt.Sprintf("http://127.0.0.1:%d%s", ports[i], test.target), kind, strings.NewReader(form)))(t)
			resp.Body.Close()
			if resp.StatusCode == http.StatusTooManyRequests {
				refused++
			}
		}
		got := len(wordPress.lines(t, "passwords.log", `"`+name+`"`))
		t.Logf("%s: %d of %d guesses at %s checked", test.name, got, guesses, test.target)
		if got < 1 || got > mostByAddress || refused != guesses-got {
			t.Errorf("%s: got %d of %d guesses at %s checked and %d refused, want 1 to %d checked, and the others refused", test.name, got, guesses, test.target, refused, mostByAddress)
		}
	}
	// Files below the folder of a site are free.
	for range guesses {
		resp := check.Must(http.Get(fmt.Sprintf("http://127.0.0.1:%d/site1/wp-includes/css/buttons.min.css", static)))(t)
		resp.Body.Close()
		check.Need(t, resp.StatusCode, http.StatusOK, "a style sheet in a folder")
	}
}

// wordPressServesCachedPagesFree: to visitors without a session, and only for addresses
// without a query.
func wordPressServesCachedPagesFree(t *testing.T) {
	s := startWordPress(t, "\tlog\n", "\tlog\n"+system.ConfigsUnder(t, "recipes/wordpress.md", "## Page caches", 1)[0])
	folder := filepath.Join(wordPress.dir, "wordpress/wp-content/cache/supercache/localhost/kettle-1")
	check.OK(t, os.MkdirAll(folder, 0o755))
	t.Cleanup(func() { os.RemoveAll(filepath.Join(wordPress.dir, "wordpress/wp-content/cache")) })
	const cached = "kettle 1, from the cache"
	check.OK(t, os.WriteFile(filepath.Join(folder, "index-https.html"), []byte(cached), 0o644))
	for i, test := range []struct {
		target, cookie string
		free           bool
	}{
		{"/kettle-1/", "", true},
		{"/kettle-1/", "seen=1", true},
		{"/kettle-1/?x=1", "", false},
		{"/kettle-1/", "wordpress_logged_in_site=author", false},
		{"/kettle-1/", "wp-postpass_site=x", false},
		{"/kettle-2/", "", false},
	} {
		r := system.Request{Address: system.NetworkAddress(i), Target: test.target}
		if test.cookie != "" {
			r.Header = []string{"Cookie", test.cookie}
		}
		a := s.Must(r)
		system.Eventually(t, "a line in the log", func() bool { return len(s.Entries(r.Address)) == 1 })
		if free := s.Entries(r.Address)[0].Throttle == nil; a.Status != 200 || free != test.free || (a.Body == cached) != test.free {
			t.Errorf("%s with the cookie %q: got %d, free %t, %.60q, want 200 and free %t", test.target, test.cookie, a.Status, free, a.Body, test.free)
		}
	}
}

// TestThemesOfDebiansWordPressAreFree, which are links from one folder of the package to the
// other. The recipe has the lines.
func TestThemesOfDebiansWordPressAreFree(t *testing.T) {
	t.Parallel()
	const folder = "/var/lib/wordpress/wp-content"
	if link, err := os.Readlink(folder + "/themes/" + filepath.Base(wordPressTheme)); err != nil || link != wordPressTheme {
		system.Need(t, "wordpress with its theme twentytwentythree, as Debian installs it")
	}
	recipe := system.Page(t, "docs/recipes/wordpress.md")
	roots, exempt := "root * /usr/share/wordpress\nroot /wp-content/* /var/lib/wordpress\n", "exempt static_files /usr/share/wordpress\n"
	check.Assume(t, strings.Contains(recipe, roots) && strings.Contains(recipe, exempt), "the recipe has not the lines for Debian's package")
	styles, err := filepath.Glob(wordPressTheme + "/*.css")
	check.Assume(t, err == nil && len(styles) != 0, "got the style sheets %v of the theme, %v, want some", styles, err)
	port := servertest.FreePort(t)
	system.StartCaddy(t, system.Config{Sites: fmt.Sprintf("http://:%d {\n%s\nthrottle {\nexempt static_files\n%s\nzone pages {\nlimit 1 1/d\n}\n}\nfile_server\n}", port, roots, exempt)})
	for range 2 {
		for _, style := range append(styles, "/usr/share/wordpress/wp-includes/css/buttons.min.css") {
			target := strings.TrimPrefix(style, "/usr/share/wordpress")
			resp := check.Must(http.Get(fmt.Sprintf("http://127.0.0.1:%d%s", port, target)))(t)
			resp.Body.Close()
			check.Equal(t, resp.StatusCode, http.StatusOK, "%s", target)
		}
	}
}
