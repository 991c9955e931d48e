package accesslog

import (
	"encoding/binary"
	"hash/fnv"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/tidwall/gjson"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/text"
)

// accessLogger is the name of Caddy's access log. A dot and a name may follow.
const accessLogger = "http.log.access"

// parseCaddy reads a line of Caddy's JSON.
func (p *parser) parseCaddy(r *Request, line string) (verdict, string) {
	var ts, elapsed, logger, message, asked gjson.Result
	gjson.Parse(line).ForEach(func(name, value gjson.Result) bool {
		switch name.Str {
		case "ts", "time", "timestamp", "@timestamp", "t", "date", "datetime":
			if !ts.Exists() { // others have been added by somebody
				ts = value
			}
		case "duration":
			elapsed = value
		case "logger":
			logger = value
		case "msg", "message":
			if !message.Exists() {
				message = value
			}
		case "status":
			r.Status = int(value.Int())
		case "size":
			r.Size = count(value)
		case "bytes_read":
			r.Received = count(value)
		case "user_id":
			r.User = value.Str
		case "throttle":
			r.Throttle = value.Raw
		case "request":
			asked = value
		}
		if name.Str == p.field && p.field != "" {
			elapsed = value
		}
		return true
	})
	switch {
	case !strings.HasPrefix(line, "{") || !strings.HasSuffix(line, "}"), !(asked.IsObject() && ts.Exists()) && !gjson.Valid(line):
		return unreadable, "no valid JSON"
	case !asked.IsObject() && logger.Exists():
		return other, ""
	case !asked.IsObject():
		*r = Request{Size: -1, Received: -1, Duration: NoDuration, length: len(line)}
		return p.parseNamed(r, line)
	case logger.Exists() && logger.Str != accessLogger && !strings.HasPrefix(logger.Str, accessLogger+"."):
		return other, ""
	case !logger.Exists() && message.Str != "" && message.Str != "handled request" && message.Str != "NOP":
		return other, "" // such as that of an error, which the access log repeats
	case !ts.Exists():
		return unreadable, "no time: want a field ts"
	}
	asked.ForEach(func(name, value gjson.Result) bool {
		switch name.Str {
		case "remote_ip":
			r.Remote = value.Str
		case "client_ip":
			r.ClientText = value.Str
		case "proto":
			r.Proto = value.Str
		case "method":
			r.Method = value.Str
		case "host":
			r.Host = value.Str
		case "uri":
			r.URI = value.Str
		case "headers":
			if value.IsObject() {
				r.headers, r.agent = value.Raw, value.Get("User-Agent.0").Str
			}
		case "tls":
			r.TLS = value.IsObject()
		}
		return true
	})
	if r.ClientText == "" {
		r.ClientText = r.Remote
	}
	r.Client = clientOf(r.ClientText)
	at, ok := p.parseTime(ts)
	if !ok {
		return unreadable, "unknown time " + strconv.Quote(ts.String()[:min(len(ts.String()), 40)])
	}
	if r.Duration = p.parseDuration(elapsed); p.unit > 0 {
		r.Duration = p.timeOf(elapsed.String(), p.unit)
	}
	return p.timed(r, at, true)
}

// count returns a number of bytes, or -1.
func count(value gjson.Result) int64 {
	if n := value.Int(); value.Type == gjson.Number && n >= 0 {
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
	return addr.Unmap().WithZone("")
}

// clientOf returns the address of a client. A log may have a hash in its place, as that of
// Caddy's filter is, or the name of a host. Each of these is a client of its own, for which
// a private address stands that is made of it.
func clientOf(text string) netip.Addr {
	addr := parseAddr(text)
	if addr.IsValid() || len(text) < 4 || text == Redacted || strings.HasPrefix(text, "unix:") {
		return addr
	}
	hash := fnv.New64a()
	_, _ = hash.Write([]byte(text))
	of := [16]byte{0: standIn}
	binary.BigEndian.PutUint64(of[:], hash.Sum64()>>8|standIn<<56)
	return netip.AddrFrom16(of)
}

// standIn is the first byte of addresses that stand for others.
const standIn = 0xfd

// StandsIn reports whether the address of the client stands for a hash or a name.
func (r *Request) StandsIn() bool {
	return r.Client.Is6() && r.Client.As16()[0] == standIn && r.Client != parseAddr(r.ClientText)
}

// Shown returns a key in which the client's hash or name is in its place again.
func (r *Request) Shown(key string) string {
	if !r.StandsIn() {
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
	return request, ""
}

// parseNamed reads a JSON line that is not Caddy's by the names of its fields: nginx's
// variables, and what Traefik and Cloudflare's Logpush call them.
func (p *parser) parseNamed(r *Request, line string) (verdict, string) {
	var began, ended gjson.Result
	gjson.Parse(line).ForEach(func(name, value gjson.Result) bool {
		switch name.Str {
		case p.field:
			r.Duration = p.timeOf(value.String(), time.Millisecond)
		case "remote_addr", "ClientIP", "ClientHost":
			r.ClientText = value.Str
		case "host", "http_host", "vhost", "server_name", "ClientRequestHost", "RequestHost":
			if r.Host == "" {
				r.Host = value.Str
			}
		case "request": // the whole line
			if !r.parseRequestLine(value.Str) {
				r.URI = ""
			}
		case "request_method", "method", "ClientRequestMethod", "RequestMethod":
			r.Method = value.Str
		case "request_uri", "uri", "path", "ClientRequestURI", "RequestPath":
			if name.Str == "request_uri" || r.URI == "" { // the others may lack the query
				r.URI = value.Str
			}
		case "server_protocol", "request_proto", "ClientRequestProtocol", "RequestProtocol":
			r.Proto = value.Str
		case "status", "EdgeResponseStatus", "DownstreamStatus":
			r.Status = int(value.Int())
		case "body_bytes_sent", "bytes_sent", "EdgeResponseBytes", "DownstreamContentSize":
			r.Size = value.Int()
		case "remote_user", "ClientUsername":
			r.User = dashless(value.Str)
		case "http_referer", "http_referrer", "ClientRequestReferer", "request_Referer":
			r.referer = dashless(value.Str)
		case "http_user_agent", "ClientRequestUserAgent", "request_User-Agent":
			r.agent = value.Str
		case "EdgeStartTimestamp", "StartUTC":
			began = value
		case "time_iso8601", "time_local", "msec", "@timestamp", "timestamp", "time", "EdgeEndTimestamp":
			ended = value
		case "request_time", "Duration", "OriginResponseDurationMs":
			if p.field == "" {
				r.Duration = p.timeOf(value.String(), map[string]time.Duration{"request_time": time.Second, "Duration": 1, "OriginResponseDurationMs": time.Millisecond}[name.Str])
			}
		}
		return true
	})
	if r.URI == "" || r.Method == "" || !began.Exists() && !ended.Exists() {
		return other, ""
	}
	r.Format, r.Remote, r.Client = Nginx, r.ClientText, clientOf(r.ClientText)
	stamp := ended
	if began.Exists() {
		stamp = began
	}
	at, ok := p.parseTime(stamp)
	if !ok {
		return unreadable, "unknown time " + text.Printable(stamp.String(), 40)
	}
	return p.timed(r, at, !began.Exists())
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
