package engine_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/config"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/decision"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/engine"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/response"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/servertest"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/stores"
)

// upload begins a request whose body the test writes, and whose upstream reads it all.
func upload(s *servertest.FuncSite, addr, path string) (*servertest.Visit, *io.PipeWriter) {
	s.Helper()
	reader, writer := io.Pipe()
	r := httptest.NewRequest(http.MethodPost, "http://example.com"+path, reader)
	r.RemoteAddr = addr + ":1"
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	return s.Come(r), writer
}

// newUploadSite is the site of some zones whose upstream reads each body, and then
// works for a second.
func newUploadSite(t testing.TB, zones string) *servertest.FuncSite {
	t.Helper()
	s := servertest.NewWaitSite(t, "throttle {\n"+zones+"\n}", 0)
	s.Serve = func(w http.ResponseWriter, r *http.Request) error {
		data, err := io.ReadAll(r.Body)
		if err != nil {
			return err
		}
		<-time.After(time.Second)
		_, err = w.Write(data)
		return err
	}
	return s
}

// slotsOf returns how many requests of a zone wait and how many hold a slot.
func slotsOf(t testing.TB, zone string) (waiting, served int) {
	t.Helper()
	z := engine.JoinState(zone)
	defer func() {
		if err := stores.Leave(engine.StateKey(zone)); err != nil {
			t.Error(err)
		}
	}()
	return z.Enforced.Counts()
}

func wantServed(t testing.TB, zone string, want int) {
	t.Helper()
	if _, served := slotsOf(t, zone); served != want {
		t.Errorf("got %d slots of zone %s taken, want %d", served, zone, want)
	}
}

func wantBuffered(t testing.TB, want int64) {
	t.Helper()
	if used := engine.RequestBuffers.Used(); used != want {
		t.Errorf("got %d bytes buffered, want %d", used, want)
	}
}

func TestASlowUploadHoldsNoSlot(t *testing.T) {
	servertest.InBubble(t, func(t *testing.T) {
		s := newUploadSite(t, "zone slot {\nkey host\nin_flight 1 buffer 1KiB\n}")
		v, body := upload(s, servertest.Office, "/")
		fmt.Fprint(body, "be")
		servertest.Sleep(time.Minute)
		wantServed(t, "slot", 0)
		if v.Reached || v.Ended {
			t.Errorf("got it reached %v and ended %v, want it buffered", v.Reached, v.Ended)
		}
		polite := s.Visit(servertest.Visitor, "/")
		wantServed(t, "slot", 1)
		servertest.Sleep(2 * time.Second)
		fmt.Fprint(body, "gin")
		body.Close()
		servertest.Quiet()
		wantServed(t, "slot", 1)
		servertest.Sleep(time.Minute)
		if v.Code != http.StatusOK || v.Body.String() != "begin" || polite.Code != http.StatusOK {
			t.Errorf("got %d %q, and %d for the other client", v.Code, v.Body, polite.Code)
		}
		wantBuffered(t, 0)
		servertest.WantEmpty(t, "slot")
	})
}

// TestABodyIsBufferedAfterItsDelayAndBeforeItsSlot, once the store has said yes.
func TestABodyIsBufferedAfterItsDelayAndBeforeItsSlot(t *testing.T) {
	servertest.InBubble(t, func(t *testing.T) {
		s := newUploadSite(t, "zone slot {\nkey host\nlimit 10 1/m\ndelay\nin_flight 1 buffer 1KiB\n}")
		s.Visit(servertest.Visitor, "/") // so that the next one waits
		v, body := upload(s, servertest.Office, "/")
		servertest.Sleep(30 * time.Second)
		wantBuffered(t, 0) // its delay is not over
		if waiting, _ := slotsOf(t, "slot"); waiting != 1 {
			t.Errorf("got %d waiting, want 1", waiting)
		}
		servertest.Sleep(31 * time.Second)
		wantBuffered(t, 1025-1) // one piece, as large as the buffer
		wantServed(t, "slot", 0)
		fmt.Fprint(body, "all")
		body.Close()
		servertest.Quiet()
		wantServed(t, "slot", 1)
		servertest.Sleep(time.Minute)
		if v.Code != http.StatusOK || v.Body.String() != "all" {
			t.Errorf("got %d %q", v.Code, v.Body)
		}
		servertest.WantCounts(t, "slot", map[string]float64{"admitted": 1, "delayed": 1})
		wantBuffered(t, 0)
		servertest.WantEmpty(t, "slot")
	})
}

func TestARefusedRequestIsNotBuffered(t *testing.T) {
	for _, zone := range []string{
		"limit 1 1/d\nin_flight 5 buffer 1KiB",
		"in_flight 1 buffer 1KiB",
		"in_flight 5 buffer 1KiB\noverride 203.0.113.9 deny",
	} {
		servertest.InBubble(t, func(t *testing.T) {
			s := newUploadSite(t, "zone slot {\n"+zone+"\n}")
			s.Visit("203.0.113.9", "/")
			v, body := upload(s, "203.0.113.9", "/")
			if v.Code != http.StatusTooManyRequests || !v.Ended {
				t.Errorf("%q: got %v, want 429 at once", zone, v.Code)
			}
			_ = body.Close()
			wantBuffered(t, 0)
			servertest.Sleep(time.Minute)
			servertest.WantEmpty(t, "slot")
		})
	}
}

// TestASlotThatIsGoneAfterBufferingRefusesAndRefunds, or is waited for.
func TestASlotThatIsGoneAfterBufferingRefusesAndRefunds(t *testing.T) {
	for _, test := range []struct {
		options string
		want    int
	}{
		{"\nlimit 10 1/d", http.StatusTooManyRequests},
		{"wait 1m", http.StatusOK},
	} {
		servertest.InBubble(t, func(t *testing.T) {
			s := newUploadSite(t, "zone slot {\nkey host\nin_flight 1 buffer 1KiB "+test.options+"\n}")
			v, body := upload(s, servertest.Office, "/")
			s.Visit(servertest.Visitor, "/")
			body.Close()
			servertest.Quiet()
			servertest.Sleep(time.Minute)
			if v.Code != test.want {
				t.Errorf("%q: got %v, want %v", test.options, v.Code, test.want)
			}
			if test.want != http.StatusOK {
				if level := s.Fullness("slot", "example.com", 10, 1./86400, false); level > 1 {
					t.Errorf("got level %v, want that of the other request", level)
				}
			}
			wantBuffered(t, 0)
			servertest.WantEmpty(t, "slot")
		})
	}
}

func TestAClientThatLeavesWhileBufferingIsRefundedAndHoldsNothing(t *testing.T) {
	for _, how := range []string{"breaks off", "context"} {
		servertest.InBubble(t, func(t *testing.T) {
			s := newUploadSite(t, "zone slot {\nkey host\nlimit 10 1/d\nin_flight 1 buffer 1KiB\n}")
			v, body := upload(s, servertest.Office, "/")
			fmt.Fprint(body, "be")
			servertest.Sleep(time.Second)
			if how == "context" {
				v.Leave()
			}
			body.CloseWithError(io.ErrUnexpectedEOF)
			servertest.Quiet()
			if !v.Ended || v.Reached || v.Code != response.StatusClientLeft {
				t.Errorf("%s: got ended %v, reached %v, status %d, want 499", how, v.Ended, v.Reached, v.Code)
			}
			if level := s.Fullness("slot", "example.com", 10, 1./86400, false); level != 0 {
				t.Errorf("%s: got level %v, want it refunded", how, level)
			}
			servertest.WantCounts(t, "slot", map[string]float64{"admitted": 1})
			wantBuffered(t, 0)
			servertest.WantEmpty(t, "slot")
		})
	}
}

func TestAnExitEndsBuffering(t *testing.T) {
	servertest.InBubble(t, func(t *testing.T) {
		s := newUploadSite(t, "zone slot {\nlimit 10 1/d\nin_flight 1 buffer 1KiB\n}")
		v, body := upload(s, servertest.Office, "/")
		servertest.Sleep(time.Second)
		close(s.Exit)
		servertest.Quiet()
		body.Close()
		servertest.Quiet()
		if v.Code != http.StatusServiceUnavailable {
			t.Errorf("got %v, want 503", v.Code)
		}
		if level := s.Fullness("slot", servertest.Office, 10, 1./86400, false); level != 0 {
			t.Errorf("got level %v, want it refunded", level)
		}
		wantBuffered(t, 0)
		servertest.WantEmpty(t, "slot")
	})
}

// TestAClientThatUploadsForTooLongGetsNoSlotUnlessItKeepsThePace: 10 KiB in the last 15 of
// the five minutes.
func TestAClientThatUploadsForTooLongGetsNoSlotUnlessItKeepsThePace(t *testing.T) {
	for bytes, want := range map[int]int{10 << 10: http.StatusOK, 10<<10 - 1: http.StatusRequestTimeout} {
		servertest.InBubble(t, func(t *testing.T) {
			s := newUploadSite(t, "zone slot {\nlimit 10 1/d\nin_flight 1 buffer 1MiB\n}")
			v, body := upload(s, servertest.Office, "/")
			fmt.Fprint(body, "be")
			servertest.Sleep(5*time.Minute - time.Second)
			_, _ = body.Write(make([]byte, bytes))
			wantServed(t, "slot", 0)
			servertest.Sleep(2 * time.Second)
			fmt.Fprint(body, "gin")
			body.Close()
			servertest.Sleep(time.Minute)
			if v.Code != want || v.Reached != (want == http.StatusOK) || want == http.StatusOK && v.Body.Len() != bytes+5 {
				t.Errorf("%d bytes: got %d, reached %v and %d bytes, want %d", bytes, v.Code, v.Reached, v.Body.Len(), want)
			}
			if level := s.Fullness("slot", servertest.Office, 10, 1./86400, false); want != http.StatusOK && level != 0 {
				t.Errorf("got level %v, want it refunded", level)
			}
			wantBuffered(t, 0)
			servertest.WantEmpty(t, "slot")
		})
	}
}

func TestShadowZonesBufferNothing(t *testing.T) {
	servertest.InBubble(t, func(t *testing.T) {
		s := newUploadSite(t, "zone slot {\nin_flight 1 buffer 1KiB\nshadow\n}\nzone other {\nlimit 10 1/d\n}")
		v, body := upload(s, servertest.Office, "/")
		if !v.Reached {
			t.Error("got the request held up, want it at the upstream")
		}
		wantBuffered(t, 0)
		body.Close()
		servertest.Sleep(time.Minute)
		servertest.WantEmpty(t, "slot", "other")
	})
}

// TestABodyThatCostsNeededIsBufferedOnce, and one that was too slow for them goes on.
func TestABodyThatCostsNeededIsBufferedOnce(t *testing.T) {
	servertest.InBubble(t, func(t *testing.T) {
		s := newUploadSite(t, "zone slot {\nin_flight 1 buffer 1KiB\n}\nzone items {\nlimit 100 1/d\ncost body_items rows\n}")
		quick, body := upload(s, servertest.Office, "/")
		fmt.Fprint(body, "rows=1&rows=2")
		body.Close()
		servertest.Quiet()
		wantServed(t, "slot", 1)
		wantBuffered(t, 0)
		servertest.Sleep(time.Minute)
		if level := s.Fullness("items", servertest.Office, 100, 1./86400, false); level < 1.9 || level > 2 {
			t.Errorf("got level %v, want 2", level)
		}
		slow, body := upload(s, servertest.Visitor, "/")
		for range 10 {
			fmt.Fprint(body, "rows=1&")
			servertest.Sleep(700 * time.Millisecond)
		}
		wantServed(t, "slot", 0)
		body.Close()
		servertest.Sleep(time.Minute)
		if quick.Body.String() != "rows=1&rows=2" || slow.Body.Len() != 70 {
			t.Errorf("got %q and %q", quick.Body, slow.Body)
		}
		servertest.WantEmpty(t, "slot", "items")
	})
}

// TestAClientBuffersATenthOfTheMemory, and the slot comes first for the rest. Other clients
// are not concerned.
func TestAClientBuffersATenthOfTheMemory(t *testing.T) {
	servertest.InBubble(t, func(t *testing.T) {
		s := newUploadSite(t, "zone slot {\nin_flight 100 buffer 64MiB\n}")
		large, all := upload(s, servertest.Office, "/")
		go func() { _, _ = all.Write(make([]byte, config.MostBuffered/10-64<<10)) }()
		servertest.Quiet()
		var small []*servertest.Visit
		bodies := []*io.PipeWriter{all}
		for range 40 { // of which each buffers 4 KiB
			v, body := upload(s, servertest.Office, "/")
			small, bodies = append(small, v), append(bodies, body)
		}
		other, others := upload(s, servertest.Visitor, "/")
		if large.Reached || small[0].Reached || !small[39].Reached || other.Reached {
			t.Errorf("got the uploads of one client at the upstream %v, %v and %v, and that of another %v, want the third only",
				large.Reached, small[0].Reached, small[39].Reached, other.Reached)
		}
		for _, body := range append(bodies, others) {
			fmt.Fprint(body, "end")
			body.Close()
		}
		servertest.Sleep(time.Minute)
		if small[39].Body.String() != "end" || other.Body.String() != "end" || large.Body.Len() != config.MostBuffered/10-64<<10+3 {
			t.Errorf("got %q, %q and %d bytes", small[39].Body, other.Body, large.Body.Len())
		}
		wantBuffered(t, 0)
		servertest.WantEmpty(t, "slot")
	})
}

// TestWithoutMemoryTheSlotComesFirst, and the next buffers again when there is some.
func TestWithoutMemoryTheSlotComesFirst(t *testing.T) {
	servertest.InBubble(t, func(t *testing.T) {
		s := newUploadSite(t, "zone slot {\nin_flight 100 buffer 1MiB\n}")
		if !engine.RequestBuffers.Reserve(config.MostBuffered) {
			t.Fatal("got no memory")
		}
		small, body := upload(s, servertest.Visitor, "/")
		if !small.Reached {
			t.Error("got the upload waiting, want it at the upstream")
		}
		fmt.Fprint(body, "small")
		body.Close()
		servertest.Sleep(time.Minute)
		if small.Body.String() != "small" {
			t.Errorf("got %d %q", small.Code, small.Body)
		}
		engine.RequestBuffers.Return(config.MostBuffered)
		again, body := upload(s, servertest.Office, "/")
		if again.Reached {
			t.Error("got the next upload at the upstream, want it buffered")
		}
		body.Close()
		servertest.Sleep(time.Minute)
		wantBuffered(t, 0)
		servertest.WantEmpty(t, "slot")
	})
}

// TestABodyWithoutMemoryIsUnread, and the log says so whether or not it is refused.
func TestABodyWithoutMemoryIsUnread(t *testing.T) {
	servertest.InBubble(t, func(t *testing.T) {
		s := newUploadSite(t, "zone items {\nlimit 10 1/d\ncost body_items rows\n}\nzone names {\nlimit 1 1/d\nmatch path /login\nkey form log\n}")
		logged := ""
		s.Serve = func(_ http.ResponseWriter, r *http.Request) error {
			fields, _ := json.Marshal(servertest.Logged(decision.VerdictOf(r)))
			logged = string(fields)
			return nil
		}
		post := func(addr, path string) *servertest.Visit {
			v, body := upload(s, addr, path)
			fmt.Fprint(body, "rows=1&log=bob")
			body.Close()
			servertest.Quiet()
			return v
		}
		post(servertest.Office, "/") // is read, and costs 1
		if !engine.RequestBuffers.Reserve(config.MostBuffered) {
			t.Fatal("got no memory")
		}
		defer engine.RequestBuffers.Return(config.MostBuffered)
		post("203.0.113.77", "/login") // has the bucket of unclear forms
		for addr, path := range map[string]string{servertest.Office: "/", "203.0.113.78": "/login"} {
			if v := post(addr, path); v.Code != http.StatusTooManyRequests || v.Header().Get("Retry-After") == "" {
				t.Errorf("%s: got %d, %v, want 429 and a time to wait", path, v.Code, v.Header())
			}
		}
		if post(servertest.Visitor, "/"); !strings.Contains(logged, `"reason":"memory"`) || !strings.Contains(logged, `"cost":10`) {
			t.Errorf("got the log %s, want the reason and the cost of an unread body", logged)
		}
		servertest.WantCounts(t, "items", map[string]float64{"admitted": 3, "refused memory": 1})
		servertest.WantCounts(t, "names", map[string]float64{"admitted": 1, "refused memory": 1})
	})
}

// TestAClientThatLeavesWhileItIsBufferedWithinAnotherZoneEndsThat: the context of the call
// around outlives the client.
func TestAClientThatLeavesWhileItIsBufferedWithinAnotherZoneEndsThat(t *testing.T) {
	servertest.InBubble(t, func(t *testing.T) {
		s := newUploadSite(t, "zone around {\nin_flight 5 wait 5s {\nshare client_ip\n}\n}\n}\nthrottle {\nzone slot {\nkey host\nin_flight 1 buffer 1KiB\n}")
		v, body := upload(s, servertest.Office, "/")
		servertest.Sleep(time.Second)
		v.Leave() // the body does not tell
		servertest.Quiet()
		wantServed(t, "around", 0)
		if !v.Ended || v.Reached {
			t.Errorf("got ended %v and reached %v, want it over", v.Ended, v.Reached)
		}
		body.CloseWithError(io.ErrUnexpectedEOF)
		servertest.Quiet()
		wantBuffered(t, 0)
		servertest.WantEmpty(t, "around", "slot")
	})
}

func TestAReloadLeavesBufferingRequestsAlone(t *testing.T) {
	servertest.InBubble(t, func(t *testing.T) {
		const zone = "zone slot {\nkey host\nin_flight 1 buffer 1KiB\n}"
		before := newUploadSite(t, zone)
		v, body := upload(before, servertest.Office, "/")
		after := newUploadSite(t, zone)
		polite := after.Visit(servertest.Visitor, "/")
		servertest.Sleep(2 * time.Second)
		fmt.Fprint(body, "all")
		body.Close()
		servertest.Sleep(2 * time.Second)
		if polite.Code != http.StatusOK || v.Body.String() != "all" {
			t.Errorf("got %d, and %d %q after the reload", polite.Code, v.Code, v.Body)
		}
		wantBuffered(t, 0)
		servertest.WantEmpty(t, "slot")
	})
}

// An uploadServer is a Caddy on sockets before an upstream that answers with a hash of
// what it got.
type uploadServer struct {
	url, addr string
	working   atomic.Int64
}

func newUploadServer(t *testing.T, options string) *uploadServer {
	t.Helper()
	u := new(uploadServer)
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		u.working.Add(1)
		defer u.working.Add(-1)
		hash := sha256.New()
		n, err := io.Copy(hash, r.Body)
		fmt.Fprintf(w, "%d %x %v", n, hash.Sum(nil), err)
	}))
	t.Cleanup(upstream.Close)
	port := servertest.FreeAddress(t)
	u.addr = "127.0.0.1" + port
	u.url = "http://" + u.addr
	servertest.MustLoad(t, fmt.Sprintf(`{
		servers {
			protocols h1 h2c
		}
	}
	http://%s {
		throttle {
			zone slots {
				key host
				in_flight 5 %s
			}
		}
		reverse_proxy %s
	}`, port, options, upstream.Listener.Addr()))
	return u
}

// stall begins n uploads, which then send a byte a second until the test ends.
func (u *uploadServer) stall(t *testing.T, n int) {
	t.Helper()
	done := make(chan struct{})
	var all sync.WaitGroup
	t.Cleanup(all.Wait)
	t.Cleanup(func() { close(done) })
	for range n {
		conn, err := net.Dial("tcp", u.addr)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(conn, "POST / HTTP/1.1\r\nHost: %s\r\nContent-Length: 200000\r\n\r\nx", u.addr)
		all.Go(func() {
			defer conn.Close()
			for second := time.NewTicker(time.Second); ; {
				select {
				case <-second.C:
					fmt.Fprint(conn, "x")
				case <-done:
					return
				}
			}
		})
	}
}

// TestTwoSlowUploadersHoldAllWorkersUnlessTheyAreBuffered: of ten polite requests none
// is refused, where without buffering all are.
func TestTwoSlowUploadersHoldAllWorkersUnlessTheyAreBuffered(t *testing.T) {
	for _, test := range []struct {
		options string
		refused int
	}{
		{"", 10},
		{"buffer 1MiB", 0},
	} {
		t.Run(test.options, func(t *testing.T) {
			u := newUploadServer(t, test.options)
			u.stall(t, 5) // in the trial: two addresses, of which one may hold four
			servertest.Soon(t, "the slow uploads", func() bool {
				_, served := slotsOf(t, "slots")
				return served == 5 || engine.RequestBuffers.Used() >= 5*4096
			})
			refused := 0
			for range 10 {
				resp, err := http.Post(u.url, "text/plain", bytes.NewReader([]byte("polite")))
				if err != nil {
					t.Fatal(err)
				}
				resp.Body.Close()
				if resp.StatusCode != http.StatusOK {
					refused++
				}
			}
			if refused != test.refused {
				t.Errorf("got %d of 10 polite requests refused, want %d", refused, test.refused)
			}
		})
	}
	servertest.Soon(t, "the memory", func() bool { return engine.RequestBuffers.Used() == 0 })
}

func TestUploadsArriveWholeAndWithinTheMemory(t *testing.T) {
	u := newUploadServer(t, "buffer 16MiB wait 1m")
	stop := make(chan struct{})
	var watching sync.WaitGroup
	var most int64
	watching.Go(func() {
		for {
			select {
			case <-stop:
				return
			case <-time.After(time.Millisecond):
				most = max(most, engine.RequestBuffers.Used())
			}
		}
	})
	var uploads sync.WaitGroup
	for _, http2 := range []bool{false, true} {
		for i := range 50 {
			size := []int{1, 4096, 4097, 200_000, 1 << 20, 10 << 20}[i%6]
			// A client for each: waiting requests would fill the window of a connection
			// that they share with those that are served.
			transport := &http.Transport{Protocols: new(http.Protocols), ExpectContinueTimeout: time.Minute}
			transport.Protocols.SetHTTP1(!http2)
			transport.Protocols.SetUnencryptedHTTP2(http2)
			t.Cleanup(transport.CloseIdleConnections)
			client := &http.Client{Transport: transport}
			uploads.Go(func() {
				data := make([]byte, size)
				random := rand.NewChaCha8([32]byte{byte(i)})
				_, _ = random.Read(data)
				var body io.Reader = bytes.NewReader(data)
				if i%4 == 1 {
					body = struct{ io.Reader }{body} // of unknown length
				}
				req, err := http.NewRequest(http.MethodPost, u.url, body)
				if err != nil {
					t.Error(err)
					return
				}
				if i%4 == 2 {
					req.Header.Set("Expect", "100-continue")
				}
				resp, err := client.Do(req)
				if err != nil {
					t.Error(err)
					return
				}
				defer resp.Body.Close()
				want := fmt.Sprintf("%d %x <nil>", size, sha256.Sum256(data))
				if got, err := io.ReadAll(resp.Body); string(got) != want {
					t.Errorf("http2 %v, %d bytes: got %d %s %v, want %s", http2, size, resp.StatusCode, got, err, want)
				}
			})
		}
	}
	uploads.Wait()
	close(stop)
	watching.Wait()
	t.Logf("at most %d bytes buffered", most)
	if most > config.MostBuffered {
		t.Errorf("got %d bytes buffered, want at most %d", most, config.MostBuffered)
	}
	servertest.Soon(t, "the memory", func() bool { return engine.RequestBuffers.Used() == 0 })
	servertest.Soon(t, "the slots", func() bool { _, served := slotsOf(t, "slots"); return served == 0 })
}

func TestUploadsThatBreakOffLeaveNothing(t *testing.T) {
	u := newUploadServer(t, "buffer 1MiB")
	for i := range 20 {
		conn, err := net.Dial("tcp", u.addr)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(conn, "POST / HTTP/1.1\r\nHost: %s\r\nContent-Length: 200000\r\n\r\nx", u.addr)
		if i%2 == 0 {
			_ = conn.(*net.TCPConn).SetLinger(0) // a reset
		}
		servertest.Soon(t, "the upload", func() bool { return engine.RequestBuffers.Used() > 0 })
		conn.Close()
		servertest.Soon(t, "its end", func() bool { return engine.RequestBuffers.Used() == 0 })
	}
	wantServed(t, "slots", 0)
	if n := u.working.Load(); n != 0 {
		t.Errorf("got %d at the upstream, want none", n)
	}
}

// oneConnection returns a client that sends everything over one connection of HTTP/2,
// and how many connections it has made.
func oneConnection(t *testing.T) (client *http.Client, connections *atomic.Int64) {
	t.Helper()
	connections = new(atomic.Int64)
	dialer := new(net.Dialer)
	transport := &http.Transport{Protocols: new(http.Protocols), DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
		connections.Add(1)
		return dialer.DialContext(ctx, network, addr)
	}}
	transport.Protocols.SetUnencryptedHTTP2(true)
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}, connections
}

// polite checks that a small upload is answered.
func (u *uploadServer) polite(t *testing.T, client *http.Client) {
	t.Helper()
	resp, err := client.Post(u.url, "text/plain", bytes.NewReader([]byte("polite")))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if answer, err := io.ReadAll(resp.Body); resp.StatusCode != http.StatusOK || !bytes.HasPrefix(answer, []byte("6 ")) {
		t.Fatalf("got %d %s %v, want it answered", resp.StatusCode, answer, err)
	}
}

// warm makes sure that the client goes on with one connection. A transport keeps a new
// connection for others only some time after the first request got it. It returns how
// many were made.
func (u *uploadServer) warm(t *testing.T, client *http.Client, connections *atomic.Int64) int64 {
	t.Helper()
	servertest.Soon(t, "a connection that is used again", func() bool {
		before := connections.Load()
		u.polite(t, client)
		return before > 0 && connections.Load() == before
	})
	return connections.Load()
}

func TestStalledStreamsOfAConnectionHoldUpNoOtherStream(t *testing.T) {
	u := newUploadServer(t, "buffer 1MiB")
	client, connections := oneConnection(t)
	made := u.warm(t, client, connections)
	var stalled sync.WaitGroup
	var bodies []*io.PipeWriter
	for range 20 {
		body, writer := io.Pipe()
		bodies = append(bodies, writer)
		stalled.Go(func() {
			resp, err := client.Post(u.url, "text/plain", body)
			if err != nil {
				t.Error(err)
				return
			}
			defer resp.Body.Close()
			if resp.StatusCode != http.StatusOK {
				t.Errorf("got %d for an upload that stalled, want 200", resp.StatusCode)
			}
		})
		fmt.Fprint(writer, "x")
	}
	servertest.Soon(t, "the stalled uploads", func() bool { return engine.RequestBuffers.Used() >= 20*4096 })
	wantServed(t, "slots", 0)
	for range 10 {
		u.polite(t, client)
	}
	for i, body := range bodies {
		body.Close()
		servertest.Soon(t, "the end of an upload", func() bool { return engine.RequestBuffers.Used() <= int64(19-i)*4096 })
	}
	stalled.Wait()
	if n := connections.Load(); n != made {
		t.Errorf("got %d more connections, want none", n-made)
	}
	servertest.Soon(t, "the memory", func() bool { return engine.RequestBuffers.Used() == 0 })
}

// TestUploadsOfOneConnectionTakeTurns: a connection has a window that its streams share.
// Streams that wait for a slot must not fill it, which those that are served need.
func TestUploadsOfOneConnectionTakeTurns(t *testing.T) {
	for _, test := range []struct {
		options string
		size    int // of 20 uploads, which are more than the server's window
		whole   bool
	}{
		{"buffer 3MiB wait 5m", 300 << 10, true},
		{"buffer 64KiB wait 1s", 2 << 20, false},
	} {
		t.Run(test.options, func(t *testing.T) {
			u := newUploadServer(t, test.options)
			client, connections := oneConnection(t)
			made := u.warm(t, client, connections)
			var uploads sync.WaitGroup
			var refused atomic.Int64
			for range 20 {
				uploads.Go(func() {
					resp, err := client.Post(u.url, "text/plain", bytes.NewReader(make([]byte, test.size)))
					if err != nil {
						t.Error(err)
						return
					}
					defer resp.Body.Close()
					answer, err := io.ReadAll(resp.Body)
					switch {
					case resp.StatusCode == http.StatusTooManyRequests:
						refused.Add(1)
					case resp.StatusCode != http.StatusOK || !bytes.HasPrefix(answer, fmt.Append(nil, test.size, " ")):
						t.Errorf("got %d %s %v, want all of it at the upstream", resp.StatusCode, answer, err)
					}
				})
			}
			uploads.Wait()
			t.Logf("%d of 20 refused", refused.Load())
			if test.whole && refused.Load() > 0 {
				t.Errorf("got %d refused, want none, since each waits with all of its body buffered", refused.Load())
			}
			u.polite(t, client)
			if n := connections.Load(); n != made {
				t.Errorf("got %d more connections, want none", n-made)
			}
			servertest.Soon(t, "the memory", func() bool { return engine.RequestBuffers.Used() == 0 })
			wantServed(t, "slots", 0)
		})
	}
}
