package accesslog

import (
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/tidwall/gjson"
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
		return true
	})
	switch {
	case !strings.HasPrefix(line, "{") || !strings.HasSuffix(line, "}"), !(asked.IsObject() && ts.Exists()) && !gjson.Valid(line):
		return unreadable, "no valid JSON"
	case !asked.IsObject():
		return other, ""
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
	r.Client = parseAddr(r.ClientText)
	at, ok := p.parseTime(ts)
	if !ok {
		return unreadable, "unknown time " + strconv.Quote(ts.String()[:min(len(ts.String()), 40)])
	}
	r.Duration = p.parseDuration(elapsed)
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
