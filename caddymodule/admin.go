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

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/admin/wire"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/override"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/text"
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

// An adminCall is what the admin API does at a path.
type adminCall struct {
	method string

	// answer decodes the body into what it needs.
	answer func(a *engine, ctx context.Context, in *adminInput) (any, error)

	changes bool // what runs, so it is logged and noted in the journal
	slow    bool // it asks the store or the storage, so no other change waits for it
}

// adminCalls are the calls by path. Those with GET change nothing. Neither do some with
// POST, which only ask: their input may hold secrets, and addresses are logged.
var adminCalls = map[string]adminCall{
	"/throttle/zones":     {method: http.MethodGet, answer: (*engine).adminZones},
	"/throttle/overrides": {method: http.MethodGet, answer: (*engine).adminOverrides},
	"/throttle/journal":   {method: http.MethodGet, answer: (*engine).adminJournal},
	"/throttle/rates":     {method: http.MethodGet, answer: (*engine).adminRates},

	"/throttle/buckets": {method: http.MethodPost, answer: (*engine).adminBuckets},
	"/throttle/check":   {method: http.MethodPost, answer: (*engine).adminCheck},
	"/throttle/key":     {method: http.MethodPost, answer: (*engine).adminKey},
	"/throttle/top":     {method: http.MethodPost, answer: (*engine).adminTop},
	"/throttle/why":     {method: http.MethodPost, answer: (*engine).adminWhy},

	"/throttle/ban":      {method: http.MethodPost, answer: (*engine).adminBan, changes: true},
	"/throttle/unban":    {method: http.MethodPost, answer: (*engine).adminUnban, changes: true},
	"/throttle/limit":    {method: http.MethodPost, answer: (*engine).adminLimit, changes: true},
	"/throttle/unlimit":  {method: http.MethodPost, answer: (*engine).adminUnlimit, changes: true},
	"/throttle/release":  {method: http.MethodPost, answer: (*engine).adminRelease, changes: true, slow: true},
	"/throttle/revoke":   {method: http.MethodPost, answer: (*engine).adminRevoke, changes: true, slow: true},
	"/throttle/shadow":   {method: http.MethodPost, answer: (*engine).adminShadow, changes: true},
	"/throttle/unshadow": {method: http.MethodPost, answer: (*engine).adminUnshadow, changes: true},
}

func badRequest(format string, args ...any) error {
	return caddy.APIError{HTTPStatus: http.StatusBadRequest, Err: fmt.Errorf(format, args...)}
}

func serveAdmin(w http.ResponseWriter, r *http.Request) error {
	call, found := adminCalls[r.URL.Path]
	switch {
	case !found:
		return caddy.APIError{HTTPStatus: http.StatusNotFound, Err: fmt.Errorf("nothing is at %q", r.URL.Path)}
	case r.Method != call.method:
		w.Header().Set("Allow", call.method)
		return caddy.APIError{HTTPStatus: http.StatusMethodNotAllowed, Err: fmt.Errorf("method %s is not allowed: want %s", r.Method, call.method)}
	}
	in := new(adminInput)
	if r.Method == http.MethodPost {
		var err error
		if in, err = readAdminInput(w, r); err != nil {
			return err
		}
	}
	answer, err := in.ask(r.Context(), override.Origin{Via: "admin API"}, r.URL.Path)
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

// ask makes the call of a path, one of [adminCalls], to the app that runs. Changes are
// logged and noted in the journal. Its errors are of the type [caddy.APIError].
func (in *adminInput) ask(ctx context.Context, from override.Origin, path string) (any, error) {
	a, release := runningApp()
	if a == nil {
		return nil, caddy.APIError{HTTPStatus: http.StatusServiceUnavailable, Err: errors.New("throttle does not run: no config with it is loaded")}
	}
	defer release()
	ctx, cancel := context.WithTimeout(ctx, adminTimeout)
	defer cancel()
	call := adminCalls[path]
	answer, changed, err := in.call(ctx, a, from, path, &call)
	if err != nil {
		var api caddy.APIError
		if errors.As(err, &api) {
			return nil, err
		}
		return nil, caddy.APIError{HTTPStatus: http.StatusBadGateway, Err: err}
	}
	for _, change := range changed {
		by := zap.Skip()
		if from.By != "" {
			by = zap.String("by", from.By)
		}
		a.logger.Warn("changed at run time", zap.String("via", from.Via), by, zap.String("path", path), zap.String("of", change.Of), logged(answer))
	}
	return answer, nil
}

// call makes a call, and returns what it has changed. That is noted in the journal in the
// order in which it counts.
func (in *adminInput) call(ctx context.Context, a *engine, from override.Origin, path string, call *adminCall) (answer any, changed []override.Change, err error) {
	if call.changes && !call.slow {
		a.control.changing.Lock()
		defer a.control.changing.Unlock()
	}
	answer, err = call.answer(a, ctx, in)
	if err == nil && call.changes {
		changed = in.journaled(from, path, answer)
		a.control.journal.Add(changed...)
	}
	return answer, changed, err
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
	if result, ok := answer.(wire.Released); ok {
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
func (a *engine) findZone(name string) (*runningZone, error) {
	if z := a.zones[name]; z != nil {
		return z, nil
	}
	err := fmt.Errorf("unknown zone %q: the config has no zones", name)
	if names := slices.Sorted(maps.Keys(a.zones)); len(names) > 0 {
		err = text.Unknown("zone", name, "", names)
	}
	return nil, caddy.APIError{HTTPStatus: http.StatusNotFound, Err: err}
}

// zonesNamed returns one zone, or all in the order of their names if name is empty.
func (a *engine) zonesNamed(name string) ([]*runningZone, error) {
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
