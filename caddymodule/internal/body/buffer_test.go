package body

import (
	"bufio"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

const mib = 1 << 20

// fills serves requests after their bodies have been buffered.
func fills(m *Memory, most int64, serve func(w http.ResponseWriter, r *http.Request, ended Ended)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		buffer, ended := m.Fill(r.Context(), r, netip.Prefix{}, most, nil)
		defer buffer.End(w)
		serve(w, r, ended)
	}
}

func wantUnused(t testing.TB, m *Memory) {
	t.Helper()
	if n := m.Used(); n != 0 {
		t.Errorf("got %d bytes in use when all is over, want none", n)
	}
}

func TestABufferHandsOnEveryByteInOrder(t *testing.T) {
	leavesNobodyBehind(t)
	for _, most := range []int64{1, smallestPiece, mib, 16 * mib} {
		memory := NewMemory(640 * mib)
		server := listen(t, fills(memory, most, func(w http.ResponseWriter, r *http.Request, ended Ended) {
			used, received := memory.Used(), AllReceived(r)
			if ended != Ready || used > most+1 {
				t.Errorf("got ended %v with %d bytes in use, want at most %d", ended, used, most)
			}
			if received && r.ContentLength > most {
				t.Errorf("got %d bytes received, want at most %d", r.ContentLength, most)
			}
			hash := sha256.New()
			n, err := io.CopyBuffer(hash, struct{ io.Reader }{r.Body}, make([]byte, 10_000))
			if err != nil {
				t.Error(err)
			}
			if used := memory.Used(); used != 0 {
				t.Errorf("got %d bytes in use when all is read, want none", used)
			}
			fmt.Fprintf(w, "%d %x", n, hash.Sum(nil))
		}))
		for _, protocol := range protocols {
			client := clientOf(t, protocol)
			for _, size := range []int{0, 1, smallestPiece, smallestPiece + 1, mib - 1, mib, mib + 1, 10 * mib} {
				for _, chunked := range []bool{false, true} {
					data := randomBytes(size)
					req, _ := http.NewRequest("POST", server.URL, strings.NewReader(data))
					if chunked {
						req.Body, req.ContentLength = io.NopCloser(req.Body), -1
					}
					want := fmt.Sprintf("%d %x", size, sha256.Sum256([]byte(data)))
					if got := answerOf(t, client, req); got != want {
						t.Errorf("%s, %d bytes, chunked %v, buffer of %d: got %s, want %s", protocol, size, chunked, most, got, want)
					}
				}
			}
		}
		wantUnused(t, memory)
	}
}

// TestABufferAfterLookHandsOnWhatLookRead, whether or not Look has read all of it.
func TestABufferAfterLookHandsOnWhatLookRead(t *testing.T) {
	memory := NewMemory(640 * mib)
	server := listen(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		reader, _ := look(r, kib64)
		defer reader.End(w)
		buffer, ended := memory.Fill(r.Context(), r, netip.Prefix{}, mib, nil)
		defer buffer.End(w)
		if ended != Ready || r.ContentLength < mib && !AllReceived(r) {
			t.Errorf("got ended %v, received %v", ended, AllReceived(r))
		}
		if r.ContentLength >= 0 && r.ContentLength <= kib64 && buffer != nil {
			t.Error("got a buffer of what has been read")
		}
		hash := sha256.New()
		_, err := io.Copy(hash, r.Body)
		fmt.Fprintf(w, "%x %v", hash.Sum(nil), err)
	}))
	for _, protocol := range protocols {
		for _, size := range []int{1, kib64, kib64 + 1, mib, 3 * mib} {
			for _, chunked := range []bool{false, true} {
				data := randomBytes(size)
				req, _ := http.NewRequest("POST", server.URL, strings.NewReader(data))
				if chunked {
					req.Body, req.ContentLength = io.NopCloser(req.Body), -1
				}
				if chunked && size >= mib {
					continue // of unknown length, so Received is not known either
				}
				want := fmt.Sprintf("%x <nil>", sha256.Sum256([]byte(data)))
				if got := answerOf(t, clientOf(t, protocol), req); got != want {
					t.Errorf("%s, %d bytes, chunked %v: got %s, want %s", protocol, size, chunked, got, want)
				}
			}
		}
	}
	wantUnused(t, memory)
}

func TestBuffersTogetherKeepWithinTheirMemory(t *testing.T) {
	const clients, size, most = 100, mib, 8 * mib
	memory := NewMemory(clientShare * most) // of which one client has most
	var all sync.WaitGroup
	all.Add(clients)
	server := listen(t, fills(memory, size, func(w http.ResponseWriter, r *http.Request, ended Ended) {
		all.Done()
		all.Wait() // all buffers are as full as they get
		if used := memory.Used(); used > most || ended != Ready {
			t.Errorf("got %d bytes in use and ended %v, want at most %d", used, ended, most)
		}
		hash := sha256.New()
		_, err := io.Copy(hash, r.Body)
		fmt.Fprintf(w, "%x %v", hash.Sum(nil), err)
	}))
	data := randomBytes(size)
	want := fmt.Sprintf("%x <nil>", sha256.Sum256([]byte(data)))
	client := clientOf(t, "h1")
	var served sync.WaitGroup
	for range clients {
		served.Go(func() {
			resp, err := client.Post(server.URL, "text/plain", strings.NewReader(data))
			if err != nil {
				t.Error(err)
				return
			}
			defer resp.Body.Close()
			if got, _ := io.ReadAll(resp.Body); string(got) != want {
				t.Errorf("got %s, want %s", got, want)
			}
		})
	}
	served.Wait()
	wantUnused(t, memory)
}

// TestSlowUploadersUseLittleMemory: what they have not sent takes none.
func TestSlowUploadersUseLittleMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		memory := NewMemory(640 * mib)
		var uploaders sync.WaitGroup
		ctx, leave := context.WithCancel(t.Context())
		for range 100 {
			r := httptest.NewRequestWithContext(ctx, "POST", "/", &slowBody{strings.Repeat("x", 1000), slowByte})
			r.ContentLength = mib
			uploaders.Go(func() {
				buffer, ended := memory.Fill(r.Context(), r, netip.Prefix{}, mib, nil)
				if ended != Left {
					t.Errorf("got ended %v, want %v", ended, Left)
				}
				buffer.End(httptest.NewRecorder())
			})
		}
		<-time.After(time.Minute)
		if used := memory.Used(); used != 100*smallestPiece {
			t.Errorf("got %d bytes in use, want %d for each", used, smallestPiece)
		}
		leave()
		uploaders.Wait()
		<-time.After(2 * slowByte) // no server ends what the recorder's reads wait for
		wantUnused(t, memory)
	})
}

func TestASlowBodyIsBufferedOnlySoLong(t *testing.T) {
	for _, protocol := range protocols {
		for _, test := range []struct {
			bytes int
			known bool
			asked time.Duration
			ended Ended
		}{
			{3, true, 4 * slowByte, Ready},
			{3, false, 4 * slowByte, Ready},
			{1000, true, bufferPatience, TooSlow},
			{1000, false, bufferPatience, TooSlow},
		} {
			t.Run(fmt.Sprintf("%s, %d bytes, length known %v", protocol, test.bytes, test.known), func(t *testing.T) {
				body, length := strings.Repeat("x", test.bytes), int64(-1)
				if test.known {
					length = int64(len(body))
				}
				memory := NewMemory(10 * mib)
				var began time.Time
				slowly(t, fills(memory, mib, func(w http.ResponseWriter, r *http.Request, ended Ended) {
					asked := time.Since(began)
					if early := test.asked - asked; ended != test.ended || early < 0 || early > slowByte {
						t.Errorf("the upstream was asked after %v with ended %v, want %v", asked, ended, test.asked)
					}
					first := make([]byte, 1)
					if n, err := r.Body.Read(first); n != 1 || time.Since(began)-asked > slowByte {
						t.Errorf("the upstream got %d bytes and %v after another %v, want what there was", n, err, time.Since(began)-asked)
					}
					w.Write(first)
					http.NewResponseController(w).EnableFullDuplex()
					if _, err := io.Copy(w, r.Body); err != nil {
						t.Error(err)
					}
				}), func(t *testing.T, dial func() net.Conn) {
					began = time.Now()
					_, got, err := slowPost(t.Context(), dial(), protocol, &slowBody{body, slowByte}, length)
					if err != nil || got != body {
						t.Errorf("got %d bytes, %v, want %d", len(got), err, len(body))
					}
				})
				wantUnused(t, memory)
			})
		}
	}
}

func TestAClientThatLeavesWhileItsBodyIsBuffered(t *testing.T) {
	for _, protocol := range protocols {
		for _, length := range []int64{-1, 100} {
			t.Run(fmt.Sprint(protocol, length), func(t *testing.T) {
				memory := NewMemory(10 * mib)
				var began time.Time
				slowly(t, fills(memory, mib, func(_ http.ResponseWriter, _ *http.Request, ended Ended) {
					if took := time.Since(began); took > 3*time.Second || ended != Left {
						t.Errorf("got ended %v after %v, want %v when the client has left", ended, took, Left)
					}
				}), func(t *testing.T, dial func() net.Conn) {
					ctx, stop := context.WithTimeout(t.Context(), 2500*time.Millisecond)
					defer stop()
					began = time.Now()
					if resp, _, err := slowPost(ctx, dial(), protocol, &slowBody{strings.Repeat(" ", 100), slowByte}, length); err == nil {
						t.Errorf("got %v, want nothing, as nobody waits for it", resp.Status)
					}
				})
				wantUnused(t, memory)
			})
		}
	}
}

// TestAnAnswerBeforeTheBodyEndsBuffering: when the upstream has answered, nobody reads
// any more.
func TestAnAnswerBeforeTheBodyEndsBuffering(t *testing.T) {
	for _, protocol := range protocols {
		t.Run(protocol, func(t *testing.T) {
			memory := NewMemory(10 * mib)
			slowly(t, fills(memory, mib, func(w http.ResponseWriter, _ *http.Request, _ Ended) {
				w.WriteHeader(http.StatusTeapot)
			}), func(t *testing.T, dial func() net.Conn) {
				ctx, stop := context.WithCancel(t.Context())
				defer stop()
				began := time.Now()
				resp, _, err := slowPost(ctx, dial(), protocol, &slowBody{strings.Repeat(" ", 1000), slowByte}, -1)
				if err != nil || resp.StatusCode != http.StatusTeapot {
					t.Errorf("got %v, %v, want 418", resp, err)
				}
				if took := time.Since(began); took > bufferPatience+2*time.Second {
					t.Errorf("got the answer after %v, want it after %v", took, bufferPatience)
				}
			})
			wantUnused(t, memory)
		})
	}
}

func TestBufferingEndsAsItMust(t *testing.T) {
	body := func(parts ...io.Reader) io.Reader { return io.MultiReader(parts...) }
	exiting := make(chan struct{})
	close(exiting)
	never, _ := io.Pipe()
	for _, test := range []struct {
		name    string
		r       *http.Request
		exiting chan struct{}
		want    Ended
		buffers bool
	}{
		{"no body", httptest.NewRequest("GET", "/", nil), nil, Ready, false},
		{"a tunnel", httptest.NewRequest("CONNECT", "example.com:1", never), nil, Ready, false},
		{"a body", httptest.NewRequest("POST", "/", body(strings.NewReader("x"))), nil, Ready, true},
		{"a body that breaks off", httptest.NewRequest("POST", "/", body(strings.NewReader("x"), failsWith{io.ErrUnexpectedEOF})), nil, Left, true},
		{"a body that is too large for the site", httptest.NewRequest("POST", "/", body(strings.NewReader("x"), failsWith{&http.MaxBytesError{Limit: 1}})), nil, Ready, true},
		{"an exit", httptest.NewRequest("POST", "/", never), exiting, Exiting, true},
	} {
		memory := NewMemory(10 * mib)
		buffer, ended := memory.Fill(test.r.Context(), test.r, netip.Prefix{}, mib, test.exiting)
		if ended != test.want || (buffer != nil) != test.buffers {
			t.Errorf("%s: got ended %v with a buffer %v, want %v and %v", test.name, ended, buffer != nil, test.want, test.buffers)
		}
		buffer.End(httptest.NewRecorder())
		wantUnused(t, memory)
	}
	_ = never.Close()
}

type failsWith struct{ err error }

func (f failsWith) Read([]byte) (int, error) { return 0, f.err }

func TestAnErrorOfABodyIsHandedOnAfterItsBytes(t *testing.T) {
	tooLarge := &http.MaxBytesError{Limit: 3}
	r := httptest.NewRequest("POST", "/", io.MultiReader(strings.NewReader("abc"), failsWith{tooLarge}))
	memory := NewMemory(10 * mib)
	buffer, _ := memory.Fill(r.Context(), r, netip.Prefix{}, mib, nil)
	buffer.End(httptest.NewRecorder()) // an error route may read it yet
	data, err := io.ReadAll(r.Body)
	if string(data) != "abc" || !errors.Is(err, error(tooLarge)) {
		t.Errorf("got %q, %v, want abc and %v", data, err, tooLarge)
	}
	wantUnused(t, memory)
}

// TestABufferMakesTheClientContinue: a client that expects 100 sends its body then.
func TestABufferMakesTheClientContinue(t *testing.T) {
	memory := NewMemory(10 * mib)
	server := listen(t, fills(memory, mib, func(w http.ResponseWriter, r *http.Request, ended Ended) {
		if ended != Ready || !AllReceived(r) {
			t.Errorf("got ended %v and received %v", ended, AllReceived(r))
		}
		_, _ = io.Copy(w, r.Body)
	}))
	conn, err := net.Dial("tcp", server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprint(conn, "POST / HTTP/1.1\r\nHost: example.com\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n")
	answers := bufio.NewReader(conn)
	if line, err := answers.ReadString('\n'); err != nil || line != "HTTP/1.1 100 Continue\r\n" {
		t.Fatalf("got %q, %v, want 100", line, err)
	}
	_, _ = answers.ReadString('\n')
	fmt.Fprint(conn, "body")
	resp, err := http.ReadResponse(answers, nil)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(io.LimitReader(resp.Body, 4)); string(got) != "body" {
		t.Errorf("got %q, %v, want the body", got, err)
	}
}

func TestATrackedBodyIsReceivedWhenItsEndIsRead(t *testing.T) {
	for _, test := range []struct {
		name        string
		r           *http.Request
		first, last bool // received at once, and when all is read
	}{
		{"none", httptest.NewRequest("GET", "/", nil), true, true},
		{"a tunnel", httptest.NewRequest("CONNECT", "example.com:1", strings.NewReader("x")), false, false},
		{"a body", httptest.NewRequest("POST", "/", strings.NewReader("body")), false, true},
		{"a body that breaks off", httptest.NewRequest("POST", "/", io.MultiReader(strings.NewReader("x"), failsWith{io.ErrUnexpectedEOF})), false, false},
	} {
		Track(test.r)
		if AllReceived(test.r) != test.first {
			t.Errorf("%s: got received %v at once, want %v", test.name, AllReceived(test.r), test.first)
		}
		for range 2 {
			_, _ = io.Copy(io.Discard, test.r.Body)
		}
		if AllReceived(test.r) != test.last {
			t.Errorf("%s: got received %v, want %v", test.name, AllReceived(test.r), test.last)
		}
	}
}
