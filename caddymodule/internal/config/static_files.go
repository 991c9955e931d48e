package config

import (
	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/staticfile"
)

// StaticFiles exempts files from being charged. Only the one plain name of a file
// counts, because PHP sites run index.php for most others. Names with a trailing or
// encoded slash, a backslash, a dot file or a PHP extension anywhere are charged, and
// so are symbolic links out of the root.
type StaticFiles struct {
	// The folder with the files. It may have placeholders. Default: the site's
	// root, as the directive `root` sets it.
	Root string `json:"root,omitempty"`
}

// LoadStatic returns the matchers of static files.
func LoadStatic(ctx caddy.Context, files []StaticFiles) (matchers []*staticfile.Matcher, err error) {
	for _, f := range files {
		m, err := staticfile.New(ctx, f.Root)
		if err != nil {
			return nil, err
		}
		matchers = append(matchers, m)
	}
	return matchers, nil
}
