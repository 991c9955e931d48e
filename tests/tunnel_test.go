package tests

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// TestATunnelHoldsNoSlotOnceItIsOpen, because a WebSocket may last for days.
// Until it is open it holds one.
func TestATunnelHoldsNoSlotOnceItIsOpen(t *testing.T) {
	t.Parallel()
	for name, open := range map[string]func(t *testing.T, address string) io.ReadWriter{"h1": upgrade, "h2": extendedConnect} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			open101 := make(chan struct{})
			upstream := startUpstream(t, func(w http.ResponseWriter, r *http.Request) {
				if r.Header.Get("Upgrade") != "websocket" {
					return
				}
				<-open101
				conn, rw, err := http.NewResponseController(w).Hijack()
				if err != nil {
					t.Error(err)
					return
				}
				defer conn.Close()
				fmt.Fprint(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n")
				_, _ = io.Copy(conn, rw)
			})
			port := freePort(t)
			c := startCaddy(t, config{
				env: "GODEBUG=http2xconnect=1",
				sites: fmt.Sprintf(`
http://:%d {
	in_flight slots 1
	reverse_proxy %s
}`, port, upstream.address),
			})
			address := fmt.Sprintf("127.0.0.1:%d", port)
			v := newVisitor(t, "h1")
			opened := make(chan io.ReadWriter)
			go func() { opened <- open(t, address) }()
			eventually(t, "the slot to be held", func() bool { return c.served(t, "slots") == 1 })
			if a := v.get(t, "http://"+address+"/"); a.status != 429 || a.header.Get("Retry-After") != "1" {
				t.Errorf("while the tunnel opens: got %d and Retry-After %q, want 429 and 1", a.status, a.header.Get("Retry-After"))
			}
			close(open101)
			tunnels := []io.ReadWriter{<-opened}
			eventually(t, "the slot to be free", func() bool { return c.served(t, "slots") == 0 })
			for range 3 {
				tunnels = append(tunnels, open(t, address))
			}
			if a := v.get(t, "http://"+address+"/"); a.status != 200 {
				t.Errorf("while %d tunnels are open: got %d, want 200", len(tunnels), a.status)
			}
			for n, tunnel := range tunnels {
				text := fmt.Sprintf("through tunnel %d", n)
				back := make([]byte, len(text))
				if _, err := io.WriteString(tunnel, text); err != nil {
					t.Fatal(err)
				}
				if _, err := io.ReadFull(tunnel, back); err != nil || string(back) != text {
					t.Errorf("got %q, %v, want %q", back, err, text)
				}
			}
			if got := c.served(t, "slots"); got != 0 {
				t.Errorf("got %d slots held, want none", got)
			}
		})
	}
}

func dial(t *testing.T, address string) net.Conn {
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Error(err)
		return nil
	}
	t.Cleanup(func() { conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(startTime))
	return conn
}

// upgrade opens a WebSocket over HTTP/1.1.
func upgrade(t *testing.T, address string) io.ReadWriter {
	conn := dial(t, address)
	fmt.Fprintf(conn, "GET /socket HTTP/1.1\r\nHost: %s\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n", address)
	from := bufio.NewReader(conn)
	resp, err := http.ReadResponse(from, nil)
	if err != nil || resp.StatusCode != http.StatusSwitchingProtocols {
		t.Errorf("got %v, %v, want 101", resp, err)
	}
	return struct {
		io.Reader
		io.Writer
	}{from, conn}
}

// extendedConnect opens a WebSocket over HTTP/2 (RFC 8441). Go's client can do so
// only if the whole process is told to.
func extendedConnect(t *testing.T, address string) io.ReadWriter {
	conn := dial(t, address)
	s := &stream{framer: http2.NewFramer(conn, conn)}
	s.framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	_, _ = io.WriteString(conn, http2.ClientPreface)
	_ = s.framer.WriteSettings()
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	for _, field := range [][2]string{
		{":method", "CONNECT"},
		{":protocol", "websocket"},
		{":scheme", "http"},
		{":path", "/socket"},
		{":authority", address},
		{"sec-websocket-version", "13"},
		{"sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="},
	} {
		_ = encoder.WriteField(hpack.HeaderField{Name: field[0], Value: field[1]})
	}
	if err := s.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block.Bytes(), EndHeaders: true}); err != nil {
		t.Error(err)
	}
	for s.status == "" {
		if err := s.next(); err != nil {
			t.Errorf("opening a tunnel: %v", err)
			return s
		}
	}
	if s.status != "200" {
		t.Errorf("got %s, want 200", s.status)
	}
	return s
}

// stream is the only one of a connection.
type stream struct {
	framer *http2.Framer
	status string
	data   bytes.Buffer
}

// next reads a frame.
func (s *stream) next() error {
	frame, err := s.framer.ReadFrame()
	if err != nil {
		return err
	}
	switch frame := frame.(type) {
	case *http2.SettingsFrame:
		if !frame.IsAck() {
			return s.framer.WriteSettingsAck()
		}
	case *http2.MetaHeadersFrame:
		s.status = frame.PseudoValue("status")
	case *http2.DataFrame:
		s.data.Write(frame.Data())
	case *http2.RSTStreamFrame:
		return fmt.Errorf("reset: %v", frame.ErrCode)
	case *http2.GoAwayFrame:
		return fmt.Errorf("told to go away: %v", frame.ErrCode)
	}
	return nil
}

func (s *stream) Write(p []byte) (int, error) { return len(p), s.framer.WriteData(1, false, p) }

func (s *stream) Read(p []byte) (int, error) {
	for s.data.Len() == 0 {
		if err := s.next(); err != nil {
			return 0, err
		}
	}
	return s.data.Read(p)
}
