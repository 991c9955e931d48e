package accesslog

import (
	"encoding/binary"
	"hash/fnv"
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
