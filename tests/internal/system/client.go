package system

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"
)

// Answer is a response that has been read to its end.
type Answer struct {
	Status int
	Header http.Header
	Body   string
}

// Visitor is a client of one protocol, with an address and hence buckets of its
// own.
type Visitor struct {
	*http.Client
	Protocol string
	Address  string
	Dials    *atomic.Int64
}

var Protocols = []string{"h1", "h2"}

var visitors atomic.Int64

// NewVisitor returns a visitor with its own address in 127.0.0.0/8. It speaks h2
// without TLS on http:// and negotiates it on https://.
func NewVisitor(t *testing.T, protocol string) *Visitor {
	t.Helper()
	n := visitors.Add(1)
	return NewVisitorFrom(t, protocol, fmt.Sprintf("127.1.%d.%d", n/250, n%250+1))
}

// NewVisitorFrom returns a visitor with a given address.
func NewVisitorFrom(t *testing.T, protocol, address string) *Visitor {
	t.Helper()
	v := &Visitor{Protocol: protocol, Address: address, Dials: new(atomic.Int64)}
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(address)}, Timeout: StartTime}
	transport := &http.Transport{
		DialContext: func(ctx context.Context, network, target string) (net.Conn, error) {
			v.Dials.Add(1)
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
		Timeout:       StartTime,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	t.Cleanup(transport.CloseIdleConnections)
	return v
}

// Get asks for a page. Headers are name, value, name, value.
func (v *Visitor) Get(t *testing.T, url string, headers ...string) Answer {
	t.Helper()
	return v.Send(t, "GET", url, headers...)
}

// Send is Get with another method.
func (v *Visitor) Send(t *testing.T, method, url string, headers ...string) Answer {
	t.Helper()
	a, err := v.Try(method, url, headers...)
	if ConnectionLost(err) {
		// Caddy closes connections that were opened during a reload, without
		// reading their requests. reload_test.go checks that no others are lost.
		a, err = v.Try(method, url, headers...)
	}
	if err != nil {
		t.Fatalf("%s %s: %v", method, url, err)
	}
	return a
}

// Try is Send for goroutines, which must not end the test.
func (v *Visitor) Try(method, url string, headers ...string) (Answer, error) {
	req, err := http.NewRequest(method, url, nil)
	if err != nil {
		return Answer{}, err
	}
	addHeaders(req, headers)
	return v.Fetch(req)
}

func addHeaders(req *http.Request, headers []string) {
	for i := 0; i < len(headers); i += 2 {
		req.Header.Add(headers[i], headers[i+1])
	}
}

// Fetch sends a request, and reads the answer.
func (v *Visitor) Fetch(req *http.Request) (Answer, error) { return fetch(v.Client, req) }

func fetch(client *http.Client, req *http.Request) (Answer, error) {
	resp, err := client.Do(req)
	if err != nil {
		return Answer{}, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return Answer{resp.StatusCode, resp.Header, string(body)}, err
}

// CountAdmitted sends n requests, one after the other.
func (v *Visitor) CountAdmitted(t *testing.T, n int, url string, headers ...string) int {
	t.Helper()
	admitted := 0
	for range n {
		switch a := v.Get(t, url, headers...); a.Status {
		case 200:
			admitted++
		case 429:
		default:
			t.Fatalf("got status %d for %s, want 200 or 429\n%s", a.Status, url, a.Body)
		}
	}
	return admitted
}

// RetryAfter returns how long a refusal tells its client to wait.
func (a Answer) RetryAfter(t *testing.T) time.Duration {
	t.Helper()
	text := a.Header.Get("Retry-After")
	seconds, err := strconv.Atoi(text)
	if err != nil || seconds < 1 {
		t.Fatalf("got Retry-After %q, want whole seconds, at least 1", text)
	}
	return time.Duration(seconds) * time.Second
}

// EachProtocol runs a test over HTTP/1.1 and HTTP/2.
func EachProtocol(t *testing.T, f func(t *testing.T, protocol string)) {
	t.Helper()
	for _, protocol := range Protocols {
		t.Run(protocol, func(t *testing.T) {
			t.Parallel()
			f(t, protocol)
		})
	}
}

// Ask sends a request in the background until it is told to leave, and sends the
// answer to the channel.
func (v *Visitor) Ask(url string, answers chan<- Answer) (leave context.CancelFunc) {
	ctx, leave := context.WithCancel(context.Background())
	go func() {
		defer leave()
		req, err := http.NewRequestWithContext(ctx, "GET", url, nil)
		if err != nil {
			answers <- Answer{Body: err.Error()}
			return
		}
		a, err := v.Fetch(req)
		if err != nil {
			a.Body = err.Error()
		}
		answers <- a
	}()
	return leave
}

const Urlencoded = "application/x-www-form-urlencoded"

// NewQUICVisitor returns a visitor that speaks HTTP/3. With a cache it resumes
// sessions.
func NewQUICVisitor(t *testing.T, sessions tls.ClientSessionCache) *Visitor {
	t.Helper()
	transport := &http3.Transport{
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true, ClientSessionCache: sessions}, // the certificates are caddy's own
		QUICConfig:      &quic.Config{},
	}
	if sessions != nil {
		transport.Dial = func(ctx context.Context, address string, tlsConfig *tls.Config, config *quic.Config) (*quic.Conn, error) {
			return quic.DialAddrEarly(ctx, address, tlsConfig, config)
		}
	}
	t.Cleanup(func() { transport.Close() })
	return &Visitor{Client: &http.Client{Transport: transport, Timeout: StartTime}, Protocol: "h3", Address: "127.0.0.1"}
}

// Opens are the headers of a browser that opens a page with a cookie.
func Opens(cookie string) []string {
	headers := []string{"Accept", "text/html,*/*;q=0.8", "Sec-Fetch-Mode", "navigate"}
	if cookie != "" {
		headers = append(headers, "Cookie", cookie)
	}
	return headers
}
