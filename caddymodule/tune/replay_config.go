package tune

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/caddyserver/certmagic"
	"github.com/dustin/go-humanize"

	"github.com/caddy-throttle/caddy-throttle/caddymodule"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/engine"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/text"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/tune/internal/accesslog"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/tune/internal/recommend"
)

// A replayServer is a server of the config as a replay runs it.
type replayServer struct {
	*caddyhttp.Server
	hosts []string // of its routes; none means that it takes every host
	ports []string
	chain caddyhttp.Handler
}

// A replayConfig is a config that requests of a log can be run through.
type replayConfig struct {
	app      *engine.Engine
	servers  []*replayServer
	handlers []*engine.Handler
	raw      []byte   // the config
	routes   bool     // something but one throttle handler stands in the way of requests
	absent   []string // folders in which the config looks for files, and which are not here
	close    func()
}

// loadReplayConfig loads a config, whose requests end at upstream. What limit returns stands
// for each throttle handler. Nothing is loaded but
// throttle and the routes that lead to it: no listener, log, storage, certificate, upstream
// or shared store.
func loadReplayConfig(config []byte, upstream caddyhttp.Handler, limit func(*engine.Handler) caddyhttp.MiddlewareHandler) (_ *replayConfig, err error) {
	var whole struct {
		Apps struct {
			HTTP struct {
				Servers map[string]*caddyhttp.Server `json:"servers"`
			} `json:"http"`
			Throttle map[string]json.RawMessage `json:"throttle"`
		} `json:"apps"`
	}
	if err := json.Unmarshal(config, &whole); err != nil {
		return nil, fmt.Errorf("reading the config: %w", err)
	}
	delete(whole.Apps.Throttle, "store")
	c := &replayConfig{raw: config}
	c.noteFolders(whole.Apps.Throttle)
	throttle := []byte("{}")
	if whole.Apps.Throttle != nil {
		if throttle, err = json.Marshal(whole.Apps.Throttle); err != nil {
			return nil, err
		}
	}
	cfg := &caddy.Config{
		Admin:   &caddy.AdminConfig{Disabled: true},
		Logging: &caddy.Logging{Logs: map[string]*caddy.CustomLog{caddy.DefaultLoggerName: {BaseLog: caddy.BaseLog{Level: "FATAL"}}}},
	}
	ctx, err := caddy.ProvisionContext(cfg)
	if err != nil {
		return nil, fmt.Errorf("loading the config: %w", err)
	}
	// The app is loaded in a context that can be ended, which cleans it up.
	loading, cancel := caddy.NewContext(ctx)
	cfg.AppsRaw = caddy.ModuleMap{"throttle": throttle}
	c.close = cancel
	defer func() {
		if err != nil {
			cancel()
		}
	}()
	if c.app, err = engine.EngineOf(loading); err != nil {
		return nil, err
	}
	for _, name := range slices.Sorted(maps.Keys(whole.Apps.HTTP.Servers)) {
		if err := c.addServer(loading, whole.Apps.HTTP.Servers[name], upstream, limit); err != nil {
			return nil, fmt.Errorf("loading the config of server %s: %w", name, err)
		}
	}
	if len(c.handlers) == 0 {
		return nil, errors.New("the config has no throttle handler, so there is nothing to replay")
	}
	return c, nil
}

// noteFolders notes the folders of parts of the config that look for files and are not here:
// static_files goes by endings then, and what try_files makes of an address is unknown.
func (c *replayConfig) noteFolders(parts ...any) {
	var config any
	raw, err := json.Marshal(parts)
	if err != nil || json.Unmarshal(raw, &config) != nil {
		return // loading the config says why
	}
	looks, folders := false, []string(nil)
	eachObject(config, func(object map[string]any) {
		looks = looks || object["file"] != nil || object["exempt_static_files"] != nil
		if root, ok := object["root"].(string); ok && filepath.IsAbs(root) && !strings.Contains(root, "{") {
			folders = append(folders, root)
		}
	})
	for _, folder := range folders {
		if _, err := os.Stat(folder); err != nil && looks && !slices.Contains(c.absent, folder) {
			c.absent = append(c.absent, folder)
		}
	}
}

// addServer loads the routes of a server.
func (c *replayConfig) addServer(ctx caddy.Context, config *caddyhttp.Server, upstream caddyhttp.Handler, limit func(*engine.Handler) caddyhttp.MiddlewareHandler) error {
	s := &replayServer{Server: stripServer(config)}
	c.noteFolders(s.Routes, s.NamedRoutes)
	for _, listen := range s.Listen {
		if _, port, err := net.SplitHostPort(listen); err == nil {
			s.ports = append(s.ports, port)
		}
	}
	s.findHosts() // before Caddy drops the matchers that it has loaded
	ctx.Context = context.WithValue(ctx.Context, caddyhttp.ServerCtxKey, s.Server)
	if err := s.Routes.Provision(ctx); err != nil {
		return err
	}
	for _, route := range s.NamedRoutes {
		if err := route.Provision(ctx, nil); err != nil {
			return err
		}
	}
	c.routes = c.routes || len(s.NamedRoutes) > 0 || branches(s.Routes)
	var err error
	s.chain, err = linkServer(ctx, s.Server, upstream, func(throttle caddyhttp.MiddlewareHandler) caddyhttp.MiddlewareHandler {
		running := throttle.(engine.Directive).Running()
		c.handlers = append(c.handlers, running)
		return limit(running)
	})
	c.servers = append(c.servers, s)
	return err
}

// branches reports whether something but one handler stands in the way of requests.
func branches(list caddyhttp.RouteList) bool {
	return slices.ContainsFunc(list, func(route caddyhttp.Route) bool {
		if len(route.MatcherSets) > 0 || len(route.Handlers) != 1 {
			return true
		}
		subroute, ok := route.Handlers[0].(*caddyhttp.Subroute)
		return ok && branches(subroute.Routes)
	})
}

// findHosts finds out which hosts the routes of a server are for.
func (s *replayServer) findHosts() {
	for i := range s.Routes {
		hosts := hostsOf(&s.Routes[i])
		if len(hosts) == 0 {
			s.hosts = nil
			return
		}
		s.hosts = append(s.hosts, hosts...)
	}
}

// stranger says which hosts the log has that the config has not, or "".
func (rp *player) stranger() string {
	hosts, others, sum := []string{}, []string{}, 0
	for _, s := range rp.servers {
		if hosts = append(hosts, s.hosts...); len(s.hosts) == 0 || strings.Contains(strings.Join(s.hosts, ""), "{") {
			return "" // it takes any host, or who knows which
		}
	}
	for host, n := range rp.clients.Hosts {
		name, _, err := net.SplitHostPort(host)
		if name = strings.ToLower(name); err != nil {
			name = strings.ToLower(host)
		}
		if !slices.ContainsFunc(hosts, func(pattern string) bool { return certmagic.MatchWildcard(name, strings.ToLower(pattern)) }) {
			others, sum = append(others, fmt.Sprintf("%s (%s)", text.Printable(name, 80), humanize.Comma(int64(n)))), sum+n
		}
	}
	if sum == 0 {
		return ""
	}
	return fmt.Sprintf("%s for hosts of which the config has no site: %s. It has %s: change that in a copy to try it.",
		recommend.Counted(sum, "request is", "requests are"), strings.Join(others[:min(5, len(others))], ", "), strings.Join(hosts, ", "))
}

// serverOf returns the server that a request has probably come to. A log does not
// say: it is the one that listens where the Host header says, or the one with a site of
// that host, or the one for HTTPS.
func (c *replayConfig) serverOf(req *accesslog.Request) *replayServer {
	if len(c.servers) == 1 {
		return c.servers[0]
	}
	host, port, err := net.SplitHostPort(req.Host)
	if err != nil {
		host, port = req.Host, ""
	}
	if port == "" && req.TLS {
		port = "443"
	}
	score := func(s *replayServer) (score int) {
		if slices.Contains(s.ports, port) {
			score += 4
		}
		if slices.ContainsFunc(s.hosts, func(pattern string) bool { return certmagic.MatchWildcard(host, pattern) }) {
			score += 2
		}
		if slices.Contains(s.ports, "443") {
			score++
		}
		return score
	}
	return slices.MaxFunc(c.servers, func(a, b *replayServer) int { return score(a) - score(b) })
}

// flagConfig adapts a Caddyfile with one zone, made of flags, so that they are spelled and
// checked as there. Its errors name the flag, not a place in a file that nobody has.
func flagConfig(limit string, keys []string, cost, settle string) ([]byte, error) {
	lines, flags := []string{"limit" + quoted(strings.Fields(limit))}, []string{"--limit"}
	if len(keys) > 0 { // plain, since whoever runs this can read the log
		lines = append(lines, "key"+quoted(strings.Fields(strings.Join(keys, " ")))+" {", "plain", "}")
		flags = append(flags, "--key", "--key", "--key")
	}
	if cost != "" {
		lines, flags = append(lines, "cost"+quoted([]string{cost})), append(flags, "--cost")
	}
	if settle != "" {
		lines, flags = append(lines, "settle"+quoted(strings.Fields(settle))), append(flags, "--settle")
	}
	const before = ":80 {\nthrottle {\nzone limit {\n"
	caddyfile := before + strings.Join(lines, "\n") + "\n}\n}\n}\n"
	config, _, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte(caddyfile), map[string]any{"filename": "flags"})
	if err == nil {
		return config, nil
	}
	said := regexp.MustCompile(`^(?:parsing caddyfile tokens for 'throttle': )?(?:zone "limit": )?(?:parsing \w+: )?(.*), at flags:(\d+)$`).FindStringSubmatch(err.Error())
	if said == nil {
		return nil, caddymodule.UsageErrorf("reading the limit of the flags: %w", err)
	}
	line, _ := strconv.Atoi(said[2]) // digits
	if line -= 1 + strings.Count(before, "\n"); line < 0 || line >= len(flags) {
		return nil, caddymodule.UsageErrorf("reading the limit of the flags: %s", said[1])
	}
	return nil, caddymodule.UsageErrorf("%s: %s", flags[line], said[1])
}

// quoted returns words as tokens of a Caddyfile, each after a space.
func quoted(words []string) (tokens string) {
	for _, word := range words {
		tokens += ` "` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", " ").Replace(word) + `"`
	}
	return tokens
}
