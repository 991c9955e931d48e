// Package refusal answers requests that are refused: with a page for people, with JSON for
// programs, or by the site's error routes. Begin with [Refusal.Write].
package refusal

import (
	"cmp"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/response"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/supportcode"
)

// errRefused is what error routes see of a refusal. Which zone, and why, is in
// the placeholders.
var errRefused = errors.New("refused by throttle")

// A Refusal says how one request is refused. The zero value is not one: it needs
// a status.
type Refusal struct {
	// Status is the status of the response.
	Status int

	// Waits says that it helps to wait: for RetryAfter, which the header says, or at
	// least for TimeToFit, which the texts say. If false, neither is said.
	Waits                 bool
	RetryAfter, TimeToFit time.Duration

	// Code is what a visitor may tell the owner of the site, as built-in pages and JSON
	// say it. If zero, they do not.
	Code supportcode.Code

	// Message is what programs show to people, before the wait, in plain text. If
	// empty, it is ours, in the visitor's language. A page has its own text.
	Message string

	// LogIns says that too many logins have failed. It is said instead of the page's text,
	// unless there is a Message.
	LogIns bool

	// Banned says that an operator refuses the client's network, and no zone's message or text is true.
	Banned bool

	// Page is what people see. If nil, it is the built-in page without a brand.
	Page *Page

	// Close ends the connection after the answer, since the client's next one is dropped
	// anyway. HTTP/3 connections stay open.
	Close bool

	// AsError hands the refusal to the site's error routes instead.
	AsError bool

	// Busy says that the request found too many others ahead of it for the upstream,
	// whoever sent them. Otherwise it was refused for what its own client has sent.
	Busy bool

	// Reloads says that the page of a busy upstream reloads by itself when the wait is over.
	Reloads bool

	values []string // of headers, in one piece of memory
}

// set sets a header.
func (f *Refusal) set(header http.Header, name, value string) {
	if f.values == nil {
		f.values = make([]string, 0, 6)
	}
	n := len(f.values)
	f.values = append(f.values, value)
	header[name] = f.values[n : n+1 : n+1]
}

// pages is memory to write pages in, kept between requests.
var pages = sync.Pool{New: func() any { return new([]byte) }}

// keptPage is how large a page may have grown for its memory to be kept.
const keptPage = 64 << 10

// Write refuses a request. That is cheaper here than in the site's error routes,
// which get it only if the refusal is AsError: then Write writes nothing but
// headers, and returns a caddyhttp.HandlerError. Otherwise it returns nil.
//
// bodyRead says that the request's body was read to its end already. If not, the answer to
// an HTTP/1 request waits until the client has sent it, or too much of it. An error route
// may want the body.
func (f *Refusal) Write(w http.ResponseWriter, r *http.Request, bodyRead bool) error {
	switch {
	case bodyRead || r.ProtoMajor != 1 || r.ContentLength == 0:
	case !f.AsError:
		drain(w, r)
	case r.Close || f.Close:
		closeInStages(w)
	}
	header := w.Header()
	in := f.announce(header, r)
	if f.Close && r.ProtoMajor < 3 {
		f.set(header, "Connection", "close")
	}
	if f.AsError {
		// By value: Caddy looks for no other form of it.
		return caddyhttp.HandlerError{StatusCode: f.Status, Err: errRefused}
	}
	if in == inGRPC {
		f.endCall(w, r)
	} else {
		f.writeBody(w, r, in)
	}
	return nil
}

// announce sets the headers that all refusals have, and returns the form of the answer.
func (f *Refusal) announce(header http.Header, r *http.Request) (in form) {
	response.DropTargeted(header)
	if in = formFor(r.Header.Get("Accept"), r.Header.Get("Content-Type")); f.Status != http.StatusTooEarly && isCall(r) {
		in = inGRPC
	}
	if f.Waits {
		f.set(header, "Retry-After", strconv.FormatInt(WholeSeconds(f.RetryAfter), 10))
	}
	f.set(header, "Cache-Control", "no-store")
	if f.Busy {
		f.set(header, "Cache-Control", "no-store, private")
		f.set(header, "Cdn-Cache-Control", "no-store")
		header.Add("Vary", "Cookie")
	}
	if f.Reloads && in == inHTML && r.Method == http.MethodGet {
		f.set(header, "Refresh", strconv.FormatInt(WholeSeconds(f.RetryAfter), 10))
	}
	return in
}

// counted is how long a body may be for net/http to count its bytes and to send their
// number by itself over HTTP/1, which costs less than a header of ours.
const counted = 2048

// writeBody writes an answer in a form that has a body.
func (f *Refusal) writeBody(w http.ResponseWriter, r *http.Request, in form) {
	header, text := w.Header(), pages.Get().(*[]byte)
	delete(header, "Content-Encoding") // that a handler around has set for what the upstream would send
	delete(header, "Content-Disposition")
	*text = f.appendBody((*text)[:0], r, header, in)
	if len(*text) > counted || r.ProtoMajor != 1 || header["Content-Length"] != nil {
		f.set(header, "Content-Length", strconv.Itoa(len(*text)))
	}
	w.WriteHeader(f.Status)
	_, _ = w.Write(*text) // a client that is gone is no error of ours
	if cap(*text) <= keptPage {
		pages.Put(text)
	}
}

// appendBody writes the body, and sets the headers that tell what it is. No cache may
// keep the answer, so none needs a Vary to choose among answers.
func (f *Refusal) appendBody(text []byte, r *http.Request, header http.Header, in form) []byte {
	if in == inJSON {
		f.set(header, "Content-Type", "application/problem+json")
		return f.appendProblem(text, &languages[preferred(r.Header.Get("Accept-Language"))])
	}
	page := f.Page
	if page == nil {
		page = standard()
	}
	f.set(header, "Content-Type", "text/html; charset=utf-8")
	if page.policy == "" {
		return page.appendTo(text, r.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer))
	}
	l := preferred(r.Header.Get("Accept-Language"))
	f.set(header, "Content-Language", languages[l].Tag)
	if in == inHTML {
		f.set(header, "Content-Security-Policy", page.policy)
	}
	return page.appendNotice(text, page.notices[l][f.lookFor(r.Method, in)], &languages[l], f)
}

// appendProblem writes a body of application/problem+json (RFC 9457), of a type
// that draft-ietf-httpapi-ratelimit-headers-10 registers. Its message is for people:
// WordPress's editor shows the member of this name. Detail and message say the wait that
// the page says; Retry-After says the longer one that programs should keep.
func (f *Refusal) appendProblem(page []byte, l *language) []byte {
	body := struct {
		Type    string `json:"type"`
		Title   string `json:"title"`
		Status  int    `json:"status"`
		Detail  string `json:"detail,omitempty"`
		Message string `json:"message"`
		Code    string `json:"support_code,omitempty"`
	}{Type: "about:blank", Title: http.StatusText(f.Status), Status: f.Status, Message: f.message(l), Code: f.Code.String()}
	if f.Waits {
		body.Detail = "Retry in " + string(languages[0].appendWait(nil, f.TimeToFit.Round(time.Millisecond))) + "."
		if f.Status == http.StatusTooManyRequests {
			body.Type = "https://iana.org/assignments/http-problem-types#quota-exceeded"
		}
	}
	raw, _ := json.Marshal(body) // of strings and a number
	return append(append(page, raw...), '\n')
}

// reason returns what is the matter, if it helps to wait. text is that of the page.
func (f *Refusal) reason(l *language, text string) string {
	switch {
	case f.Banned:
		return l.Banned
	case f.LogIns && f.Message == "":
		return l.LogIns
	}
	return cmp.Or(text, l.Reason)
}

// message returns what a program shows to people.
func (f *Refusal) message(l *language) string {
	if !f.Waits {
		return strings.TrimSpace(f.Message + " " + l.NeverReason)
	}
	wait := string(l.appendWait(nil, f.TimeToFit.Round(time.Millisecond)))
	return f.reason(l, f.Message) + " " + strings.Replace(l.Wait, "%s", wait, 1)
}

// readable returns a duration as people say it, rounded up: a number of seconds, of
// minutes if there are more than 120, or of hours. The unit is 0, 1 or 2.
func readable(d time.Duration) (n int64, unit int) {
	for n = WholeSeconds(d); n > 120 && unit < 2; unit++ {
		n = (n + 59) / 60
	}
	return n, unit
}

// WholeSeconds returns a duration as clients are told it: rounded up, so that a
// client that waits as long is not too early, and never 0, which some take for
// "at once".
func WholeSeconds(d time.Duration) int64 {
	return max(1, int64((d+time.Second-1)/time.Second))
}

const (
	// maxDrain is how much of an unwanted body the server reads, as net/http does.
	maxDrain = 256 << 10

	// drainTime is how long that may take, as long as Caddy's own server lets it. An idle
	// connection may stay for five minutes, so a client that stalls gains nothing.
	drainTime = time.Minute
)

// drain reads the rest of an HTTP/1 request's body before the answer is written: many
// clients read no answer before they have sent everything. A connection of which the body
// was read to its end can be kept. Otherwise it is closed in stages.
//
// By itself, net/http does the same only where the client does not ask for the close, as
// nginx does by default, and it sets no deadline if the answer is longer than its buffer of
// 2 KiB. HTTP/2 and 3 can refuse a single request.
func drain(w http.ResponseWriter, r *http.Request) {
	if http.NewResponseController(w).SetReadDeadline(time.Now().Add(drainTime)) != nil {
		return // there is no connection
	}
	if r.Header["Expect"] == nil { // reading would ask for the body
		if _, err := io.CopyN(io.Discard, r.Body, maxDrain+1); errors.Is(err, io.EOF) {
			return
		}
	}
	closeInStages(w)
}

// closeInStages ends the connection half a second after the answer. If it were closed at
// once, what the client is still sending would be answered by a reset, and many clients and
// proxies would lose an answer that they have not read yet. net/http does so where the limit
// of a MaxBytesReader is exceeded, and here any byte exceeds it.
func closeInStages(w http.ResponseWriter) {
	var b [2]byte
	_, _ = http.MaxBytesReader(response.Innermost(w), io.NopCloser(strings.NewReader("x")), 0).Read(b[:])
}
