package body

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

// receives serves requests whose bodies have been received for alice.
func receives(s *Store, most int64, serve func(w http.ResponseWriter, r *http.Request, b *Received, err error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		b, err := s.Receive(r.Context(), r, alice, most)
		defer b.Close()
		serve(w, r, b, err)
	}
}

// TestLessThanItSays: a client of HTTP/3 may send less than its Content-Length, which FastCGI is told.
func TestLessThanItSays(t *testing.T) {
	for _, sent := range []string{"", "ab"} {
		r := httptest.NewRequest(http.MethodPost, "/", nil)
		r.Body, r.ContentLength, r.Header = io.NopCloser(strings.NewReader(sent)), 5, http.Header{"Content-Length": {"5"}}
		b := check.Must(newStore(t, Bounds{}).Receive(t.Context(), r, alice, 0))(t)
		check.Equal(t, r.Header.Get("Content-Length"), fmt.Sprint(len(sent)), "the length that upstreams are told")
		_ = b.Close()
	}
}

var receivedSizes = []int{1, len(Received{}.first) - 1, len(Received{}.first), len(Received{}.first) + 1, smallPiece, 4*smallPiece + 1, blockSize, blockSize + 1, 300 << 10}

// TestReceive sends bodies of known and of unknown length over sockets.
func TestReceive(t *testing.T) {
	for name, bounds := range map[string]Bounds{"room": {}, "no memory": {Memory: 1}, "little memory": {Memory: 2 * smallPiece}} {
		s := newStore(t, bounds)
		server := listen(t, receives(s, 1<<20, func(w http.ResponseWriter, r *http.Request, b *Received, err error) {
			check.That(t, err == nil && r.Body == b && Whole(r), "%s: got %v, and the body received: %v", name, err, Whole(r))
			got, err := io.ReadAll(r.Body)
			memory, disk := s.Held()
			check.That(t, err == nil && memory == 0 && disk == 0, "%s: got %v, and %d and %d bytes held after the end, want none", name, err, memory, disk)
			if int64(len(got)) != r.ContentLength || r.Header.Get("Content-Length") != fmt.Sprint(len(got)) || r.TransferEncoding != nil {
				t.Errorf("%s: got the length %d, %q and %q, want that of the %d bytes", name, r.ContentLength, r.Header.Get("Content-Length"), r.TransferEncoding, len(got))
			}
			_, _ = w.Write(got)
		}))
		for _, protocol := range protocols {
			for _, size := range receivedSizes {
				for _, known := range []bool{false, true} {
					data := randomBytes(size)
					r, _ := http.NewRequest(http.MethodPost, server.URL, strings.NewReader(data))
					if !known {
						r.ContentLength = -1
					}
					check.That(t, answerOf(t, clientOf(t, protocol), r) == data, "%s, %s, length known %v: want the %d bytes that were sent", name, protocol, known, size)
				}
			}
		}
		server.Close()
	}
}

// TestWhatIsHeld of a body that waits to be read.
func TestWhatIsHeld(t *testing.T) {
	for size, want := range map[int][2]int64{
		500:              {0, 0},
		600:              {smallPiece, 0},
		10 << 10:         {4 * smallPiece, 0},
		blockSize - 1:    {blockSize, 0},
		10*blockSize + 5: {blockSize, 10 * blockSize},
	} {
		s := newStore(t, Bounds{})
		r := httptest.NewRequest(http.MethodPost, "/", io.NopCloser(iotest.OneByteReader(strings.NewReader(randomBytes(size)))))
		b, err := s.Receive(t.Context(), r, alice, 0)
		memory, disk := s.Held()
		check.That(t, err == nil && memory == want[0] && disk == want[1], "%d bytes: got %d and %d bytes held, %v, want %v", size, memory, disk, err, want)
		_ = b.Close()
		_ = b.Close()
		isClosed(t, r.Body, size)
		holdsNothing(t, s)
	}
}

func isClosed(t *testing.T, body io.Reader, about ...any) {
	t.Helper()
	n, err := body.Read(make([]byte, 1))
	check.That(t, n == 0 && errors.Is(err, http.ErrBodyReadAfterClose), "%v: got %d, %v after Close, want an error", about, n, err)
}

func TestRequestsThatAreNotReceived(t *testing.T) {
	for name, test := range map[string]struct {
		method string
		length int64
		body   io.ReadCloser
	}{
		"no body":          {http.MethodGet, -1, http.NoBody},
		"nil":              {http.MethodGet, -1, nil},
		"empty":            {http.MethodPost, 0, new(watched)},
		"tunnel":           {http.MethodConnect, -1, new(watched)},
		"tunnel of length": {http.MethodConnect, 10, new(watched)},
		"received":         {http.MethodPost, 10, new(Received)},
	} {
		r := httptest.NewRequest(test.method, "http://example.com", nil)
		r.ContentLength, r.Body = test.length, test.body
		b, err := newStore(t, Bounds{}).Receive(t.Context(), r, alice, 10)
		if body, ok := test.body.(*watched); b != nil || err != nil || r.Body != test.body || r.ContentLength != test.length || ok && body.read {
			t.Errorf("%s: got %v, %v, and the body %v, want it left alone", name, b, err, r.Body)
		}
		check.Equal(t, Whole(r), test.method != http.MethodConnect, "%s: whole", name)
	}
}

// TestNoHeaderTurnsReceivingOff, of those that say that the client waits for an answer.
func TestNoHeaderTurnsReceivingOff(t *testing.T) {
	for _, header := range []string{"Upgrade: websocket", "Content-Type: application/grpc", "Content-Type: text/event-stream", "Expect: 100-continue", "Incremental: ?1"} {
		name, value, _ := strings.Cut(header, ": ")
		r := httptest.NewRequest(http.MethodPost, "/", io.NopCloser(strings.NewReader("hello")))
		r.Header.Set(name, value)
		b, err := newStore(t, Bounds{}).Receive(t.Context(), r, alice, 10)
		check.That(t, b != nil && err == nil && r.ContentLength == 5, "%s: got %v, %v, want it received", header, b, err)
		_ = b.Close()
	}
}

func TestAnEmptyBodyOfUnknownLengthIsNone(t *testing.T) {
	r := httptest.NewRequest(http.MethodGet, "/", io.NopCloser(strings.NewReader("")))
	b, err := newStore(t, Bounds{}).Receive(t.Context(), r, alice, 10)
	check.That(t, b == nil && err == nil && r.Body == http.NoBody && r.ContentLength == 0, "got %v, %v, and the body %v of %d bytes, want none", b, err, r.Body, r.ContentLength)
}

func TestABodyThatIsTooLong(t *testing.T) {
	for _, test := range []struct {
		size, length, most int64
		want               error
	}{
		{1000, 1000, 1000, nil},
		{1000, -1, 1000, nil},
		{1001, 1001, 1000, ErrTooLarge},
		{1001, -1, 1000, ErrTooLarge},
		{500, 500, 0, nil},
		{70 << 10, -1, 0, ErrTooLarge},
		{70 << 10, 70 << 10, 0, ErrTooLarge},
	} {
		s := newStore(t, Bounds{Request: 64 << 10})
		body := strings.NewReader(randomBytes(int(test.size)))
		r := httptest.NewRequest(http.MethodPost, "/", io.NopCloser(body))
		r.ContentLength = test.length
		b, err := s.Receive(t.Context(), r, alice, test.most)
		check.That(t, errors.Is(err, test.want) && (b != nil) == (test.want == nil || test.length < 0), "%+v: got %v, %v", test, b, err)
		if test.want != nil && test.length > 0 && body.Len() < int(test.size) {
			t.Errorf("%+v: got it read, want it refused before", test)
		}
		_ = b.Close()
	}
	r := httptest.NewRequest(http.MethodPost, "/", http.MaxBytesReader(nil, io.NopCloser(strings.NewReader("hello")), 3))
	b, err := newStore(t, Bounds{}).Receive(t.Context(), r, alice, 10)
	defer b.Close()
	check.Is(t, err, ErrTooLarge, "for the bound of a handler around, want it told as ours")
	var tooLarge *http.MaxBytesError
	got, err := io.ReadAll(r.Body)
	check.That(t, string(got) == "hel" && errors.As(err, &tooLarge), "got %q, %v of its body, want what it lets through and its error", got, err)
}

func TestABodyWithoutRoom(t *testing.T) {
	s := newStore(t, Bounds{Memory: 4 * smallPiece, Files: 8 * blockSize})
	for size, want := range map[int]error{500: nil, 200 << 10: nil, 5 * blockSize: ErrNoRoom} {
		r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader(randomBytes(size)))
		b, err := s.Receive(t.Context(), r, alice, 0)
		check.Is(t, err, want, "%d bytes", size)
		_ = b.Close()
		holdsNothing(t, s)
	}
}

// TestPassingOn sends bodies that are not received whole, to a handler that reads them, or receives
// them with a larger bound.
func TestPassingOn(t *testing.T) {
	for name, test := range map[string]struct {
		bounds Bounds
		most   int64
		want   error
	}{
		"too long":              {Bounds{}, 10, ErrTooLarge},
		"too long for memory":   {Bounds{}, 3*blockSize + 5, ErrTooLarge},
		"no room":               {Bounds{Memory: 1, Files: 1}, 1 << 20, ErrNoRoom},
		"little room in memory": {Bounds{Memory: 8 * smallPiece, Files: 1}, 1 << 20, ErrNoRoom},
		"little room":           {Bounds{Memory: 8 * smallPiece, Files: 7 * blockSize}, 1 << 20, ErrNoRoom},
	} {
		for _, again := range []bool{false, true} {
			s, roomy := newStore(t, test.bounds), newStore(t, Bounds{})
			server := listen(t, receives(s, test.most, func(w http.ResponseWriter, r *http.Request, b *Received, err error) {
				known := r.ContentLength > 0
				if !errors.Is(err, test.want) || Of(r) != nil || Whole(r) || (b == nil) != (known && errors.Is(test.want, ErrTooLarge)) {
					t.Errorf("%s: got %v, %v, and the body received: %v", name, b, err, Whole(r))
				}
				if known != (r.Header.Get("Content-Length") != "") || !known && r.ProtoMajor == 1 && len(r.TransferEncoding) != 1 {
					t.Errorf("%s: got the length %d, %v and %q, want what the client has said", name, r.ContentLength, r.Header, r.TransferEncoding)
				}
				if again {
					inner, err := roomy.Receive(r.Context(), r, alice, 0)
					defer inner.Close()
					check.That(t, err == nil && Of(r) == inner, "%s: got %v, want it received", name, err)
				}
				got, err := io.ReadAll(r.Body)
				check.NoError(t, err, "%s", name)
				memory, _ := s.Held()
				check.That(t, memory == 0, "%s: got %d bytes held in memory after the end, want none", name, memory)
				_, _ = w.Write(got)
			}))
			for _, protocol := range protocols {
				for _, known := range []bool{false, true} {
					data := randomBytes(9*blockSize + 7)
					r, _ := http.NewRequest(http.MethodPost, server.URL, strings.NewReader(data))
					if !known {
						r.ContentLength = -1
					}
					check.That(t, answerOf(t, clientOf(t, protocol), r) == data, "%s, %s, length known %v: want the %d bytes that were sent", name, protocol, known, len(data))
				}
			}
			server.Close()
		}
	}
}

// TestPassingOnAFullDisk loses nothing of what was half written.
func TestPassingOnAFullDisk(t *testing.T) {
	for _, took := range []int64{0, 100, 3 * blockSize, 3*blockSize + 100} {
		s := NewStore(t.TempDir(), func(error) {})
		s.create = func(dir string) (file, error) {
			f, err := createFile(dir)
			return &fullFile{file: f, free: 1 << 30, took: took}, err
		}
		data := randomBytes(5 * blockSize)
		r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader(data))
		b, err := s.Receive(t.Context(), r, alice, 0)
		check.That(t, errors.Is(err, ErrNoRoom) && b.InFile() == (took > 0), "%d bytes: got %v, in the file: %v", took, err, b.InFile())
		got, err := io.ReadAll(r.Body)
		check.That(t, string(got) == data && err == nil, "%d bytes: got %d bytes, %v, want all of them", took, len(got), err)
		_ = b.Close()
		holdsNothing(t, s)
	}
}

// A closing body notes that it is closed.
type closing struct {
	io.Reader
	closed int
}

func (c *closing) Close() error {
	c.closed++
	return nil
}

// TestClosingWhatIsPassedOn: its caller gives back what is held, and whoever reads the body closes
// the client's.
func TestClosingWhatIsPassedOn(t *testing.T) {
	s := newStore(t, Bounds{})
	client := &closing{Reader: strings.NewReader(randomBytes(2 * blockSize))}
	r := httptest.NewRequest(http.MethodPost, "/", client)
	b, err := s.Receive(t.Context(), r, alice, blockSize)
	memory, _ := s.Held()
	check.That(t, errors.Is(err, ErrTooLarge) && memory != 0, "got %v and %d bytes held, want what has been read", err, memory)
	_ = b.Close()
	isClosed(t, r.Body, "by the caller")
	check.Equal(t, client.closed, 0, "the client's body, after what was held")
	_ = r.Body.Close()
	check.Equal(t, client.closed, 1, "the client's body")
	holdsNothing(t, s)
}

// TestReader reads received bodies in pieces of three sizes, and then as upstreams do.
func TestReader(t *testing.T) {
	for name, bounds := range map[string]Bounds{"room": {}, "no memory": {Memory: 1}} {
		s := newStore(t, bounds)
		for _, size := range receivedSizes {
			data := randomBytes(size)
			r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader(data))
			b, err := s.Receive(t.Context(), r, alice, 0)
			if err != nil || b != Of(r) || b.InFile() != (size >= blockSize || size >= len(b.first) && bounds.Memory > 0) {
				t.Fatalf("%s, %d bytes: got %v, in the file: %v", name, size, err, b.InFile())
			}
			memory, disk := s.Held()
			first, second := b.Reader(), b.Reader()
			for at, from := range []io.Reader{first, second, b.Reader()} {
				var got strings.Builder
				piece := make([]byte, []int{97, 4096, 1 << 20}[at])
				_, err := io.CopyBuffer(&got, struct{ io.Reader }{from}, piece)
				check.That(t, got.String() == data && err == nil, "%s, %d bytes: got %d, %v in pieces of %d, want all", name, size, got.Len(), err, len(piece))
			}
			m, d := s.Held()
			check.That(t, m == memory && d == disk, "%s, %d bytes: got %d and %d held, want %d and %d as before", name, size, m, d, memory, disk)
			some := make([]byte, min(size, 3))
			_, _ = io.ReadFull(r.Body, some)
			got, err := io.ReadAll(b.Reader())
			check.That(t, string(some)+string(got) == data && err == nil, "%s, %d bytes: got %d, %v after the first ones, want the others", name, size, len(got), err)
			got, err = io.ReadAll(r.Body)
			check.That(t, string(some)+string(got) == data && err == nil && b.InFile() == (disk > 0), "%s, %d bytes: got %d, %v of the body, want all", name, size, len(got), err)
			late := b.Reader()
			_ = b.Close()
			isClosed(t, late, name, size)
		}
	}
}

// A shortFile has lost its end.
type shortFile struct{ file }

func (shortFile) ReadAt(p []byte, _ int64) (int, error) { return len(p) / 2, io.EOF }

// TestAFileThatFails is no end of a body.
func TestAFileThatFails(t *testing.T) {
	for want, broken := range map[error]func(file) file{
		syscall.EIO:         func(f file) file { return brokenFile{f} },
		io.ErrUnexpectedEOF: func(f file) file { return shortFile{f} },
	} {
		var said error
		s := NewStore(t.TempDir(), func(err error) { said = err })
		s.create = func(dir string) (file, error) {
			f, err := createFile(dir)
			return broken(f), err
		}
		r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader(randomBytes(3*blockSize)))
		b := check.Must(s.Receive(t.Context(), r, alice, 0))(t)
		for _, from := range []io.Reader{b.Reader(), r.Body} {
			_, err := io.ReadAll(from)
			check.That(t, errors.Is(err, want) && errors.Is(said, want), "got %v, and %v said, want %v", err, said, want)
		}
		_ = b.Close()
	}
}

// TestBodiesThatLieAboutTheirLength are received as what has come, or not at all.
func TestBodiesThatLieAboutTheirLength(t *testing.T) {
	for _, test := range []struct{ about, headers, body, want string }{ // "-" if it gets an error
		{"more than is sent", "Content-Length: 100", "[1,2,3]", "-"},
		{"less than is sent", "Content-Length: 5", "[1,2]3]", "[1,2]"},
		{"chunks that break off", "Transfer-Encoding: chunked", "3\r\n[1,\r\n", "-"},
		{"a chunk that breaks off", "Transfer-Encoding: chunked", "9\r\n[1,", "-"},
		{"a chunk of no size", "Transfer-Encoding: chunked", "x\r\n[1,", "-"},
		{"a chunk of any size", "Transfer-Encoding: chunked", "fffffffffffffffff\r\n[1,", "-"},
		{"many chunks", "Transfer-Encoding: chunked", "1\r\n[\r\n1\r\n1\r\n1\r\n]\r\n0\r\n\r\n", "[1]"},
		{"chunks with extensions and trailers", "Transfer-Encoding: chunked\r\nTrailer: X-A", "3;x=y\r\n[1]\r\n0\r\nX-A: b\r\n\r\n", "[1]"},
	} {
		served := 0
		server := listen(t, receives(newStore(t, Bounds{}), 0, func(_ http.ResponseWriter, r *http.Request, _ *Received, err error) {
			served++
			got, want := "-", ErrLeft
			if test.want != "-" {
				data, _ := io.ReadAll(r.Body)
				got, want = string(data), nil
			}
			check.That(t, got == test.want && errors.Is(err, want) && Whole(r) == (err == nil), "%s: got %q, %v, and it received: %v", test.about, got, err, Whole(r))
		}))
		ask(t, server.Listener.Addr().String(), "POST / HTTP/1.1\r\nHost: example.com\r\nConnection: close\r\n"+test.headers+"\r\n\r\n"+test.body)
		server.Close()
		check.That(t, served == 1, "%s: served %d times, want once", test.about, served)
	}
}

// TestAClientThatBreaksOff in the middle of its body, in virtual time.
func TestAClientThatBreaksOff(t *testing.T) {
	for name, test := range map[string]struct {
		leaves, deadline time.Duration // the client's, the server's
		want             error
		after            time.Duration
	}{
		"leaves":   {90 * time.Second, time.Hour, ErrLeft, 90 * time.Second},
		"timeout":  {time.Hour, 60 * time.Second, ErrTimeout, 60 * time.Second},
		"neither":  {time.Hour, time.Hour, nil, 101 * 900 * time.Millisecond},
		"timeout0": {time.Hour, 0, ErrTimeout, 0},
	} {
		for _, protocol := range protocols {
			t.Run(name+"/"+protocol, func(t *testing.T) {
				s := newStore(t, Bounds{})
				served := false
				slowly(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					began := time.Now()
					check.NoError(t, http.NewResponseController(w).SetReadDeadline(began.Add(test.deadline)))
					receives(s, 1<<20, func(w http.ResponseWriter, r *http.Request, b *Received, err error) {
						served = true
						took := time.Since(began)
						check.That(t, errors.Is(err, test.want) && took >= test.after && took <= test.after+time.Second, "got %v after %v, want %v after %v", err, took, test.want, test.after)
						check.That(t, b != nil && !b.InFile(), "got %v, want one that was never in the file", b)
					})(w, r)
				}), func(t *testing.T, dial func() net.Conn) {
					ctx, stop := context.WithTimeout(t.Context(), test.leaves)
					defer stop()
					slowPost(ctx, dial(), protocol, &slowBody{strings.Repeat(" ", 100), slowByte})
				})
				check.That(t, served, "got nothing served")
			})
		}
	}
}

func TestReceivingEndsWithItsContext(t *testing.T) {
	exiting := errors.New("exiting")
	ctx, end := context.WithCancelCause(t.Context())
	body := &ending{after: 3, end: func() { end(exiting) }}
	r := httptest.NewRequest(http.MethodPost, "/", body)
	_, err := newStore(t, Bounds{}).Receive(ctx, r, alice, 0)
	check.That(t, errors.Is(err, exiting) && !errors.Is(err, ErrLeft) && body.after == 0, "got %v with %d reads left, want the cause", err, body.after)
	client, leave := context.WithCancel(t.Context())
	r = httptest.NewRequest(http.MethodPost, "/", &ending{after: 3, end: leave}).WithContext(client)
	_, err = newStore(t, Bounds{}).Receive(r.Context(), r, alice, 0)
	check.That(t, errors.Is(err, ErrLeft), "got %v, want that the client has left", err)
}

// An ending body never ends, but something else does with one of its reads.
type ending struct {
	after int
	end   func()
}

func (e *ending) Read(p []byte) (int, error) {
	if e.after--; e.after == 0 {
		e.end()
	}
	return len(p), nil
}

func (e *ending) Close() error { return nil }

// A panicking body is one of another module.
type panicking struct{ left int }

func (p *panicking) Read(b []byte) (int, error) {
	if p.left--; p.left == 0 {
		panic("a body's")
	}
	return len(b), nil
}

func TestAPanicOfABodyHoldsNothing(t *testing.T) {
	s := newStore(t, Bounds{})
	defer func() {
		check.Equal(t, recover(), "a body's", "want the panic")
		holdsNothing(t, s)
	}()
	_, _ = s.Receive(t.Context(), httptest.NewRequest(http.MethodPost, "/", &panicking{10}), alice, 0)
}

func TestTrailersComeWithTheBody(t *testing.T) {
	s := newStore(t, Bounds{})
	server := listen(t, receives(s, 0, func(w http.ResponseWriter, r *http.Request, _ *Received, err error) {
		fmt.Fprint(w, r.Trailer.Get("X-Sum"), err)
	}))
	for _, protocol := range protocols {
		r, _ := http.NewRequest(http.MethodPost, server.URL, io.NopCloser(strings.NewReader(randomBytes(100<<10))))
		r.Trailer = http.Header{"X-Sum": {"1"}}
		check.Equal(t, answerOf(t, clientOf(t, protocol), r), "1<nil>", "%s, want the trailer", protocol)
	}
}

// TestExpectContinue is answered when receiving begins, unless the body says that it is too long.
func TestExpectContinue(t *testing.T) {
	server := listen(t, receives(newStore(t, Bounds{}), 10, func(w http.ResponseWriter, r *http.Request, _ *Received, err error) {
		if errors.Is(err, ErrTooLarge) {
			w.WriteHeader(http.StatusRequestEntityTooLarge)
			return
		}
		_, _ = io.Copy(w, r.Body)
	}))
	for length, want := range map[int]string{7: "HTTP/1.1 100 Continue", 11: "HTTP/1.1 413 Request Entity Too Large"} {
		conn, err := net.Dial("tcp", server.Listener.Addr().String())
		check.OK(t, err)
		fmt.Fprintf(conn, "POST / HTTP/1.1\r\nHost: example.com\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n", length)
		line, err := bufio.NewReader(conn).ReadString('\n')
		check.That(t, strings.TrimSpace(line) == want && err == nil, "%d bytes: got %q, %v, want %q", length, line, err, want)
		conn.Close()
	}
}

// TestSilentClientsHoldLittle, as many as there are: each has said that it will send a lot, and has
// sent a byte.
func TestSilentClientsHoldLittle(t *testing.T) {
	const requests = 2000
	synctest.Test(t, func(t *testing.T) {
		s, end := newStore(t, Bounds{}), make(chan struct{})
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		var all sync.WaitGroup
		for range requests {
			r := httptest.NewRequest(http.MethodPost, "/", io.NopCloser(io.MultiReader(strings.NewReader("x"), mute{end})))
			r.ContentLength = 1 << 20
			all.Go(func() { _, _ = s.Receive(context.Background(), r, alice, 0) })
		}
		synctest.Wait()
		runtime.GC()
		runtime.ReadMemStats(&after)
		memory, disk := s.Held()
		each := (int64(after.HeapAlloc) - int64(before.HeapAlloc)) / requests
		check.That(t, each <= 4000 && memory == 0 && disk == 0, "got %d bytes for each silent client, and %d and %d held, want little", each, memory, disk)
		close(end)
		all.Wait()
	})
}

// TestClosingWhileReading is what a proxy's handler does whose transport still reads.
func TestClosingWhileReading(t *testing.T) {
	s := newStore(t, Bounds{})
	data := []byte(randomBytes(300 << 10))
	for range 20 {
		r := httptest.NewRequest(http.MethodPost, "/", bytes.NewReader(data))
		b := check.Must(s.Receive(t.Context(), r, netip.Prefix{}, 0))(t)
		var reading sync.WaitGroup
		reading.Go(func() {
			got, err := io.ReadAll(b)
			if !bytes.HasPrefix(data, got) || err == nil && len(got) < len(data) || err != nil && !errors.Is(err, http.ErrBodyReadAfterClose) {
				t.Errorf("got %d bytes, %v, want the first ones, and no end before theirs", len(got), err)
			}
		})
		_ = b.Close()
		reading.Wait()
	}
}

// A late server is slow to set deadlines.
type late struct {
	http.ResponseWriter
	set bool
}

func (l *late) SetReadDeadline(time.Time) error {
	<-time.After(time.Second)
	l.set = true
	return nil
}

// TestCutOffIsOverWithTheReceiving: HTTP/2 panics where a deadline is set after its request.
func TestCutOffIsOverWithTheReceiving(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, ends := range []bool{false, true} {
			ctx, end := context.WithCancel(t.Context())
			w := new(late)
			received := CutOff(ctx, w)
			if ends {
				end()
			}
			received()
			check.Equal(t, w.set, ends, "a deadline when the request goes on")
			end()
		}
	})
}
