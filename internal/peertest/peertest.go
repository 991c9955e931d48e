// Package peertest runs PHP and Ruby, to hold what we read of a request against what
// applications read. Tests are skipped where these are not installed.
package peertest

import (
	"bufio"
	"io"
	"os/exec"
	"regexp"
	"strings"
	"testing"
)

// started finds the address on which PHP's server says to have started.
var started = regexp.MustCompile(`http://127\.0\.0\.1:[1-9]\d*`)

// PHPServer runs a script in PHP's own web server until the test ends, and returns the
// server's URL.
func PHPServer(t *testing.T, script string) (url string) {
	t.Helper()
	command := exec.Command(find(t, "php", "php-cli"), "-n", "-d", "display_errors=0", "-d", "log_errors=0", "-S", "127.0.0.1:0", script)
	log, err := command.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = command.Process.Kill()
		_ = command.Wait() // it was killed, or its input has ended
	})
	lines := bufio.NewReader(log)
	for url == "" {
		line, err := lines.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		if url = started.FindString(line); url == "" && strings.Contains(line, "started") {
			t.Fatalf("got %q of PHP's server, want its port", line)
		}
	}
	go func() { _, _ = io.Copy(io.Discard, lines) }()
	return url + "/"
}

// A Peer is a script that answers each line of its input with one line.
type Peer struct {
	in    io.Writer
	lines *bufio.Reader
}

// PHP runs a script until the test ends.
func PHP(t *testing.T, script string) *Peer {
	t.Helper()
	return start(t, exec.Command(find(t, "php", "php-cli"), "-n", script))
}

// Ruby runs a script, which needs these libraries, until the test ends.
func Ruby(t *testing.T, script string, libraries ...string) *Peer {
	t.Helper()
	binary := find(t, "ruby", "ruby")
	for _, library := range libraries {
		if exec.Command(binary, "-e", "require '"+library+"'").Run() != nil {
			t.Skipf("nothing is held against Ruby: %s is not installed (package ruby-%s)", library, library)
		}
	}
	return start(t, exec.Command(binary, "-W0", script))
}

func find(t *testing.T, name, debian string) string {
	t.Helper()
	binary, err := exec.LookPath(name)
	if err != nil {
		t.Skipf("nothing is held against %s: it is not installed (package %s)", name, debian)
	}
	return binary
}

func start(t *testing.T, command *exec.Cmd) *Peer {
	t.Helper()
	in, err := command.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = in.Close()
		_ = command.Wait() // it was killed, or its input has ended
	})
	return &Peer{in, bufio.NewReader(out)}
}

// Ask sends a line, and returns the answer without the line's end.
func (p *Peer) Ask(t *testing.T, line string) string {
	t.Helper()
	if _, err := io.WriteString(p.in, line+"\n"); err != nil {
		t.Fatal(err)
	}
	return p.Next(t)
}

// Next returns the next line that the script writes.
func (p *Peer) Next(t *testing.T) string {
	t.Helper()
	line, err := p.lines.ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSuffix(line, "\n")
}
