package applications

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
	"github.com/caddy-throttle/caddy-throttle/tests/internal/system"
)

// TestTheRecipeForMediaWikiKnowsHeavyPages in the spellings that MediaWiki takes, and no
// others. Nothing that the address says makes a page cheap.
func TestTheRecipeForMediaWikiKnowsHeavyPages(t *testing.T) {
	t.Parallel()
	s := system.StartTrial(t, "mediawiki.md", "/var/www/mediawiki", t.TempDir(), "php_fastcgi unix//run/php/php-fpm.sock", "respond ok")
	for i, test := range []struct {
		target string
		heavy  bool
		cost   float64 // of pages
	}{
		{"/index.php?title=Special:Export", true, 1},
		{"/index.php?title=Special:%45xport", true, 1},
		{"/index.php?title=Special:_Export", true, 1},
		{"/index.php?title=Special%20:Export", true, 1},
		{"/index.php?title=_special_:_%20export/Pump_1", true, 1},
		{"/index.php?title=Spe%e2%80%8ecial:Export", true, 1},
		{"/index.php/Special:%52ecentChanges", true, 1},
		{"/wiki/Special:Log", true, 1},
		{"/index.php?title=Special:ComparePages", true, 1},
		{"/index.php?title=Pump_1&%64iff=3", true, 1},
		{"/index.php?title=Pump_1&+diff=3", true, 1},
		{"/index.php?title=Pump_1&oldid=3", true, 1},
		{"/index.php?title=Pump_1&action=%68istory", true, 1},
		{"/index.php?title=Pump_1&action=view&action=history", true, 1},
		{"/api.php?action=feedrecentchanges", true, 1},
		{"/rest.php/v1/page/Pump_1/html", true, 1},
		{"/index.php?title=Pump_1", false, 1},
		{"/index.php/Pump_1", false, 1},
		{"/index.php?title=Especially:_a_log&action=edit&section=2", false, 1},
		{"/index.php?title=Special:UserLogin&returnto=Pump+1", false, 1},
		{"/load.php?lang=en&modules=ext.a%7Csite.styles&only=styles&skin=vector", false, 0.1},
		{"/rest.php/v1/search/title?q=pump&limit=10", false, 0.2},
		{"/api.php?action=opensearch&format=json&formatversion=2&search=pump%20x&namespace=0&limit=10", false, 0.2},
		{"/api.php?format=json&action=opensearch&search=pump", false, 0.2},
		{"/api.php?action=opensearch&action=query&generator=allpages", false, 1},
		{"/api.php?action=opensearch&search=x&%61ction=query", true, 1},
	} {
		address := system.NetworkAddress(i)
		s.Must(system.Request{Address: address, Target: test.target})
		system.Eventually(t, "a line in the log", func() bool { return len(s.Entries(address)) == 1 })
		check.Equal(t, costIn(s, "heavy", address) > 0, test.heavy, "%s: heavy", test.target)
		check.Equal(t, costIn(s, "pages", address), test.cost, "%s: the cost", test.target)
	}
	form := system.Request{Address: "203.0.113.9", Method: "POST", Target: "/api.php?action=opensearch&search=x", Body: "action=query&generator=allpages"}
	s.Must(form)
	system.Eventually(t, "a line in the log", func() bool { return len(s.Entries(form.Address)) == 1 })
	check.Equal(t, costIn(s, "pages", form.Address), 1, "a form: the cost")
}

// TestTheRecipeForRailsKnowsExports of Redmine by their name, by the parameter format and by
// the header Accept.
func TestTheRecipeForRailsKnowsExports(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	check.OK(t, os.WriteFile(filepath.Join(root, "manual.pdf"), []byte("%PDF"), 0o644))
	s := system.StartTrial(t, "rails.md", "/srv/app/public", root, "reverse_proxy localhost:3000", "respond ok")
	browser := []string{"Accept", "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,*/*;q=0.8"}
	for i, test := range []struct {
		target string
		header []string
		cost   float64 // of exports
	}{
		{"/issues.pdf", nil, 2},
		{"/issues.pdf/", nil, 2},
		{"/issues.%70df?set_filter=1", nil, 2},
		{"/issues?format=pdf", browser, 2},
		{"/issues?%66ormat=%70df", nil, 2},
		{"/issues?format=html&format=pdf", nil, 2},
		{"/issues?+format=pdf", nil, 2},
		{"/issues", []string{"Accept", "application/pdf"}, 2},
		{"/issues", []string{"Accept", "text/html;q=0.1, Application/PDF"}, 2},
		{"/issues.csv", nil, 1},
		{"/issues?x=1;format=csv", nil, 2},
		{"/issues", []string{"Accept", "text/csv"}, 2},
		{"/issues", browser, 0},
		{"/issues?format=json", nil, 0},
		{"/issues?utf8=%E2%9C%93&set_filter=1&f%5B%5D=status_id&op%5Bstatus_id%5D=o&c%5B%5D=subject", browser, 0},
		{"/issues/pdf", browser, 0},
		{"/manual.pdf", browser, 0},
	} {
		address := system.NetworkAddress(i)
		s.Must(system.Request{Address: address, Target: test.target, Header: slices.Clone(test.header)})
		system.Eventually(t, "a line in the log", func() bool { return len(s.Entries(address)) == 1 })
		check.Equal(t, costIn(s, "exports", address), test.cost, "%s with %q: the cost", test.target, test.header)
	}
}
