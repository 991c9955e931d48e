package servertest

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
)

// Bouncer starts a PgBouncer in front of the server, in transaction mode: after
// each transaction a client may get another session. It returns the superuser's
// connection URL. If PgBouncer is not installed, it skips the test.
func (s *Postgres) Bouncer(tb testing.TB, poolSize int) (url string) {
	tb.Helper()
	program, err := exec.LookPath("pgbouncer")
	if err != nil {
		if _, err = os.Stat("/usr/sbin/pgbouncer"); err != nil {
			missing(tb, "PgBouncer")
		}
		program = "/usr/sbin/pgbouncer"
	}
	directory := tb.TempDir()
	if err := os.Chmod(filepath.Dir(directory), 0o755); err != nil {
		tb.Fatal(err)
	}
	if err := giveToPostgres(directory); err != nil {
		tb.Fatal(err)
	}
	port := FreePort(tb)
	conf := fmt.Sprintf(`[databases]
postgres = host=127.0.0.1 port=%d
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = %d
unix_socket_dir =
auth_type = plain
auth_file = %s/users
pool_mode = transaction
default_pool_size = %d
server_reset_query_always = 1
`, s.Port, port, directory, poolSize)
	users := fmt.Sprintf("%q %q\n", "postgres", PostgresPassword)
	for name, text := range map[string]string{"conf": conf, "users": users} {
		if err := os.WriteFile(filepath.Join(directory, name), []byte(text), 0o644); err != nil {
			tb.Fatal(err)
		}
	}
	p, err := startPostgresProcess(exec.Command(program, filepath.Join(directory, "conf")), filepath.Join(directory, "log"))
	if err != nil {
		tb.Fatalf("starting PgBouncer: %v", err)
	}
	tb.Cleanup(func() { p.end(syscall.SIGINT) })
	url = postgresURL(port, "postgres", PostgresPassword, "postgres")
	err = p.await(func(ctx context.Context) error {
		_, err := psql(ctx, s.bin, url, "SELECT 1")
		return err
	})
	if err != nil {
		tb.Fatalf("starting PgBouncer: %v", err)
	}
	return url
}
