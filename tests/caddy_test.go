package tests

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// caddy is a running Caddy. It is stopped when the test ends, and its log is
// shown if the test failed.
type caddy struct {
	*process
	t     *testing.T
	admin string // host:port of the admin endpoint
	shut  bool   // by the test
}

// config is the part of a Caddyfile that differs between tests.
type config struct {
	throttle  string // inside the global throttle block
	servers   string // inside the global servers block
	sites     string // after the global options
	protocols string // of all servers; h1 h2 h2c if not given
	grace     string // period, of a stop or reload; 10s if not given
	env       string // NAME=value, for Caddy alone
}

func startCaddy(t *testing.T, c config) *caddy {
	t.Helper()
	admin := fmt.Sprintf("127.0.0.1:%d", freePort(t))
	file := writeFile(t, "Caddyfile", c.caddyfile(admin))
	return startCaddyIn(t, admin, filepath.Dir(file), file, c.env)
}

// startCaddyIn runs Caddy in a folder, with a Caddyfile that names the admin
// endpoint and with more environment variables.
func startCaddyIn(t *testing.T, admin, dir, file string, env ...string) *caddy {
	t.Helper()
	cmd := caddyCommand(t, "run", "--config", file, "--adapter", "caddyfile")
	cmd.Dir = dir
	cmd.Env = append(cmd.Env, env...)
	return startCaddyBy(t, admin, cmd)
}

// startCaddyBy runs a command that starts Caddy.
func startCaddyBy(t *testing.T, admin string, cmd *exec.Cmd) *caddy {
	t.Helper()
	p, err := startProcess(cmd)
	if err != nil {
		t.Fatalf("starting caddy: %v", err)
	}
	running := &caddy{process: p, t: t, admin: admin}
	t.Cleanup(running.end)
	if err := p.waitUntil(running.ready); err != nil {
		t.Fatalf("waiting for caddy: %v", err)
	}
	return running
}

// caddyCommand returns a command that runs the binary with a home of its own.
func caddyCommand(t *testing.T, args ...string) *exec.Cmd {
	home := t.TempDir()
	cmd := exec.Command(caddyBinary, args...)
	cmd.Env = append(os.Environ(), "HOME="+home, "XDG_DATA_HOME="+home, "XDG_CONFIG_HOME="+home)
	return cmd
}

func (c config) caddyfile(admin string) string {
	if c.protocols == "" {
		c.protocols = "h1 h2 h2c"
	}
	return fmt.Sprintf(`{
	admin %s
	persist_config off
	auto_https disable_redirects
	skip_install_trust
	default_bind 127.0.0.1
	grace_period %s
	servers {
		protocols %s
		%s
	}
	%s
}
%s`, admin, cmp.Or(c.grace, "10s"), c.protocols, c.servers, block("throttle", c.throttle), c.sites)
}

func block(name, body string) string {
	if body == "" {
		return ""
	}
	return name + " {\n" + body + "\n}"
}

// ready reports whether the first config has been loaded. While it is loading,
// the admin endpoint returns no config.
func (c *caddy) ready() bool {
	status, config, err := c.tryAdmin("GET", "/config/", "")
	return err == nil && status == 200 && strings.TrimSpace(config) != "null"
}

// shutDown stops Caddy before the test ends.
func (c *caddy) shutDown() error {
	c.shut = true
	return errors.Join(c.stop(), c.err)
}

func (c *caddy) end() {
	if !c.shut {
		if err := c.stop(); err != nil {
			c.t.Errorf("stopping caddy: %v", err)
		}
	}
	log := c.output.String()
	if strings.Contains(log, "panic") {
		c.t.Error("got a panic in caddy's log, want none")
	}
	if c.t.Failed() {
		c.t.Logf("caddy's log (its end):\n%s", tail(log, 20_000))
	}
}

// load posts a Caddyfile to the admin endpoint, as `caddy reload` does.
func (c *caddy) load(caddyfile string) (status int, message string) {
	c.t.Helper()
	return c.askAdmin("POST", "/load", caddyfile)
}

// askAdmin asks the admin endpoint, and repeats the request if the connection was
// lost. Each load replaces the endpoint's listener. Loading a config twice does
// no harm.
func (c *caddy) askAdmin(method, path, caddyfile string) (status int, answer string) {
	c.t.Helper()
	for deadline := time.Now().Add(startTime); ; {
		status, answer, err := c.tryAdmin(method, path, caddyfile)
		if err == nil {
			return status, answer
		}
		if !connectionLost(err) || time.Now().After(deadline) {
			c.t.Fatalf("asking the admin endpoint: %v", err)
		}
	}
}

func (c *caddy) tryAdmin(method, path, caddyfile string) (status int, answer string, err error) {
	req, err := http.NewRequest(method, "http://"+c.admin+path, strings.NewReader(caddyfile))
	if err != nil {
		return 0, "", err
	}
	req.Header.Set("Content-Type", "text/caddyfile")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(body), err
}

// connectionLost reports whether a connection ended before a byte of an answer.
// Even without throttle, Caddy loses some connections that are opened during a
// reload: those in the old listener's queue, and those whose first request comes
// while the old server shuts down (net/http's conn.serve). No handler sees these
// requests.
func connectionLost(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) ||
		err != nil && strings.Contains(err.Error(), "server closed idle connection") // which net/http does not export
}

// surely sends a request without a body over a connection of its own, and again if the
// connection was lost.
func surely(t *testing.T, req *http.Request) *http.Response {
	t.Helper()
	req.Close = true
	resp, err := http.DefaultClient.Do(req)
	for range 3 {
		if !connectionLost(err) {
			break
		}
		resp, err = http.DefaultClient.Do(req)
	}
	if err != nil {
		t.Fatal(err)
	}
	return resp
}

func (c *caddy) reload(next config) {
	c.t.Helper()
	if status, message := c.load(next.caddyfile(c.admin)); status != 200 {
		c.t.Fatalf("got %d %s, want a reload", status, message)
	}
}

// logLines returns the lines of Caddy's own log that contain a text.
func (c *caddy) logLines(text string) []string {
	var lines []string
	for line := range strings.Lines(c.output.String()) {
		if strings.Contains(line, text) {
			lines = append(lines, line)
		}
	}
	return lines
}

func writeFile(t *testing.T, name, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return file
}

func tail(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return "... " + s[len(s)-n:]
}
