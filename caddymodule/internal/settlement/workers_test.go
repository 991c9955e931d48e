package settlement

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// slowRecorder is a client that takes a second for each write, as does its flush.
type slowRecorder struct{ *httptest.ResponseRecorder }

func (w slowRecorder) Write(p []byte) (int, error) {
	<-time.After(time.Second)
	return w.ResponseRecorder.Write(p)
}

func (w slowRecorder) FlushError() error {
	<-time.After(time.Second)
	return nil
}

func (w slowRecorder) ReadFrom(r io.Reader) (int64, error) {
	<-time.After(time.Second)
	return io.Copy(w.ResponseRecorder, r)
}

// slowReader is a body or an answer that comes after a while.
type slowReader struct {
	io.Reader
	after time.Duration
}

func (r *slowReader) Read(p []byte) (int, error) {
	time.Sleep(r.after)
	r.after = 0
	return r.Reader.Read(p)
}

func TestOnlyTheUpstreamsTimeIsShared(t *testing.T) {
	file, err := os.Open("workers_test.go")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	upload := func() *http.Request {
		return httptest.NewRequest("POST", "/", &slowReader{strings.NewReader("body"), time.Minute})
	}
	page := func() *http.Request { return httptest.NewRequest("GET", "/", nil) }
	work := time.Sleep
	for _, test := range []struct {
		name     string
		r        *http.Request
		upstream func(w http.ResponseWriter, r *http.Request) error
		want     float64 // with a reservation of 0.5
	}{
		{"a page", page(), func(w http.ResponseWriter, _ *http.Request) error {
			work(3 * time.Second)
			_, err := io.WriteString(w, "page")
			return err
		}, 3},
		{"a page in pieces to a slow client", page(), func(w http.ResponseWriter, _ *http.Request) error {
			for range 5 {
				work(2 * time.Second)
				_, _ = io.WriteString(w, "piece")
				_ = http.NewResponseController(w).Flush()
			}
			return nil
		}, 10},
		{"a copied answer", page(), func(w http.ResponseWriter, _ *http.Request) error {
			_, err := w.(io.ReaderFrom).ReadFrom(&slowReader{strings.NewReader("page"), 4 * time.Second})
			return err
		}, 4},
		{"a file", page(), func(w http.ResponseWriter, _ *http.Request) error {
			work(time.Second)
			_, err := w.(io.ReaderFrom).ReadFrom(io.LimitReader(file, 10))
			return err
		}, 1},
		{"a slow upload", upload(), func(w http.ResponseWriter, r *http.Request) error {
			_, _ = io.ReadAll(r.Body)
			work(2 * time.Second)
			return nil
		}, 2},
		{"an upload that is not read to its end", upload(), func(w http.ResponseWriter, r *http.Request) error {
			_, _ = r.Body.Read(make([]byte, 2))
			work(9 * time.Second)
			w.WriteHeader(413)
			return nil
		}, 0.5},
		{"an upload that breaks off", httptest.NewRequest("POST", "/", io.MultiReader(strings.NewReader("b"), brokenReader{})), func(w http.ResponseWriter, r *http.Request) error {
			_, err := io.ReadAll(r.Body)
			work(9 * time.Second)
			return err
		}, 0.5},
		{"an upload beside the answer", upload(), func(w http.ResponseWriter, r *http.Request) error {
			sent := make(chan struct{})
			go func() {
				_, _ = io.ReadAll(r.Body)
				close(sent)
			}()
			w.WriteHeader(200)
			<-sent
			work(2 * time.Second)
			return nil
		}, 2},
		{"an upstream that breaks off", page(), func(w http.ResponseWriter, _ *http.Request) error {
			work(3 * time.Second)
			return caddyhttp.Error(502, io.ErrUnexpectedEOF)
		}, 3},
		{"an upstream that breaks off soon", page(), func(w http.ResponseWriter, _ *http.Request) error {
			return caddyhttp.Error(502, io.ErrUnexpectedEOF)
		}, 0.5},
		{"an answer that breaks off", page(), func(w http.ResponseWriter, _ *http.Request) error {
			w.Header().Set("Content-Length", "1000")
			work(3 * time.Second)
			_, _ = io.WriteString(w, "piece")
			work(3 * time.Second)
			return caddyhttp.Error(502, io.ErrUnexpectedEOF)
		}, 6},
	} {
		synctest.Test(t, func(t *testing.T) {
			rule, meter := &Rule{Workers: 5}, new(Meter)
			o := &Observer{Meters: []Metered{{Rule: rule, Meter: meter}}}
			_ = o.Serve(slowRecorder{httptest.NewRecorder()}, test.r, caddyhttp.HandlerFunc(test.upstream))
			if cost, known := rule.Actual(o, leakybucket.Limit{Capacity: 100, Leak: 1}, 0.5); cost != test.want || !known {
				t.Errorf("%s: got %v, %v, want %v", test.name, cost, known, test.want)
			}
			if n := meter.Running(); n != 0 {
				t.Errorf("%s: got %d running after it, want none", test.name, n)
			}
		})
	}
}

type brokenReader struct{}

func (brokenReader) Read([]byte) (int, error) { return 0, errors.New("connection reset") }

func TestAPanicAndATunnelEndTheirShare(t *testing.T) {
	for _, upstream := range []caddyhttp.HandlerFunc{
		func(http.ResponseWriter, *http.Request) error { panic(http.ErrAbortHandler) },
		func(w http.ResponseWriter, _ *http.Request) error {
			w.WriteHeader(http.StatusSwitchingProtocols)
			<-time.After(time.Hour)
			return nil
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			rule, meter := &Rule{Workers: 1}, new(Meter)
			o := &Observer{Meters: []Metered{{Rule: rule, Meter: meter}}}
			done := make(chan struct{})
			go func() {
				defer close(done)
				defer func() { _ = recover() }()
				_ = o.Serve(httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil), upstream)
			}()
			synctest.Wait()
			if n := meter.Running(); n != 0 {
				t.Errorf("got %d running, want none", n)
			}
			<-done
			if cost, known := rule.Actual(o, leakybucket.Limit{Capacity: 100, Leak: 1}, 2); cost != 2 {
				t.Errorf("got %v, %v, want the reservation", cost, known)
			}
		})
	}
}

func TestAPauseWithinIsNoTimeOfTheUpstream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rule, meter := &Rule{Workers: 1}, new(Meter)
		outer := &Observer{Meters: []Metered{{Rule: rule, Meter: meter}}}
		_ = outer.Serve(httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil), caddyhttp.HandlerFunc(func(w http.ResponseWriter, r *http.Request) error {
			inner := &Observer{Outer: outer}
			inner.Pause()
			<-time.After(time.Minute)
			inner.Resume()
			return inner.Serve(w, r, caddyhttp.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) error {
				<-time.After(time.Second)
				return nil
			}))
		}))
		if cost, _ := rule.Actual(outer, leakybucket.Limit{Capacity: 100, Leak: 1}, 0); cost != 1 {
			t.Errorf("got %v, want 1", cost)
		}
		(*Observer)(nil).Pause()
		(*Observer)(nil).Resume()
	})
}
