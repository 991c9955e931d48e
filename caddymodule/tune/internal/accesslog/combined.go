package accesslog

import (
	"net/http"
	"strconv"
	"strings"
	"time"
)

// parseCombined reads a line of the common or combined format. After them may come a
// request time, and before them the name of a virtual host.
func (p *parser) parseCombined(r *Request, line string) (verdict, string) {
	// The time ends just before the request. What is before it is written by clients.
	quote := strings.IndexByte(line, '"')
	before, ended := strings.CutSuffix(line[:max(0, quote)], "] ")
	from := len(before) - len(commonTime)
	switch {
	case (!ended || from < 1) && strings.Contains(line, "\tINFO\t"):
		return unreadable, "Caddy's console format, which has no defined fields: log as JSON"
	case !ended || from < 1:
		return unreadable, "neither Caddy's JSON nor a common or combined log line"
	case line[from-1] != '[':
		return unreadable, "no time such as [02/Jan/2006:15:04:05 -0700] before the request"
	}
	at, ok := p.parseStamp(before[from:])
	if !ok {
		return unreadable, "unknown time " + strconv.Quote(before[from:])
	}
	p.parsePeer(r, before[:from-1])
	asked, rest, ok := quoted(line[quote:])
	if !ok {
		return unreadable, "the request has no closing quote"
	}
	if !r.parseRequestLine(asked) {
		return other, "" // the server answered what was no HTTP
	}
	status, rest := word(rest)
	code, err := strconv.ParseUint(status, 10, 16)
	if r.Status = int(code); err != nil || len(status) != 3 {
		return unreadable, "no status after the request"
	}
	size, rest := word(rest)
	if n, err := strconv.ParseUint(size, 10, 63); err == nil {
		r.Size = int64(n)
	}
	if len(rest) > 1 && rest[1] == '"' {
		referer, after, ok := quoted(rest[1:])
		agent, last, ok2 := quoted(strings.TrimPrefix(after, " "))
		if ok && ok2 {
			r.referer, r.agent = dashless(referer), agent // none, as "-", is no browser's
			rest = last
		}
	}
	took, began := p.requestTime(rest)
	r.Duration = took
	return p.timed(r, at, !began)
}

// parsePeer reads what is before the time: the client's address, behind the name of
// the virtual host if there is one, and the user.
func (p *parser) parsePeer(r *Request, text string) {
	text = strings.TrimRight(text, " ")
	first, rest := word(text)
	if second, after := word(rest); after != "" && second != "-" && parseAddr(second).IsValid() && !parseAddr(first).IsValid() {
		r.Host, first, rest = first, second, after
	}
	r.sentBy(first)
	if _, user := word(rest); len(user) > 1 {
		r.User = dashless(user[1:])
	}
}

// word returns what is before the next space, after leading ones, and the rest.
func word(text string) (word, rest string) {
	text = strings.TrimLeft(text, " ")
	if i := strings.IndexByte(text, ' '); i >= 0 {
		return text[:i], text[i:]
	}
	return text, ""
}

// dashless returns the text, or nothing for the dash that stands for it.
func dashless(text string) string {
	if text == "-" {
		return ""
	}
	return text
}

// quoted returns the text between quotes, without the escapes of nginx and Apache, and
// what follows.
func quoted(text string) (inside, rest string, ok bool) {
	if text == "" || text[0] != '"' {
		return "", text, false
	}
	text = text[1:]
	if end := strings.IndexAny(text, `"\`); end >= 0 && text[end] == '"' {
		return text[:end], text[end+1:], true
	}
	var b strings.Builder
	for i := 0; i < len(text); {
		switch c := text[i]; {
		case c == '"':
			return b.String(), text[i+1:], true
		case c == '\\' && i+1 < len(text):
			escaped, _, after, err := strconv.UnquoteChar(text[i:], '"')
			if err != nil { // it stands for itself
				escaped, after = rune(text[i+1]), text[i+2:]
			}
			b.WriteByte(byte(escaped))
			i = len(text) - len(after)
		default:
			b.WriteByte(c)
			i++
		}
	}
	return "", "", false
}

// parseRequestLine splits the request line. It returns false if it is none that a site
// serves: Apache asks itself OPTIONS *, and CONNECT looks for open proxies.
func (r *Request) parseRequestLine(line string) bool {
	var uri string
	r.Method, uri, _ = strings.Cut(line, " ")
	if strings.ContainsFunc(r.Method, func(c rune) bool { return c <= ' ' || c >= 0x7f }) {
		return false
	}
	if proto := strings.LastIndex(uri, " HTTP/"); proto >= 0 {
		uri, r.Proto = uri[:proto], uri[proto+1:]
	}
	r.URI = uri
	return r.Method != "" && uri != "" && uri != "*" && r.Method != http.MethodConnect
}

// requestTime returns how long the request took, by what is behind the fields of the
// combined format, and whether the time of the line is that of its beginning. Traefik has
// milliseconds with their unit, nginx a number with a point, behind others or not, and
// Apache a whole number of microseconds, which is one alone.
func (p *parser) requestTime(text string) (d time.Duration, began bool) {
	wholes := 0
	d = NoDuration
	for n := 1; ; n++ {
		var token string
		if text = strings.TrimLeft(text, " "); text == "" {
			break
		} else if text[0] == '"' {
			token, text, _ = quoted(text)
			if p.field == "" {
				continue
			}
		} else {
			token, text = word(text)
		}
		if p.field != "" {
			name, value, named := strings.Cut(token, "=")
			if strconv.Itoa(n) == p.field {
				name, value, named = p.field, token, true
			}
			if named && name == p.field {
				return p.timeOf(value, time.Microsecond), false
			}
			continue
		}
		token = strings.TrimPrefix(strings.TrimPrefix(token, "rt="), "request_time=")
		if millis, found := strings.CutSuffix(token, "ms"); found && p.timeOf(millis, time.Millisecond) >= 0 {
			return p.timeOf(millis, time.Millisecond), true
		}
		took := p.timeOf(token, time.Microsecond)
		switch {
		case took < 0:
		case strings.Contains(token, "."):
			return took, false
		default:
			wholes++
			d = took
		}
	}
	if wholes > 1 { // such as bytes
		return NoDuration, false
	}
	return d, wholes == 1
}

// timeOf reads a duration. A number with a point is in seconds, and a whole one in that
// unit, unless --time-field has one.
func (p *parser) timeOf(text string, whole time.Duration) time.Duration {
	n, err := strconv.ParseFloat(text, 64)
	switch {
	case err != nil || !(n >= 0):
		return NoDuration
	case p.unit > 0:
		whole = p.unit
	case strings.Contains(text, "."):
		whole = time.Second
	}
	return bounded(n, whole)
}

// parseStamp reads a time such as 02/Jan/2006:15:04:05 -0700. Many lines have that of
// the line before.
func (p *parser) parseStamp(text string) (time.Time, bool) {
	if text != p.stamp {
		at, err := time.Parse(commonTime, text)
		if err != nil {
			return at, false
		}
		p.stamp, p.at = text, at
	}
	return p.at, true
}
