// Package admin is the admin API: JSON in, calls of the engine, JSON out. Begin with
// [API.Routes] and the table of calls. It decides nothing about requests.
package admin

import (
	"cmp"
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
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/option"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/override"
)

// API serves the paths under /throttle/ of Caddy's admin endpoint. Caddy makes
// one before any app, and never cleans it up, so it looks for the running app at each
// request. Caddy checks hosts and origins.
type API struct{}

// CaddyModule returns the Caddy module information.
func (API) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "admin.api.throttle", New: func() caddy.Module { return new(API) }}
}

// Routes implements caddy.AdminRouter.
func (API) Routes() []caddy.AdminRoute {
	return []caddy.AdminRoute{{Pattern: "/throttle/", Handler: caddy.AdminHandlerFunc(serve)}}
}

// timeout is that of one request, which may go through a whole store.
const timeout = 70 * time.Second

// A Call is what the admin API does at a path.
type Call struct {
	Method  string
	Changes bool // what runs, so it is logged and noted in the journal

	answer func(ctx context.Context, e *engine.Engine, in *input) (any, error)
}

// reads returns a call without an input.
func reads(answer func(e *engine.Engine) any) Call {
	return Call{Method: http.MethodGet, answer: func(_ context.Context, e *engine.Engine, _ *input) (any, error) { return answer(e), nil }}
}

// asks returns a call that has an input, and changes nothing. The input may hold secrets, and
// addresses are logged, so it is in the body.
func asks[T any](answer func(ctx context.Context, e *engine.Engine, in *input, of *T) (any, error)) Call {
	return Call{Method: http.MethodPost, answer: func(ctx context.Context, e *engine.Engine, in *input) (any, error) {
		of := new(T)
		if err := in.decode(of); err != nil {
			return nil, err
		}
		return answer(ctx, e, in, of)
	}}
}

// acts returns a call that changes what runs.
func acts[T any](answer func(ctx context.Context, e *engine.Engine, in *input, of *T) (any, error)) Call {
	call := asks(answer)
	call.Changes = true
	return call
}

// Calls are the calls by path.
var Calls = map[string]Call{
	"/throttle/zones":     reads(answerZones),
	"/throttle/overrides": reads(func(e *engine.Engine) any { return overridesOf(e, time.Now()) }),
	"/throttle/journal":   reads(func(e *engine.Engine) any { return e.Control.Changes.Journal() }),
	"/throttle/rates":     reads(answerRates),

	"/throttle/buckets": asks(answerBuckets),
	"/throttle/top":     asks(answerTop),
	"/throttle/why":     asks(answerWhy),

	"/throttle/ban":      acts(makes(banEntry, false)),
	"/throttle/unban":    acts(makes(banEntry, true)),
	"/throttle/limit":    acts(makes(limitEntry, false)),
	"/throttle/unlimit":  acts(makes(limitEntry, true)),
	"/throttle/release":  acts(answerRelease),
	"/throttle/shadow":   acts(makes(shadowEntry, false)),
	"/throttle/unshadow": acts(makes(shadowEntry, true)),
}

func serve(w http.ResponseWriter, r *http.Request) error {
	if call, found := Calls[r.URL.Path]; found && r.Method != call.Method {
		w.Header().Set("Allow", call.Method)
		return caddy.APIError{HTTPStatus: http.StatusMethodNotAllowed, Err: fmt.Errorf("method %s is not allowed: want %s", r.Method, call.Method)}
	}
	from := override.Origin{Via: "admin API", By: r.Header.Get(wire.ByHeader)}
	if name := CertificateOf(r); name != "" {
		from = override.Origin{Via: "remote admin", By: name}
	}
	return Answer(w, r, r.URL.Path, from)
}

// CertificateOf returns whom the verified client certificate of a request's connection names,
// or "" if there is none.
func CertificateOf(r *http.Request) string {
	if r.TLS == nil || len(r.TLS.VerifiedChains) == 0 {
		return ""
	}
	subject := &r.TLS.VerifiedChains[0][0].Subject
	return cmp.Or(subject.CommonName, subject.String(), "a client certificate")
}

// Answer makes the call of a path, one of [Calls], to the app that runs, and writes its
// answer. Changes are logged and noted in the journal. Errors are of the type
// [caddy.APIError], and then nothing is written.
func Answer(w http.ResponseWriter, r *http.Request, path string, from override.Origin) error {
	call, found := Calls[path]
	if !found {
		return caddy.APIError{HTTPStatus: http.StatusNotFound, Err: fmt.Errorf("nothing is at %q", path)}
	}
	in := &input{w: w, r: r, from: from}
	e, release := engine.RunningEngine()
	if e == nil {
		return caddy.APIError{HTTPStatus: http.StatusServiceUnavailable, Err: errors.New("throttle does not run: no config with it is loaded")}
	}
	defer release()
	ctx, cancel := context.WithTimeout(r.Context(), timeout)
	defer cancel()
	answer, err := call.answer(ctx, e, in)
	if err != nil {
		if !errors.As(err, new(caddy.APIError)) {
			err = caddy.APIError{HTTPStatus: http.StatusBadGateway, Err: err}
		}
		return err
	}
	if in.changed != "" {
		e.Logger.Warn("changed at run time", zap.String("via", from.Via), zap.String("by", from.By), zap.String("path", path), zap.String("of", in.changed))
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	return json.NewEncoder(w).Encode(answer) // which escapes HTML
}

// mostRead is how many bytes the body of a request may have.
const mostRead = 64 << 10

// An input is a request, and who has sent it.
type input struct {
	w       http.ResponseWriter
	r       *http.Request
	from    override.Origin
	changed string // by the call; empty if nothing was
}

// decode reads the one JSON object of the body. Unknown fields are errors.
func (in *input) decode(into any) error {
	if kind, _, err := mime.ParseMediaType(in.r.Header.Get("Content-Type")); err != nil || kind != "application/json" {
		return caddy.APIError{HTTPStatus: http.StatusUnsupportedMediaType, Err: errors.New("want a body of the type application/json")}
	}
	d := json.NewDecoder(http.MaxBytesReader(in.w, in.r.Body, mostRead))
	d.DisallowUnknownFields()
	if err := d.Decode(&into); err != nil {
		return badRequest("parsing the body: %w", err)
	}
	if _, err := d.Token(); err != io.EOF || into == nil { // null would mean all defaults, such as shadow everywhere
		return badRequest("parsing the body: want one JSON object, and nothing behind it")
	}
	return nil
}

// findZone returns the zone of a name. For an unknown one, the error offers other names, too.
func findZone(e *engine.Engine, name string, others ...string) (*engine.Zone, error) {
	if z := e.Zones[name]; z != nil {
		return z, nil
	} else if e.InFlight[name] != nil {
		return nil, badRequest("%q is no zone but an in_flight, which has no buckets, and no limit that can be changed at run time", name)
	}
	err := fmt.Errorf("unknown zone %q: the config has no zones", name)
	if names := append(slices.Sorted(maps.Keys(e.Zones)), others...); len(names) > 0 {
		err = option.Unknown("zone", name, "", names)
	}
	return nil, caddy.APIError{HTTPStatus: http.StatusNotFound, Err: err}
}

// allZones returns the zones in the order of their names.
func allZones(e *engine.Engine) []*engine.Zone {
	return converted(slices.Sorted(maps.Keys(e.Zones)), func(name string) *engine.Zone { return e.Zones[name] })
}

// zonesNamed returns one zone, or all if name is empty.
func zonesNamed(e *engine.Engine, name string) ([]*engine.Zone, error) {
	if name == "" {
		return allZones(e), nil
	}
	z, err := findZone(e, name)
	return []*engine.Zone{z}, err
}

func badRequest(format string, args ...any) error {
	return caddy.APIError{HTTPStatus: http.StatusBadRequest, Err: fmt.Errorf(format, args...)}
}

// converted returns what of makes of each, which JSON shows as a list even if it is empty.
func converted[T, W any](all []T, of func(T) W) []W {
	result := make([]W, len(all))
	for i := range all {
		result[i] = of(all[i])
	}
	return result
}

// Interface guards
var _ caddy.AdminRouter = (*API)(nil)
