package tests

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// answer is a response that has been read to its end.
type answer struct {
	status int
	header http.Header
	body   string
}

// visitor is a client of one protocol, with an address and hence buckets of its
// own.
type visitor struct {
	*http.Client
	protocol string
	address  string
	dials    *atomic.Int64
}

var protocols = []string{"h1", "h2"}

var visitors atomic.Int64

// newVisitor returns a visitor with its own address in 127.0.0.0/8. It speaks h2
// without TLS on http:// and negotiates it on https://.
func newVisitor(t *testing.T, protocol string) *visitor {
	t.Helper()
	n := visitors.Add(1)
	return newVisitorFrom(t, protocol, fmt.Sprintf("127.1.%d.%d", n/250, n%250+1))
}

func newVisitorFrom(t *testing.T, protocol, address string) *visitor {
	t.Helper()
	v := &visitor{protocol: protocol, address: address, dials: new(atomic.Int64)}
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(address)}, Timeout: startTime}
	transport := &http.Transport{
		DialContext: func(ctx context.Context, network, target string) (net.Conn, error) {
			v.dials.Add(1)
			return dialer.DialContext(ctx, network, target)
		},
		TLSClientConfig:     &tls.Config{InsecureSkipVerify: true}, // the certificates are caddy's own
		Protocols:           new(http.Protocols),
		DisableCompression:  true,
		MaxIdleConnsPerHost: 100,
	}
	if protocol == "h1" {
		transport.Protocols.SetHTTP1(true)
	} else {
		transport.Protocols.SetHTTP2(true)
		transport.Protocols.SetUnencryptedHTTP2(true)
	}
	v.Client = &http.Client{
		Transport:     transport,
		Timeout:       startTime,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	t.Cleanup(transport.CloseIdleConnections)
	return v
}

// get asks for a page. Headers are name, value, name, value.
func (v *visitor) get(t *testing.T, url string, headers ...string) answer {
	t.Helper()
	return v.send(t, "GET", url, headers...)
}

func (v *visitor) send(t *testing.T, method, url string, headers ...string) answer {
	t.Helper()
	a, err := v.try(method, url, headers...)
	if connectionLost(err) {
		// Caddy closes connections that were opened during a reload, without
		// reading their requests. reload_test.go checks that no others are lost.
		a, err = v.try(method, url, headers...)
	}
	if err != nil {
		t.Fatalf("%s %s: %v", method, url, err)
	}
	return a
}

// try is get for goroutines, which must not end the test.
func (v *visitor) try(method, url string, headers ...string) (answer, error) {
	req, err := http.NewRequest(method, url, nil)
	if err != nil {
		return answer{}, err
	}
	for i := 0; i < len(headers); i += 2 {
		req.Header.Add(headers[i], headers[i+1])
	}
	return v.do(req)
}

func (v *visitor) do(req *http.Request) (answer, error) {
	resp, err := v.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return answer{resp.StatusCode, resp.Header, string(body)}, err
}

// countAdmitted sends n requests, one after the other.
func (v *visitor) countAdmitted(t *testing.T, n int, url string, headers ...string) int {
	t.Helper()
	admitted := 0
	for range n {
		switch a := v.get(t, url, headers...); a.status {
		case 200:
			admitted++
		case 429:
		default:
			t.Fatalf("got status %d for %s, want 200 or 429\n%s", a.status, url, a.body)
		}
	}
	return admitted
}

// retryAfter returns how long a refusal tells its client to wait.
func (a answer) retryAfter(t *testing.T) time.Duration {
	t.Helper()
	text := a.header.Get("Retry-After")
	seconds, err := strconv.Atoi(text)
	if err != nil || seconds < 1 {
		t.Fatalf("got Retry-After %q, want whole seconds, at least 1", text)
	}
	return time.Duration(seconds) * time.Second
}

func eachProtocol(t *testing.T, f func(t *testing.T, protocol string)) {
	t.Helper()
	for _, protocol := range protocols {
		t.Run(protocol, func(t *testing.T) {
			t.Parallel()
			f(t, protocol)
		})
	}
}

// ask sends a request in the background until it is told to leave, and sends the
// answer to the channel.
func (v *visitor) ask(url string, answers chan<- answer) (leave context.CancelFunc) {
	ctx, leave := context.WithCancel(context.Background())
	go func() {
		defer leave()
		req, err := http.NewRequestWithContext(ctx, "GET", url, nil)
		if err != nil {
			answers <- answer{body: err.Error()}
			return
		}
		a, err := v.do(req)
		if err != nil {
			a.body = err.Error()
		}
		answers <- a
	}()
	return leave
}

// post sends a body of this type.
func (v *visitor) post(t *testing.T, url, contentType, body string, headers ...string) answer {
	t.Helper()
	req, err := http.NewRequest("POST", url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", contentType)
	for i := 0; i < len(headers); i += 2 {
		req.Header.Add(headers[i], headers[i+1])
	}
	a, err := v.do(req)
	if err != nil {
		t.Fatalf("POST %s: %v", url, err)
	}
	return a
}

const urlencoded = "application/x-www-form-urlencoded"
