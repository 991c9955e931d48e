package limit

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/record"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

// A spy is a response writer that knows how it was written to.
type spy struct {
	*httptest.ResponseRecorder
	readFrom, pushed int
	hijack           error
	hints            []http.Header
}

func newSpy() *spy { return &spy{ResponseRecorder: httptest.NewRecorder()} }

func (w *spy) ReadFrom(r io.Reader) (int64, error) {
	w.readFrom++
	return io.Copy(w.ResponseRecorder, r)
}

func (w *spy) Push(string, *http.PushOptions) error {
	w.pushed++
	return nil
}

func (w *spy) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	return new(net.TCPConn), new(bufio.ReadWriter), w.hijack
}

func (w *spy) WriteHeader(status int) {
	if status >= 100 && status < 200 && status != 101 {
		w.hints = append(w.hints, w.Header().Clone())
		return
	}
	w.ResponseRecorder.WriteHeader(status)
}

func TestAnObserverHidesNothingFromHandlers(t *testing.T) {
	w := newSpy()
	o, _ := observe(w, httptest.NewRequest("GET", "/", nil), kilobyte, func(wrapped http.ResponseWriter, _ *http.Request) error {
		n, err := wrapped.(io.ReaderFrom).ReadFrom(strings.NewReader("seven b"))
		check.That(t, n == 7 && err == nil, "ReadFrom: got %d, %v, want 7", n, err)
		check.NoError(t, http.NewResponseController(wrapped).Flush(), "Flush")
		check.NoError(t, wrapped.(http.Pusher).Push("/x.css", nil), "Push")
		conn, buffered, err := http.NewResponseController(wrapped).Hijack()
		check.That(t, conn != nil && buffered != nil, "Hijack: got %v and %v, want the connection", conn, buffered)
		return err
	})
	if w.readFrom != 1 || !w.Flushed || w.pushed != 1 || o.bytes != 7 || !o.tunnel {
		t.Errorf("got %d ReadFrom, flushed %v, %d pushed, %d bytes, hijacked %v, want each once", w.readFrom, w.Flushed, w.pushed, o.bytes, o.tunnel)
	}
}

// TestFlushingSendsTheHeaders, which is when an upstream has done its work.
func TestFlushingSendsTheHeaders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o, _ := observe(httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil), seconds, func(w http.ResponseWriter, _ *http.Request) error {
			time.Sleep(2 * time.Second)
			check.NoError(t, http.NewResponseController(w).Flush(), "Flush")
			time.Sleep(time.Hour) // events are sent when they happen
			return nil
		})
		got, _ := seconds.Actual(o, limit, 0)
		check.That(t, got == 2, "got %v, want 2", got)
	})
}

func TestNothingCanBeFlushedWhereNothingIsBuffered(t *testing.T) {
	o, _ := observe(struct{ http.ResponseWriter }{httptest.NewRecorder()}, httptest.NewRequest("GET", "/", nil), seconds, func(w http.ResponseWriter, _ *http.Request) error {
		check.Is(t, http.NewResponseController(w).Flush(), http.ErrNotSupported)
		return nil
	})
	check.That(t, !o.Left(), "the answer counts as incomplete")
}

func TestCostHeadersAreRecordedAndRemoved(t *testing.T) {
	unwritten := func(name string) handler {
		return func(w http.ResponseWriter, _ *http.Request) error {
			w.Header().Set(name, "3")
			return nil
		}
	}
	for about, next := range map[string]handler{
		"written":                 says(200, "X-Cost", "3"),
		"not written":             unwritten("X-Cost"),
		"a trailer not announced": unwritten(http.TrailerPrefix + "X-Cost"),
		"a trailer": func(w http.ResponseWriter, r *http.Request) error {
			_, err := io.WriteString(w, "body")
			w.Header().Set("X-Cost", "3")
			return err
		},
		"a trailer that differs": func(w http.ResponseWriter, r *http.Request) error {
			_ = says(200, "X-Cost", "4")(w, r)
			w.Header().Set("X-Cost", "3")
			return nil
		},
	} {
		w := httptest.NewRecorder()
		w.Header().Set("X-Other", "4")
		o, _ := observe(w, httptest.NewRequest("GET", "/", nil), header, next)
		got, known := header.Actual(o, limit, 1)
		check.That(t, got == 3 && known, "%s: got %v, %v, want 3", about, got, known)
		h := w.Header()
		check.That(t, h["X-Cost"] == nil && h[http.TrailerPrefix+"X-Cost"] == nil && h.Get("X-Other") == "4", "%s: the client sees %v, want X-Other alone", about, h)
	}
}

func TestEarlyHintsAreNotTheResponse(t *testing.T) {
	for _, test := range []struct {
		about string
		serve func(w http.ResponseWriter)
	}{
		{"the cost stands before the hints", func(w http.ResponseWriter) {
			w.Header().Set("X-Cost", "5")
			w.WriteHeader(http.StatusEarlyHints)
		}},
		{"the cost comes after the hints", func(w http.ResponseWriter) {
			w.WriteHeader(http.StatusEarlyHints)
			w.Header().Set("X-Cost", "5")
		}},
		{"both, and they differ", func(w http.ResponseWriter) {
			w.Header().Set("X-Cost", "4")
			w.WriteHeader(http.StatusEarlyHints)
			w.Header().Set("X-Cost", "5")
		}},
	} {
		w := newSpy()
		o, _ := observe(w, httptest.NewRequest("GET", "/", nil), header, func(w http.ResponseWriter, _ *http.Request) error {
			w.Header().Set("Link", "</x.css>")
			test.serve(w)
			w.WriteHeader(http.StatusNotFound)
			return nil
		})
		if len(w.hints) != 1 || w.hints[0].Get("Link") == "" || w.hints[0]["X-Cost"] != nil || w.Header()["X-Cost"] != nil {
			t.Errorf("%s: got the hints %v and then %v, want no cost", test.about, w.hints, w.Header())
		}
		got, _ := header.Actual(o, limit, 1)
		check.That(t, got == 5 && o.Status == http.StatusNotFound, "%s: got cost %v and status %v, want 5 and 404", test.about, got, o.Status)
	}
}

// What a tunnel is, package response says.
func TestATunnelSaysNothingOfTheWorkThatOpenedIt(t *testing.T) {
	for _, test := range []struct {
		about, method string
		major         int
		serve         handler
		tunnel        bool
	}{
		{"101", "GET", 1, says(101), true},
		{"101 and the connection", "GET", 1, func(w http.ResponseWriter, r *http.Request) error {
			w.WriteHeader(101)
			_, _, err := http.NewResponseController(w).Hijack()
			return err
		}, true},
		{"the connection alone", "GET", 1, func(w http.ResponseWriter, r *http.Request) error {
			_, _, err := http.NewResponseController(w).Hijack()
			return err
		}, true},
		{"a page instead", "GET", 1, says(200), false},
		{"200 to CONNECT, HTTP/2", "CONNECT", 2, says(200), true},
		{"early hints to CONNECT", "CONNECT", 2, says(103), false},
		{"a flush after CONNECT", "CONNECT", 2, func(w http.ResponseWriter, _ *http.Request) error {
			return http.NewResponseController(w).Flush()
		}, true},
		{"200 to GET, HTTP/2", "GET", 2, says(200), false},
	} {
		repl := caddy.NewReplacer()
		repl.Set("http.reverse_proxy.status_code", http.StatusSwitchingProtocols)
		r := httptest.NewRequest(test.method, "http://example.com/", nil)
		r = r.WithContext(context.WithValue(r.Context(), caddy.ReplacerCtxKey, repl))
		r.ProtoMajor = test.major
		o := new(Observer)
		_ = o.Serve(newSpy(), r, test.serve)
		_, known := seconds.Actual(o, limit, 1)
		check.That(t, known != test.tunnel, "%s: got the time known: %v, want %v", test.about, known, !test.tunnel)
	}
}

func TestAConnectionThatCannotBeTakenOverIsNoTunnel(t *testing.T) {
	w := newSpy()
	w.hijack = http.ErrNotSupported
	o := new(Observer)
	_ = o.Serve(w, httptest.NewRequest("GET", "/", nil), handler(func(w http.ResponseWriter, r *http.Request) error {
		_, _, err := http.NewResponseController(w).Hijack()
		check.Is(t, err, http.ErrNotSupported)
		return nil
	}))
	_, known := seconds.Actual(o, limit, 1)
	check.That(t, known, "got the time unknown, want it known")
}

// A replay knows from the log how long a response took.
func TestATimeThatIsToldReplacesTheOneThatWasMeasured(t *testing.T) {
	for about, serve := range map[string]handler{"a status": says(200), "nothing at all": func(http.ResponseWriter, *http.Request) error { return nil }} {
		o := new(Observer)
		_ = o.Serve(newSpy(), httptest.NewRequest("GET", "/", nil), serve)
		o.Took(3 * time.Second)
		got, known := seconds.Actual(o, limit, 1)
		check.That(t, got == 3 && known, "%s: got %v, known %v, want 3", about, got, known)
	}
}

// Once for the observer and once for the values of its headers; rules need nothing.
func TestObservingAllocatesTwice(t *testing.T) {
	other := &Settle{Source: ByHeader, Name: "X-Other"}
	rules := []*Settle{seconds, kilobyte, header, statuses(1, "200"), other}
	headers := []string{header.Name, other.Name}
	w, r := httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil)
	ok := []string{"3"}
	next := caddyhttp.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) error {
		w.Header()["X-Cost"] = ok
		w.WriteHeader(http.StatusOK)
		return nil
	})
	sum := 0.0
	got := testing.AllocsPerRun(100, func() {
		o := &Observer{Headers: headers}
		_ = o.Serve(w, r, next)
		for _, rule := range rules {
			cost, _ := rule.Actual(o, limit, 1)
			sum += cost
		}
	})
	check.That(t, got <= 2, "got %v allocations, want 2", got)
}

func TestBeforeHeadersIsCalledOnceBeforeTheFinalHeaders(t *testing.T) {
	for _, test := range []struct {
		name  string
		serve func(http.ResponseWriter) error
		want  int // the status it is told, or 0
	}{
		{"a status", func(w http.ResponseWriter) error { w.WriteHeader(302); return nil }, 302},
		{"a body alone", func(w http.ResponseWriter) error { _, err := w.Write([]byte("x")); return err }, 200},
		{"nothing at all", func(http.ResponseWriter) error { return nil }, 200},
		{"hints before a status", func(w http.ResponseWriter) error { w.WriteHeader(103); w.WriteHeader(404); return nil }, 404},
		{"a flush", func(w http.ResponseWriter) error { return http.NewResponseController(w).Flush() }, 200},
		{"two statuses", func(w http.ResponseWriter) error { w.WriteHeader(200); w.WriteHeader(500); return nil }, 200},
		{"an error, which an error route answers", func(http.ResponseWriter) error { return errors.New("gone") }, 0},
		{"an error after a status", func(w http.ResponseWriter) error { w.WriteHeader(200); return errors.New("gone") }, 200},
	} {
		w, calls, told := newSpy(), 0, 0
		o := &Observer{BeforeHeaders: func(status int, header http.Header) {
			calls, told = calls+1, status
			header.Add("Set-Cookie", "a=b")
		}}
		_ = o.Serve(w, httptest.NewRequest("GET", "/", nil), caddyhttp.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) error {
			return test.serve(w)
		}))
		check.That(t, told == test.want && calls == min(1, test.want), "%s: got %d calls and status %d, want one with status %d, or none for 0", test.name, calls, told, test.want)
		sent := w.Result().Header["Set-Cookie"]
		check.That(t, len(sent) == calls, "%s: got %q sent, want what was added", test.name, sent)
		for _, hint := range w.hints {
			check.That(t, hint["Set-Cookie"] == nil, "%s: got a cookie among the hints", test.name)
		}
	}
}

// A handler within removes the header only where none around it reads that, too.
func TestACostHeaderReachesHandlersAround(t *testing.T) {
	shared, w, r := new(record.Record), httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil)
	outer := &Observer{Shared: shared, Headers: []string{"X-Cost"}}
	inner := &Observer{Shared: shared, Headers: []string{"X-Cost", "X-Inner"}}
	_ = outer.Serve(w, r, handler(func(w http.ResponseWriter, r *http.Request) error {
		return inner.Serve(w, r, says(200, "X-Cost", "3", "X-Inner", "4"))
	}))
	check.Slices(t, append(outer.values, inner.values...), []string{"3", "3", "4"})
	check.That(t, len(w.Header()) == 0 && len(shared.Hidden) == 0, "got %v sent and %v hidden afterwards, want nothing", w.Header(), shared.Hidden)
}

func TestATunnelThatItsClientEndsIsComplete(t *testing.T) {
	ctx, leave := context.WithCancel(t.Context())
	o := &Observer{BeforeHeaders: func(int, http.Header) { t.Error("got headers of a connection that was taken over") }}
	_ = o.Serve(newSpy(), httptest.NewRequest("GET", "/", nil).WithContext(ctx), handler(func(w http.ResponseWriter, _ *http.Request) error {
		_, _, err := http.NewResponseController(w).Hijack()
		leave()
		return err
	}))
	check.That(t, !o.Left(), "got a tunnel that broke off")
}
