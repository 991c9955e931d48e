package config

import (
	"errors"
	"fmt"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	clientpass "github.com/caddy-throttle/caddy-throttle/caddymodule/internal/pass"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/rule"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/signer"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/staticfile"
)

// Given is what the rule of a zone takes from outside of its definition.
type Given struct {
	Shadow     bool                  // the global options put all zones there
	Static     []*staticfile.Matcher // what they exempt
	Keys       func() *signer.Ring
	Passes     *clientpass.Memory
	PassesFull func() // see [clientpass.Zone]
	Insecure   func() // see [clientpass.Zone] and [device.Trust]
}

// LoadMatchers provisions the matcher sets in a field of a module. If there are none,
// it returns nil.
func LoadMatchers(ctx caddy.Context, module any, field string, raw caddyhttp.RawMatcherSets) (rule.Matchers, error) {
	if len(raw) == 0 {
		return nil, nil
	}
	for _, set := range raw {
		if len(set) == 0 {
			return nil, errors.New("loading matchers: a set without matchers would match everything")
		}
	}
	loaded, err := ctx.LoadModule(module, field)
	if err != nil {
		return nil, fmt.Errorf("loading matchers: %w", err)
	}
	var sets caddyhttp.MatcherSets
	if err := sets.FromInterface(loaded); err != nil {
		return nil, err
	}
	return sets, nil
}

// StaticFiles exempts files from being charged. Only the one plain name of a file
// counts, because PHP sites run index.php for most others. Names with a trailing or
// encoded slash, a backslash, a dot file or a PHP extension anywhere are charged, and
// so are symbolic links that are absolute or lead out of the root.
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
