package accesslog

import (
	"bytes"
	"strconv"
	"time"
)

// parseCombined reads a line of the common or combined format. After them may come a
// request time, and before them the name of a virtual host.
func (p *parser) parseCombined(r *Request, line []byte) (verdict, string) {
	quote := bytes.IndexByte(line, '"')
	// The time ends just before the request. What is before it is written by clients.
	if quote < len(commonTime)+4 || line[quote-1] != ' ' || line[quote-2] != ']' {
		if bytes.Contains(line, []byte("\tINFO\t")) {
			return unreadable, "Caddy's console format, which has no defined fields: log as JSON"
		}
		return unreadable, "neither Caddy's JSON nor a common or combined log line"
	}
	from := quote - 2 - len(commonTime)
	if line[from-1] != '[' {
		return unreadable, "no time such as [02/Jan/2006:15:04:05 -0700] before the request"
	}
	at, ok := p.parseStamp(line[from : quote-2])
	if !ok {
		return unreadable, "unknown time " + strconv.Quote(string(line[from:quote-2]))
	}
	p.parsePeer(r, line[:from-1])
	asked, rest, ok := quoted(line[quote:])
	if !ok {
		return unreadable, "the request has no closing quote"
	}
	if !r.parseRequestLine(asked) {
		return other, "" // the server answered what was no HTTP
	}
	status, rest := word(rest)
	if r.Status, ok = parseStatus(status); !ok {
		return unreadable, "no status after the request"
	}
	size, rest := word(rest)
	if n, _, ok := parseDecimal(size); ok {
		r.Size = n
	}
	if len(rest) > 1 && rest[1] == '"' {
		referer, after, ok := quoted(rest[1:])
		agent, last, ok2 := quoted(bytes.TrimPrefix(after, []byte(" ")))
		if ok && ok2 {
			r.referer, r.agent = dashless(referer), dashless(agent)
			rest = last
		}
	}
	var micros bool
	if r.Duration, micros = p.requestTime(rest); micros {
		r.Format = Apache
	}
	return p.timed(r, at, r.Format != Apache)
}

// parsePeer reads what is before the time: the client's address, behind the name of
// the virtual host if there is one, and the user.
func (p *parser) parsePeer(r *Request, text []byte) {
	text = bytes.TrimRight(text, " ")
	first, rest := word(text)
	client := parseAddr(first)
	if second, after := word(rest); !client.IsValid() && len(after) > 0 {
		if addr := parseAddr(second); addr.IsValid() {
			r.Host = view(first)
			first, rest, client = second, after, addr
		}
	}
	r.Client, r.ClientText, r.Remote = client, view(first), view(first)
	if _, user := word(rest); len(user) > 1 {
		r.User = dashless(user[1:])
	}
}

// word returns what is before the next space, after leading ones, and the rest.
func word(text []byte) (word, rest []byte) {
	for len(text) > 0 && text[0] == ' ' {
		text = text[1:]
	}
	if i := bytes.IndexByte(text, ' '); i >= 0 {
		return text[:i], text[i:]
	}
	return text, nil
}

// dashless returns the text, or nothing for the dash that stands for it.
func dashless(text []byte) string {
	if len(text) == 1 && text[0] == '-' {
		return ""
	}
	return view(text)
}

// quoted returns the text between quotes, unescaped in place, and what follows.
func quoted(text []byte) (inside, rest []byte, ok bool) {
	if len(text) == 0 || text[0] != '"' {
		return nil, text, false
	}
	end := bytes.IndexByte(text[1:], '"') + 1
	if end == 0 {
		return nil, nil, false
	}
	if inside := text[1:end]; bytes.IndexByte(inside, '\\') < 0 {
		return inside, text[end+1:], true
	}
	to := text[1:1]
	for i := 1; i < len(text); i++ {
		switch c := text[i]; {
		case c == '"':
			return to, text[i+1:], true
		case c != '\\' || i+1 == len(text):
			to = append(to, c)
		default:
			b, n := unescapeC(text[i+1:])
			to = append(to, b)
			i += n
		}
	}
	return nil, nil, false
}

// unescapeC returns the byte that an escape of nginx or Apache stands for, and how long
// it is without its backslash.
func unescapeC(text []byte) (byte, int) {
	switch c := text[0]; c {
	case 'x':
		if len(text) >= 3 {
			if b, err := strconv.ParseUint(view(text[1:3]), 16, 8); err == nil {
				return byte(b), 3
			}
		}
		return c, 1
	case 'n':
		return '\n', 1
	case 't':
		return '\t', 1
	case 'r':
		return '\r', 1
	case 'b':
		return '\b', 1
	case 'v':
		return '\v', 1
	default:
		return c, 1
	}
}

// parseRequestLine splits the request line. It returns false if it is none that a site
// serves: Apache asks itself OPTIONS *, and CONNECT looks for open proxies.
func (r *Request) parseRequestLine(line []byte) bool {
	method := bytes.IndexByte(line, ' ')
	if method <= 0 {
		return false
	}
	for _, c := range line[:method] {
		if c <= ' ' || c >= 0x7f {
			return false
		}
	}
	r.Method = view(line[:method])
	uri := line[method+1:]
	if proto := bytes.LastIndex(uri, []byte(" HTTP/")); proto >= 0 {
		uri, r.Proto = uri[:proto], view(uri[proto+1:])
	}
	r.URI = view(uri)
	return len(uri) > 0 && r.URI != "*" && r.Method != "CONNECT"
}

// parseStatus reads a status of three digits.
func parseStatus(text []byte) (int, bool) {
	n, _, ok := parseDecimal(text)
	return int(n), ok && len(text) == 3
}

// requestTime returns the first number after the fields of the combined format, and
// whether it is Apache's, in microseconds. It may stand behind rt= or request_time=.
func (p *parser) requestTime(text []byte) (d time.Duration, micros bool) {
	for len(text) > 0 {
		var token []byte
		if text = bytes.TrimLeft(text, " "); len(text) > 0 && text[0] == '"' {
			_, after, ok := quoted(text)
			if !ok {
				break
			}
			text = after
			continue
		}
		token, text = word(text)
		token, _ = bytes.CutPrefix(token, []byte("rt="))
		token, _ = bytes.CutPrefix(token, []byte("request_time="))
		whole, fraction, ok := parseDecimal(token)
		switch {
		case !ok:
			continue
		case p.format != Nginx && bytes.IndexByte(token, '.') < 0:
			return bounded(whole, time.Microsecond), true
		}
		return bounded(whole, time.Second) + time.Duration(fraction), false
	}
	return NoDuration, false
}

// parseStamp reads a time such as 02/Jan/2006:15:04:05 -0700. Many lines have that of
// the line before.
func (p *parser) parseStamp(text []byte) (time.Time, bool) {
	if string(text) == string(p.stamp) {
		return p.at, true
	}
	at, ok := parseCommonTime(text)
	if ok {
		p.stamp, p.at = append(p.stamp[:0], text...), at
	}
	return at, ok
}

const months = "JanFebMarAprMayJunJulAugSepOctNovDec"

// parseCommonTime reads a time such as 02/Jan/2006:15:04:05 -0700.
func parseCommonTime(t []byte) (time.Time, bool) {
	if len(t) != len(commonTime) || t[2] != '/' || t[6] != '/' || t[11] != ':' || t[14] != ':' || t[17] != ':' || t[20] != ' ' {
		return time.Time{}, false
	}
	month := bytes.Index([]byte(months), t[3:6])
	numbers := [7]int{}
	for i, at := range [7][2]int{{0, 2}, {7, 11}, {12, 14}, {15, 17}, {18, 20}, {22, 24}, {24, 26}} {
		n, _, ok := parseDecimal(t[at[0]:at[1]])
		if !ok {
			return time.Time{}, false
		}
		numbers[i] = int(n)
	}
	day, year, hour, minute, second := numbers[0], numbers[1], numbers[2], numbers[3], numbers[4]
	if month < 0 || month%3 != 0 || day < 1 || day > 31 || hour > 23 || minute > 59 || second > 60 || t[21] != '+' && t[21] != '-' {
		return time.Time{}, false
	}
	offset := time.Duration(numbers[5])*time.Hour + time.Duration(numbers[6])*time.Minute
	if t[21] == '-' {
		offset = -offset
	}
	return time.Date(year, time.Month(month/3+1), day, hour, minute, second, 0, time.UTC).Add(-offset), true
}
