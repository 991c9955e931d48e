package limit

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"slices"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/record"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/response"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// An Observer is the response writer that the next handler gets where charges
// are settled, or where cost headers must be kept from clients. It serves one
// request. Set the exported fields before Serve; all may be left out.
type Observer struct {
	response.Writer

	// Shared is the request's record, if other handlers may observe the same request.
	Shared *record.Record

	// Headers are those in which upstreams say what requests cost. Clients never see them, nor
	// trailers of these names.
	Headers []string

	// BeforeHeaders is called once, before the headers of the final response are sent,
	// with those that clients never see, and may add to them. If an error route will
	// answer, it is not called.
	BeforeHeaders func(status int, header http.Header)

	// Timed measures how long the upstream takes.
	Timed bool

	// OwnHeader keeps which fields the response has from within, for [Refunds].
	OwnHeader bool

	around []string                          // headers that handlers around remove, which may want to see them first
	ctx    context.Context                   // of the request, to see when the client leaves
	bytes  int64                             // of the body
	fields struct{ before, own http.Header } // what outer handlers have set, and what comes from within; with OwnHeader
	values []string                          // of Headers; "" if absent or given twice
	began  time.Time                         // with Timed, less what the request had waited in in_flight by then, so that later waits can be taken off
	took   time.Duration                     // until there were headers, or else until the next handler was done, but for waits in in_flight
	ending
	due [1]leakybucket.Settlement // room for what settling corrects
}

// An ending is how a response has ended.
type ending struct {
	tunnel   bool  // the connection has become one
	left     bool  // the client, while there was something to send yet
	failed   bool  // to send something
	gone     bool  // the client, when the next handler was done
	returned bool  // the next handler did not panic
	err      error // of the next handler
}

// Serve calls the next handler with the observer as the response writer. When it
// has returned or panicked, the observer knows all that zones ask.
func (o *Observer) Serve(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	o.Watch(w, r)
	if o.ctx = r.Context(); len(o.Headers) > 0 {
		o.values = make([]string, len(o.Headers))
	}
	if o.Shared != nil {
		o.around = o.Shared.Hidden
		o.Shared.Hidden = slices.Concat(o.around, o.Headers)
		defer func() { o.Shared.Hidden = o.around }()
	}
	if o.OwnHeader {
		o.fields.before = w.Header().Clone()
	}
	if o.Timed {
		o.began = time.Now().Add(-record.WaitedIn(o.ctx))
	}
	defer o.end()
	o.err = next.ServeHTTP(o, r)
	o.returned = true
	return o.err
}

func (o *Observer) end() {
	o.gone = o.ctx.Err() != nil
	if o.Status == 0 {
		o.stop()
		o.look() // nothing was sent yet
		if o.returned && o.err == nil {
			o.beforeHeaders(http.StatusOK)
		}
	}
	o.readHeaders() // the server sends what is there now: headers if there were none yet, and trailers
}

// stop says for how long the upstream has had the request, with Timed.
func (o *Observer) stop() {
	if o.Timed {
		o.took = time.Since(o.began) - record.WaitedIn(o.ctx)
	}
}

// Own returns the fields of the response's header that come from within, once they are about to
// be sent. It needs OwnHeader.
func (o *Observer) Own() http.Header { return o.fields.own }

// Took says how long the response took, instead of what was measured.
func (o *Observer) Took(d time.Duration) { o.took = d }

// Left reports whether the client left before all of the answer was sent. Many
// clients leave as soon as they have the last byte, before the handler is done.
//
// A body of declared length is complete when its last piece was sent to a client
// that was still there, whatever the handler does then: a proxy fails if its
// client leaves before it has seen the end of the upstream's answer. Any other
// body is complete if everything was sent, and the handler neither panicked nor
// failed. If an answer breaks off while its client is still there, the upstream
// is at fault.
func (o *Observer) Left() bool {
	complete := o.returned && !o.failed && (o.err == nil || o.Status == 0)
	switch {
	case o.left && !o.tunnel:
		return true
	case o.Declared >= 0 && !o.tunnel:
		complete = o.ended()
	}
	return !complete && (o.failed || o.gone)
}

// ended reports whether all of a body of declared length was sent.
func (o *Observer) ended() bool { return o.Declared >= 0 && o.bytes >= o.Declared }

// WriteHeader implements http.ResponseWriter.
func (o *Observer) WriteHeader(status int) {
	if o.Status == 0 {
		o.look() // while the length of the body is not known
	}
	if o.Final(status) {
		o.stop()
		o.beforeHeaders(status)
		o.tunnel = o.tunnel || o.Tunnels()
	}
	o.readHeaders()
	o.ResponseWriter.WriteHeader(status) // statuses below 200 are sent at once
}

func (o *Observer) beforeHeaders(status int) {
	if o.OwnHeader {
		o.fields.own = ownFields(o.Header(), o.fields.before)
	}
	if o.BeforeHeaders != nil && !o.tunnel {
		o.BeforeHeaders(status, o.Header())
	}
}

// readHeaders records what the upstream says the request cost, and removes it.
func (o *Observer) readHeaders() {
	header := o.Header()
	for i, name := range o.Headers {
		for _, field := range []string{name, http.TrailerPrefix + name} { // of a trailer that was not announced
			if values := header[field]; len(values) > 0 {
				o.values[i] = response.Single(values)
			}
			if !slices.Contains(o.around, name) {
				delete(header, field)
			}
		}
	}
}

// Write implements http.ResponseWriter.
func (o *Observer) Write(p []byte) (written int, err error) {
	o.implicitHeader()
	for {
		piece := p[written:]
		if o.Frames {
			piece = piece[:min(len(piece), lastPiece)]
		}
		if len(piece) > 0 {
			o.look()
		}
		var n int
		n, err = o.ResponseWriter.Write(piece)
		o.sent(int64(n), int64(len(piece)), err)
		if written += n; err != nil || n < len(piece) || written == len(p) {
			return written, err
		}
	}
}

// ReadFrom implements io.ReaderFrom, so that files are still sent by the kernel
// where HTTP/1 allows it.
func (o *Observer) ReadFrom(r io.Reader) (n int64, err error) {
	o.implicitHeader()
	if o.Frames {
		return io.Copy(struct{ io.Writer }{o}, r)
	}
	o.look()
	n, err = o.Writer.ReadFrom(r)
	o.sent(n, n, err)
	return n, err
}

// FlushError lets http.ResponseController flush, which sends headers too.
func (o *Observer) FlushError() error {
	o.implicitHeader()
	failed, err := o.FlushNow()
	o.failed = o.failed || failed
	return err
}

func (o *Observer) implicitHeader() {
	if o.Status == 0 {
		o.WriteHeader(http.StatusOK)
	}
}

// look records whether the client has left. It is called before something is
// sent, because the client may leave with the last byte.
func (o *Observer) look() {
	if !o.left && !o.ended() {
		o.left = o.ctx.Err() != nil
	}
}

// lastPiece is how large the end of a body is that may fail to be sent. With
// HTTP/2 and 3 it cannot be told whether the client left before that or with the
// last byte, so larger pieces are cut.
const lastPiece = 64 << 10

// sent notes the n bytes that were sent of a piece of that size.
func (o *Observer) sent(n, size int64, err error) {
	switch {
	case o.Head || response.Excess(err):
		return // more than the server sends
	case err != nil && o.Frames && o.Declared >= 0 && o.bytes+size >= o.Declared:
		n = size
	case err != nil:
		o.failed = true
	}
	o.bytes += n
}

// Hijack implements http.Hijacker, for handlers that take the connection over.
func (o *Observer) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, buffered, err := http.NewResponseController(o.ResponseWriter).Hijack()
	o.tunnel = o.tunnel || err == nil
	return conn, buffered, err
}
