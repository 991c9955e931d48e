package tests

import (
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// foldersOfMultisite is what WordPress' documentation has for sites in folders.
const foldersOfMultisite = `@admin path_regexp admin ^/([_0-9a-zA-Z-]+/)?wp-admin$
	redir @admin /{re.admin.1}wp-admin/
	@include path_regexp include ^/[_0-9a-zA-Z-]+/+(wp-(?:content|admin|includes).*)
	rewrite @include /{re.include.1}
	@script path_regexp script ^/[_0-9a-zA-Z-]+/+(.*\.php)$
	rewrite @script /{re.script.1}`

// TestWordPressChecksFewGuessesBehindRewrites, by whatever address they are sent: a zone for
// /wp-login.php sees a log-in that a rewrite makes, and a zone for /login one that a front
// controller gets.
func TestWordPressChecksFewGuessesBehindRewrites(t *testing.T) {
	wordPress.use(t)
	const limit = "limit 5 5/h"
	zone := func(name, match string) string {
		return fmt.Sprintf("throttle {\nzone %s {\nmatch {\nmethod POST\n%s\n}\n%s\n}\n}\n", name, match, limit)
	}
	root := filepath.Join(wordPress.dir, "wordpress")
	front := t.TempDir() // a front controller, which routes by the address as sent
	if err := os.Chmod(filepath.Dir(front), 0o755); err != nil {
		t.Fatal(err)
	}
	controller := fmt.Sprintf(`<?php
if ( preg_match( '#^/login#', $_SERVER['REQUEST_URI'] ) && isset( $_POST['log'] ) ) {
	file_put_contents( '%s/passwords.log', json_encode( array( 'name' => $_POST['log'] ) ) . "\n", FILE_APPEND | LOCK_EX );
}`, wordPress.dir)
	if err := os.WriteFile(filepath.Join(front, "index.php"), []byte(controller), 0o644); err != nil {
		t.Fatal(err)
	}

	tests := []struct {
		name, root string
		site       string // ZONE is replaced by the directive of the zone
		match      string // of the zone
		target     string
	}{
		{"plain", root, "ZONE", "path /wp-login.php*", "/wp-login.php"},
		{"folder", root, foldersOfMultisite + "\nZONE", "path /wp-login.php*", "/site1/wp-login.php"},
		{"folder-twice", root, foldersOfMultisite + "\nZONE", "path /wp-login.php*", "/site1//wp-login.php"},
		{"folder-xmlrpc", root, foldersOfMultisite + "\nZONE", "path /xmlrpc.php*", "/site1/xmlrpc.php"},
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
		ports[i] = freePort(t)
		fmt.Fprintf(&sites, "http://:%d {\n\troot * %s\n\t%s\n\tphp_fastcgi unix/SOCKET\n}\n", ports[i], test.root, strings.ReplaceAll(test.site, "ZONE", zone(test.name, test.match)))
	}
	static := freePort(t)
	fmt.Fprintf(&sites, "http://:%d {\n\troot * %s\n\t%s\n\tthrottle {\n\texempt static_files\n\tzone pages {\n%s\n}\n}\n\tphp_fastcgi unix/SOCKET\n\tfile_server\n}\n", static, root, foldersOfMultisite, limit)
	c := startCaddy(t, config{sites: replace.Replace(sites.String())})

	const guesses = 12
	for i, test := range tests {
		name := "guesser-" + test.name
		refused := 0
		for range guesses {
			form, kind := url.Values{"log": {name}, "pwd": {"wrong"}, "wp-submit": {"Log In"}}.Encode(), urlencoded
			if strings.HasSuffix(test.target, "xmlrpc.php") {
				kind = "text/xml"
				form = "<methodCall><methodName>wp.getUsersBlogs</methodName><params><param><value>" + name + "</value></param><param><value>wrong</value></param></params></methodCall>"
			}
			resp, err := http.Post(fmt.Sprintf("http://127.0.0.1:%d%s", ports[i], test.target), kind, strings.NewReader(form))
			if err != nil {
				t.Fatal(err)
			}
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
	if got := c.logLines("a rewrite behind throttle"); len(got) != 0 {
		t.Errorf("got %q, want no warning, since each zone sees what rewrites make", got)
	}

	// Files below the folder of a site are free.
	for range guesses {
		resp, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d/site1/wp-includes/css/buttons.min.css", static))
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			t.Fatalf("a style sheet in a folder: got %d, want 200", resp.StatusCode)
		}
	}
}
