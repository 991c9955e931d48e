package servertest

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"testing"
)

// A Memcached is a memcached process.
type Memcached struct {
	Addr string // host:port
	cmd  *exec.Cmd
}

// StartMemcached starts a server, and waits until it answers. args are added to its command line.
func StartMemcached(tb testing.TB, args ...string) *Memcached {
	tb.Helper()
	need(tb, "memcached")
	port := FreePort(tb)
	s := &Memcached{Addr: fmt.Sprintf("127.0.0.1:%d", port)}
	args = append([]string{"-l", "127.0.0.1", "-p", strconv.Itoa(port), "-U", "0"}, args...)
	if os.Getuid() == 0 {
		args = append(args, "-u", "nobody")
	}
	s.cmd = exec.Command("memcached", args...)
	EndWithTests(s.cmd, syscall.SIGKILL)
	if err := s.cmd.Start(); err != nil {
		tb.Fatalf("starting memcached: %v", err)
	}
	tb.Cleanup(s.Kill)
	Eventually(tb, "memcached answers", func() error {
		conn, err := net.Dial("tcp", s.Addr)
		if err == nil {
			err = conn.Close()
		}
		return err
	})
	return s
}

// Kill ends the process at once. A server that was killed stays so.
func (s *Memcached) Kill() {
	if s.cmd == nil {
		return
	}
	_ = s.cmd.Process.Kill()
	_ = s.cmd.Wait()
	s.cmd = nil
}
