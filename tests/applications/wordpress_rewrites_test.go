package applications

import (
	"fmt"
	"net/http"
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
