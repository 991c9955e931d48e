// Package seen is the handler throttle_seen, which counts people whom a zone in shadow would have
// refused. Begin with [Seen].
package seen

import (
	"io"
	"net/http"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-throttle/caddy-throttle/caddymodule"
)

func init() {
	caddy.RegisterModule(Seen{})
	httpcaddyfile.RegisterDirective("throttle_seen", parse)
	// Reports must not fill the buckets of the people who send them.
	httpcaddyfile.RegisterDirectiveOrder("throttle_seen", httpcaddyfile.After, "request_body")
}

// mostReport is how long a report may be, in bytes.
const mostReport = 1024

// Seen counts people whom a shadow zone would have refused. Zones with server_timing
// mark such responses for the browser. A script in the page reads the mark and sends
// the names of the zones here, separated by commas, in a POST request. Robots rarely
// run scripts, so the metric `caddy_throttle_refused_people_total` counts people.
//
// A report counts only if the same address was sent a mark of that zone within two
// minutes, and once an hour for each address and zone. So the figure never exceeds
// how many clients the zone would have refused, whatever is sent.
type Seen struct{ throttle *caddymodule.Guest }

// CaddyModule returns the Caddy module information.
func (Seen) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "http.handlers.throttle_seen", New: func() caddy.Module { return new(Seen) }}
}

// Provision finds the app with the zones.
func (s *Seen) Provision(ctx caddy.Context) (err error) {
	s.throttle, err = caddymodule.Join(ctx)
	return err
}

// ServeHTTP implements caddyhttp.MiddlewareHandler. It answers every request itself.
func (s *Seen) ServeHTTP(w http.ResponseWriter, r *http.Request, _ caddyhttp.Handler) error {
	w.Header().Set("Cache-Control", "no-store")
	report, err := io.ReadAll(io.LimitReader(r.Body, mostReport+1))
	status := http.StatusNoContent
	switch {
	case r.Method != http.MethodPost:
		w.Header().Set("Allow", http.MethodPost)
		status = http.StatusMethodNotAllowed
	case err != nil || len(report) > mostReport:
		status = http.StatusBadRequest
	default:
		for name := range strings.FieldsFuncSeq(string(report), func(c rune) bool { return c == ',' || c == ' ' || c == '\n' }) {
			s.throttle.Seen(name, r)
		}
	}
	w.WriteHeader(status)
	return nil
}

// parse sets up the handler from Caddyfile tokens. Syntax:
//
//	throttle_seen <matcher>
//
// The matcher is required, because the handler answers all requests that reach it.
func parse(h httpcaddyfile.Helper) ([]httpcaddyfile.ConfigValue, error) {
	h.Next() // the directive's name
	matcher, given, err := h.MatcherToken()
	if err != nil {
		return nil, err
	}
	if !given || h.NextArg() || h.NextBlock(0) {
		return nil, h.Err("want throttle_seen <matcher> and nothing else, such as throttle_seen /throttle-seen")
	}
	return h.NewRoute(matcher, new(Seen)), nil
}

// Interface guards
var (
	_ caddy.Provisioner           = (*Seen)(nil)
	_ caddyhttp.MiddlewareHandler = (*Seen)(nil)
)
