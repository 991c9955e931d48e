package admin

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"mime"
	"net/http"
	"slices"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/engine"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/override"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/text"
)

// MostRead is how many bytes the body of a request may have.
const MostRead = 64 << 10

// An input is the body of a request, and who has sent it.
type input struct {
	body    []byte
	from    override.Origin
	changed []override.Change // by the call
}

// read reads the body of a POST request.
func (in *input) read(w http.ResponseWriter, r *http.Request) error {
	kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil || kind != "application/json" {
		return caddy.APIError{HTTPStatus: http.StatusUnsupportedMediaType, Err: errors.New("want a body of the type application/json")}
	}
	if in.body, err = io.ReadAll(http.MaxBytesReader(w, r.Body, MostRead)); err != nil {
		return badRequest("reading the body: %w", err)
	}
	return nil
}

// decode reads the one JSON object of the body. Unknown fields are errors.
func (in *input) decode(into any) error {
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
func findZone(e *engine.Engine, name string) (*engine.Zone, error) {
	if z := e.Zones[name]; z != nil {
		return z, nil
	}
	err := fmt.Errorf("unknown zone %q: the config has no zones", name)
	if names := slices.Sorted(maps.Keys(e.Zones)); len(names) > 0 {
		err = text.Unknown("zone", name, "", names)
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
