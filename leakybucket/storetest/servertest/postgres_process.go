package servertest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// postgresProcess is a sub-process of this test, a server or a PgBouncer.
type postgresProcess struct {
	command *exec.Cmd
	log     string
	ended   chan struct{}
}

// startPostgresProcess starts a command as the user postgres. Its output is
// appended to the file log.
func startPostgresProcess(command *exec.Cmd, log string) (*postgresProcess, error) {
	f, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	command.Stdout, command.Stderr = f, f
	command.Dir = filepath.Dir(log)
	command.SysProcAttr = asPostgres()
	EndWithTests(command, syscall.SIGTERM)
	if err := command.Start(); err != nil {
		return nil, err
	}
	p := &postgresProcess{command, log, make(chan struct{})}
	go func() {
		defer close(p.ended)
		_ = command.Wait()
	}()
	return p, nil
}

// await calls answers until it succeeds, the process ends or 30 seconds are over.
func (p *postgresProcess) await(answers func(context.Context) error) error {
	deadline := time.Now().Add(30 * time.Second)
	for {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		err := answers(ctx)
		cancel()
		if err == nil {
			return nil
		}
		select {
		case <-p.ended:
		case <-time.After(20 * time.Millisecond):
			if time.Now().Before(deadline) {
				continue
			}
		}
		text, _ := os.ReadFile(p.log)
		return fmt.Errorf("waiting for %s: %w\n%s", p.command.Path, err, text)
	}
}

// end ends the process with a signal, or after 20 seconds with SIGKILL.
func (p *postgresProcess) end(signal syscall.Signal) {
	select {
	case <-p.ended:
		return
	default:
	}
	_ = p.command.Process.Signal(signal)
	select {
	case <-p.ended:
	case <-time.After(20 * time.Second):
		_ = p.command.Process.Kill()
		<-p.ended
	}
}

// family returns the ids of the process and its children. PostgreSQL has no
// grandchildren.
func (p *postgresProcess) family() []int {
	pid := p.command.Process.Pid
	family := []int{pid}
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	for _, child := range strings.Fields(string(text)) {
		if n, err := strconv.Atoi(child); err == nil {
			family = append(family, n)
		}
	}
	return family
}

// stateOf returns the state of a process, as a letter: T if it is stopped, Z if it has
// ended. It returns X if there is no such process.
func stateOf(pid int) string {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return "X"
	}
	_, fields, _ := strings.Cut(string(text[bytes.LastIndexByte(text, ')')+1:]), " ")
	state, _, _ := strings.Cut(fields, " ")
	return state
}

// until waits for a condition, for twenty seconds at most.
func until(holds func() bool) {
	for deadline := time.Now().Add(20 * time.Second); !holds() && time.Now().Before(deadline); {
		time.Sleep(time.Millisecond)
	}
}

func postgresUser() (uid, gid int, needed bool) {
	if os.Geteuid() != 0 {
		return 0, 0, false
	}
	account, err := user.Lookup("postgres")
	if err != nil {
		return 0, 0, false
	}
	uid, _ = strconv.Atoi(account.Uid)
	gid, _ = strconv.Atoi(account.Gid)
	return uid, gid, true
}

// giveToPostgres makes the user postgres the owner of a file or directory.
func giveToPostgres(path string) error {
	if uid, gid, needed := postgresUser(); needed {
		return os.Chown(path, uid, gid)
	}
	return nil
}

func appendFile(path, text string) error {
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}
