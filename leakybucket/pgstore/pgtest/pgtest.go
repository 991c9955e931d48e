// Package pgtest starts real PostgreSQL servers, and PgBouncer, for tests: as
// sub-processes on loopback ports of their own, with all they keep in a
// directory that is removed. Run as root, they run as the user postgres.
//
// Where they are not installed tests are skipped, unless REQUIRE_SYSTEM=1 or
// CI=true says that they must run.
package pgtest

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

	"github.com/jackc/pgx/v5"
)

// Password is that of the superuser, postgres.
const Password = "pgtest-p4ss/w:rd@"

// A Server is a PostgreSQL that was started here.
type Server struct {
	Port int

	directory string
	bin       string
	process   *process
}

// Start starts a server with all its own, and stops it when the test ends.
// settings are as in postgresql.conf, such as "max_connections=20".
func Start(tb testing.TB, settings ...string) *Server {
	tb.Helper()
	bin := Find(tb)
	s, err := New(bin, settings...)
	if err != nil {
		tb.Fatalf("starting PostgreSQL: %v", err)
	}
	tb.Cleanup(s.Remove)
	return s
}

// Find returns where PostgreSQL's programs are, and skips the test if there are
// none.
func Find(tb testing.TB) string {
	tb.Helper()
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

func missing(tb testing.TB, what string) {
	tb.Helper()
	if os.Getenv("REQUIRE_SYSTEM") == "1" || os.Getenv("CI") == "true" {
		tb.Fatalf("%s is not installed, and REQUIRE_SYSTEM or CI says it must be", what)
	}
	tb.Skipf("SKIPPED: %s is not installed", what)
}

// New makes a database cluster and starts it, without a test to belong to.
func New(bin string, settings ...string) (*Server, error) {
	directory, err := os.MkdirTemp("", "pgtest-")
	if err != nil {
		return nil, err
	}
	s := &Server{Port: freePort(), directory: directory, bin: bin}
	if err := s.initialize(settings); err != nil {
		return nil, errors.Join(err, os.RemoveAll(directory))
	}
	if err := s.Run(); err != nil {
		s.Remove()
		return nil, err
	}
	return s, nil
}

func (s *Server) initialize(settings []string) error {
	if err := give(s.directory); err != nil {
		return err
	}
	pw := filepath.Join(s.directory, "password")
	if err := os.WriteFile(pw, []byte(Password+"\n"), 0o644); err != nil {
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
	for _, line := range append(all, settings...) { // of the same the last counts
		key, value, _ := strings.Cut(line, "=")
		conf += fmt.Sprintf("%s = '%s'\n", key, value)
	}
	return appendFile(filepath.Join(s.data(), "postgresql.conf"), conf)
}

func (s *Server) data() string { return filepath.Join(s.directory, "data") }

// Run starts the server again, after Stop or Kill, on the same port and with the
// same data, and returns when it answers.
func (s *Server) Run() error {
	p, err := start(exec.Command(filepath.Join(s.bin, "postgres"), "-D", s.data()), filepath.Join(s.directory, "log"))
	if err != nil {
		return err
	}
	s.process = p
	return p.await(func(ctx context.Context) error {
		conn, err := pgx.Connect(ctx, s.URL())
		if err == nil {
			err = conn.Close(ctx)
		}
		return err
	})
}

// Stop stops the server at once, as systemctl stop does with an impatient
// administrator: what it was about to do is rolled back.
func (s *Server) Stop() { s.process.end(syscall.SIGINT) }

// Kill ends the server and all its processes by SIGKILL, as a crash does.
func (s *Server) Kill() {
	all := s.process.family()
	for _, pid := range all {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	s.process.end(syscall.SIGKILL)
}

// Freeze stops the server and all its processes by SIGSTOP, and returns what
// lets them go on.
func (s *Server) Freeze() (thaw func()) {
	all := s.process.family() // the parent first, so that there are no more
	for _, pid := range all {
		_ = syscall.Kill(pid, syscall.SIGSTOP)
	}
	return func() {
		for _, pid := range all {
			_ = syscall.Kill(pid, syscall.SIGCONT)
		}
	}
}

// Standby starts the server again as one that follows another and cannot be
// written to.
func (s *Server) Standby(tb testing.TB) {
	tb.Helper()
	s.Stop()
	if err := os.WriteFile(filepath.Join(s.data(), "standby.signal"), nil, 0o644); err != nil {
		tb.Fatal(err)
	}
	if err := s.Run(); err != nil {
		tb.Fatal(err)
	}
}

// Remove stops the server and removes all it has kept.
func (s *Server) Remove() {
	if s.process != nil {
		s.process.end(syscall.SIGINT)
	}
	_ = os.RemoveAll(s.directory)
}

// URL returns how the superuser connects.
func (s *Server) URL() string { return s.URLOf("postgres", Password, "postgres") }

// URLOf returns how somebody connects to a database.
func (s *Server) URLOf(name, password, database string) string {
	return urlTo(s.Port, name, password, database)
}

func urlTo(port int, name, password, database string) string {
	u := url.URL{
		Scheme: "postgres", User: url.UserPassword(name, password),
		Host: net.JoinHostPort("127.0.0.1", strconv.Itoa(port)), Path: "/" + database,
	}
	return u.String()
}

// Exec runs statements as the superuser.
func (s *Server) Exec(tb testing.TB, statements ...string) {
	tb.Helper()
	s.query(tb, func(ctx context.Context, conn *pgx.Conn) error {
		for _, sql := range statements {
			if _, err := conn.Exec(ctx, sql); err != nil {
				return fmt.Errorf("%s: %w", sql, err)
			}
		}
		return nil
	})
}

// Float returns what a query for one number says to the superuser.
func (s *Server) Float(tb testing.TB, sql string) float64 {
	tb.Helper()
	var v float64
	s.query(tb, func(ctx context.Context, conn *pgx.Conn) error { return conn.QueryRow(ctx, sql).Scan(&v) })
	return v
}

func (s *Server) query(tb testing.TB, do func(context.Context, *pgx.Conn) error) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, s.URL())
	if err != nil {
		tb.Fatalf("connecting to PostgreSQL: %v", err)
	}
	defer func() { _ = conn.Close(ctx) }()
	if err := do(ctx, conn); err != nil {
		tb.Fatalf("asking PostgreSQL: %v", err)
	}
}

// Log returns what the server has logged so far.
func (s *Server) Log() string {
	text, _ := os.ReadFile(filepath.Join(s.directory, "log"))
	return string(text)
}
