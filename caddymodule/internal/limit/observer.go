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
	// with those that clients never see, and may add to them. It is not called if an error route
	// will answer, or for a tunnel.
	BeforeHeaders func(status int, header http.Header)

	// Timed measures how long the upstream takes.
	Timed bool

	around []string        // headers that handlers around remove, which may want to see them first
	ctx    context.Context // of the request
	bytes  int64           // of the body
	values []string        // of Headers; "" if absent or given twice
	began  time.Time       // with Timed
	waited time.Duration   // what the request had waited in in_flight by then
	took   time.Duration   // with Timed, until there were headers, or else until the next handler was done, but for waits in in_flight
	ending
	due [1]leakybucket.Settlement // room for what settling corrects
}

// An ending is how a response has ended.
type ending struct {
	tunnel   bool  // the connection has become one
	left     bool  // the client, before the headers or while the rest was sent
	failed   bool  // to send something
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
		o.around, o.waited = o.Shared.Hidden, o.Shared.Waited
		o.Shared.Hidden = slices.Concat(o.around, o.Headers)
		defer func() { o.Shared.Hidden = o.around }()
	}
	if o.Timed {
		o.began = time.Now()
	}
	defer o.end()
	o.err = next.ServeHTTP(o, r)
	o.returned = true
	return o.err
}

func (o *Observer) end() {
	broken := !o.returned || o.err != nil || o.bytes < o.Declared
	if o.Status == 0 {
		o.answered()
		if !broken {
			o.beforeHeaders(http.StatusOK)
		}
	}
	o.readHeaders(true) // the server sends what is there now: headers if there were none yet, and trailers
	o.left = o.left || !o.ended() && (o.failed || broken && o.ctx.Err() != nil)
}

// answered notes, before the headers are sent, whether the client has left, and with Timed for
// how long the upstream has had the request.
func (o *Observer) answered() {
	o.left = o.ctx.Err() != nil
	if o.Timed {
		o.took = time.Since(o.began)
		if o.Shared != nil {
			o.took -= o.Shared.Waited - o.waited
		}
	}
}

// Took says how long the response took, instead of what was measured.
func (o *Observer) Took(d time.Duration) { o.took = d }

// Left reports whether the client left before the headers, or else before the rest, as far as anybody
// has seen: what was not sent, or an upstream that broke off when the client was gone. Many clients leave
// as soon as they have the last byte, before a proxy has seen the end of the upstream's answer, so a body
// of declared length is complete when its last byte was sent. If an answer breaks off while its client is
// still there, the upstream is at fault. A tunnel has no end that could be missed.
func (o *Observer) Left() bool { return o.left && !o.tunnel }

// ended reports whether all of a body of declared length was sent.
func (o *Observer) ended() bool { return o.Declared >= 0 && o.bytes >= o.Declared }

// WriteHeader implements http.ResponseWriter.
func (o *Observer) WriteHeader(status int) {
	if o.Final(status) {
		o.answered()
		o.tunnel = o.tunnel || o.Tunnels()
		o.beforeHeaders(status)
	}
	o.readHeaders(true)
	o.ResponseWriter.WriteHeader(status) // statuses below 200 are sent at once
}

func (o *Observer) beforeHeaders(status int) {
	if o.BeforeHeaders != nil && !o.tunnel {
		o.readHeaders(false)
		o.BeforeHeaders(status, o.Header())
	}
}

// readHeaders records what the upstream says the request cost, and removes it if it is to be hidden.
func (o *Observer) readHeaders(hide bool) {
	header := o.Header()
	for i, name := range o.Headers {
		for _, field := range []string{name, http.TrailerPrefix + name} { // of a trailer that was not announced
			if values := header[field]; len(values) > 0 {
				o.values[i] = response.Single(values)
			}
			if hide && !slices.Contains(o.around, name) {
				delete(header, field)
			}
		}
	}
}

// Write implements http.ResponseWriter.
func (o *Observer) Write(p []byte) (n int, err error) {
	o.implicitHeader()
	n, err = o.ResponseWriter.Write(p)
	o.sent(int64(n), err)
	return n, err
}

// ReadFrom implements io.ReaderFrom, so that files are still sent by the kernel
// where HTTP/1 allows it.
func (o *Observer) ReadFrom(r io.Reader) (n int64, err error) {
	o.implicitHeader()
	n, err = o.Writer.ReadFrom(r)
	o.sent(n, err)
	return n, err
}

// FlushError lets http.ResponseController flush, which sends headers too.
func (o *Observer) FlushError() error {
	o.implicitHeader()
	err := http.NewResponseController(o.ResponseWriter).Flush()
	o.failed = o.failed || response.Lost(err)
	return err
}

func (o *Observer) implicitHeader() {
	if o.Status == 0 {
		o.WriteHeader(http.StatusOK)
	}
}

// sent notes the n bytes that were sent. More than the server sends is no failure.
func (o *Observer) sent(n int64, err error) {
	if !o.Head {
		o.bytes += n
		o.failed = o.failed || response.Lost(err)
	}
}

// Hijack implements http.Hijacker, for handlers that take the connection over.
func (o *Observer) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, buffered, err := http.NewResponseController(o.ResponseWriter).Hijack()
	o.tunnel = o.tunnel || err == nil
	return conn, buffered, err
}
