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
