package pgtest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// A process was started here, and is ended by its number alone.
type process struct {
	command *exec.Cmd
	log     string
	ended   chan struct{}
}

// start starts a command as the user postgres. What it says goes to a file.
func start(command *exec.Cmd, log string) (*process, error) {
	f, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	command.Stdout, command.Stderr = f, f
	command.Dir = filepath.Dir(log)
	command.SysProcAttr = asPostgres()
	if err := command.Start(); err != nil {
		return nil, err
	}
	p := &process{command, log, make(chan struct{})}
	go func() {
		defer close(p.ended)
		_ = command.Wait()
	}()
	return p, nil
}

// await asks again and again whether the process answers.
func (p *process) await(answers func(context.Context) error) error {
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

// end ends the process by a signal, or if it does not heed it by SIGKILL.
func (p *process) end(signal syscall.Signal) {
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

// family returns the process and its children. A PostgreSQL has no grandchildren.
func (p *process) family() []int {
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

// asPostgres lets root's child be the user postgres, since a PostgreSQL refuses
// to be root.
func asPostgres() *syscall.SysProcAttr {
	attributes := &syscall.SysProcAttr{}
	if uid, gid, needed := postgres(); needed {
		attributes.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	}
	return attributes
}

func postgres() (uid, gid int, needed bool) {
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

// give lets the user postgres have a file or directory.
func give(path string) error {
	if uid, gid, needed := postgres(); needed {
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

// freePort returns a loopback port that nobody has, below those that outgoing
// connections are given.
func freePort() int {
	for try := 0; ; try++ {
		port := 20000 + (os.Getpid()*7+try*101+int(time.Now().UnixNano()/1000))%10000
		l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if err == nil {
			_ = l.Close()
			return port
		}
		if try > 1000 {
			panic(err)
		}
	}
}
