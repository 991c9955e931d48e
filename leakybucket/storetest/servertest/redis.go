package servertest

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// A Redis is a redis-server process that can be stopped, and started again on
// the same address.
type Redis struct {
	Addr string // host:port
	Port int
	Dir  string // of its log, and its data set if it has one

	tb   testing.TB
	args []string
	cmd  *exec.Cmd
}

// StartRedis starts a server that keeps nothing on disk, and waits until it
// answers. args are added to its command line.
func StartRedis(tb testing.TB, args ...string) *Redis {
	tb.Helper()
	s := PrepareRedis(tb, args...)
	s.Start()
	return s
}

// PrepareRedis is like [StartRedis], but leaves it to the caller to start the
// server.
func PrepareRedis(tb testing.TB, args ...string) *Redis {
	tb.Helper()
	need(tb, "redis-server", "redis-cli")
	port := FreePort(tb)
	s := &Redis{Addr: fmt.Sprintf("127.0.0.1:%d", port), Port: port, Dir: tb.TempDir(), tb: tb}
	file := filepath.Join(s.Dir, "redis.conf") // for CONFIG REWRITE
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		tb.Fatal(err)
	}
	s.args = append([]string{
		file, "--port", strconv.Itoa(port), "--bind", "127.0.0.1", "--dir", s.Dir,
		"--logfile", filepath.Join(s.Dir, "log"), "--save", "", "--appendonly", "no",
		"--enable-debug-command", "yes",
	}, args...)
	tb.Cleanup(s.Kill)
	return s
}

// Start starts a server that was killed, and waits until it answers.
func (s *Redis) Start() {
	s.tb.Helper()
	s.cmd = exec.Command("redis-server", s.args...)
	EndWithTests(s.cmd, syscall.SIGKILL) // it may be paused
	if err := s.cmd.Start(); err != nil {
		s.tb.Fatalf("starting redis-server: %v", err)
	}
	Eventually(s.tb, "redis-server answers", func() error {
		out, err := s.Try("ping")
		if err == nil && strings.Contains(out, "LOADING") {
			err = errors.New(out)
		}
		return err
	})
}

// Kill ends the process at once, as a power failure does.
func (s *Redis) Kill() {
	if s.cmd == nil {
		return
	}
	_ = s.cmd.Process.Kill()
	_ = s.cmd.Wait() // it was killed
	s.cmd = nil
}

// Pause stops the process. Its connections stay open, and it answers nothing.
func (s *Redis) Pause() { pause(s.cmd.Process.Pid) }

// Resume lets the process go on.
func (s *Redis) Resume() { resume(s.cmd.Process.Pid) }

// Do runs a command by redis-cli and returns its output, without the last line
// break.
func (s *Redis) Do(args ...string) string {
	s.tb.Helper()
	out, err := s.Try(args...)
	if err != nil {
		s.tb.Fatalf("redis-cli %v: %v", args, err)
	}
	return out
}

// Try is like [Redis.Do], but returns an error instead of failing the test.
func (s *Redis) Try(args ...string) (string, error) {
	cmd := exec.Command("redis-cli", append([]string{"-h", "127.0.0.1", "-p", strconv.Itoa(s.Port)}, args...)...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%w: %s%s", err, out, stderr.Bytes())
	}
	return strings.TrimSpace(string(out)), nil
}

// Info returns the value of a field of INFO.
func (s *Redis) Info(field string) string {
	s.tb.Helper()
	for line := range strings.Lines(s.Do("info")) {
		if value, ok := strings.CutPrefix(strings.TrimSpace(line), field+":"); ok {
			return value
		}
	}
	s.tb.Fatalf("info: got no field %q", field)
	return ""
}

// Log returns the content of the server's log.
func (s *Redis) Log() string {
	text, _ := os.ReadFile(filepath.Join(s.Dir, "log"))
	return string(text)
}
