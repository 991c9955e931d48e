package caddymodule

import (
	"errors"
	"fmt"
	"html"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"sync"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
)

// errRefused is what error routes see of a refusal. Which zone, and why, is in
// the placeholders.
var errRefused = errors.New("refused by throttle")

// pages is memory to write pages in, kept between requests.
var pages = sync.Pool{New: func() any { return new([]byte) }}

// refuse answers a request that was refused: it is cheaper to be written here
// than to be sent through the site's error routes.
func (p *passage) refuse(w http.ResponseWriter, r *http.Request) error {
	o := p.decisive()
	z := o.zone
	header := w.Header()
	// Not by Set, which looks at every letter of a name; and not the same slice
	// twice, since other handlers change values where they stand.
	header["Cache-Control"] = []string{"no-store"}
	if o.waits() {
		header["Retry-After"] = []string{strconv.FormatInt(wholeSeconds(o.retryAfter()), 10)}
	}
	if holdsUp(r) {
		header["Connection"] = []string{"close"}
	}
	status := z.Status
	switch {
	case p.status != 0:
		status = p.status
	case o.reason == noStore:
		status = http.StatusServiceUnavailable
	case o.reason == earlyData:
		status = http.StatusTooEarly // browsers send it again by themselves
	}
	if z.Refuse == refuseError {
		// By value: Caddy looks for no other form of it.
		return caddyhttp.HandlerError{StatusCode: status, Err: errRefused}
	}
	room := pages.Get().(*[]byte)
	defer pages.Put(room)
	contentType := "text/html; charset=utf-8"
	switch {
	case prefersJSON(r):
		contentType, *room = "application/problem+json", p.problem(status)
	case z.page != nil:
		*room = z.appendOwnPage((*room)[:0], r)
	default:
		*room = o.appendPage((*room)[:0])
	}
	header["Content-Type"] = []string{contentType}
	header["Content-Length"] = []string{strconv.Itoa(len(*room))}
	w.WriteHeader(status)
	_, _ = w.Write(*room) // a client that is gone is no error of ours
	return nil
}

// holdsUp reports whether the server would wait for a body that nobody wants
// before it sends the refusal, or take in more of it than a new connection
// costs. HTTP/1 has no other way to say no to an upload than to close.
func holdsUp(r *http.Request) bool {
	const inOnePiece = 64 << 10
	if u, ok := r.Body.(*upload); r.ProtoMajor != 1 || ok && u.drained() {
		return false
	}
	return r.ContentLength < 0 || r.ContentLength > inOnePiece || r.ContentLength > 0 && r.Header.Get("Expect") != ""
}

// appendPage writes a page that people can read, and that costs next to
// nothing to send.
func (o *outcome) appendPage(page []byte) []byte {
	page = append(page, `<!DOCTYPE html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<meta name="color-scheme" content="light dark">
<title>Too many requests</title>
<style>body{font:1.1em/1.5 system-ui,sans-serif;max-width:30em;margin:20vh auto;padding:0 1em}</style>
<h1>Too many requests</h1>
`...)
	if !o.waits() {
		return append(page, "<p>This request cannot be served.</p>\n"...)
	}
	page = append(page, "<p>Please wait "...)
	page = appendReadable(page, o.timeToFit())
	return append(page, " and try again.</p>\n"...)
}

// appendReadable writes a duration as people say it, rounded up.
func appendReadable(text []byte, d time.Duration) []byte {
	n, unit := wholeSeconds(d), "second"
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

// pagePlaceholder is narrower than what Caddy takes for a placeholder, so that
// a page's style sheets and scripts stay what they are.
var pagePlaceholder = regexp.MustCompile(`\{[a-z]+\.[^{}\s:;"']+\}`)

// loadPage reads the page that users gave, if they did.
func loadPage(file string) ([]piece, error) {
	if file == "" {
		return nil, nil
	}
	const most = 1 << 20
	raw, err := os.ReadFile(file)
	if err != nil {
		if full, e := filepath.Abs(file); e == nil && !filepath.IsAbs(file) {
			return nil, fmt.Errorf("reading page: %w (that is %s)", err, full)
		}
		return nil, fmt.Errorf("reading page: %w", err)
	}
	if len(raw) > most {
		return nil, fmt.Errorf("reading page: %s has %d bytes: want at most %d", file, len(raw), most)
	}
	return split(string(raw), pagePlaceholder), nil
}

// split cuts a text into literal pieces and placeholders.
func split(text string, placeholder *regexp.Regexp) []piece {
	pieces := []piece{}
	end := 0
	for _, at := range placeholder.FindAllStringIndex(text, -1) {
		if at[0] > end {
			pieces = append(pieces, piece{text: text[end:at[0]]})
		}
		pieces = append(pieces, piece{placeholder: text[at[0]+1 : at[1]-1]})
		end = at[1]
	}
	if end < len(text) {
		pieces = append(pieces, piece{text: text[end:]})
	}
	return pieces
}

// appendOwnPage fills placeholders in, once: what a value contains is text. What
// only looks like one, as a script may, stays as it is.
func (z *Zone) appendOwnPage(page []byte, r *http.Request) []byte {
	repl, _ := r.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer)
	for _, piece := range z.page {
		if piece.placeholder == "" {
			page = append(page, piece.text...)
		} else if value, known := repl.GetString(piece.placeholder); known {
			page = append(page, html.EscapeString(value)...)
		} else {
			page = append(page, "{"+piece.placeholder+"}"...)
		}
	}
	return page
}
