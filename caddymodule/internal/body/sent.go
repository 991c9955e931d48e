package body

import (
	"errors"
	"io"
	"net/http"
	"sync/atomic"
)

// A sentBody is a request's body that tells when it has been read to its end.
type sentBody struct {
	io.ReadCloser
	sent func()
	over atomic.Bool
}

// WhenSent calls sent once all of a request's body has been read: at once if it has
// none, or is a CONNECT request, whose body is a tunnel. Otherwise it replaces r.Body,
// and the goroutine that reads the end calls sent. A body that breaks off never ends.
func WhenSent(r *http.Request, sent func()) {
	if none(r) || r.Method == http.MethodConnect {
		sent()
		return
	}
	r.Body = &sentBody{ReadCloser: r.Body, sent: sent}
}

// none reports whether a request has no body.
func none(r *http.Request) bool {
	return r.Body == nil || r.Body == http.NoBody || r.ContentLength == 0
}

// Read implements io.Reader.
func (b *sentBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if errors.Is(err, io.EOF) && !b.over.Swap(true) {
		b.sent()
	}
	return n, err
}
