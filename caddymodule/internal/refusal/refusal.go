// Package refusal answers requests that are refused: with a page for people, with
// JSON for programs, or by the site's error routes.
package refusal

import (
	"encoding/json"
	"errors"
	"math"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
)

// errRefused is what error routes see of a refusal. Which zone, and why, is in
// the placeholders.
var errRefused = errors.New("refused by throttle")

// A Refusal says how one request is refused. The zero value is not one: it needs
// a status.
type Refusal struct {
	// Status is the status of the response.
	Status int

	// Waits says that it helps to wait: for RetryAfter, which programs are told,
	// or at least for TimeToFit, which people are told. If false, neither is
	// said.
	Waits                 bool
	RetryAfter, TimeToFit time.Duration

	// Violated returns the names of the zones that refuse, for programs. It is
	// not called for others. If nil, they are not named.
	Violated func() []string

	// Page is the user's own page. If nil, people see a page of ours.
	Page *Page

	// AsError hands the refusal to the site's error routes instead.
	AsError bool
}

// pages is memory to write pages in, kept between requests.
var pages = sync.Pool{New: func() any { return new([]byte) }}

// keptPage is how large a page may have grown for its memory to be kept.
const keptPage = 64 << 10

// Write refuses a request. That is cheaper here than in the site's error routes,
// which get it only if the refusal is AsError: then Write writes nothing but
// headers, and returns a caddyhttp.HandlerError. Otherwise it returns nil.
//
// bodyRead says that the request's body was read to its end already. If not, an
// HTTP/1 connection is closed, so that a body that nobody wants is neither
// waited for nor taken in.
func (f *Refusal) Write(w http.ResponseWriter, r *http.Request, bodyRead bool) error {
	// Values lie side by side, each with a capacity of one: other handlers change
	// values where they stand, and append to them. They are not set by Set, which
	// looks at every letter of a name.
	values := make([]string, 5)
	header := w.Header()
	set := func(name, value string) {
		header[name], values = values[:1:1], values[1:]
		header[name][0] = value
	}
	set("Cache-Control", "no-store")
	if f.Waits {
		set("Retry-After", strconv.FormatInt(WholeSeconds(f.RetryAfter), 10))
	}
	reading := linger
	if f.AsError {
		reading = routing
	}
	if endConnection(w, r, bodyRead, reading) {
		set("Connection", "close")
	}
	if f.AsError {
		// By value: Caddy looks for no other form of it.
		return caddyhttp.HandlerError{StatusCode: f.Status, Err: errRefused}
	}
	page := pages.Get().(*[]byte)
	defer keep(page)
	contentType := "text/html; charset=utf-8"
	switch {
	case acceptsJSON(r.Header["Accept"]):
		contentType = "application/problem+json"
		*page = f.appendProblem((*page)[:0])
	case f.Page != nil:
		values, _ := r.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer)
		*page = f.Page.appendTo((*page)[:0], values)
	default:
		*page = f.appendPage((*page)[:0])
	}
	set("Content-Type", contentType)
	set("Content-Length", strconv.Itoa(len(*page)))
	w.WriteHeader(f.Status)
	_, _ = w.Write(*page) // a client that is gone is no error of ours
	return nil
}

func keep(page *[]byte) {
	if cap(*page) <= keptPage {
		pages.Put(page)
	}
}

// appendPage writes a page that people can read, and that costs next to
// nothing to send.
func (f *Refusal) appendPage(page []byte) []byte {
	page = append(page, `<!DOCTYPE html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<meta name="color-scheme" content="light dark">
<title>Too many requests</title>
<style>body{font:1.1em/1.5 system-ui,sans-serif;max-width:30em;margin:20vh auto;padding:0 1em}</style>
<h1>Too many requests</h1>
`...)
	if !f.Waits {
		return append(page, "<p>This request cannot be served.</p>\n"...)
	}
	page = append(page, "<p>Please wait "...)
	page = AppendReadable(page, f.TimeToFit)
	return append(page, " and try again.</p>\n"...)
}

// appendProblem writes a body of application/problem+json (RFC 9457), of a type
// that draft-ietf-httpapi-ratelimit-headers-10 registers.
func (f *Refusal) appendProblem(page []byte) []byte {
	body := struct {
		Type     string   `json:"type"`
		Title    string   `json:"title"`
		Status   int      `json:"status"`
		Detail   string   `json:"detail,omitempty"`
		Violated []string `json:"violated-policies,omitempty"`
	}{Type: "about:blank", Title: http.StatusText(f.Status), Status: f.Status}
	if f.Waits {
		body.Detail = "Retry in " + string(AppendReadable(nil, f.TimeToFit.Round(time.Millisecond))) + "."
		if f.Status == http.StatusTooManyRequests {
			body.Type = "https://iana.org/assignments/http-problem-types#quota-exceeded"
		}
		if f.Violated != nil {
			body.Violated = f.Violated()
		}
	}
	raw, _ := json.Marshal(body) // of strings and a number
	return append(append(page, raw...), '\n')
}

// AppendReadable appends a duration as people say it, rounded up: "1 second", "3
// minutes".
func AppendReadable(text []byte, d time.Duration) []byte {
	n, unit := WholeSeconds(d), "second"
	if n > 120 {
		n, unit = (n+59)/60, "minute"
	}
	if n > 120 && unit == "minute" {
		n, unit = (n+59)/60, "hour"
	}
	text = append(strconv.AppendInt(text, n, 10), ' ')
	text = append(text, unit...)
	if n != 1 {
		text = append(text, 's')
	}
	return text
}

// WholeSeconds returns a duration as clients are told it: rounded up, so that a
// client that waits as long is not too early, and never 0, which some take for
// "at once".
func WholeSeconds(d time.Duration) int64 {
	return max(1, int64(math.Ceil(d.Seconds())))
}
