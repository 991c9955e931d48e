package bench

import (
	"bytes"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/fcgi"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/servertest"
)

var (
	pairs = flag.Int("pairs", 11, "how many pairs of slices TestThroughput measures")
	slice = flag.Duration("slice", 2*time.Second, "how long a slice is, in whole seconds")
)

const (
	connections = 32
	headerKeys  = 100_000
)

// theirs is caddy-ratelimit's zone with a limit that nobody reaches, or that all exceed
// after the first request. It keeps an entry for each event of the window.
func theirs(name, key string, refused bool) string {
	events, window := 1000, "1ms"
	if refused {
		events, window = 1, "24h"
	}
	return fmt.Sprintf("zone %s {\nkey %s\nevents %d\nwindow %s\n}\n", name, key, events, window)
}

func ours(name, key string, refused bool) string {
	limit := "1000000000 1000/s"
	if refused {
		limit = "1 1/d"
	}
	return fmt.Sprintf("zone %s {\nkey %s\nlimit %s\n}\n", name, key, limit)
}

// TestThroughput measures one Caddy on one processor that holds both limiters, and nginx:
// in slices of time with and without a limiter that take turns. Each ratio is that of
// slices of one round, because the machine's speed changes during a run.
//
// The ratios are those of requests per second of the server's processor time. On an idle
// machine they are the same as by the clock, and on a busy one they hardly change.
func TestThroughput(t *testing.T) {
	if os.Getenv("TEST_LONG") != "1" {
		t.Skip("SKIPPED: measures for minutes; set TEST_LONG=1")
	}
	upstream := httptest.NewServer(http.HandlerFunc(answer))
	defer upstream.Close()
	script := t.TempDir()
	check.OK(t, os.WriteFile(filepath.Join(script, "index.php"), nil, 0o600))
	responder := check.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer responder.Close()
	go func() { _ = fcgi.Serve(responder, http.HandlerFunc(answer)) }()
	sites := map[string]string{
		"respond":       `respond "ok"`,
		"reverse_proxy": "reverse_proxy " + upstream.Listener.Addr().String(),
		"php_fastcgi":   fmt.Sprintf("root * %s\nphp_fastcgi %s", script, responder.Addr()),
	}
	type limiter struct {
		name      string
		directive string
		load      load
	}
	three := []string{"client_ip", "{http.request.host}", "{http.request.method}"}
	zones := func(zone func(string, string, bool) string, name string, n int, refused bool, keys ...string) (all string) {
		for i := range n {
			all += zone(fmt.Sprint(name, i), keys[i], refused)
		}
		return all
	}
	var cases []struct {
		site     string
		limiters []limiter
	}
	for _, site := range []string{"respond", "reverse_proxy", "php_fastcgi"} {
		var all []limiter
		for _, refused := range []bool{false, true} {
			for _, n := range []int{1, 3} {
				if n == 3 && (refused || site != "respond") {
					continue
				}
				about := fmt.Sprintf("%s, %d zones, refused %v", site, n, refused)
				name := fmt.Sprintf("%s-%d-%v-", site, n, refused)
				theirKeys := []string{"{remote_host}", three[1], three[2]}
				all = append(all,
					limiter{"throttle: " + about, "throttle {\n" + zones(ours, name, n, refused, three...) + "}", load{refused: refused}},
					limiter{"caddy-ratelimit: " + about, "rate_limit {\n" + zones(theirs, name, n, refused, theirKeys...) + "}", load{refused: refused}})
			}
		}
		if site == "respond" {
			all = append(all, limiter{"throttle: respond, three zones, two of them with settle", "throttle {" + threeZones + "\n}", load{}})
		}
		cases = append(cases, struct {
			site     string
			limiters []limiter
		}{site, all})
	}
	many := load{keys: headerKeys}
	cases = append(cases, struct {
		site     string
		limiters []limiter
	}{"respond", []limiter{
		{"throttle: respond, 100,000 keys", "throttle {\nzone many {\nkey header X-Key plain\nlimit 1000000 1/s\n}\n}", many},
		{"caddy-ratelimit: respond, 100,000 keys", "rate_limit {\nzone many {\nkey {http.request.header.X-Key}\nevents 10\nwindow 1ms\n}\n}", many},
	}})

	caddyfile := "{\n\tadmin off\n\tpersist_config off\n\tmetrics\n\torder rate_limit before basic_auth\n}\n"
	var ports []int
	for _, c := range cases {
		for i := range len(c.limiters) + 1 {
			directive := ""
			if i > 0 {
				directive = c.limiters[i-1].directive
			}
			ports = append(ports, servertest.FreePort(t))
			caddyfile += fmt.Sprintf("http://:%d {\n%s\n%s\n}\n", ports[len(ports)-1], directive, sites[c.site])
		}
	}
	caddy := startCaddy(t, caddyfile, ports)
	for _, c := range cases {
		plain := load{keys: c.limiters[0].load.keys}
		slices := []func() float64{plain.on(t, caddy, ports[0])}
		var names []string
		for i, l := range c.limiters {
			slices, names = append(slices, l.load.on(t, caddy, ports[i+1])), append(names, l.name)
		}
		compareSlices(t, names, slices)
		ports = ports[len(slices):]
	}
	compareNginx(t)
}

func answer(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") }

// compareSlices lets all take turns, and reports each one's ratio to the first: that of
// the best slices, and the median and quartiles of those of single rounds.
func compareSlices(t *testing.T, names []string, slices []func() float64) {
	t.Helper()
	ratios, best := make([][]float64, len(slices)), make([]float64, len(slices))
	for n := range *pairs + 1 {
		var all []float64
		for _, next := range slices {
			all = append(all, next())
		}
		for i := range all {
			if n > 0 { // in the first round, nobody has a bucket
				ratios[i] = append(ratios[i], all[i]/all[0])
				best[i] = max(best[i], all[i])
			}
		}
	}
	for i, name := range names {
		t.Logf("| %s | %.3f | %s |", name, best[i+1]/best[0], quartiles(ratios[i+1]))
	}
}

// compareNginx does the same with nginx, if that is installed.
func compareNginx(t *testing.T) {
	nginx, err := exec.LookPath("nginx")
	if err != nil {
		t.Log("SKIPPED: nginx is not installed")
		return
	}
	dir, ports := t.TempDir(), []int{servertest.FreePort(t), servertest.FreePort(t), servertest.FreePort(t), servertest.FreePort(t)}
	config := fmt.Sprintf(`daemon off; master_process off; pid %[1]s/pid; error_log %[1]s/error.log;
events { worker_connections 512; }
http {
	access_log off; client_body_temp_path %[1]s; proxy_temp_path %[1]s; fastcgi_temp_path %[1]s; uwsgi_temp_path %[1]s; scgi_temp_path %[1]s;
	keepalive_requests 1000000000; limit_req_status 429; limit_req_log_level info;
	limit_req_zone $binary_remote_addr zone=open:10m rate=1000000r/s;
	limit_req_zone $binary_remote_addr zone=shut:10m rate=1r/m;
	server { listen 127.0.0.1:%[2]d; location / { return 200 ok; } }
	server { listen 127.0.0.1:%[3]d; root %[1]s/www; location / { limit_req zone=open burst=1000000 nodelay; } }
	server { listen 127.0.0.1:%[4]d; root %[1]s/www; location / { limit_req zone=shut; } }
	server { listen 127.0.0.1:%[5]d; root %[1]s/www; location / { } }
}`, dir, ports[3], ports[0], ports[1], ports[2])
	for name, text := range map[string]string{"nginx.conf": config, "www/index.html": "ok"} {
		file := filepath.Join(dir, name)
		check.OK(t, os.MkdirAll(filepath.Dir(file), 0o755))
		check.OK(t, os.WriteFile(file, []byte(text), 0o644))
	}
	server := exec.Command(nginx, "-c", filepath.Join(dir, "nginx.conf"), "-p", dir)
	check.OK(t, server.Start())
	defer func() {
		_ = server.Process.Kill()
		_ = server.Wait()
	}()
	for _, port := range ports {
		awaitPort(t, port, filepath.Join(dir, "error.log"))
	}
	compareSlices(t, []string{"nginx limit_req: a file, admitted", "nginx limit_req: a file, refused"}, []func() float64{
		load{}.on(t, server.Process, ports[2]), load{}.on(t, server.Process, ports[0]), load{refused: true}.on(t, server.Process, ports[1]),
	})
}

// quartiles sorts ratios, and returns their median and, in brackets, their quartiles.
// What lies between two ratios is interpolated.
func quartiles(ratios []float64) string {
	slices.Sort(ratios)
	at := func(quarter int) float64 {
		i, rest := quarter*(len(ratios)-1)/4, quarter*(len(ratios)-1)%4
		return ratios[i] + float64(rest)/4*(ratios[min(i+1, len(ratios)-1)]-ratios[i])
	}
	return fmt.Sprintf("%.3f (%.3f to %.3f)", at(2), at(1), at(3))
}

// buildCaddy builds a Caddy with both limiters in a folder, and returns the binary's name.
func buildCaddy(t *testing.T, dir string) string {
	t.Helper()
	binary := filepath.Join(dir, "caddy")
	build := exec.Command("go", "build", "-buildvcs=false", "-ldflags", "-w -s", "-tags", "nobadger,nomysql,nopgx", "-o", binary, "./caddy")
	out, err := build.CombinedOutput()
	check.Assume(t, err == nil, "building caddy: %v\n%s", err, out)
	return binary
}

// startCaddy builds the checkout's Caddy and runs it on one processor until the
// test ends.
func startCaddy(t *testing.T, caddyfile string, ports []int) *os.Process {
	t.Helper()
	dir := t.TempDir()
	binary, config := buildCaddy(t, dir), filepath.Join(dir, "Caddyfile")
	check.OK(t, os.WriteFile(config, []byte(caddyfile), 0o600))
	log := check.Must(os.Create(filepath.Join(dir, "log")))(t)
	defer log.Close()
	caddy := exec.Command(binary, "run", "--config", config, "--adapter", "caddyfile")
	caddy.Env = append(os.Environ(), "GOMAXPROCS=1", "HOME="+dir, "XDG_DATA_HOME="+dir, "XDG_CONFIG_HOME="+dir)
	caddy.Stdout, caddy.Stderr = log, log
	check.OK(t, caddy.Start(), "starting caddy")
	t.Cleanup(func() {
		_ = caddy.Process.Kill()
		_ = caddy.Wait()
	})
	for _, port := range ports {
		awaitPort(t, port, log.Name())
	}
	return caddy.Process
}

// processorTime returns how long a process has run on any processor so far.
func processorTime(t *testing.T, p *os.Process) time.Duration {
	t.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.Pid))
	check.OK(t, err, "reading caddy's processor time, which needs Linux")
	// utime and stime are fields 14 and 15, in hundredths of a second (proc(5)).
	// The name before them may contain spaces.
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	user, _ := strconv.Atoi(fields[11])
	system, _ := strconv.Atoi(fields[12])
	return time.Duration(user+system) * 10 * time.Millisecond
}

// awaitPort waits until a server with this log listens on a port.
func awaitPort(t *testing.T, port int, log string) {
	t.Helper()
	err := servertest.Within(30*time.Second, func() error {
		conn, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err == nil {
			conn.Close()
		}
		return err
	})
	said, _ := os.ReadFile(log)
	check.Assume(t, err == nil, "no server listens on port %d: %v; it said:\n%s", port, err, said)
}

// A load is a kind of request: a GET, without the header X-Key or with one of so
// many values at random.
type load struct {
	keys    int
	refused bool // all of it, after the first request
}

// on returns a function by which wrk loads a site for a slice of time. It returns the answers
// for each second of the server's processor time.
func (l load) on(t *testing.T, caddy *os.Process, port int) func() float64 {
	args := []string{"--threads", "1", "--connections", strconv.Itoa(connections), "--duration", slice.String()}
	if l.keys > 0 {
		script := filepath.Join(t.TempDir(), "keys.lua")
		check.OK(t, os.WriteFile(script, fmt.Appendf(nil, keysScript, l.keys), 0o600))
		args = append(args, "--script", script)
	}
	args = append(args, fmt.Sprintf("http://127.0.0.1:%d/", port))
	return func() (perSecond float64) {
		before := processorTime(t, caddy)
		out, err := exec.Command("wrk", args...).CombinedOutput()
		answers, refused := number(wrkTotal, out), number(wrkErrors, out)
		check.Assume(t, err == nil && answers != 0, "running wrk: %v\n%s", err, out)
		used := processorTime(t, caddy) - before
		if l.refused && refused < answers-1 || !l.refused && refused > 0 {
			t.Fatalf("got %v of %v requests refused; want all but the first: %v", refused, answers, l.refused)
		}
		return answers / used.Seconds()
	}
}

// keysScript builds all requests before the clock starts.
const keysScript = `
local requests, n = {}, %d
function init()
	math.randomseed(os.time())
	for i = 1, n do
		wrk.headers["X-Key"] = "100.100." .. math.floor(i / 256) %% 256 .. "." .. i %% 256 .. "/" .. math.floor(i / 65536)
		requests[i] = wrk.format("GET", "/")
	end
end
function request() return requests[math.random(n)] end
`

var (
	wrkTotal  = regexp.MustCompile(`([0-9]+) requests in`)
	wrkErrors = regexp.MustCompile(`Non-2xx or 3xx responses: ([0-9]+)`)
)

// number returns the number that a pattern finds, or 0.
func number(pattern *regexp.Regexp, text []byte) float64 {
	found := pattern.FindSubmatch(text)
	if found == nil {
		return 0
	}
	n, _ := strconv.ParseFloat(string(found[1]), 64)
	return n
}
