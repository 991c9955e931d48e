package bench

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

var (
	pairs = flag.Int("pairs", 11, "how many pairs of slices TestThroughput measures")
	slice = flag.Duration("slice", 2*time.Second, "how long a slice is, in whole seconds")
)

const (
	connections = 32
	headerKeys  = 100_000
)

// site is the answer of all sites to requests that throttle admits.
const site = `respond "ok"`

// TestThroughput measures Caddy on one processor, in slices of time with and
// without throttle that take turns. Each ratio is that of two adjacent slices,
// because the machine's speed changes during a run.
//
// It asserts requests per second of Caddy's processor time. On an idle machine
// the ratio is the same as by the clock, and on a busy one it hardly changes.
func TestThroughput(t *testing.T) {
	if os.Getenv("TEST_LONG") != "1" {
		t.Skip("SKIPPED: measures for minutes; set TEST_LONG=1")
	}
	cases := []struct {
		name     string
		throttle string
		load     load
		least    float64 // ratio; 0 where it is only reported
	}{
		{"allowed", `throttle allowed client_ip 1000000000 1000/s`, load{}, 0},
		{"refused", `throttle refused client_ip 1 1/d`, load{refused: true}, 0.9},
		{"keys=1e5", `throttle {
			zone plain {
				key header X-Key
				plain_keys
				capacity 1000000
				leak 1/s
			}
		}`, load{keys: headerKeys}, 0},
		{"keys=1e5/digests", `throttle {
			zone digests {
				key header X-Key
				capacity 1000000
				leak 1/s
			}
		}`, load{keys: headerKeys}, 0},
	}
	ports := freePorts(t, len(cases)+1)
	without := ports[len(cases)]
	caddyfile := fmt.Sprintf("{\n\tadmin off\n\tpersist_config off\n}\nhttp://:%d {\n%s\n}\n", without, site)
	for i, c := range cases {
		caddyfile += fmt.Sprintf("http://:%d {\n%s\n%s\n}\n", ports[i], c.throttle, site)
	}
	caddy := startCaddy(t, caddyfile, ports)

	for i, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			plain := c.load
			plain.refused = false
			with, base := c.load.on(t, caddy, ports[i]), plain.on(t, caddy, without)
			with() // until everyone, or nearly so, has a bucket
			with()
			var wall, processor []float64
			for n := range *pairs {
				var a, b rates
				if n%2 == 0 {
					a, b = with(), base()
				} else {
					b, a = base(), with()
				}
				t.Logf("%s, without throttle %s", a, b)
				wall, processor = append(wall, a.wall/b.wall), append(processor, a.processor/b.processor)
			}
			t.Logf("%s, of %d pairs of %v: by the clock %s, by processor time %s",
				c.name, *pairs, *slice, quartiles(wall), quartiles(processor))
			if median := processor[len(processor)/2]; median < c.least {
				t.Errorf("got a median of %.3f by processor time, want at least %.2f", median, c.least)
			}
		})
	}
}

// rates are answers per second, by the clock and by Caddy's processor time.
type rates struct{ wall, processor float64 }

func (r rates) String() string {
	return fmt.Sprintf("%.0f requests a second, %.0f a second of processor time", r.wall, r.processor)
}

// quartiles sorts ratios.
func quartiles(ratios []float64) string {
	slices.Sort(ratios)
	n := len(ratios)
	return fmt.Sprintf("%.3f (%.3f to %.3f)", ratios[n/2], ratios[n/4], ratios[n-1-n/4])
}

// buildCaddy builds the checkout's Caddy in a folder, and returns the binary's name.
func buildCaddy(t *testing.T, dir string) string {
	t.Helper()
	binary := filepath.Join(dir, "caddy")
	build := exec.Command("go", "build", "-buildvcs=false", "-ldflags", "-w -s", "-tags", "nobadger,nomysql,nopgx", "-o", binary, "./caddymodule/cmd/caddy")
	build.Dir = ".."
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("building caddy: %v\n%s", err, out)
	}
	return binary
}

// startCaddy builds the checkout's Caddy and runs it on one processor until the
// test ends.
func startCaddy(t *testing.T, caddyfile string, ports []int) *os.Process {
	t.Helper()
	dir := t.TempDir()
	binary, config := buildCaddy(t, dir), filepath.Join(dir, "Caddyfile")
	if err := os.WriteFile(config, []byte(caddyfile), 0o600); err != nil {
		t.Fatal(err)
	}
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	caddy := exec.Command(binary, "run", "--config", config, "--adapter", "caddyfile")
	caddy.Env = append(os.Environ(), "GOMAXPROCS=1", "HOME="+dir, "XDG_DATA_HOME="+dir, "XDG_CONFIG_HOME="+dir)
	caddy.Stdout, caddy.Stderr = log, log
	if err := caddy.Start(); err != nil {
		t.Fatalf("starting caddy: %v", err)
	}
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
	if err != nil {
		t.Fatalf("reading caddy's processor time, which needs Linux: %v", err)
	}
	// utime and stime are fields 14 and 15, in hundredths of a second (proc(5)).
	// The name before them may contain spaces.
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	user, _ := strconv.Atoi(fields[11])
	system, _ := strconv.Atoi(fields[12])
	return time.Duration(user+system) * 10 * time.Millisecond
}

func awaitPort(t *testing.T, port int, log string) {
	t.Helper()
	for range 300 {
		conn, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err == nil {
			conn.Close()
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
	said, _ := os.ReadFile(log)
	t.Fatalf("caddy does not listen on port %d after half a minute; it said:\n%s", port, said)
}

// freePorts returns ports that were free a moment ago.
func freePorts(t *testing.T, n int) []int {
	t.Helper()
	ports := make([]int, n)
	for i := range ports {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer listener.Close() // after the last, so that no port is given twice
		ports[i] = listener.Addr().(*net.TCPAddr).Port
	}
	return ports
}

// A load is a kind of request: a GET, without the header X-Key or with one of so
// many values at random.
type load struct {
	keys    int
	refused bool // all of it, after the first request
}

// on returns a function that loads a site for a slice of time. It uses wrk if
// that is installed, which leaves more of the machine to Caddy than a client in
// Go.
func (l load) on(t *testing.T, caddy *os.Process, port int) func() rates {
	send := l.generator(t, fmt.Sprintf("http://127.0.0.1:%d/", port))
	return func() rates {
		before := processorTime(t, caddy)
		answers, refused, took := send()
		used := processorTime(t, caddy) - before
		if answers == 0 || l.refused && refused < answers-1 || !l.refused && refused > 0 {
			t.Fatalf("got %v of %v requests refused; want all but the first: %v", refused, answers, l.refused)
		}
		return rates{answers / took.Seconds(), answers / used.Seconds()}
	}
}

type generator func() (answers, refused float64, took time.Duration)

func (l load) generator(t *testing.T, url string) generator {
	wrk, err := exec.LookPath("wrk")
	if err != nil {
		return func() (float64, float64, time.Duration) { return l.withGo(t, url) }
	}
	args := []string{"--threads", "1", "--connections", strconv.Itoa(connections), "--duration", slice.String()}
	if l.keys > 0 {
		script := filepath.Join(t.TempDir(), "keys.lua")
		if err := os.WriteFile(script, fmt.Appendf(nil, keysScript, l.keys), 0o600); err != nil {
			t.Fatal(err)
		}
		args = append(args, "--script", script)
	}
	return func() (float64, float64, time.Duration) {
		out, err := exec.Command(wrk, append(args, url)...).CombinedOutput()
		total, rate := number(wrkTotal, out), number(wrkRate, out)
		if err != nil || rate == 0 {
			t.Fatalf("running wrk: %v\n%s", err, out)
		}
		return total, number(wrkErrors, out), time.Duration(total / rate * float64(time.Second))
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
	wrkRate   = regexp.MustCompile(`Requests/sec:\s+([0-9.]+)`)
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

func (l load) withGo(t *testing.T, url string) (answered, refusals float64, took time.Duration) {
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: connections}}
	defer client.CloseIdleConnections()
	ctx, stop := context.WithTimeout(t.Context(), *slice)
	defer stop()
	var answers, refused atomic.Int64
	var clients sync.WaitGroup
	began := time.Now()
	for c := range connections {
		clients.Go(func() {
			for i := c; ctx.Err() == nil; i += 7919 {
				status, err := l.send(ctx, client, url, i)
				if err != nil {
					continue // the slice has ended
				}
				answers.Add(1)
				if status != http.StatusOK {
					refused.Add(1)
				}
			}
		})
	}
	clients.Wait()
	return float64(answers.Load()), float64(refused.Load()), time.Since(began)
}

func (l load) send(ctx context.Context, client *http.Client, url string, i int) (status int, err error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, err
	}
	if l.keys > 0 {
		r.Header.Set("X-Key", ipv4(uint32(i%l.keys)).String())
	}
	response, err := client.Do(r)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	_, err = io.Copy(io.Discard, response.Body)
	return response.StatusCode, err
}
