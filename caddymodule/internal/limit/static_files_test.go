package limit_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/servertest"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

func TestStaticFilesAreNotCharged(t *testing.T) {
	root := t.TempDir()
	for _, name := range []string{"style.css", "index.php", "x.php.css"} {
		check.OK(t, os.WriteFile(filepath.Join(root, name), nil, 0o600))
	}
	for name, directives := range map[string]string{
		"of the site":      "root * " + root + "\nthrottle {\nexempt static_files\nzone site {\nlimit 1 1/h\n}\n}",
		"of a root":        "throttle {\nzone site {\nexempt static_files " + root + "\nlimit 1 1/h\n}\n}",
		"of all zones":     "root * " + root + "\nthrottle site client_ip 1 1/h",
		"of a placeholder": "vars folder " + root + "\nthrottle site client_ip 1 1/h {\nexempt static_files {vars.folder}\n}",
	} {
		t.Run(name, func(t *testing.T) {
			global := ""
			if name == "of all zones" {
				global = "{\nthrottle {\nexempt static_files\n}\n}\n"
			}
			s := servertest.Run(t, fmt.Sprintf("%shttp:// {\n%s\nrespond ok\n}", global, directives))
			c := s.From(servertest.Someone)
			c.WantStatuses("/style.css?v=1", map[int]int{200: 5})
			c.Passes(1, "/index.php")
			for _, path := range []string{"/style.css/?s=x", "/style.css%2f?s=x", "/x.php.css", "/nothing.css", "/", "/index.php"} {
				check.Equal(t, c.Get(path).Code, 429, "%s", path)
			}
			check.Equal(t, c.Send("POST", "/style.css").Code, 429, "a POST")
			check.Equal(t, c.Get("/style.css").Code, 200, "a static file when the bucket is full")
			check.Equal(t, c.With("Authorization", "Basic YTpi").Get("/style.css").Code, 429, "a guess at the password of a static file")
		})
	}
}

// A root that is not there, or that Caddy may not read, exempts nothing, which its owner is told of once.
func TestStaticFilesWithoutARootAreToldOf(t *testing.T) {
	s := servertest.Run(t, "http:// {\nroot * "+filepath.Join(t.TempDir(), "missing")+"\nthrottle site client_ip 2 1/h {\nexempt static_files\n}\nrespond ok\n}")
	c := s.From(servertest.Someone)
	c.Passes(2, "/style.css")
	check.Equal(t, len(s.Logs.Lines(t, "static files are not exempt")), 1, "lines of the log")
}
