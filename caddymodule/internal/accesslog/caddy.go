package accesslog

import (
	"net/netip"
	"strconv"
	"strings"
	"time"
)

// accessLogger is the name of Caddy's access log. A dot and a name may follow.
const accessLogger = "http.log.access"

// parseCaddy reads a line of Caddy's JSON.
func (p *parser) parseCaddy(r *Request, line []byte) (verdict, string) {
	s := scanner{data: line}
	var ts, elapsed, logger, message, remote, client []byte
	named, texts, found := false, [2]bool{}, false
	s.eat('{')
	for first := true; s.more(&first, '}'); {
		switch key := s.name(); string(key) {
		case "ts", "time", "timestamp", "@timestamp", "t", "date", "datetime":
			if ts != nil { // one that somebody has added
				s.skip()
			} else if texts[0] = s.kind() == '"'; texts[0] {
				ts = s.text()
			} else {
				ts = s.number()
			}
		case "duration":
			if texts[1] = s.kind() == '"'; texts[1] {
				elapsed = s.text()
			} else {
				elapsed = s.number()
			}
		case "logger":
			logger, named = s.textOr(), true
		case "msg", "message":
			if text := s.textOr(); message == nil {
				message = text
			}
		case "status":
			r.Status, _ = strconv.Atoi(view(s.number()))
		case "size":
			if n, err := strconv.ParseInt(view(s.number()), 10, 64); err == nil && n >= 0 {
				r.Size = n
			}
		case "bytes_read":
			if n, err := strconv.ParseInt(view(s.number()), 10, 64); err == nil && n >= 0 {
				r.Received = n
			}
		case "user_id":
			r.User = view(s.textOr())
		case "throttle":
			r.Throttle = s.raw()
		case "request":
			if s.kind() != '{' {
				s.skip()
				continue
			}
			found = true
			remote, client = p.parseCaddyRequest(r, &s)
		default:
			s.skip()
		}
	}
	switch s.kind(); {
	case s.bad || s.at < len(s.data):
		return unreadable, "no valid JSON"
	case !found:
		return other, ""
	case named && !isAccess(string(logger)):
		return other, ""
	case !named && len(message) > 0 && string(message) != "handled request" && string(message) != "NOP":
		return other, "" // such as that of an error, which the access log repeats
	case ts == nil:
		return unreadable, "no time: want a field ts"
	}
	r.Remote = view(remote)
	if len(client) == 0 {
		client = remote
	}
	r.ClientText = view(client)
	r.Client = parseAddr(client)
	at, ok := p.parseTime(ts, texts[0])
	if !ok {
		return unreadable, "unknown time " + strconv.Quote(string(ts[:min(len(ts), 40)]))
	}
	r.Duration = p.parseDuration(elapsed, texts[1])
	return p.timed(r, at, true)
}

// isAccess reports whether a logger is the access log.
func isAccess(logger string) bool {
	rest, ok := strings.CutPrefix(logger, accessLogger)
	return ok && (rest == "" || rest[0] == '.')
}

// parseCaddyRequest reads the request of a line of Caddy's.
func (p *parser) parseCaddyRequest(r *Request, s *scanner) (remote, client []byte) {
	s.eat('{')
	for first := true; s.more(&first, '}'); {
		switch key := s.name(); string(key) {
		case "remote_ip":
			remote = s.textOr()
		case "client_ip":
			client = s.textOr()
		case "proto":
			r.Proto = view(s.textOr())
		case "method":
			r.Method = view(s.textOr())
		case "host":
			r.Host = view(s.textOr())
		case "uri":
			r.URI = view(s.textOr())
		case "headers":
			r.headers = r.skipHeaders(s)
		case "tls":
			r.TLS = s.kind() == '{'
			s.skip()
		default:
			s.skip()
		}
	}
	return remote, client
}

// skipHeaders returns the text of the headers, and notes the user agent.
func (r *Request) skipHeaders(s *scanner) []byte {
	if s.kind() != '{' {
		s.skip()
		return nil
	}
	from := s.at
	s.eat('{')
	for first := true; s.more(&first, '}'); {
		name, _ := s.span()
		s.eat(':')
		if string(name) != "User-Agent" || s.kind() != '[' {
			s.skip()
			continue
		}
		s.eat('[')
		for one := true; s.more(&one, ']'); {
			if r.agent == "" && s.kind() == '"' {
				r.agent = readText(s)
			} else {
				s.skip()
			}
		}
	}
	if s.bad {
		return nil
	}
	return s.data[from:s.at:s.at]
}

// caddyHeaders iterates over the headers of a line of Caddy's.
func (r *Request) caddyHeaders(yield func(name, value string) bool) {
	s := scanner{data: r.headers}
	if s.kind() != '{' {
		return
	}
	s.eat('{')
	for first := true; s.more(&first, '}'); {
		name := readText(&s)
		s.eat(':')
		if s.kind() != '[' { // a filter has replaced the list
			if s.kind() != '"' {
				s.skip()
			} else if value := readText(&s); !s.bad && !yield(name, value) {
				return
			}
			continue
		}
		s.eat('[')
		for one := true; s.more(&one, ']'); {
			if s.kind() != '"' {
				s.skip()
			} else if value := readText(&s); !s.bad && !yield(name, value) {
				return
			}
		}
	}
}

// readText returns the next value, which is a string, and does not change it: the
// headers may be read again.
func readText(s *scanner) string {
	inside, escaped := s.span()
	if !escaped {
		return view(inside)
	}
	unescaped, ok := unescapeJSON(nil, inside)
	s.bad = s.bad || !ok
	return view(unescaped)
}

// parseAddr reads an address, or returns the zero Addr.
func parseAddr(text []byte) netip.Addr {
	addr, err := netip.ParseAddr(view(text))
	if err != nil {
		return netip.Addr{} // the error, which holds the text, is dropped
	}
	return addr.Unmap().WithZone("")
}

// timed sets when the request arrived. The time is that of its end, or of its beginning.
func (p *parser) timed(r *Request, at time.Time, end bool) (verdict, string) {
	if at.Before(earliest) || at.After(p.latest) {
		return unreadable, "implausible time " + at.UTC().Format(time.RFC3339)
	}
	r.written = at.UnixNano()
	r.arrived = r.written
	if end && r.Duration > 0 {
		r.arrived -= int64(r.Duration)
	} else if r.Duration > 0 {
		r.written += int64(r.Duration)
	}
	return request, ""
}
