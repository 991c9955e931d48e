package applications

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
	"github.com/caddy-throttle/caddy-throttle/tests/internal/system"
)

// wordPress is WordPress from Debian's package, with a database and five PHP workers
// of its own, thirty posts, and the people admin, author and colleague. It takes
// logins as WooCommerce does, too.
var wordPress = application{install: installWordPress}

// TestWordPress has what needs WordPress follow one another, and run beside other tests. With
// TEST_LONG=1 it measures, and nothing else runs.
func TestWordPress(t *testing.T) {
	if !system.Long() {
		t.Parallel()
	}
	for _, test := range []struct {
		name string
		run  func(*testing.T)
	}{
		{"the first configuration", firstConfigurationHolds},
		{"the first configuration on a network", firstConfigurationHoldsOnANetwork},
		{"guesses", wordPressChecksFewGuesses},
		{"guesses in disguise", wordPressSeesGuessesInDisguise},
		{"guesses by XML-RPC", wordPressChecksFewGuessesByXMLRPC},
		{"passwords of pages", wordPressChecksFewPasswordsOfPages},
		{"guesses in a shop", wordPressChecksFewGuessesInAShop},
		{"application passwords", wordPressChecksFewApplicationPasswords},
		{"cached pages", wordPressServesCachedPagesFree},
		{"what runs PHP", wordPressChargesWhatRunsPHP},
		{"a flood", wordPressServesAFloodOnce},
		{"a scraper and a person", wordPressServesAPersonBesideAScraper},
		{"people", wordPressServesPeople},
		{"visitors in a crowd", wordPressServesVisitorsInACrowd},
		{"a refused author", wordPressLosesNothingOfARefusedAuthor},
		{"under Apache", wordPressUnderApacheBehindCaddy},
		{"who has logged in", recipeOfWordPressKnowsWhoHasLoggedIn},
	} {
		t.Run(test.name, test.run)
	}
}

// Of Debian's packages wordpress and wordpress-theme-twentytwentythree.
const (
	wordPressPackage = "/usr/share/wordpress"
	wordPressTheme   = wordPressPackage + "/wp-content/themes/twentytwentythree"
)

func installWordPress(t *testing.T, a *application) {
	php := system.Need(t, "php")
	if _, err := os.Stat(wordPressTheme); err != nil {
		system.Need(t, "wordpress with its theme twentytwentythree")
	}
	a.startMariaDB(t)
	root := filepath.Join(a.dir, "wordpress")
	// The package has symbolic links to the scripts of others. An installation from
	// wordpress.org has none.
	outputOf(t, exec.Command("cp", "--recursive", "--dereference", wordPressPackage, root))
	plugins := filepath.Join(root, "wp-content", "mu-plugins")
	uploads := filepath.Join(root, "wp-content", "uploads")
	for _, folder := range []string{plugins, uploads} {
		check.OK(t, os.MkdirAll(folder, 0o755))
	}
	for from, to := range map[string]string{"wp-config.php": root, "count.php": plugins, "shop.php": plugins} {
		outputOf(t, exec.Command("cp", filepath.Join("testdata/wordpress", from), to))
	}
	passwords := filepath.Join(a.dir, "passwords.log")
	check.OK(t, os.WriteFile(passwords, nil, 0o666))
	for _, writable := range []string{passwords, uploads} {
		check.OK(t, os.Chmod(writable, 0o777))
	}
	outputOf(t, exec.Command(php, "testdata/wordpress/install.php", root))
	a.startFPM(t)
}

// startWordPress runs it behind the Caddyfile of its recipe, with more changes.
func startWordPress(t *testing.T, changes ...string) *system.Trial {
	t.Helper()
	wordPress.use(t)
	return system.StartTrial(t, "wordpress.md", append([]string{
		"/var/www/wordpress", filepath.Join(wordPress.dir, "wordpress"),
		"unix//run/php/php-fpm.sock", "unix/" + filepath.Join(wordPress.dir, "fpm.sock"),
	}, changes...)...)
}
