package inflight

import (
	"io"
	"net/http"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/inflight/pass"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/response"
)

// listening is a next handler whose responses tell who is a member.
type listening struct {
	visit *visit
	next  caddyhttp.Handler
}

// ServeHTTP implements caddyhttp.Handler.
func (n listening) ServeHTTP(w http.ResponseWriter, r *http.Request) error {
	l := &listener{visit: n.visit}
	l.Watch(w, r)
	defer func() { l.visit.ranks.strip(w.Header()) }() // of trailers, and of what an error route would send
	err := n.next.ServeHTTP(l, r)
	if err == nil && l.Status == 0 {
		l.answered(http.StatusOK)
	}
	return err
}

// A listener is the response writer of such a handler.
type listener struct {
	response.Writer
	visit *visit
}

// WriteHeader implements http.ResponseWriter.
func (l *listener) WriteHeader(status int) {
	if l.Final(status) && !l.Tunnels() {
		l.answered(status)
	}
	l.visit.ranks.strip(l.Header())
	l.ResponseWriter.WriteHeader(status)
}

// answered adds the pass of a member to a response that names one, or takes it away, before the
// headers are sent.
func (l *listener) answered(status int) {
	v, now := l.visit, time.Now()
	event := v.client.Answered(status, l.Header(), now, func(account pass.ID) bool {
		return v.State.members.join(v.slot.Client.Addr().String(), account, now)
	})
	v.counts.answered(v.client.New(), event)
}

func (l *listener) implicitHeader() {
	if l.Status == 0 {
		l.WriteHeader(http.StatusOK)
	}
}

// Write implements http.ResponseWriter.
func (l *listener) Write(p []byte) (int, error) {
	l.implicitHeader()
	return l.ResponseWriter.Write(p)
}

// ReadFrom implements io.ReaderFrom.
func (l *listener) ReadFrom(r io.Reader) (int64, error) {
	l.implicitHeader()
	return l.Writer.ReadFrom(r)
}

// FlushError lets http.ResponseController flush, which sends headers too.
func (l *listener) FlushError() error {
	l.implicitHeader()
	_, err := l.FlushNow()
	return err
}

// Interface guards
var (
	_ caddyhttp.Handler = listening{}
	_ response.Watching = (*listener)(nil)
)
