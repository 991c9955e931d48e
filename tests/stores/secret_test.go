package stores

import (
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/servertest"
	"github.com/caddy-throttle/caddy-throttle/tests/internal/system"
)

// TestPasswordsOfAStoreAreNeverShown, wherever they stand and whatever fails: not
// in the log, the metrics or the admin endpoint, unless the config itself shows
// them.
func TestPasswordsOfAStoreAreNeverShown(t *testing.T) {
	t.Parallel()
	redis := servertest.StartRedis(t, "--requirepass", "the-right-one")
	postgres := servertest.StartPostgres(t)
	for _, store := range []struct{ name, scheme, right, path string }{
		{"redis", "redis", redis.Addr, ""},
		{"postgres", "postgres", fmt.Sprintf("127.0.0.1:%d", postgres.Port), "/postgres"},
	} {
		file := system.WriteFile(t, "secret", "hunter2-file\n")
		for _, test := range []struct{ where, user, options, what, address string }{
			{"in the URL", "app:hunter2-url@", "", "a wrong password", store.right},
			{"in the URL, by name", "app:{env.SECRET}@", "", "nobody there", "127.0.0.1:1"},
			{"in an option", "", "password hunter2-word", "no such host", "throttle.invalid"},
			{"in an option, by name", "", "password {env.SECRET}", "something else", startBabbler(t)},
			{"in a file", "", "password {file." + file + "}", "a wrong password", store.right},
		} {
			t.Run(fmt.Sprintf("%s/%s, %s", store.name, test.where, test.what), func(t *testing.T) {
				t.Parallel()
				directive := fmt.Sprintf("store %s %s://%s%s%s", store.name, store.scheme, test.user, test.address, store.path)
				if test.options != "" {
					directive += " {\nusername app\n" + test.options + "\n}"
				}
				wantNoSecret(t, test.where, directive)
			})
		}
	}
}

func wantNoSecret(t *testing.T, where, directive string) {
	t.Helper()
	port := servertest.FreePort(t)
	c := system.StartCaddy(t, system.Config{Throttle: directive, Env: "SECRET=hunter2-env", Sites: outageSite(port)})
	v := system.NewVisitor(t, "h1")
	system.Eventually(t, "an outage", func() bool {
		v.Get(t, fmt.Sprintf("http://127.0.0.1:%d/deny", port))
		return outagesOf(c, t) > 0
	})
	texts := map[string]string{"page": v.Get(t, fmt.Sprintf("http://127.0.0.1:%d/deny", port)).Body}
	for _, path := range []string{"/metrics", "/config/", "/debug/vars"} {
		_, texts[path] = c.AskAdmin("GET", path, "")
	}
	_, texts["a failed load"] = c.Load(system.Config{Throttle: directive + "\nstore_timeout nonsense"}.Caddyfile(c.Admin))
	check.NoError(t, c.ShutDown())
	texts["log"] = c.Output.String()
	for name, text := range texts {
		if name == "/config/" && !strings.Contains(directive, "{env.") && !strings.Contains(directive, "{file.") {
			continue // it says what was written
		}
		at := strings.Index(text, "hunter2")
		check.That(t, at < 0, "%s: got it in the %s: %.200s", where, name, text[max(0, at-100):])
	}
	check.That(t, strings.Contains(texts["log"], "the store is down"), "%s: got no line that says that the store is down", where)
}

// startBabbler starts a server whose answers are neither Redis's nor
// PostgreSQL's.
func startBabbler(t *testing.T) (address string) {
	t.Helper()
	listener := check.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				buf := make([]byte, 4096)
				n, _ := conn.Read(buf)
				_, _ = fmt.Fprintf(conn, "HTTP/1.1 400 Bad Request\r\n\r\nwhat is %q?", buf[:n])
				time.AfterFunc(time.Second, func() { conn.Close() })
			}()
		}
	}()
	return listener.Addr().String()
}
