package accesslog

import (
	"cmp"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// readPeer reads what is before the time of a combined line: the client's address, or a list of
// them, behind the name of the virtual host if there is one, and the user.
func (l *namedLine) readPeer(text string) {
	l.whole = time.Microsecond
	text = strings.TrimPrefix(strings.TrimRight(text, " "), `"`) // LiteSpeed quotes the whole line
	first, rest := word(text)
	for strings.HasSuffix(first, ",") {
		next, after := word(rest)
		first, rest = first+next, after
	}
	if second, after := word(rest); after != "" && second != "-" && addressIn(second).IsValid() && !addressIn(first).IsValid() {
		l.Host, first, rest = dashless(first), second, after
	}
	if _, user := word(rest); len(user) > 1 {
		l.User = dashless(user[1:])
	}
	l.peer = first
}

// readExtras reads what is behind the fields of a combined line. The last quoted addresses are
// X-Forwarded-For in nginx's format main. Traefik has milliseconds with their unit, nginx a number with
// a point, behind others or not, and Apache a whole number of microseconds, which is one alone.
func (l *namedLine) readExtras(text string) {
	wholes, whole := 0, ""
	for n := 1; ; n++ {
		if text = strings.TrimLeft(text, " "); text == "" {
			break
		}
		token, after := word(text)
		inQuotes := text[0] == '"'
		if inQuotes {
			token, after, _ = quoted(text[1:])
		}
		text = after
		l.flagged(strconv.Itoa(n), textOf(token))
		name, value, named := strings.Cut(token, "=")
		if !inQuotes && named {
			l.flagged(name, textOf(value))
		}
		millis, isMillis := strings.CutSuffix(token, "ms")
		switch {
		case inQuotes:
			if addressIn(token).IsValid() {
				l.forwarded = token
			}
		case l.timeField != "":
		case name == "rt", name == "request_time":
			l.elapsed, l.unit = textOf(value), time.Second
		case named, l.elapsed.Exists():
		case isMillis && durationOf(millis, 1) >= 0:
			l.elapsed, l.unit, l.began = textOf(millis), time.Millisecond, l.ended
		case durationOf(token, 1) < 0:
		case strings.Contains(token, "."):
			l.elapsed, l.unit = textOf(token), time.Second
		default:
			wholes, whole = wholes+1, token
		}
	}
	if wholes == 1 && !l.elapsed.Exists() { // several may be bytes
		l.elapsed, l.unit, l.began = textOf(whole), time.Microsecond, l.ended
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

// quoted returns the text up to the closing quote, without the escapes of nginx and Apache, and
// what follows.
func quoted(text string) (inside, rest string, ok bool) {
	if end := strings.IndexAny(text, `"\`); end >= 0 && text[end] == '"' {
		return text[:end], text[end+1:], true
	}
	var b strings.Builder
	for i := 0; i < len(text); {
		switch c := text[i]; {
		case c == '"':
			return b.String(), text[i+1:], true
		case c == '\\' && i+1 < len(text):
			escaped, wide, after, err := strconv.UnquoteChar(text[i:], '"')
			if err != nil { // it stands for itself
				escaped, after = rune(text[i+1]), text[i+2:]
			}
			if wide {
				b.WriteRune(escaped)
			} else {
				b.WriteByte(byte(escaped))
			}
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
	if scheme, rest, found := strings.Cut(uri, "://"); found && (scheme == "http" || scheme == "https") { // the whole address
		host, path, _ := strings.Cut(rest, "/")
		if name, _, err := net.SplitHostPort(host); err == nil {
			host = name
		}
		r.Host, uri = cmp.Or(r.Host, host), "/"+path
	}
	r.URI = uri
	return r.Method != "" && uri != "" && uri != "*" && r.Method != http.MethodConnect
}
