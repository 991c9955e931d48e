package caddymodule

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"mime"
	"net/http"
	"slices"
	"time"

	"github.com/caddyserver/caddy/v2"
	"go.uber.org/zap"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/override"
)

func init() {
	caddy.RegisterModule(adminAPI{})
}

// adminAPI serves the paths under /throttle/ of Caddy's admin endpoint. Caddy makes
// one before any app, and never cleans it up, so it looks for the running app at each
// request. Caddy checks hosts and origins.
type adminAPI struct{}

// CaddyModule returns the Caddy module information.
func (adminAPI) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "admin.api.throttle",
		New: func() caddy.Module { return new(adminAPI) },
	}
}

// Routes implements caddy.AdminRouter.
func (adminAPI) Routes() []caddy.AdminRoute {
	return []caddy.AdminRoute{{Pattern: "/throttle/", Handler: caddy.AdminHandlerFunc(serveAdmin)}}
}

const (
	adminTimeout = 70 * time.Second // of one request, which may go through a whole store
	mostAdmin    = 64 << 10         // bytes of a request's body
)

// An adminCall answers a request. It decodes the body into what it needs.
type adminCall func(a *App, ctx context.Context, in *adminInput) (any, error)

// adminCalls are the paths by method. Those with GET change nothing, and neither do
// those that only ask: their input may hold secrets, and addresses are logged.
var adminCalls = map[string]map[string]adminCall{
	http.MethodGet: {
		"/throttle/zones":     (*App).adminZones,
		"/throttle/overrides": (*App).adminOverrides,
		"/throttle/journal":   (*App).adminJournal,
		"/throttle/rates":     (*App).adminRates,
	},
	http.MethodPost: {
		"/throttle/buckets": (*App).adminBuckets,
		"/throttle/check":   (*App).adminCheck,
		"/throttle/key":     (*App).adminKey,
		"/throttle/top":     (*App).adminTop,
		"/throttle/why":     (*App).adminWhy,

		"/throttle/ban":      (*App).adminBan,
		"/throttle/unban":    (*App).adminUnban,
		"/throttle/limit":    (*App).adminLimit,
		"/throttle/unlimit":  (*App).adminUnlimit,
		"/throttle/release":  (*App).adminRelease,
		"/throttle/revoke":   (*App).adminRevoke,
		"/throttle/shadow":   (*App).adminShadow,
		"/throttle/unshadow": (*App).adminUnshadow,
	},
}

// changes are the paths whose calls are logged.
var changes = []string{"/throttle/ban", "/throttle/unban", "/throttle/limit", "/throttle/unlimit", "/throttle/release", "/throttle/revoke", "/throttle/shadow", "/throttle/unshadow"}

// slowChanges are those that ask the store or the storage. No other change waits for them.
var slowChanges = []string{"/throttle/release", "/throttle/revoke"}

func badRequest(format string, args ...any) error {
	return caddy.APIError{HTTPStatus: http.StatusBadRequest, Err: fmt.Errorf(format, args...)}
}

func serveAdmin(w http.ResponseWriter, r *http.Request) error {
	call := adminCalls[r.Method][r.URL.Path]
	if call == nil {
		for method, calls := range adminCalls {
			if calls[r.URL.Path] != nil {
				w.Header().Set("Allow", method)
				return caddy.APIError{HTTPStatus: http.StatusMethodNotAllowed, Err: fmt.Errorf("method %s is not allowed: want %s", r.Method, method)}
			}
		}
		return caddy.APIError{HTTPStatus: http.StatusNotFound, Err: fmt.Errorf("nothing is at %q", r.URL.Path)}
	}
	in := new(adminInput)
	if r.Method == http.MethodPost {
		var err error
		if in, err = readAdminInput(w, r); err != nil {
			return err
		}
	}
	answer, err := in.ask(r.Context(), override.Origin{Via: "admin API"}, r.URL.Path, call)
	if err != nil {
		return err
	}
	return writeAnswer(w, answer)
}

// readAdminInput reads the body of a POST request.
func readAdminInput(w http.ResponseWriter, r *http.Request) (*adminInput, error) {
	kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil || kind != "application/json" {
		return nil, caddy.APIError{HTTPStatus: http.StatusUnsupportedMediaType, Err: errors.New("want a body of the type application/json")}
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, mostAdmin))
	if err != nil {
		return nil, badRequest("reading the body: %w", err)
	}
	return &adminInput{body}, nil
}

// ask calls the app that runs, for an administrator. Changes are logged and kept in the
// journal. Its errors are of the type [caddy.APIError].
func (in *adminInput) ask(ctx context.Context, from override.Origin, path string, call adminCall) (any, error) {
	a, release := runningApp()
	if a == nil {
		return nil, caddy.APIError{HTTPStatus: http.StatusServiceUnavailable, Err: errors.New("throttle does not run: no config with it is loaded")}
	}
	defer release()
	ctx, cancel := context.WithTimeout(ctx, adminTimeout)
	defer cancel()
	answer, err := in.change(ctx, a, from, path, call)
	if err != nil {
		var api caddy.APIError
		if errors.As(err, &api) {
			return nil, err
		}
		return nil, caddy.APIError{HTTPStatus: http.StatusBadGateway, Err: err}
	}
	if slices.Contains(changes, path) {
		by := zap.Skip()
		if from.By != "" {
			by = zap.String("by", from.By)
		}
		a.logger.Warn("changed at run time", zap.String("via", from.Via), by, zap.String("path", path), logged(answer))
	}
	return answer, nil
}

// change makes a call, and notes in the journal what that has changed, in the order in
// which it counts.
func (in *adminInput) change(ctx context.Context, a *App, from override.Origin, path string, call adminCall) (any, error) {
	if !slices.Contains(changes, path) {
		return call(a, ctx, in)
	}
	if !slices.Contains(slowChanges, path) {
		a.control.changing.Lock()
		defer a.control.changing.Unlock()
	}
	answer, err := call(a, ctx, in)
	if err == nil {
		a.control.journal.Add(in.journaled(from, path, answer)...)
	}
	return answer, err
}

func writeAnswer(w http.ResponseWriter, answer any) error {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(true)
	return enc.Encode(answer)
}

// logged returns what the log says of a change. A client may be named by a secret.
func logged(answer any) zap.Field {
	if result, ok := answer.(released); ok {
		return zap.Int("freed", len(result.Freed))
	}
	return zap.Any("change", answer)
}

// An adminInput is the body of a request.
type adminInput struct{ body []byte }

// decode reads the one JSON object of the body. Unknown fields are errors.
func (in *adminInput) decode(into any) error {
	d := json.NewDecoder(bytes.NewReader(in.body))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return badRequest("parsing the body: %w", err)
	}
	if _, err := d.Token(); err != io.EOF {
		return badRequest("parsing the body: want one JSON object, and nothing behind it")
	}
	return nil
}

// findZone returns the zone of a name.
func (a *App) findZone(name string) (*runningZone, error) {
	if z := a.zones[name]; z != nil {
		return z, nil
	}
	err := fmt.Errorf("unknown zone %q: the config has no zones", name)
	if names := slices.Sorted(maps.Keys(a.zones)); len(names) > 0 {
		err = unknown("zone", name, "", names)
	}
	return nil, caddy.APIError{HTTPStatus: http.StatusNotFound, Err: err}
}

// zonesNamed returns one zone, or all in the order of their names if name is empty.
func (a *App) zonesNamed(name string) ([]*runningZone, error) {
	if name != "" {
		z, err := a.findZone(name)
		return []*runningZone{z}, err
	}
	var all []*runningZone
	for _, name := range slices.Sorted(maps.Keys(a.zones)) {
		all = append(all, a.zones[name])
	}
	return all, nil
}

// Interface guards
var _ caddy.AdminRouter = (*adminAPI)(nil)
