package tests

import (
	"bytes"
	"fmt"
	"net"
	"testing"
	"time"

	"golang.org/x/net/http2"
)

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
