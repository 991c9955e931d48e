package stores

import (
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

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
		for what, address := range map[string]string{
			"a wrong password": store.right,
			"nobody there":     "127.0.0.1:1",
			"no such host":     "throttle.invalid",
			"something else":   startBabbler(t),
		} {
			t.Run(store.name+"/"+what, func(t *testing.T) {
				t.Parallel()
				file := system.WriteFile(t, "secret", "hunter2-file\n")
				for where, directive := range map[string]string{
					"in the URL":            fmt.Sprintf("store %s %s://app:hunter2-url@%s%s", store.name, store.scheme, address, store.path),
					"in the URL, by name":   fmt.Sprintf("store %s %s://app:{env.SECRET}@%s%s", store.name, store.scheme, address, store.path),
					"in an option":          fmt.Sprintf("store %s %s://%s%s {\nusername app\npassword hunter2-word\n}", store.name, store.scheme, address, store.path),
					"in an option, by name": fmt.Sprintf("store %s %s://%s%s {\nusername app\npassword {env.SECRET}\n}", store.name, store.scheme, address, store.path),
					"in a file":             fmt.Sprintf("store %s %s://%s%s {\nusername app\npassword {file.%s}\n}", store.name, store.scheme, address, store.path, file),
				} {
					wantNoSecret(t, where, directive)
				}
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
	if err := c.ShutDown(); err != nil {
		t.Error(err)
	}
	texts["log"] = c.Output.String()
	for name, text := range texts {
		if name == "/config/" && !strings.Contains(directive, "{env.") && !strings.Contains(directive, "{file.") {
			continue // it says what was written
		}
		if at := strings.Index(text, "hunter2"); at >= 0 {
			t.Errorf("%s: got it in the %s: %.200s", where, name, text[max(0, at-100):])
		}
	}
	if !strings.Contains(texts["log"], "the store is down") {
		t.Errorf("%s: got no line that says that the store is down", where)
	}
}

// startBabbler starts a server whose answers are neither Redis's nor
// PostgreSQL's.
func startBabbler(t *testing.T) (address string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
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
