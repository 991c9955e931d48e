package servertest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// PostgresPassword is the password of the superuser, postgres.
const PostgresPassword = "pgtest-p4ss/w:rd@"

// Postgres is a PostgreSQL server that a test has started, on a loopback port.
// Its files are in a directory of its own. Its methods that take a testing.TB
// fail that test on an error.
type Postgres struct {
	Port int

	directory string
	bin       string
	process   *postgresProcess
}

// StartPostgres starts a server, and removes it when the test ends. Settings are
// lines of postgresql.conf, such as "max_connections=20".
func StartPostgres(tb testing.TB, settings ...string) *Postgres {
	tb.Helper()
	bin := FindPostgres(tb)
	s, err := NewPostgres(bin, settings...)
	if err != nil {
		tb.Fatalf("starting PostgreSQL: %v", err)
	}
	tb.Cleanup(s.Remove)
	return s
}

// FindPostgres returns the directory of PostgreSQL's programs. If PostgreSQL is
// not installed, it skips the test, or fails it with REQUIRE_SYSTEM=1 or CI=true.
func FindPostgres(tb testing.TB) string {
	tb.Helper()
	skipOnWindows(tb)
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/postgres")
	if len(found) > 0 {
		return filepath.Dir(found[len(found)-1])
	}
	if path, err := exec.LookPath("postgres"); err == nil {
		return filepath.Dir(path)
	}
	missing(tb, "PostgreSQL")
	return ""
}

// NewPostgres creates a database cluster with the programs of bin and starts it.
// It belongs to no test: the caller calls Remove.
func NewPostgres(bin string, settings ...string) (*Postgres, error) {
	folder, err := Folder()
	if err != nil {
		return nil, err
	}
	directory, err := os.MkdirTemp(folder, "postgres-")
	if err != nil {
		return nil, err
	}
	s := &Postgres{directory: directory, bin: bin}
	if s.Port, err = freePort(); err == nil {
		err = s.initialize(settings)
	}
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(directory))
	}
	if err := s.Run(); err != nil {
		s.Remove()
		return nil, err
	}
	return s, nil
}

func (s *Postgres) initialize(settings []string) error {
	if err := giveToPostgres(s.directory); err != nil {
		return err
	}
	pw := filepath.Join(s.directory, "password")
	if err := os.WriteFile(pw, []byte(PostgresPassword+"\n"), 0o644); err != nil {
		return err
	}
	initdb := exec.Command(filepath.Join(s.bin, "initdb"), "--pgdata", s.data(), "--username", "postgres",
		"--pwfile", pw, "--auth", "scram-sha-256", "--encoding", "UTF8", "--locale", "C", "--no-sync")
	initdb.SysProcAttr = asPostgres()
	initdb.Dir = s.directory
	if out, err := initdb.CombinedOutput(); err != nil {
		return fmt.Errorf("making a database cluster: %w\n%s", err, out)
	}
	all := []string{
		"listen_addresses=127.0.0.1", "port=" + strconv.Itoa(s.Port), "unix_socket_directories=" + s.directory,
		"shared_buffers=64MB", "max_connections=200",
	}
	conf := ""
	for _, line := range append(all, settings...) { // the last line of a setting counts
		key, value, _ := strings.Cut(line, "=")
		conf += fmt.Sprintf("%s = '%s'\n", key, value)
	}
	return appendFile(filepath.Join(s.data(), "postgresql.conf"), conf)
}

func (s *Postgres) data() string { return filepath.Join(s.directory, "data") }

// Run starts the server again after Stop or Kill, on the same port and with the
// same data. It returns when the server answers.
func (s *Postgres) Run() error {
	p, err := startPostgresProcess(exec.Command(filepath.Join(s.bin, "postgres"), "-D", s.data()), filepath.Join(s.directory, "log"))
	if err != nil {
		return err
	}
	s.process = p
	return p.await(func(ctx context.Context) error {
		_, err := psql(ctx, s.bin, s.URL(), "SELECT 1")
		return err
	})
}

// Stop stops the server at once ("fast shutdown"). Open transactions are rolled
// back.
func (s *Postgres) Stop() { s.process.end(syscall.SIGINT) }

// Kill ends the server and all its processes with SIGKILL, as a crash would. It returns
// when they are gone: a server does not start beside what is left of another one.
func (s *Postgres) Kill() {
	parent := s.process.command.Process.Pid
	pause(parent)
	until(func() bool { return strings.Contains("TZX", stateOf(parent)) }) // so that it starts no more
	all := s.process.family()
	for _, pid := range all {
		kill(pid)
	}
	s.process.end(syscall.SIGKILL)
	for _, pid := range all {
		until(func() bool { return strings.Contains("ZX", stateOf(pid)) })
	}
}

// Freeze stops the server and all its processes with SIGSTOP. Calling thaw lets
// them continue.
func (s *Postgres) Freeze() (thaw func()) {
	all := s.process.family() // the parent first, so that it starts no more
	for _, pid := range all {
		pause(pid)
	}
	return func() {
		for _, pid := range all {
			resume(pid)
		}
	}
}

// Standby restarts the server as a standby, which is read-only.
func (s *Postgres) Standby(tb testing.TB) {
	tb.Helper()
	s.Stop()
	if err := os.WriteFile(filepath.Join(s.data(), "standby.signal"), nil, 0o644); err != nil {
		tb.Fatal(err)
	}
	if err := s.Run(); err != nil {
		tb.Fatal(err)
	}
}

// ServeTLS makes the server offer TLS with a certificate and its key, both in
// PEM. It may be called again to rotate them; open connections stay as they are.
func (s *Postgres) ServeTLS(tb testing.TB, certificate, key []byte) {
	tb.Helper()
	for name, text := range map[string][]byte{"server.crt": certificate, "server.key": key} {
		path := filepath.Join(s.data(), name)
		if err := os.WriteFile(path, text, 0o600); err != nil {
			tb.Fatal(err)
		}
		if err := giveToPostgres(path); err != nil {
			tb.Fatal(err)
		}
	}
	s.Exec(tb, "ALTER SYSTEM SET ssl = on", "SELECT pg_reload_conf()")
}

// Remove stops the server and removes its files.
func (s *Postgres) Remove() {
	if s.process != nil {
		s.process.end(syscall.SIGINT)
	}
	_ = os.RemoveAll(s.directory)
}

// URL returns the superuser's connection URL.
func (s *Postgres) URL() string { return s.URLOf("postgres", PostgresPassword, "postgres") }

// URLThrough returns the superuser's connection URL through a proxy.
func (s *Postgres) URLThrough(p *Proxy) string {
	return strings.Replace(s.URL(), net.JoinHostPort("127.0.0.1", strconv.Itoa(s.Port)), p.Addr, 1)
}

// URLOf returns the connection URL of a role to a database.
func (s *Postgres) URLOf(name, password, database string) string {
	return postgresURL(s.Port, name, password, database)
}

func postgresURL(port int, name, password, database string) string {
	u := url.URL{
		Scheme: "postgres", User: url.UserPassword(name, password),
		Host: net.JoinHostPort("127.0.0.1", strconv.Itoa(port)), Path: "/" + database,
	}
	return u.String()
}

// Exec runs statements as the superuser, each in a transaction of its own.
func (s *Postgres) Exec(tb testing.TB, statements ...string) {
	tb.Helper()
	s.query(tb, statements...)
}

// Float runs a query as the superuser and returns its one number.
func (s *Postgres) Float(tb testing.TB, sql string) float64 {
	tb.Helper()
	v, err := strconv.ParseFloat(s.query(tb, sql), 64)
	if err != nil {
		tb.Fatalf("%s: %v", sql, err)
	}
	return v
}

// Text runs a query as the superuser and returns its one text.
func (s *Postgres) Text(tb testing.TB, sql string) string {
	tb.Helper()
	return s.query(tb, sql)
}

func (s *Postgres) query(tb testing.TB, statements ...string) string {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	out, err := psql(ctx, s.bin, s.URL(), statements...)
	if err != nil {
		tb.Fatalf("asking PostgreSQL %q: %v", statements, err)
	}
	return out
}

// psql runs statements with PostgreSQL's own client, so that this package needs no other, and
// returns what they print. Its sessions prepare nothing.
func psql(ctx context.Context, bin, url string, statements ...string) (string, error) {
	args := []string{"--no-psqlrc", "--quiet", "--no-align", "--tuples-only", "--set", "ON_ERROR_STOP=1", url}
	for _, sql := range statements {
		args = append(args, "--command", sql)
	}
	cmd := exec.CommandContext(ctx, filepath.Join(bin, "psql"), args...)
	var problem strings.Builder
	cmd.Stderr = &problem
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%w: %s", err, problem.String())
	}
	return strings.TrimSuffix(string(out), "\n"), nil
}

// Log returns the server's log so far.
func (s *Postgres) Log() string {
	text, _ := os.ReadFile(filepath.Join(s.directory, "log"))
	return string(text)
}
