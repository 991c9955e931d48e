package bench

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"testing"
	"time"
)

const (
	// manyClients come once each, after fewClients have come as often, so that what Caddy
	// needs for any traffic is there already.
	manyClients = 400_000
	fewClients  = 1_000

	// pipelined is how many requests are sent before their answers are read.
	pipelined = 100
)

// TestMemoryThroughCaddy prints how much more memory a Caddy resides in when so many
// clients have come. Each limiter has a process of its own, and one process has none: what
// that needs more is Caddy's.
func TestMemoryThroughCaddy(t *testing.T) {
	if os.Getenv("TEST_LONG") != "1" {
		t.Skip("SKIPPED: measures for minutes; set TEST_LONG=1")
	}
	var plain float64
	for _, l := range []struct{ name, directive string }{
		{"no limiter", ""},
		{"throttle", "throttle {\nzone many {\nkey header X-Key plain\nlimit 10000 1/h\n}\n}"},
		{"caddy-ratelimit, 10 events", "rate_limit {\nzone many {\nkey {http.request.header.X-Key}\nevents 10\nwindow 1ns\n}\nsweep_interval 1h\n}"},
	} {
		grown := residenceOf(t, l.directive)
		if l.directive == "" {
			plain = grown
		}
		t.Logf("| %s | %.0f bytes a client | %.0f MiB more, %.0f without a limiter |", l.name, (grown-plain)/manyClients, grown/(1<<20), plain/(1<<20))
	}
}

// residenceOf returns by how many bytes a Caddy has grown after all clients have come.
func residenceOf(t *testing.T, directive string) float64 {
	port := freePorts(t, 1)[0]
	caddy := startCaddy(t, fmt.Sprintf("{\n\tadmin off\n\tpersist_config off\n\tmetrics\n\torder rate_limit before basic_auth\n}\nhttp://:%d {\n%s\nrespond ok\n}\n", port, directive), []int{port})
	for range manyClients / fewClients {
		visitOnce(t, port, 0, fewClients)
	}
	before := residence(t, caddy)
	visitOnce(t, port, fewClients, manyClients)
	return residence(t, caddy) - before
}

// visitOnce sends a request of each client, over one connection.
func visitOnce(t *testing.T, port, first, n int) {
	t.Helper()
	conn, err := net.Dial("tcp", fmt.Sprint("127.0.0.1:", port))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(10 * time.Minute)); err != nil {
		t.Fatal(err)
	}
	answers := bufio.NewReader(conn)
	for i := 0; i < n; i += pipelined {
		var requests bytes.Buffer
		for client := first + i; client < first+i+pipelined; client++ {
			fmt.Fprintf(&requests, "GET / HTTP/1.1\r\nHost: localhost\r\nX-Key: %s\r\n\r\n", ipv4(uint32(client)))
		}
		if _, err := conn.Write(requests.Bytes()); err != nil {
			t.Fatal(err)
		}
		for range pipelined {
			answer, err := http.ReadResponse(answers, nil)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := io.Copy(io.Discard, answer.Body); err != nil || answer.StatusCode != http.StatusOK {
				t.Fatalf("got status %d, %v, want 200", answer.StatusCode, err)
			}
			_ = answer.Body.Close()
		}
	}
}

// residence returns how much memory a process resides in, in bytes.
func residence(t *testing.T, p *os.Process) float64 {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.Pid))
	if err != nil {
		t.Fatal(err)
	}
	_, line, found := bytes.Cut(status, []byte("VmRSS:"))
	fields := bytes.Fields(line)
	kilobytes, err := strconv.Atoi(string(fields[0]))
	if !found || err != nil {
		t.Fatalf("reading VmRSS: %v", err)
	}
	return float64(kilobytes) * 1024
}
