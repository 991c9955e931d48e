package system

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/servertest"
)

// Long reports whether tests may take their time, and measure it.
func Long() bool { return os.Getenv("TEST_LONG") == "1" }

// StartTime is how long a server may take until it answers. It is long for busy
// machines.
const StartTime = time.Minute

// Process is a server that runs beside the tests.
type Process struct {
	Cmd    *exec.Cmd
	Output output
	Ended  chan struct{} // closed once the process is gone
	err    error         // what Wait said; read after ended
}

// output collects what a process prints while others read it.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// StartProcess starts a command, which ends with the tests.
func StartProcess(cmd *exec.Cmd) (*Process, error) {
	p := &Process{Cmd: cmd, Ended: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = &p.Output, &p.Output
	servertest.EndWithTests(cmd, syscall.SIGTERM)
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		p.err = cmd.Wait()
		close(p.Ended)
	}()
	return p, nil
}

// Stop asks the process to end, and kills it if it does not.
func (p *Process) Stop() error {
	select {
	case <-p.Ended:
		return fmt.Errorf("it had ended before it was asked to: %v", p.err)
	default:
	}
	if err := p.Cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	select {
	case <-p.Ended:
		return nil
	case <-time.After(StartTime):
		_ = p.Cmd.Process.Signal(syscall.SIGABRT) // at which a Go program says what it waits for
		select {
		case <-p.Ended:
		case <-time.After(StartTime):
			_ = p.Cmd.Process.Kill()
			<-p.Ended
		}
		return errors.New("it did not end when asked to")
	}
}

// WaitUntil calls ready until it returns true, the process ends or the time is
// up.
func (p *Process) WaitUntil(ready func() bool) error {
	deadline := time.After(StartTime)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !ready() {
		select {
		case <-p.Ended:
			return fmt.Errorf("it ended: %v", p.err)
		case <-deadline:
			return fmt.Errorf("it was not ready after %v", StartTime)
		case <-tick.C:
		}
	}
	return nil
}

// Eventually waits until a condition that another process brings about holds.
func Eventually(t *testing.T, what string, done func() bool) {
	t.Helper()
	const patience = 3 * StartTime // several servers or a browser may take part
	for deadline := time.Now().Add(patience); !done(); {
		if time.Now().After(deadline) {
			t.Fatalf("got nothing after %v, want %s", patience, what)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// Listens reports whether something listens at an address.
func Listens(network, address string) bool {
	conn, err := net.Dial(network, address)
	if err != nil {
		return false
	}
	conn.Close()
	return true
}
