package tune

import (
	"context"
	"io"
)

// An interruptible reader ends when its context does, also while it waits for input.
type interruptible struct {
	ctx  context.Context
	in   io.Reader
	buf  []byte
	read chan readResult
}

type readResult struct {
	n   int
	err error
}

// Read implements io.Reader.
func (i *interruptible) Read(p []byte) (int, error) {
	if i.read == nil {
		i.read = make(chan readResult, 1)
	}
	if len(i.buf) < len(p) {
		i.buf = make([]byte, len(p))
	}
	room := i.buf[:len(p)]
	go func() {
		n, err := i.in.Read(room)
		i.read <- readResult{n, err}
	}()
	select {
	case got := <-i.read:
		return copy(p, room[:got.n]), got.err
	case <-i.ctx.Done():
		return 0, io.EOF
	}
}
