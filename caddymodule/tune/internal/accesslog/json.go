package accesslog

import (
	"cmp"
	"encoding/binary"
	"hash/fnv"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/tidwall/gjson"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/text"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/key"
)

// accessLogger is the name of Caddy's access log. A dot and a name may follow.
const accessLogger = "http.log.access"

// A namedLine is what the fields of a line say: those of Caddy, the variables of nginx, and what
// Traefik, Envoy, lograge and Cloudflare's Logpush call them. The line need not be JSON.
type namedLine struct {
	*Request
	*parser
	began, ended, elapsed, logger, message gjson.Result

	client, given gjson.Result  // what the flags name
	whole         time.Duration // of whole numbers in the latter

	unit   time.Duration // of elapsed; 0 means that of Caddy's
	caddy  bool          // the request is an object, which is Caddy's
	inside bool          // that object
	rails  bool          // lograge has written the line, whose durations are in milliseconds

	peer, forwarded, query string
	site                   string // of a virtual host, which names the host if nothing else does
}

// flagged notes a field if a flag names it.
func (l *namedLine) flagged(name string, value gjson.Result) {
	if l.clientField != "" && name == l.clientField {
		l.client = value
	}
	if l.timeField != "" && name == l.timeField {
		l.given = value
	}
}

// field notes a field.
func (l *namedLine) field(name, value gjson.Result) bool {
	l.flagged(name.Str, value)
	switch name.Str {
	case "time":
		if len(l.ended.Str) == len(time.DateOnly) { // W3C has the date apart
			value.Str = l.ended.Str + " " + value.Str
			l.ended = gjson.Result{}
		}
		once(&l.ended, value)
	case "ts", "timestamp", "@timestamp", "t", "date", "datetime", "time_iso8601", "time_local", "msec", "EdgeEndTimestamp":
		once(&l.ended, value)
	case "EdgeStartTimestamp", "StartUTC", "start_time":
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
	case "time-taken": // by CloudFront in seconds, by IIS in milliseconds
		if l.elapsed, l.unit = value, time.Millisecond; strings.Contains(value.Str, ".") {
			l.unit = time.Second
		}
	case "OriginResponseDurationMs", "took_ms":
		l.elapsed, l.unit = value, time.Millisecond
	case "took_us":
		l.elapsed, l.unit = value, time.Microsecond
	case "controller", "view", "db":
		l.rails = true
	case "status", "EdgeResponseStatus", "DownstreamStatus", "response_code", "sc-status":
		l.Status = max(0, int(value.Int())) // HAProxy has -1 if there was no response
	case "size", "body_bytes_sent", "bytes_sent", "EdgeResponseBytes", "DownstreamContentSize", "sc-bytes":
		l.Size = count(value)
	case "bytes_read":
		l.Received = count(value)
	case "user_id", "remote_user", "ClientUsername", "cs-username":
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
func (l *namedLine) part(name, value gjson.Result) bool {
	if l.caddy && !l.inside {
		return true
	}
	switch name.Str {
	case "remote_ip":
		l.Remote = value.Str
	case "client_ip", "ClientIP":
		l.peer = value.Str
	case "remote_addr", "ClientHost", "ip", "c-ip": // which may be a proxy
		l.peer = cmp.Or(l.peer, value.Str)
	case "peer":
		l.readPeer(value.Str)
	case "extras":
		l.readExtras(value.Str)
	case "client_port": // HAProxy has no brackets
		l.peer = value.Str[:max(0, strings.LastIndexByte(value.Str, ':'))]
	case "http_x_forwarded_for", "x_forwarded_for", "fwd":
		l.forwarded = value.Str
	case "proto", "server_protocol", "request_proto", "ClientRequestProtocol", "RequestProtocol", "protocol":
		l.Proto = value.Str
	case "method", "request_method", "ClientRequestMethod", "RequestMethod", "cs-method":
		l.Method = value.Str
	case "vhost", "server_name": // which may be a name for all
		l.site = dashless(value.Str)
	case "host", "http_host", "ClientRequestHost", "RequestHost", "authority", "cs-host", "x-host-header":
		if l.inside || l.Host == "" {
			l.Host = dashless(value.Str)
		}
	case "request_uri":
		l.URI = value.Str
	case "uri", "path", "ClientRequestURI", "RequestPath", "cs-uri-stem": // which may lack the query
		if l.inside || l.URI == "" {
			l.URI = value.Str
		}
	case "args", "query_string", "cs-uri-query":
		l.query = strings.TrimPrefix(dashless(value.Str), "?")
	case "http_referer", "http_referrer", "ClientRequestReferer", "request_Referer", "cs(Referer)":
		l.referer = dashless(value.Str)
	case "http_user_agent", "ClientRequestUserAgent", "request_User-Agent", "user_agent", "cs(User-Agent)":
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
	l := p.lineOf(r)
	gjson.Parse(line).ForEach(l.field)
	if p.clientField != "" && !l.client.Exists() { // such as request.headers.X-Real-Ip.0
		l.client = gjson.Get(line, p.clientField)
	}
	timed := l.began.Exists() || l.ended.Exists()
	switch {
	case !strings.HasSuffix(line, "}"), !(l.caddy && timed) && !gjson.Valid(line):
		return unreadable, "no valid JSON: want one object in each line, as jq -c . prints"
	case !l.caddy && strings.Contains(l.message.Str, `] "`): // a combined line within, as Upsun forwards them
		return p.parse(r, l.message.Str)
	case !l.caddy && (l.logger.Exists() || !timed),
		l.caddy && l.logger.Exists() && l.logger.Str != accessLogger && !strings.HasPrefix(l.logger.Str, accessLogger+"."),
		l.caddy && !l.logger.Exists() && l.message.Str != "" && l.message.Str != "handled request" && l.message.Str != "NOP": // such as an error, which the access log repeats
		return other, ""
	}
	return l.finish()
}

// lineOf returns a line of which no field is known.
func (p *parser) lineOf(r *Request) namedLine {
	*r = Request{Size: -1, Received: -1, Duration: NoDuration, length: r.length}
	return namedLine{Request: r, parser: p, whole: time.Millisecond}
}

// finish makes the request of the fields.
func (l *namedLine) finish() (verdict, string) {
	r, stamp := l.Request, l.ended
	if l.began.Exists() {
		stamp = l.began
	}
	if !stamp.Exists() {
		return unreadable, "no time: want a field ts"
	}
	read, said := parseUnix, stamp.Raw
	if stamp.Type == gjson.String {
		read, said = l.parseStamp, stamp.Str
	}
	at, ok := read(said)
	if !ok {
		return unreadable, "unknown time " + text.Printable(said, 40)
	}
	if r.Caddy = l.caddy; !l.caddy && (r.URI == "" || r.Method == "") { // the server answered what was no HTTP
		return other, ""
	}
	r.Host = cmp.Or(r.Host, l.site)
	if l.query != "" && !strings.Contains(r.URI, "?") {
		r.URI += "?" + l.query
	}
	l.sentBy(cmp.Or(l.peer, r.Remote, l.forwarded))
	unit := cmp.Or(l.parser.unit, l.whole)
	if given := l.given.String(); l.parser.unit == 0 && strings.Contains(given, ".") {
		unit = time.Second
	}
	switch {
	case l.given.Exists() && (l.parser.unit > 0 || !l.caddy):
		r.Duration = durationOf(l.given.String(), unit)
	case l.given.Exists():
		r.Duration = l.parseDuration(l.given)
	case (l.rails || l.unit > 0) && !l.caddy:
		r.Duration = durationOf(l.elapsed.String(), cmp.Or(l.unit, time.Millisecond))
	default:
		r.Duration = l.parseDuration(l.elapsed)
	}
	return l.timed(r, at, !l.began.Exists())
}

// count returns a number of bytes, or -1.
func count(value gjson.Result) int64 {
	if n, err := strconv.ParseUint(value.String(), 10, 63); err == nil {
		return int64(n)
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

// addressIn returns the first public address of a list, or else its first, without ports.
func addressIn(list string) (first netip.Addr) {
	if addr := parseAddr(list); addr.IsValid() {
		return addr
	}
	for text := range strings.SplitSeq(list, ",") {
		text = strings.Trim(text, ` "`)
		addr := parseAddr(strings.Trim(text, "[]"))
		if ported, err := netip.ParseAddrPort(text); err == nil {
			addr = key.Unmap(ported.Addr())
		}
		if isPublic(addr) {
			return addr
		}
		if !first.IsValid() {
			first = addr
		}
	}
	return first
}

// isPublic reports whether an address is one on the Internet.
func isPublic(addr netip.Addr) bool { return addr.IsGlobalUnicast() && !addr.IsPrivate() }

// sentBy sets the client: that of --client, or the peer, unless that is a proxy which names another
// one. A log may have a hash in the place of the address, as that of Caddy's filter is, or the name of
// a host. Each of these is a client of its own, for which a private address stands that is made of it.
func (l *namedLine) sentBy(who string) {
	r, named := l.Request, netip.Addr{}
	if l.clientField != "" && l.clientField != "remote_addr" {
		who = l.client.String()
	} else if l.clientField == "" && l.forwarded != "" {
		named = addressIn(l.forwarded)
	}
	r.Client, r.ClientText = addressIn(who), who
	if r.forwarded = isPublic(named) && named != r.Client; r.forwarded && (l.proxied || !isPublic(r.Client)) {
		r.Client, r.behind = named, true
	}
	if r.Client.IsValid() && parseAddr(who) != r.Client {
		r.ClientText = r.Client.String()
	}
	who = r.ClientText
	if r.Remote = cmp.Or(r.Remote, who); r.Client.IsValid() || len(who) < 4 || who == Redacted || strings.HasPrefix(who, "unix:") {
		return
	}
	hash := fnv.New64a()
	_, _ = hash.Write([]byte(who))
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
