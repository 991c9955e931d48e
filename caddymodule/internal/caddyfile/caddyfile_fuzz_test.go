package caddyfile_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"

	"github.com/caddy-throttle/caddy-throttle/caddymodule"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/config"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/golden"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

// The module must be able to load every Caddyfile that adapts, so that all errors
// are reported with their line.
func FuzzCaddyfileBlock(f *testing.F) {
	for _, caddyfile := range golden.Caddyfiles(f) {
		for _, block := range blocksOf(caddyfile) {
			f.Add(block)
		}
	}
	f.Fuzz(func(t *testing.T, block string) {
		if strings.Contains(block, "import") {
			t.Skip("it may read any file")
		}
		for _, caddyfile := range []string{
			"{\nthrottle {\nplan partner 100 10/s\nzone login {\nlimit 5 1/s\n}\n}\n}\n" +
				"http://example.com {\n@search path /search\nthrottle {\n" + block + "\n}\n}\n",
			"{\nthrottle {\n" + block + "\n}\n}\n",
		} {
			adapted, _, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte(caddyfile), nil)
			if err != nil {
				continue
			}
			app, apps := new(caddymodule.App), appsOf(t, adapted)
			if raw := apps["throttle"]; raw != nil {
				check.OK(t, caddy.StrictUnmarshalJSON(raw, app), "%s\nadapts, and is no app", caddyfile)
			}
			plans, err := config.ParsePlans(app.Plan)
			check.OK(t, err, "%s\nadapts, and has no plans", caddyfile)
			zones := app.Zone
			for _, handler := range handlersIn(t, apps["http"]) {
				zones = append(zones, handler.Zone...)
			}
			for _, z := range zones {
				if z.Reference() {
					continue
				}
				check.NoError(t, z.Compile(plans), "%s\nadapts, and does not compile", caddyfile)
			}
		}
	})
}

// blocksOf returns the throttle blocks of a Caddyfile.
func blocksOf(caddyfile string) (blocks []string) {
	for i, after := range strings.Split(caddyfile, "throttle") {
		line, rest, _ := strings.Cut(after, "\n")
		if i == 0 || !strings.HasSuffix(line, "{") {
			continue
		}
		open := 1
		for at, c := range rest {
			switch c {
			case '{':
				open++
			case '}':
				open--
			}
			if open == 0 {
				blocks = append(blocks, rest[:at])
				break
			}
		}
	}
	return blocks
}

// appsOf returns the apps of a config.
func appsOf(t *testing.T, adapted []byte) map[string]json.RawMessage {
	t.Helper()
	var config struct {
		Apps map[string]json.RawMessage `json:"apps"`
	}
	check.OK(t, json.Unmarshal(adapted, &config))
	return config.Apps
}

// handlersIn returns the throttle handlers of an http app.
func handlersIn(t *testing.T, raw json.RawMessage) (handlers []*caddymodule.Handler) {
	var object map[string]json.RawMessage
	var array []json.RawMessage
	switch {
	case json.Unmarshal(raw, &array) == nil:
		for _, element := range array {
			handlers = append(handlers, handlersIn(t, element)...)
		}
	case json.Unmarshal(raw, &object) == nil:
		if string(object["handler"]) == `"throttle"` {
			delete(object, "handler")
			raw := check.Must(json.Marshal(object))(t)
			handler := new(caddymodule.Handler)
			check.OK(t, caddy.StrictUnmarshalJSON(raw, handler), "%s is no handler", raw)
			return []*caddymodule.Handler{handler}
		}
		for _, value := range object {
			handlers = append(handlers, handlersIn(t, value)...)
		}
	}
	return handlers
}
