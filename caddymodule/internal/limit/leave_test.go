package limit

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

// A verdict is what an observer knew when its handler was done.
type verdict struct {
	complete bool
	cost     float64 // with 1 reserved, by onlyFailures
	gone     bool    // the request's context had ended
}

// onlyFailures gives the reservation back unless the upstream failed.
var onlyFailures = statuses(1, "5xx")

// listen serves a handler behind an observer over a socket, h1 or h2 (with TLS).
func listen(t testing.TB, protocol string, next handler) (*httptest.Server, <-chan verdict) {
	verdicts := make(chan verdict, 1000)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		o := &Observer{Headers: []string{header.Name}}
		defer func() {
			cost, _ := onlyFailures.Actual(o, limit, 1)
			verdicts <- verdict{!o.Left(), cost, r.Context().Err() != nil}
		}()
		if err := o.Serve(w, r, next); err != nil {
			panic(http.ErrAbortHandler)
		}
	}))
	server.EnableHTTP2 = protocol == "h2"
	if protocol == "h2" {
		server.StartTLS()
	} else {
		server.Start()
	}
	t.Cleanup(server.Close)
	return server, verdicts
}

// fetch asks for a page and leaves as soon as it has so many bytes of the body, or
// the end of it:
// the connection is closed (h1), or the stream reset (h2).
func fetch(t testing.TB, server *httptest.Server, method, headers string, bytes int64) {
	t.Helper()
	var resp *http.Response
	if server.EnableHTTP2 {
		ctx, leave := context.WithCancel(t.Context())
		defer leave()
		r, _ := http.NewRequestWithContext(ctx, method, server.URL, nil)
		resp = check.Must(server.Client().Do(r))(t)
		check.Assume(t, resp.ProtoMajor == 2, "got %s, want HTTP/2", resp.Proto)
	} else {
		conn := check.Must(net.Dial("tcp", server.Listener.Addr().String()))(t)
		defer conn.Close()
		fmt.Fprintf(conn, "%s / HTTP/1.1\r\nHost: x\r\n%s\r\n", method, headers)
		resp = check.Must(http.ReadResponse(bufio.NewReader(conn), &http.Request{Method: method}))(t)
	}
	if _, err := io.CopyN(io.Discard, resp.Body, bytes); err != nil && (bytes != math.MaxInt64 || err != io.EOF) {
		t.Fatal(err)
	}
}

// wait waits until the client has left.
func wait(t testing.TB, r *http.Request) {
	select {
	case <-r.Context().Done():
	case <-time.After(time.Minute):
		t.Error("the client has not left after a minute")
	}
}

var protocols = []struct{ about, protocol, headers string }{
	{"HTTP/1, kept alive", "h1", ""},
	{"HTTP/1, closed", "h1", "Connection: close\r\n"},
	{"HTTP/2", "h2", ""},
}

// send writes n bytes and makes sure that they leave.
func send(w http.ResponseWriter, n int) error {
	_, err := w.Write(make([]byte, n))
	return errors.Join(err, http.NewResponseController(w).Flush())
}

// Handlers are often not done when the client has the last byte: the end of the
// upstream's answer is still to be read.
func TestAClientThatLeavesWithTheLastByteHasNotLeft(t *testing.T) {
	for _, p := range protocols {
		for _, test := range []struct {
			about, method string
			status        int
			declared      string
			size          int64
		}{
			{"a page", "GET", 200, "3000", 3000},
			{"a page of unknown length", "GET", 200, "", 3000},
			{"a large page", "GET", 200, "300000", 300_000},
			{"a large page of unknown length", "GET", 200, "", 300_000},
			{"an empty page", "GET", 200, "0", 0},
			{"HEAD", "HEAD", 200, "3000", 0},
			{"no content", "GET", 204, "", 0},
			{"not modified", "GET", 304, "", 0},
		} {
			if p.protocol == "h2" && test.size > 0 {
				continue // the client resets the stream before the end, which may look like half of a body
			}
			t.Run(p.about+"/"+test.about, func(t *testing.T) {
				server, verdicts := listen(t, p.protocol, func(w http.ResponseWriter, r *http.Request) error {
					if test.declared != "" {
						w.Header().Set("Content-Length", test.declared)
					}
					w.WriteHeader(test.status)
					_ = send(w, int(test.size)) // which may fail if the client is quick
					wait(t, r)
					_ = http.NewResponseController(w).Flush() // as reverse_proxy does before trailers
					return nil
				})
				fetch(t, server, test.method, p.headers, test.size)
				check.Equal(t, <-verdicts, (verdict{true, 0, true}))
			})
		}
	}
}

func TestAClientThatLeavesBeforePaysItsReservation(t *testing.T) {
	const half = 100_000
	for _, p := range protocols {
		for about, next := range map[string]handler{
			"before the headers": func(w http.ResponseWriter, r *http.Request) error {
				wait(t, r)
				w.WriteHeader(http.StatusOK)
				return nil
			},
			"before anything": func(w http.ResponseWriter, r *http.Request) error {
				wait(t, r)
				return nil
			},
			"with half of a declared body": func(w http.ResponseWriter, r *http.Request) error {
				w.Header().Set("Content-Length", strconv.Itoa(2*half))
				_ = send(w, half)
				wait(t, r)
				return nil
			},
			"with half of a body, and the handler panics": func(w http.ResponseWriter, r *http.Request) error {
				_ = send(w, half)
				wait(t, r)
				panic(http.ErrAbortHandler)
			},
			"with half of a body, and the handler fails": func(w http.ResponseWriter, r *http.Request) error {
				_ = send(w, half)
				wait(t, r)
				return io.ErrUnexpectedEOF
			},
			"while a body is sent that never ends": func(w http.ResponseWriter, r *http.Request) error {
				_ = send(w, half)
				for range 10_000 {
					if err := send(w, half); err != nil {
						return nil
					}
				}
				t.Error("the client took it all")
				return nil
			},
		} {
			t.Run(p.about+"/"+about, func(t *testing.T) {
				asked := make(chan struct{})
				server, verdicts := listen(t, p.protocol, func(w http.ResponseWriter, r *http.Request) error {
					close(asked)
					return next(w, r)
				})
				if about == "before the headers" || about == "before anything" {
					askAndLeave(t, server, p.headers, asked)
				} else {
					fetch(t, server, "GET", p.headers, half)
				}
				got := <-verdicts
				check.That(t, !got.complete && got.cost == 1, "got %+v, want it incomplete, with the reservation of 1", got)
			})
		}
	}
}

// askAndLeave sends a request, and leaves when it has been asked and not answered.
func askAndLeave(t testing.TB, server *httptest.Server, headers string, asked <-chan struct{}) {
	t.Helper()
	if server.EnableHTTP2 {
		ctx, leave := context.WithCancel(t.Context())
		defer leave()
		go func() {
			<-asked
			leave()
		}()
		r, _ := http.NewRequestWithContext(ctx, "GET", server.URL, nil)
		if resp, err := server.Client().Do(r); err == nil {
			resp.Body.Close()
			t.Error("got an answer")
		}
		return
	}
	conn := check.Must(net.Dial("tcp", server.Listener.Addr().String()))(t)
	fmt.Fprintf(conn, "GET / HTTP/1.1\r\nHost: x\r\n%s\r\n", headers)
	<-asked
	conn.Close()
}

func TestATrailerThatTellsTheCostIsNotForTheClient(t *testing.T) {
	for _, p := range protocols {
		costs := make(chan float64, 1)
		server, _ := listen(t, p.protocol, func(w http.ResponseWriter, r *http.Request) error {
			o := &Observer{Headers: []string{header.Name}}
			err := o.Serve(w, r, handler(func(w http.ResponseWriter, _ *http.Request) error {
				w.Header().Set("Trailer", "X-Cost, X-Other")
				_, err := io.WriteString(w, "body")
				w.Header().Set("X-Cost", "3")
				w.Header().Set("X-Other", "4")
				w.Header().Set(http.TrailerPrefix+"X-Third", "5")
				return err
			}))
			cost, _ := header.Actual(o, limit, 1)
			costs <- cost
			return err
		})
		resp := check.Must(server.Client().Get(server.URL))(t)
		_, _ = io.Copy(io.Discard, resp.Body)
		got := resp.Trailer
		check.That(t, got.Get("X-Cost") == "" && got.Get("X-Other") == "4" && got.Get("X-Third") == "5", "%s: the client sees the trailers %v, want X-Other and X-Third", p.about, got)
		check.Equal(t, <-costs, 3, "%s: cost", p.about)
	}
}

func TestAFileIsSentAndMeasured(t *testing.T) {
	const size = 1 << 20
	name := filepath.Join(t.TempDir(), "file")
	check.OK(t, os.WriteFile(name, make([]byte, size), 0o600))
	rule := &Settle{Source: ByBytes, bytes: 1024}
	for _, p := range protocols {
		for method, want := range map[string]float64{"GET": 1000, "HEAD": 0} {
			costs := make(chan float64, 1)
			server, _ := listen(t, p.protocol, func(w http.ResponseWriter, r *http.Request) error {
				o := new(Observer)
				err := o.Serve(w, r, handler(func(w http.ResponseWriter, r *http.Request) error {
					http.ServeFile(w, r, name)
					if method == "HEAD" { // of which nothing is sent
						_, _ = w.Write(make([]byte, 5000))
					}
					return nil
				}))
				cost, _ := rule.Actual(o, limit, 1)
				costs <- min(cost, limit.Capacity)
				return err
			})
			fetch(t, server, method, p.headers, math.MaxInt64)
			check.Equal(t, <-costs, want, "%s, %s: cost", p.about, method)
		}
	}
}
