// Package admin is the admin API: JSON in, calls of the engine, JSON out. Begin with
// [API.Routes] and the table of calls. It decides nothing about requests.
package admin

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/caddyserver/caddy/v2"
	"go.uber.org/zap"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/admin/wire"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/engine"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/override"
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
	return []caddy.AdminRoute{{Pattern: "/throttle/", Handler: caddy.AdminHandlerFunc(serve)}}
}

// timeout is that of one request, which may go through a whole store.
const timeout = 70 * time.Second

// A Call is what the admin API does at a path.
type Call struct {
	Method string

	answer

	Changes bool // what runs, so it is logged and noted in the journal
}

// Calls are the calls by path. Those with GET change nothing. Neither do some with
// POST, which only ask: their input may hold secrets, and addresses are logged.
var Calls = map[string]Call{
	"/throttle/zones":     {Method: http.MethodGet, answer: answerZones},
	"/throttle/overrides": {Method: http.MethodGet, answer: answerOverrides},
	"/throttle/journal":   {Method: http.MethodGet, answer: answerJournal},
	"/throttle/rates":     {Method: http.MethodGet, answer: answerRates},

	"/throttle/buckets": {Method: http.MethodPost, answer: answerBuckets},
	"/throttle/check":   {Method: http.MethodPost, answer: answerCheck},
	"/throttle/top":     {Method: http.MethodPost, answer: answerTop},
	"/throttle/why":     {Method: http.MethodPost, answer: answerWhy},

	"/throttle/ban":      {Method: http.MethodPost, answer: makes(banEntry), Changes: true},
	"/throttle/unban":    {Method: http.MethodPost, answer: ends(banEntry), Changes: true},
	"/throttle/limit":    {Method: http.MethodPost, answer: makes(limitEntry), Changes: true},
	"/throttle/unlimit":  {Method: http.MethodPost, answer: ends(limitEntry), Changes: true},
	"/throttle/release":  {Method: http.MethodPost, answer: answerRelease, Changes: true},
	"/throttle/revoke":   {Method: http.MethodPost, answer: answerRevoke, Changes: true},
	"/throttle/shadow":   {Method: http.MethodPost, answer: makes(shadowEntry), Changes: true},
	"/throttle/unshadow": {Method: http.MethodPost, answer: ends(shadowEntry), Changes: true},
}

func serve(w http.ResponseWriter, r *http.Request) error {
	call, found := Calls[r.URL.Path]
	switch {
	case !found:
		return caddy.APIError{HTTPStatus: http.StatusNotFound, Err: fmt.Errorf("nothing is at %q", r.URL.Path)}
	case r.Method != call.Method:
		w.Header().Set("Allow", call.Method)
		return caddy.APIError{HTTPStatus: http.StatusMethodNotAllowed, Err: fmt.Errorf("method %s is not allowed: want %s", r.Method, call.Method)}
	}
	in := new(Input)
	if r.Method == http.MethodPost {
		var err error
		if in, err = ReadInput(w, r); err != nil {
			return err
		}
	}
	from := override.Origin{Via: "admin API", By: r.Header.Get(wire.ByHeader)}
	if r.TLS != nil && len(r.TLS.VerifiedChains) > 0 {
		from = override.Origin{Via: "remote admin", By: cmp.Or(r.TLS.VerifiedChains[0][0].Subject.CommonName, r.TLS.VerifiedChains[0][0].Subject.String())}
	}
	answer, err := in.Ask(r.Context(), from, r.URL.Path)
	if err != nil {
		return err
	}
	return WriteAnswer(w, answer)
}

// Ask makes the call of a path, one of [Calls], to the app that runs. Changes are
// logged and noted in the journal. Its errors are of the type [caddy.APIError].
func (in *Input) Ask(ctx context.Context, from override.Origin, path string) (any, error) {
	a, release := engine.RunningApp()
	if a == nil {
		return nil, caddy.APIError{HTTPStatus: http.StatusServiceUnavailable, Err: errors.New("throttle does not run: no config with it is loaded")}
	}
	defer release()
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	in.from = from
	answer, err := Calls[path].answer(ctx, a, in)
	if err != nil {
		var api caddy.APIError
		if errors.As(err, &api) {
			return nil, err
		}
		return nil, caddy.APIError{HTTPStatus: http.StatusBadGateway, Err: err}
	}
	for _, change := range in.changed {
		by := zap.Skip()
		if from.By != "" {
			by = zap.String("by", from.By)
		}
		a.Logger.Warn("changed at run time", zap.String("via", from.Via), by, zap.String("path", path), zap.String("of", change.Of), logged(answer))
	}
	return answer, nil
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
		return zap.Int("freed", result.Count)
	}
	return zap.Any("change", answer)
}

// Interface guards
var _ caddy.AdminRouter = (*API)(nil)
