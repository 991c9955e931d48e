package system

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

	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/servertest"
)

// Caddy is a running Caddy. It is stopped when the test ends, and its log is
// shown if the test failed.
type Caddy struct {
	*Process
	T     *testing.T
	Admin string // host:port of the admin endpoint
	Shut  bool   // by the test
}

// Config is the part of a Caddyfile that differs between tests.
type Config struct {
	Throttle  string // inside the global throttle block
	Servers   string // inside the global servers block
	Sites     string // after the global options
	Protocols string // of all servers; h1 h2 h2c if not given
	Grace     string // period, of a stop or reload; 10s if not given
	Env       string // NAME=value, for Caddy alone
}

// StartCaddy runs Caddy until the test ends.
func StartCaddy(t *testing.T, c Config) *Caddy {
	t.Helper()
	admin := fmt.Sprintf("127.0.0.1:%d", servertest.FreePort(t))
	file := WriteFile(t, "Caddyfile", c.Caddyfile(admin))
	return StartCaddyIn(t, admin, filepath.Dir(file), file, c.Env)
}

// StartCaddyIn runs Caddy in a folder, with a Caddyfile that names the admin
// endpoint and with more environment variables.
func StartCaddyIn(t *testing.T, admin, dir, file string, env ...string) *Caddy {
	t.Helper()
	cmd := CaddyCommand(t, "run", "--config", file, "--adapter", "caddyfile")
	cmd.Dir = dir
	cmd.Env = append(cmd.Env, env...)
	return StartCaddyBy(t, admin, cmd)
}

// StartCaddyBy runs a command that starts Caddy.
func StartCaddyBy(t *testing.T, admin string, cmd *exec.Cmd) *Caddy {
	t.Helper()
	p, err := StartProcess(cmd)
	if err != nil {
		t.Fatalf("starting caddy: %v", err)
	}
	running := &Caddy{Process: p, T: t, Admin: admin}
	t.Cleanup(running.end)
	if err := p.WaitUntil(running.ready); err != nil {
		t.Fatalf("waiting for caddy: %v", err)
	}
	return running
}

// CaddyCommand returns a command that runs the binary with a home of its own.
func CaddyCommand(t *testing.T, args ...string) *exec.Cmd {
	home := t.TempDir()
	cmd := exec.Command(CaddyBinary, args...)
	cmd.Env = append(os.Environ(), "HOME="+home, "XDG_DATA_HOME="+home, "XDG_CONFIG_HOME="+home)
	return cmd
}

// Caddyfile returns the whole Caddyfile, with the address of the admin endpoint.
func (c Config) Caddyfile(admin string) string {
	if c.Protocols == "" {
		c.Protocols = "h1 h2 h2c"
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
%s`, admin, cmp.Or(c.Grace, "10s"), c.Protocols, c.Servers, Block("throttle", c.Throttle), c.Sites)
}

// Block returns a block of a Caddyfile, or nothing if its body is empty.
func Block(name, body string) string {
	if body == "" {
		return ""
	}
	return name + " {\n" + body + "\n}"
}

// ready reports whether the first config has been loaded. While it is loading,
// the admin endpoint returns no config.
func (c *Caddy) ready() bool {
	status, config, err := c.tryAdmin("GET", "/config/", "")
	return err == nil && status == 200 && strings.TrimSpace(config) != "null"
}

// ShutDown stops Caddy before the test ends.
func (c *Caddy) ShutDown() error {
	c.Shut = true
	return errors.Join(c.Stop(), c.err)
}

func (c *Caddy) end() {
	if !c.Shut {
		if err := c.Stop(); err != nil {
			c.T.Errorf("stopping caddy: %v", err)
		}
	}
	log := c.Output.String()
	if strings.Contains(log, "panic") {
		c.T.Error("got a panic in caddy's log, want none")
	}
	if c.T.Failed() {
		c.T.Logf("caddy's log (its end):\n%s", Tail(log, 60_000))
	}
}

// Load posts a Caddyfile to the admin endpoint, as `caddy reload` does.
func (c *Caddy) Load(caddyfile string) (status int, message string) {
	c.T.Helper()
	return c.AskAdmin("POST", "/load", caddyfile)
}

// AskAdmin asks the admin endpoint, and repeats the request if the connection was
// lost. Each load replaces the endpoint's listener. Loading a config twice does
// no harm.
func (c *Caddy) AskAdmin(method, path, caddyfile string) (status int, answer string) {
	c.T.Helper()
	for deadline := time.Now().Add(StartTime); ; {
		status, answer, err := c.tryAdmin(method, path, caddyfile)
		if err == nil {
			return status, answer
		}
		if !ConnectionLost(err) || time.Now().After(deadline) {
			c.T.Fatalf("asking the admin endpoint: %v", err)
		}
	}
}

func (c *Caddy) tryAdmin(method, path, caddyfile string) (status int, answer string, err error) {
	req, err := http.NewRequest(method, "http://"+c.Admin+path, strings.NewReader(caddyfile))
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

// ConnectionLost reports whether a connection ended before a byte of an answer.
// Even without throttle, Caddy loses some connections that are opened during a
// reload: those in the old listener's queue, and those whose first request comes
// while the old server shuts down (net/http's conn.serve). No handler sees these
// requests.
func ConnectionLost(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) ||
		err != nil && strings.Contains(err.Error(), "server closed idle connection") // which net/http does not export
}

// Surely sends a request without a body over a connection of its own, and again if the
// connection was lost.
func Surely(t *testing.T, req *http.Request) *http.Response {
	t.Helper()
	req.Close = true
	resp, err := http.DefaultClient.Do(req)
	for range 3 {
		if !ConnectionLost(err) {
			break
		}
		resp, err = http.DefaultClient.Do(req)
	}
	if err != nil {
		t.Fatal(err)
	}
	return resp
}

// Reload loads another configuration, which must succeed.
func (c *Caddy) Reload(next Config) {
	c.T.Helper()
	if status, message := c.Load(next.Caddyfile(c.Admin)); status != 200 {
		c.T.Fatalf("got %d %s, want a reload", status, message)
	}
}

// LogLines returns the lines of Caddy's own log that contain a text.
func (c *Caddy) LogLines(text string) []string {
	var lines []string
	for line := range strings.Lines(c.Output.String()) {
		if strings.Contains(line, text) {
			lines = append(lines, line)
		}
	}
	return lines
}

// WriteFile writes a file into a folder of its own, and returns its path.
func WriteFile(t *testing.T, name, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return file
}

// Tail returns the last n bytes of a text.
func Tail(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return "... " + s[len(s)-n:]
}

// Alice may log in by basic_auth, with the password secret.
const Alice = "alice $2a$04$eDXNeXgikNveTaV.vPS.O.TUci7Sw7.RQIR0Pj.98bmWXb56MWbSW"

// Throttle runs a command that speaks to the admin endpoint, which must succeed.
func (c *Caddy) Throttle(args ...string) string {
	c.T.Helper()
	out, err := c.TryThrottle(args...)
	if err != nil {
		c.T.Fatalf("caddy throttle %q: got %v\n%s", args, err, out)
	}
	return out
}

// TryThrottle runs it again if a reload has closed its connection unread.
func (c *Caddy) TryThrottle(args ...string) (string, error) {
	c.T.Helper()
	all := append(append([]string{"throttle"}, args...), "--address", c.Admin)
	out, err := CaddyCommand(c.T, all...).CombinedOutput()
	for range 3 {
		if err == nil || !strings.Contains(string(out), ": EOF") && !strings.Contains(string(out), "connection reset by peer") {
			break
		}
		out, err = CaddyCommand(c.T, all...).CombinedOutput()
	}
	return string(out), err
}
