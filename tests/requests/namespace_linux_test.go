package requests

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
	"github.com/caddy-throttle/caddy-throttle/tests/internal/system"
)

// inNamespace reports whether the test runs in a network of its own, where addresses of the
// Internet can be had. If not, it runs the test once more there, in a process of its own,
// which may need to be root. Then it returns false, and the caller must return.
func inNamespace(t *testing.T, addresses ...string) bool {
	t.Helper()
	const inside = "THROTTLE_TESTS_NAMESPACE"
	ip, err := exec.LookPath("ip")
	if err != nil {
		t.Skip("SKIPPED: there is no command ip, of the package iproute2")
	}
	if os.Getenv(inside) == "1" {
		commands := [][]string{{"link", "set", "lo", "up"}}
		for _, address := range addresses {
			commands = append(commands, []string{"addr", "add", address, "dev", "lo"})
		}
		for _, command := range commands {
			out, err := exec.Command(ip, command...).CombinedOutput()
			check.Assume(t, err == nil, "ip %q: %v\n%s", command, err, out)
		}
		return true
	}
	cmd := exec.Command(os.Args[0], "-test.run", "^"+t.Name()+"$", "-test.v", "-test.timeout", "10m")
	cmd.Env = append(os.Environ(), inside+"=1", system.BuiltBinary+"="+system.CaddyBinary)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGTERM}
	if os.Geteuid() != 0 {
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}}
	}
	out, err := cmd.CombinedOutput()
	var ended *exec.ExitError
	switch {
	case err != nil && !errors.As(err, &ended):
		t.Skipf("SKIPPED: the system gives no network namespace: %v", err)
	case err != nil:
		t.Errorf("got %v in the namespace, want it to pass\n%s", err, out)
	case !strings.Contains(string(out), "--- PASS: "+t.Name()):
		t.Errorf("got no pass in the namespace, want one\n%s", out)
	default:
		t.Logf("in the namespace:\n%s", out)
	}
	return false
}
