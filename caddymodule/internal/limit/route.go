package limit

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/option"
)

// Route is a name for some paths.
type Route struct {
	// The name that stands for the paths in keys. Required.
	Name string `json:"name,omitempty"`

	// The paths, as in the matcher `path`. Required. Paths without a route are `other`.
	Path caddyhttp.MatchPath `json:"path,omitempty"`
}

func compileRoutes(routes []Route, key *Key) error {
	seen := make(map[string]bool)
	for i, route := range routes {
		var err error
		switch {
		case route.Name == "" || len(route.Path) == 0:
			err = errors.New("incomplete route: want a name and at least one path")
		case route.Name == OtherRoute:
			err = fmt.Errorf("invalid route name %q: paths that match no route have this name", route.Name)
		case seen[route.Name]:
			err = fmt.Errorf("route %q is given twice: want all its paths on one line", route.Name)
		default:
			if err = cmp.Or(option.CheckPathList(route.Path), option.CheckTailsOf(route.Path)); err != nil {
				err = fmt.Errorf("route %q: %w", route.Name, err)
			}
		}
		if err != nil {
			return option.About("route", i, err)
		}
		seen[route.Name] = true
		paths := slices.Clone(route.Path)
		if err := paths.Provision(caddy.Context{}); err != nil {
			return option.About("route", i, err)
		}
		key.routes = append(key.routes, Route{Name: route.Name, Path: paths})
	}
	return nil
}
