package caddymodule

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	"github.com/spf13/cobra"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/accesslog"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/advise"
)

const (
	statusTimeout = 10 * time.Second
	mostStatus    = 4 << 20 // bytes
)

// adviseOptions are the flags of the command.
type adviseOptions struct {
	path   string
	caddys int
}

func adviseCommand() *cobra.Command {
	var o adviseOptions
	return remoteCommand{
		use: "advise URL", short: "Says the right in_flight for php-fpm or Puma", args: cobra.ExactArgs(1),
		long: `Reads php-fpm's status page or the stats of Puma's control server, and says how many
requests it can work on at once, which is the right in_flight for a zone that holds
it up. It also says whether requests queue in the server, which means that more are
let in than that.

The status may come over HTTP, or from php-fpm itself by FastCGI. The running
Caddy's zones are compared if its admin endpoint answers.`,
		example: `  caddy throttle advise 'http://localhost/fpm-status?json'
  caddy throttle advise fcgi://127.0.0.1:9000/status
  caddy throttle advise fcgi:///run/php/php8.2-fpm.sock --path /status
  caddy throttle advise 'http://127.0.0.1:9293/stats?token=secret'
  caddy throttle advise unix:///run/puma-control.sock --path '/stats?token=secret'`,
		flags: func(cmd *cobra.Command) {
			cmd.Flags().StringVar(&o.path, "path", "/status", "The path of the status, for a socket")
			cmd.Flags().IntVar(&o.caddys, "caddys", 1, "The number of Caddys before the server")
		},
		run: func(r *remote, args []string) error { return o.advise(r, args[0]) },
	}.command()
}

// An adviceReport is what the command has found.
type adviceReport struct {
	Status advise.Status `json:"status"`
	Advice advise.Advice `json:"advice"`
	Zones  []slotZone    `json:"zones"` // of the running Caddy, if it answers
}

// A slotZone is a zone whose slots are for all clients together.
type slotZone struct {
	Zone     string `json:"zone"`
	InFlight int    `json:"in_flight"`
}

func (o *adviseOptions) advise(r *remote, source string) error {
	if o.caddys < 1 {
		return usageErrorf("invalid --caddys %d: want 1 or more", o.caddys)
	}
	ctx, cancel := context.WithTimeout(context.Background(), statusTimeout)
	defer cancel()
	page, err := o.read(ctx, source)
	if err != nil {
		return err
	}
	found := adviceReport{Zones: r.slotZones()}
	if found.Status, err = advise.Parse(page); err != nil {
		return fmt.Errorf("%s is no status that is known: %w", withoutSecrets(source), err)
	}
	found.Advice = advise.For(found.Status, o.caddys)
	if r.json {
		text, err := json.MarshalIndent(found, "", "\t")
		if err != nil {
			return err
		}
		fmt.Fprintln(&r.out, escapeJSON(string(text)))
		return nil
	}
	s, a := found.Status, found.Advice
	atLeast := ""
	if a.AtLeast {
		atLeast = ", or more"
	}
	fmt.Fprintf(&r.out, "in_flight %d%s\n\n", a.InFlight, atLeast)
	fmt.Fprintf(&r.out, "%s: %d of %d workers are busy", shown(strings.TrimSpace(s.Server+" "+s.Pool)), s.Busy, s.Workers)
	if !s.QueueHidden {
		fmt.Fprintf(&r.out, ", and %d requests wait for one", s.Queue)
	}
	fmt.Fprintln(&r.out, ".")
	for _, reason := range a.Reasons {
		fmt.Fprintf(&r.out, "- %s\n", shown500(reason))
	}
	for _, z := range found.Zones {
		switch {
		case z.InFlight > a.InFlight && !a.AtLeast:
			fmt.Fprintf(&r.out, "- zone %s has in_flight %d, which is too high\n", shown(z.Zone), z.InFlight)
		case z.InFlight < a.InFlight:
			fmt.Fprintf(&r.out, "- zone %s has in_flight %d, which leaves workers idle\n", shown(z.Zone), z.InFlight)
		default:
			fmt.Fprintf(&r.out, "- zone %s has in_flight %d\n", shown(z.Zone), z.InFlight)
		}
	}
	return nil
}

// shown500 returns a sentence as a terminal may show it.
func shown500(text string) string { return accesslog.Printable(text, 500) }

// read gets a status.
func (o *adviseOptions) read(ctx context.Context, source string) ([]byte, error) {
	u, err := url.Parse(source)
	if err != nil {
		return nil, usageErrorf("invalid status URL: want one such as http://localhost/fpm-status or fcgi://127.0.0.1:9000/status")
	}
	socket := u.Host == "" && u.Path != ""
	switch {
	case u.Scheme == "fcgi" && socket:
		return readFastCGI(ctx, "unix", u.Path, o.path)
	case u.Scheme == "fcgi" && u.Port() != "":
		path := u.RequestURI()
		if u.Path == "" || u.Path == "/" {
			path = o.path
		}
		return readFastCGI(ctx, "tcp", u.Host, path)
	case u.Scheme == "unix" && socket:
		return readHTTP(ctx, "http://localhost"+o.path, func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", u.Path)
		})
	case (u.Scheme == "http" || u.Scheme == "https") && u.Host != "":
		return readHTTP(ctx, source, nil)
	}
	return nil, usageErrorf("invalid status URL %q: want http://, https://, fcgi://<host>:<port>/<path>, fcgi:///<socket> or unix:///<socket>", withoutSecrets(source))
}

func readFastCGI(ctx context.Context, network, address, path string) ([]byte, error) {
	if !strings.HasPrefix(path, "/") {
		return nil, usageErrorf("invalid --path %q: want pm.status_path, such as /status", path)
	}
	page, err := advise.FastCGI(ctx, network, address, path)
	if err != nil {
		return nil, fmt.Errorf("reading %s from %s: %w", path, address, err)
	}
	return page, nil
}

type dialer func(ctx context.Context, network, address string) (net.Conn, error)

func readHTTP(ctx context.Context, address string, dial dialer) ([]byte, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil, usageErrorf("invalid --path: want one such as /stats?token=secret")
	}
	transport := &http.Transport{Proxy: http.ProxyFromEnvironment, DialContext: dial}
	defer transport.CloseIdleConnections()
	answer, err := (&http.Client{Transport: transport}).Do(r)
	if err != nil {
		if wrapped := (*url.Error)(nil); errors.As(err, &wrapped) {
			err = wrapped.Err // without the URL, which may hold a token
		}
		return nil, fmt.Errorf("reading the status: %w", err)
	}
	defer func() { _ = answer.Body.Close() }()
	if answer.StatusCode == http.StatusForbidden {
		return nil, fmt.Errorf("reading the status: got 403 from %s, want 200: is the token right?", withoutSecrets(address))
	}
	if answer.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("reading the status: got %d from %s, want 200", answer.StatusCode, withoutSecrets(address))
	}
	return io.ReadAll(io.LimitReader(answer.Body, mostStatus))
}

// withoutSecrets returns a URL without its query, where Puma's token is.
func withoutSecrets(source string) string {
	text, _, _ := strings.Cut(source, "?")
	return shown(text)
}

// slotZones returns the zones of the running Caddy whose slots are for all clients
// together. If it does not answer, there are none.
func (r *remote) slotZones() (zones []slotZone) {
	address, err := caddycmd.DetermineAdminAPIAddress(r.address, nil, r.config, r.adapter)
	if err != nil {
		return nil
	}
	answer, err := caddycmd.AdminAPIRequest(address, http.MethodGet, "/config/apps/", http.Header{}, nil)
	if err != nil {
		return nil
	}
	defer func() { _ = answer.Body.Close() }()
	var config any
	if json.NewDecoder(answer.Body).Decode(&config) != nil {
		return nil
	}
	seen := make(map[slotZone]bool)
	walkSlots(config, func(z slotZone) {
		if !seen[z] {
			seen[z] = true
			zones = append(zones, z)
		}
	})
	return zones
}

// walkSlots finds zones in a config.
func walkSlots(config any, found func(slotZone)) {
	switch value := config.(type) {
	case []any:
		for _, each := range value {
			walkSlots(each, found)
		}
	case map[string]any:
		name, _ := value["name"].(string)
		slots, _ := value["in_flight"].(float64)
		if name != "" && slots > 0 && forAll(value) {
			found(slotZone{name, int(slots)})
		}
		for _, each := range value {
			walkSlots(each, found)
		}
	}
}

// forAll reports whether the slots of a zone are for all clients together: they take
// turns, or the key is a text.
func forAll(zone map[string]any) bool {
	if zone["share"] != nil {
		return true
	}
	key, _ := zone["key"].([]any)
	for _, part := range key {
		if source, _ := part.(map[string]any); source["source"] != "text" {
			return false
		}
	}
	return len(key) > 0
}
