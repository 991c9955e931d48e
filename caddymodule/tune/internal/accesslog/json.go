package accesslog

import (
	"cmp"
	"encoding/binary"
	"hash/fnv"
	"net/netip"
	"strings"
	"time"

	"github.com/tidwall/gjson"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/text"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/key"
)

// accessLogger is the name of Caddy's access log. A dot and a name may follow.
const accessLogger = "http.log.access"

// A jsonLine is what the fields of a line say: those of Caddy, the variables of nginx, and what
// Traefik and Cloudflare's Logpush call them.
type jsonLine struct {
	*Request
	began, ended, elapsed, logger, message gjson.Result

	unit   time.Duration // of elapsed in whole numbers; 0 means that of Caddy's
	caddy  bool          // the request is an object, which is Caddy's
	inside bool          // that object
}

// field notes a field.
func (l *jsonLine) field(name, value gjson.Result) bool {
	switch name.Str {
	case "ts", "time", "timestamp", "@timestamp", "t", "date", "datetime", "time_iso8601", "time_local", "msec", "EdgeEndTimestamp":
		once(&l.ended, value)
	case "EdgeStartTimestamp", "StartUTC":
		l.began = value
	case "logger":
		l.logger = value
	case "msg", "message":
		once(&l.message, value)
	case "duration":
		l.elapsed, l.unit = value, 0
	case "request_time":
		l.elapsed, l.unit = value, time.Second
	case "Duration":
		l.elapsed, l.unit = value, time.Nanosecond
	case "OriginResponseDurationMs":
		l.elapsed, l.unit = value, time.Millisecond
	case "status", "EdgeResponseStatus", "DownstreamStatus":
		l.Status = int(value.Int())
	case "size", "body_bytes_sent", "bytes_sent", "EdgeResponseBytes", "DownstreamContentSize":
		l.Size = count(value)
	case "bytes_read":
		l.Received = count(value)
	case "user_id", "remote_user", "ClientUsername":
		l.User = dashless(value.Str)
	case "throttle":
		l.Throttle = value.Raw
	case "request":
		if value.IsObject() {
			l.caddy, l.inside = true, true
			value.ForEach(l.part)
			l.inside = false
		} else if !l.parseRequestLine(value.Str) {
			l.URI = ""
		}
	default:
		return l.part(name, value)
	}
	return true
}

// part notes a field of the request. Beside Caddy's request it has been added by somebody.
func (l *jsonLine) part(name, value gjson.Result) bool {
	if l.caddy && !l.inside {
		return true
	}
	switch name.Str {
	case "remote_ip":
		l.Remote = value.Str
	case "client_ip", "remote_addr", "ClientIP", "ClientHost":
		l.ClientText = value.Str
	case "proto", "server_protocol", "request_proto", "ClientRequestProtocol", "RequestProtocol":
		l.Proto = value.Str
	case "method", "request_method", "ClientRequestMethod", "RequestMethod":
		l.Method = value.Str
	case "host", "http_host", "vhost", "server_name", "ClientRequestHost", "RequestHost":
		if l.inside || l.Host == "" {
			l.Host = value.Str
		}
	case "request_uri":
		l.URI = value.Str
	case "uri", "path", "ClientRequestURI", "RequestPath": // which may lack the query
		if l.inside || l.URI == "" {
			l.URI = value.Str
		}
	case "http_referer", "http_referrer", "ClientRequestReferer", "request_Referer":
		l.referer = dashless(value.Str)
	case "http_user_agent", "ClientRequestUserAgent", "request_User-Agent":
		l.agent = value.Str
	case "headers":
		if value.IsObject() {
			l.headers, l.agent = value.Raw, value.Get("User-Agent.0").Str
		}
	case "tls":
		l.TLS = value.IsObject()
	}
	return true
}

// once notes the first value: others have been added by somebody.
func once(field *gjson.Result, value gjson.Result) {
	if !field.Exists() {
		*field = value
	}
}

// parseJSON reads a line of JSON.
func (p *parser) parseJSON(r *Request, line string) (verdict, string) {
	l := jsonLine{Request: r}
	gjson.Parse(line).ForEach(l.field)
	if p.field != "" {
		if named := gjson.Get(line, gjson.Escape(p.field)); named.Exists() {
			l.elapsed, l.unit = named, time.Millisecond
		}
	}
	stamp := l.ended
	if l.began.Exists() {
		stamp = l.began
	}
	switch {
	case !strings.HasSuffix(line, "}"), !(l.caddy && stamp.Exists()) && !gjson.Valid(line):
		return unreadable, "no valid JSON"
	case !l.caddy && (l.logger.Exists() || r.URI == "" || r.Method == "" || !stamp.Exists()),
		l.caddy && l.logger.Exists() && l.logger.Str != accessLogger && !strings.HasPrefix(l.logger.Str, accessLogger+"."),
		l.caddy && !l.logger.Exists() && l.message.Str != "" && l.message.Str != "handled request" && l.message.Str != "NOP": // such as an error, which the access log repeats
		return other, ""
	case !stamp.Exists():
		return unreadable, "no time: want a field ts"
	}
	r.Caddy = l.caddy
	r.sentBy(cmp.Or(r.ClientText, r.Remote))
	at, ok := p.parseTime(stamp)
	switch {
	case !ok:
		return unreadable, "unknown time " + text.Printable(stamp.String(), 40)
	case p.unit > 0 || l.unit > 0 && !l.caddy:
		r.Duration = p.timeOf(l.elapsed.String(), l.unit)
	default:
		r.Duration = p.parseDuration(l.elapsed)
	}
	return p.timed(r, at, !l.began.Exists())
}

// count returns a number of bytes, or -1.
func count(value gjson.Result) int64 {
	if n := value.Int(); (value.Type == gjson.Number || value.Type == gjson.String) && n >= 0 {
		return n
	}
	return -1
}

// parseAddr reads an address, or returns the zero Addr.
func parseAddr(text string) netip.Addr {
	addr, err := netip.ParseAddr(text)
	if err != nil {
		return netip.Addr{}
	}
	return key.Unmap(addr)
}

// sentBy sets the client. A log may have a hash in the place of the address, as that of Caddy's
// filter is, or the name of a host. Each of these is a client of its own, for which a private
// address stands that is made of it.
func (r *Request) sentBy(text string) {
	r.Client, r.ClientText, r.Remote = parseAddr(text), text, cmp.Or(r.Remote, text)
	if r.Client.IsValid() || len(text) < 4 || text == Redacted || strings.HasPrefix(text, "unix:") {
		return
	}
	hash := fnv.New64a()
	_, _ = hash.Write([]byte(text))
	of := [16]byte{0: 0xfd}
	binary.BigEndian.PutUint64(of[:], hash.Sum64()>>8|0xfd<<56)
	r.Client, r.StandsIn = netip.AddrFrom16(of), true
}

// Shown returns a key in which the client's hash or name is in its place again.
func (r *Request) Shown(key string) string {
	if !r.StandsIn {
		return key
	}
	return strings.ReplaceAll(key, r.Client.String(), r.ClientText)
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
	r.At = time.Unix(0, r.arrived).UTC()
	r.Host = cmp.Or(r.Host, p.host)
	for _, o := range r.outcomesWith("unlogged") {
		r.unlogged += max(0, o.Unlogged)
	}
	return request, ""
}

// fieldsOf returns the names in a JSON object, or "".
func fieldsOf(line string) string {
	var names []string
	gjson.Parse(unwrap(line)).ForEach(func(name, _ gjson.Result) bool {
		names = append(names, text.Printable(name.Str, 30))
		return name.Type == gjson.String && len(names) < 30
	})
	return strings.Join(names, ", ")
}
