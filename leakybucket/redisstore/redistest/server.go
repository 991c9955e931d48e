// Package redistest runs real Redis servers for tests: alone, with a Sentinel,
// or as a Cluster, each in a process and a directory of its own on ports of the
// loopback, and a proxy that loses replies.
//
// Nothing outlives the test that began it. Without a redis-server a test is
// skipped, or fails if CI=true or REQUIRE_SYSTEM=1.
package redistest

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// patience is how long anything may take that happens sooner or later. The
// machine may be busy.
const patience = 30 * time.Second

// A Server is a redis-server process, which may be stopped and started again on
// the same address.
type Server struct {
	Addr string // host:port
	Port int
	Dir  string // of its log, and its data set if it has one

	tb   testing.TB
	args []string
	cmd  *exec.Cmd
	gone chan struct{} // closed once the process has ended
}

// Start starts a server that keeps nothing on disk, with more arguments as on
// its command line, and waits until it answers.
func Start(tb testing.TB, args ...string) *Server {
	tb.Helper()
	s := Prepare(tb, args...)
	s.Start()
	return s
}

// Prepare is Start, and leaves it to the caller to start the server.
func Prepare(tb testing.TB, args ...string) *Server {
	tb.Helper()
	need(tb, "redis-server", "redis-cli")
	port := freePort(tb)
	s := &Server{Addr: fmt.Sprintf("127.0.0.1:%d", port), Port: port, Dir: tb.TempDir(), tb: tb}
	s.args = append([]string{
		"--port", strconv.Itoa(port), "--bind", "127.0.0.1", "--dir", s.Dir,
		"--logfile", filepath.Join(s.Dir, "log"), "--save", "", "--appendonly", "no",
		"--enable-debug-command", "yes",
	}, args...)
	tb.Cleanup(s.Kill)
	return s
}

// need skips the test, or fails it where it must not be skipped.
func need(tb testing.TB, programs ...string) {
	tb.Helper()
	for _, program := range programs {
		if _, err := exec.LookPath(program); err == nil {
			continue
		}
		if os.Getenv("CI") == "true" || os.Getenv("REQUIRE_SYSTEM") == "1" {
			tb.Fatalf("got no %s on the PATH, want it installed", program)
		}
		tb.Skipf("SKIPPED: %s is not on the PATH", program)
	}
}

// Start starts a server that was killed, and waits until it answers.
func (s *Server) Start() {
	s.tb.Helper()
	s.Launch()
	Eventually(s.tb, "redis-server answers", func() error {
		out, err := s.Try("ping")
		if err == nil && strings.Contains(out, "LOADING") {
			err = errors.New(out)
		}
		return err
	})
}

// Launch is Start, and does not wait.
func (s *Server) Launch() {
	s.tb.Helper()
	s.cmd = exec.Command("redis-server", s.args...)
	s.gone = make(chan struct{})
	if err := s.cmd.Start(); err != nil {
		s.tb.Fatalf("starting redis-server: %v", err)
	}
	go func(cmd *exec.Cmd, gone chan struct{}) {
		_ = cmd.Wait() // killed, as a rule
		close(gone)
	}(s.cmd, s.gone)
}

// Kill ends the process at once, as a power failure does.
func (s *Server) Kill() {
	if s.cmd == nil {
		return
	}
	_ = s.cmd.Process.Kill()
	<-s.gone
	s.cmd = nil
}

// Pause stops the process, which keeps its connections and answers nothing.
func (s *Server) Pause() { _ = s.cmd.Process.Signal(syscall.SIGSTOP) }

// Resume lets the process go on.
func (s *Server) Resume() { _ = s.cmd.Process.Signal(syscall.SIGCONT) }

// Do runs a command by redis-cli, and returns what that prints.
func (s *Server) Do(args ...string) string {
	s.tb.Helper()
	out, err := s.Try(args...)
	if err != nil {
		s.tb.Fatalf("redis-cli %v: %v", args, err)
	}
	return out
}

// Try is Do that may fail.
func (s *Server) Try(args ...string) (string, error) {
	cmd := exec.Command("redis-cli", append([]string{"-h", "127.0.0.1", "-p", strconv.Itoa(s.Port)}, args...)...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%w: %s%s", err, out, stderr.Bytes())
	}
	return strings.TrimSpace(string(out)), nil
}

// Info returns a field of INFO.
func (s *Server) Info(field string) string {
	s.tb.Helper()
	for line := range strings.Lines(s.Do("info")) {
		if value, ok := strings.CutPrefix(strings.TrimSpace(line), field+":"); ok {
			return value
		}
	}
	s.tb.Fatalf("info: got no field %q", field)
	return ""
}

// Log returns what the server has written into its log.
func (s *Server) Log() string {
	text, _ := os.ReadFile(filepath.Join(s.Dir, "log"))
	return string(text)
}

// Eventually waits until check returns nil, and fails the test if it does not.
func Eventually(tb testing.TB, what string, check func() error) {
	tb.Helper()
	if err := Within(patience, check); err != nil {
		tb.Fatalf("waiting until %s: %v", what, err)
	}
}

// Within calls check until it returns nil, and returns its last error if that
// takes longer than d.
func Within(d time.Duration, check func() error) error {
	for began := time.Now(); ; {
		err := check()
		if err == nil || time.Since(began) > d {
			return err
		}
		<-time.After(5 * time.Millisecond)
	}
}

var ports struct {
	sync.Mutex
	given map[int]bool
}

// freePort returns a port below those of outgoing connections, and so that the
// port of a cluster's bus, 10,000 above, is too.
func freePort(tb testing.TB) int {
	tb.Helper()
	ports.Lock()
	defer ports.Unlock()
	if ports.given == nil {
		ports.given = make(map[int]bool)
	}
	for range 1000 {
		port := 10_000 + rand.IntN(12_000)
		if ports.given[port] || !free(port) || !free(port+10_000) {
			continue
		}
		ports.given[port] = true
		return port
	}
	tb.Fatal("got only ports that are taken, want a free one")
	return 0
}

func free(port int) bool {
	listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		return false
	}
	_ = listener.Close()
	return true
}
