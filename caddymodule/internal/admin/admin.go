// Package admin is the admin API: JSON in, calls of the engine, JSON out. Begin with
// [API.Routes] and the table of calls. It decides nothing about requests.
package admin

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
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/engine"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/override"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/text"
)

// API serves the paths under /throttle/ of Caddy's admin endpoint. Caddy makes
// one before any app, and never cleans it up, so it looks for the running app at each
// request. Caddy checks hosts and origins.
type API struct{}

// CaddyModule returns the Caddy module information.
func (API) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "admin.api.throttle",
		New: func() caddy.Module { return new(API) },
	}
}

// Routes implements caddy.AdminRouter.
func (API) Routes() []caddy.AdminRoute {
	return []caddy.AdminRoute{{Pattern: "/throttle/", Handler: caddy.AdminHandlerFunc(ServeAdmin)}}
}

const (
	adminTimeout = 70 * time.Second // of one request, which may go through a whole store
	MostAdmin    = 64 << 10         // bytes of a request's body
)

// An adminCall is what the admin API does at a path.
type adminCall struct {
	Method string

	// answer decodes the body into what it needs.
	answer func(a *engine.Engine, ctx context.Context, in *adminInput) (any, error)

	Changes bool // what runs, so it is logged and noted in the journal
	slow    bool // it asks the store or the storage, so no other change waits for it
}

// AdminCalls are the calls by path. Those with GET change nothing. Neither do some with
// POST, which only ask: their input may hold secrets, and addresses are logged.
var AdminCalls = map[string]adminCall{
	"/throttle/zones":     {Method: http.MethodGet, answer: AnswerZones},
	"/throttle/overrides": {Method: http.MethodGet, answer: answerOverrides},
	"/throttle/journal":   {Method: http.MethodGet, answer: answerJournal},
	"/throttle/rates":     {Method: http.MethodGet, answer: answerRates},

	"/throttle/buckets": {Method: http.MethodPost, answer: answerBuckets},
	"/throttle/check":   {Method: http.MethodPost, answer: answerCheck},
	"/throttle/key":     {Method: http.MethodPost, answer: answerKey},
	"/throttle/top":     {Method: http.MethodPost, answer: answerTop},
	"/throttle/why":     {Method: http.MethodPost, answer: answerWhy},

	"/throttle/ban":      {Method: http.MethodPost, answer: answerBan, Changes: true},
	"/throttle/unban":    {Method: http.MethodPost, answer: answerUnban, Changes: true},
	"/throttle/limit":    {Method: http.MethodPost, answer: answerLimit, Changes: true},
	"/throttle/unlimit":  {Method: http.MethodPost, answer: answerUnlimit, Changes: true},
	"/throttle/release":  {Method: http.MethodPost, answer: answerRelease, Changes: true, slow: true},
	"/throttle/revoke":   {Method: http.MethodPost, answer: answerRevoke, Changes: true, slow: true},
	"/throttle/shadow":   {Method: http.MethodPost, answer: answerShadow, Changes: true},
	"/throttle/unshadow": {Method: http.MethodPost, answer: answerUnshadow, Changes: true},
}

func badRequest(format string, args ...any) error {
	return caddy.APIError{HTTPStatus: http.StatusBadRequest, Err: fmt.Errorf(format, args...)}
}

func ServeAdmin(w http.ResponseWriter, r *http.Request) error {
	call, found := AdminCalls[r.URL.Path]
	switch {
	case !found:
		return caddy.APIError{HTTPStatus: http.StatusNotFound, Err: fmt.Errorf("nothing is at %q", r.URL.Path)}
	case r.Method != call.Method:
		w.Header().Set("Allow", call.Method)
		return caddy.APIError{HTTPStatus: http.StatusMethodNotAllowed, Err: fmt.Errorf("method %s is not allowed: want %s", r.Method, call.Method)}
	}
	in := new(adminInput)
	if r.Method == http.MethodPost {
		var err error
		if in, err = ReadAdminInput(w, r); err != nil {
			return err
		}
	}
	answer, err := in.Ask(r.Context(), override.Origin{Via: "admin API"}, r.URL.Path)
	if err != nil {
		return err
	}
	return WriteAnswer(w, answer)
}

// ReadAdminInput reads the body of a POST request.
func ReadAdminInput(w http.ResponseWriter, r *http.Request) (*adminInput, error) {
	kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil || kind != "application/json" {
		return nil, caddy.APIError{HTTPStatus: http.StatusUnsupportedMediaType, Err: errors.New("want a body of the type application/json")}
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, MostAdmin))
	if err != nil {
		return nil, badRequest("reading the body: %w", err)
	}
	return &adminInput{body}, nil
}

// Ask makes the call of a path, one of [adminCalls], to the app that runs. Changes are
// logged and noted in the journal. Its errors are of the type [caddy.APIError].
func (in *adminInput) Ask(ctx context.Context, from override.Origin, path string) (any, error) {
	a, release := engine.RunningApp()
	if a == nil {
		return nil, caddy.APIError{HTTPStatus: http.StatusServiceUnavailable, Err: errors.New("throttle does not run: no config with it is loaded")}
	}
	defer release()
	ctx, cancel := context.WithTimeout(ctx, adminTimeout)
	defer cancel()
	call := AdminCalls[path]
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
		a.Logger.Warn("changed at run time", zap.String("via", from.Via), by, zap.String("path", path), zap.String("of", change.Of), logged(answer))
	}
	return answer, nil
}

// call makes a call, and returns what it has changed. That is noted in the journal in the
// order in which it counts.
func (in *adminInput) call(ctx context.Context, a *engine.Engine, from override.Origin, path string, call *adminCall) (answer any, changed []override.Change, err error) {
	if call.Changes && !call.slow {
		a.Control.Changing.Lock()
		defer a.Control.Changing.Unlock()
	}
	answer, err = call.answer(a, ctx, in)
	if err == nil && call.Changes {
		changed = in.journaled(from, path, answer)
		a.Control.Journal.Add(changed...)
	}
	return answer, changed, err
}

func WriteAnswer(w http.ResponseWriter, answer any) error {
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
func findZone(a *engine.Engine, name string) (*engine.Zone, error) {
	if z := a.Zones[name]; z != nil {
		return z, nil
	}
	err := fmt.Errorf("unknown zone %q: the config has no zones", name)
	if names := slices.Sorted(maps.Keys(a.Zones)); len(names) > 0 {
		err = text.Unknown("zone", name, "", names)
	}
	return nil, caddy.APIError{HTTPStatus: http.StatusNotFound, Err: err}
}

// zonesNamed returns one zone, or all in the order of their names if name is empty.
func zonesNamed(a *engine.Engine, name string) ([]*engine.Zone, error) {
	if name != "" {
		z, err := findZone(a, name)
		return []*engine.Zone{z}, err
	}
	var all []*engine.Zone
	for _, name := range slices.Sorted(maps.Keys(a.Zones)) {
		all = append(all, a.Zones[name])
	}
	return all, nil
}

// Interface guards
var _ caddy.AdminRouter = (*API)(nil)
