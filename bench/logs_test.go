package bench

import (
	"bufio"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

// logLines is how many lines the logs have that are read.
const logLines = 1_000_000

// TestReadingLogs measures how many lines of access logs a second caddy throttle
// recommend and replay read on one processor, by processor time. goaccess reads the same
// combined log in turns with them. Only the ratio to it is asserted.
func TestReadingLogs(t *testing.T) {
	if os.Getenv("TEST_LONG") != "1" {
		t.Skip("SKIPPED: measures for minutes; set TEST_LONG=1")
	}
	goaccess, err := exec.LookPath("goaccess")
	if err != nil {
		t.Skip("SKIPPED: goaccess is missing")
	}
	dir := t.TempDir()
	caddy := buildCaddy(t, dir)
	combined, json := filepath.Join(dir, "combined.log"), filepath.Join(dir, "caddy.log")
	writeLogs(t, combined, json)
	config := filepath.Join(dir, "Caddyfile")
	if err := os.WriteFile(config, []byte(`example.com {
	root * /srv
	throttle {
		zone login {
			match {
				path /wp-login.php*
				method POST
			}
			limit 5 5/h
		}
		zone pages {
			exempt path *.css *.js *.png *.svg
			limit 60 2/s
		}
	}
	reverse_proxy localhost:3000
}
`), 0o600); err != nil {
		t.Fatal(err)
	}
	commands := []struct {
		name string
		args []string
	}{
		{"goaccess, combined", []string{goaccess, combined, "--log-format=COMBINED", "--no-progress", "--no-global-config", "-o", filepath.Join(dir, "report.json")}},
		{"recommend, combined", []string{caddy, "throttle", "recommend", combined}},
		{"recommend --check, combined", []string{caddy, "throttle", "recommend", "--check", "60 2/s", combined}},
		{"recommend, Caddy", []string{caddy, "throttle", "recommend", json}},
		{"replay --config, Caddy", []string{caddy, "throttle", "replay", "--config", config, json}},
		{"recommend --config, Caddy", []string{caddy, "throttle", "recommend", "--config", config, json}},
	}
	const turns = 3
	took := make([][]float64, len(commands))
	var ratios []float64
	for range turns {
		for i, c := range commands {
			took[i] = append(took[i], processorSeconds(t, dir, c.args))
		}
		last := len(took[0]) - 1
		ratios = append(ratios, took[0][last]/took[1][last])
	}
	for i, c := range commands {
		slices.Sort(took[i])
		t.Logf("%-30s %9.0f lines a second of processor time, median of %d", c.name, logLines/took[i][turns/2], turns)
	}
	t.Logf("recommend to goaccess, in pairs: %s", quartiles(ratios))
	check.That(t, ratios[turns/2] >= 1, "got a median of %.2f times goaccess, want it no slower", ratios[turns/2])
}

// processorSeconds runs a command on one processor, and returns for how long it ran
// there.
func processorSeconds(t *testing.T, dir string, args []string) float64 {
	t.Helper()
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env = append(os.Environ(), "GOMAXPROCS=1", "HOME="+dir, "XDG_DATA_HOME="+dir, "XDG_CONFIG_HOME="+dir)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%.2000s", args, err, out)
	}
	return (cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()).Seconds()
}

// writeLogs writes the same requests as a combined log and as Caddy's.
func writeLogs(t *testing.T, combined, json string) {
	t.Helper()
	random := rand.New(rand.NewPCG(1, 2))
	zipf := rand.NewZipf(random, 1.1, 20, 50_000)
	agents := []string{
		"Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/142.0.0.0 Safari/537.36",
		"Mozilla/5.0 (iPhone; CPU iPhone OS 18_1 like Mac OS X) AppleWebKit/605.1.15 (KHTML, like Gecko) Version/18.1 Mobile/15E148 Safari/604.1",
		"Mozilla/5.0 (X11; Linux x86_64; rv:145.0) Gecko/20100101 Firefox/145.0",
		"Mozilla/5.0 (compatible; Examplebot/2.1; +http://www.example.com/bot.html)",
	}
	paths := []string{"/index.php?page=%d", "/assets/style.css?v=%d", "/wiki/Article_%d", "/img/%d.png", "/wp-login.php?%d"}
	a, b := createLog(t, combined), createLog(t, json)
	start := time.Date(2026, 11, 2, 0, 0, 0, 0, time.UTC)
	for n := range logLines {
		at := start.Add(time.Duration(n) * 600 * time.Millisecond)
		client := zipf.Uint64()
		addr := fmt.Sprintf("198.18.%d.%d", client/256%256, client%256)
		path := fmt.Sprintf(paths[random.IntN(len(paths))], random.IntN(10_000))
		agent := agents[client%uint64(len(agents))]
		fmt.Fprintf(a, "%s - - [%s] \"GET %s HTTP/1.1\" 200 %d \"https://example.com/\" \"%s\"\n", addr, at.Format("02/Jan/2006:15:04:05 -0700"), path, random.IntN(100_000), agent)
		fmt.Fprintf(b, `{"level":"info","ts":%.6f,"logger":"http.log.access.log0","msg":"handled request","request":{"remote_ip":%q,"remote_port":"40000","client_ip":%[2]q,"proto":"HTTP/2.0","method":"GET","host":"example.com","uri":%q,"headers":{"User-Agent":[%q],"Accept":["text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"],"Accept-Language":["en-US,en;q=0.5"],"Cookie":["REDACTED"]},"tls":{"resumed":false,"version":772,"cipher_suite":4865,"proto":"h2","server_name":"example.com"}},"bytes_read":0,"user_id":"","duration":%.6f,"size":5120,"status":200,"resp_headers":{"Server":["Caddy"],"Content-Type":["text/html; charset=utf-8"]}}`+"\n",
			float64(at.UnixMicro())/1e6, addr, path, agent, random.Float64()/4)
	}
	for _, w := range []*bufio.Writer{a, b} {
		check.OK(t, w.Flush())
	}
}

func createLog(t *testing.T, name string) *bufio.Writer {
	t.Helper()
	file := check.Must(os.Create(name))(t)
	t.Cleanup(func() { file.Close() })
	return bufio.NewWriterSize(file, 1<<20)
}
