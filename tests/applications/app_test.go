package applications

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
	"github.com/caddy-throttle/caddy-throttle/tests/internal/system"
)

// application is a real one from a Debian package. It is installed for the first
// test that needs it, and kept for the others.
type application struct {
	install func(t *testing.T, a *application)

	once      sync.Once
	installed bool
	dir       string // with everything it needs, readable by its processes
	processes []*system.Process
}

// use installs the application, or skips the test if that failed before.
func (a *application) use(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("SKIPPED: a whole application; tests/run.sh all runs it")
	}
	a.once.Do(func() {
		// Not t.TempDir: it ends with this test, and its names are too long for a
		// socket.
		dir := check.Must(os.MkdirTemp("", "app-"))(t)
		a.dir = dir
		system.AtEnd(a.stop)
		check.OK(t, os.Chmod(dir, 0o755))
		a.install(t, a)
		a.installed = true
	})
	if !a.installed {
		t.Skip("SKIPPED: the application for this test was missing or did not start before")
	}
}

// run starts a server of the application, and waits until it listens on a socket.
func (a *application) run(t *testing.T, cmd *exec.Cmd, socket string) {
	t.Helper()
	a.processes = append(a.processes, system.StartServer(t, cmd, socket))
}

func (a *application) stop() {
	for _, p := range slices.Backward(a.processes) {
		if err := p.Stop(); err != nil {
			fmt.Fprintln(os.Stderr, "stopping a server:", err)
		}
	}
	os.RemoveAll(a.dir)
}

// startPackage runs a recipe with its second Caddyfile in front of an application of
// Debian's, which listens on a socket instead of on the upstream's address.
func startPackage(t *testing.T, recipe string, app *application, upstream, socket string, changes ...string) *system.Trial {
	t.Helper()
	app.use(t)
	return system.StartTrial(t, recipe, append([]string{
		"exempt static_files\n", "exempt static_files\n" + secondConfig(t, recipe),
		upstream, "unix/" + filepath.Join(app.dir, socket),
	}, changes...)...)
}

// secondConfig returns the second Caddyfile of a recipe: what Debian's package needs
// beside the first.
func secondConfig(t *testing.T, recipe string) string {
	t.Helper()
	blocks := system.Code(system.Page(t, "docs/recipes/"+recipe), "caddyfile")
	check.Assume(t, len(blocks) >= 2, "got %d Caddyfiles in %s, want two", len(blocks), recipe)
	return blocks[1]
}

// startMariaDB starts a database server that only this application uses, with an
// empty database `site` and its user `site`, whose password is `site`. Durability
// is off.
func (a *application) startMariaDB(t *testing.T) (socket string) {
	t.Helper()
	server := system.Need(t, "mariadbd", "/usr/sbin/mariadbd")
	install := system.Need(t, "mariadb-install-db")
	client := system.Need(t, "mariadb")
	data, socket := filepath.Join(a.dir, "db"), filepath.Join(a.dir, "db.sock")
	user := []string{}
	if os.Getuid() == 0 {
		user = append(user, "--user=root")
	}
	outputOf(t, exec.Command(install, append(user, "--no-defaults", "--datadir="+data, "--skip-test-db",
		"--auth-root-authentication-method=normal")...))
	a.run(t, exec.Command(server, append([]string{
		"--no-defaults", "--datadir=" + data, "--socket=" + socket,
		"--pid-file=" + data + "/pid", "--skip-networking", "--skip-log-bin", "--skip-name-resolve",
		"--innodb-flush-log-at-trx-commit=0", "--innodb-flush-method=nosync", "--innodb-buffer-pool-size=64M",
	}, user...)...), socket)
	outputOf(t, exec.Command(client, "--no-defaults", "--socket="+socket, "--user=root", "--execute",
		`CREATE DATABASE site CHARACTER SET utf8mb4; GRANT ALL ON site.* TO site@localhost IDENTIFIED BY "site"`))
	return socket
}

// startFPM starts php-fpm with five workers. It writes each request to the file
// php.log, with the client, its method, the URI and the status.
func (a *application) startFPM(t *testing.T, ini ...string) (socket string) {
	t.Helper()
	fpm := system.Need(t, "php-fpm", "/usr/sbin/php-fpm[0-9]*")
	user := ""
	if os.Getuid() == 0 {
		user = "user = www-data\ngroup = www-data\n"
	}
	socket = filepath.Join(a.dir, "fpm.sock")
	conf := filepath.Join(a.dir, "fpm.conf")
	text := fmt.Sprintf(`[global]
error_log = /dev/stderr
daemonize = no
[www]
listen = %s
listen.backlog = 511
%spm = static
pm.max_children = 5
access.log = %s
access.format = "%%{HTTP_X_FORWARDED_FOR}e %%m %%{REQUEST_URI}e %%s"
catch_workers_output = yes
php_admin_value[upload_max_filesize] = 16M
php_admin_value[post_max_size] = 16M
%s
`, socket, user, filepath.Join(a.dir, "php.log"), strings.Join(ini, "\n"))
	check.OK(t, os.WriteFile(conf, []byte(text), 0o644))
	a.run(t, exec.Command(fpm, "--nodaemonize", "--fpm-config", conf), socket)
	return socket
}

// lines returns the lines of a file of the application that contain a text.
func (a *application) lines(t *testing.T, file, text string) []string {
	t.Helper()
	return linesWith(t, filepath.Join(a.dir, file), text)
}

// linesWith returns the lines of a file that contain a text. A file that does not exist has
// none.
func linesWith(t *testing.T, file, text string) (lines []string) {
	t.Helper()
	all, err := os.ReadFile(file)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(all)) {
		if strings.Contains(line, text) {
			lines = append(lines, strings.TrimSuffix(line, "\n"))
		}
	}
	return lines
}

// reached returns how many requests with a text in their line reached PHP.
func (a *application) reached(t *testing.T, text string) int {
	t.Helper()
	return len(a.lines(t, "php.log", text))
}

// outputOf runs a command to its end, and returns what it prints.
func outputOf(t *testing.T, cmd *exec.Cmd) string {
	t.Helper()
	out, err := cmd.CombinedOutput()
	check.Assume(t, err == nil, "running %v: %v\n%s", cmd.Args, err, out)
	return string(out)
}
