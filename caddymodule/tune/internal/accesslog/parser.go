package accesslog

import (
	"cmp"
	"crypto/sha256"
	"math"
	"net/netip"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/tidwall/gjson"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/command"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/key"
)

// earliest is the first time that is believed. Clocks that were never set say 1970.
var earliest = time.Date(1995, 1, 1, 0, 0, 0, 0, time.UTC)

// A verdict is what a line turned out to be.
type verdict uint8

const request, other, unreadable verdict = 0, 1, 2

// A parser reads the lines of one file. It remembers what it has learned about them.
type parser struct {
	options Options       // whose TimeField has no unit
	unit    time.Duration // of that field; 0 means the usual one
	formats []pattern     // of lines that are no JSON, or of all if they are in the options
	latest  time.Time     // the last time that is believed

	layout  int             // of the last time that was text
	stamp   string          // the last one
	at      time.Time       // what it says
	begun   []begun         // requests of Rails that are not complete
	threads map[string]bool // processes of Rails, and whether one serves several requests at once

	fractional bool // the durations of Caddy's lines are in seconds
}

// parse reads a line into a request.
func (p *parser) parse(r *Request, line string) (v verdict, why string) {
	binary := strings.IndexByte(line, 0) >= 0
	line = unwrap(strings.TrimPrefix(strings.Trim(line, "\r\n \t\x00"), "\ufeff"))
	if line == "" {
		return other, ""
	}
	r.length = len(line)
	switch {
	case line[0] == '#':
		return other, ""
	case line[0] == '{' && p.options.Fields == "":
		v, why = p.parseJSON(r, line)
	default:
		v, why = p.parseText(r, p.formats, line)
	}
	if v == unreadable && binary {
		why = "binary data"
	}
	return v, why
}

// layouts are how Caddy's encoder and others write times as text. Fractions are read with all
// of them.
var layouts = []string{
	time.RFC3339, "2006-01-02T15:04:05Z0700", "2006/01/02 15:04:05", commonTime,
	time.DateTime, "2006-01-02 15:04:05 -0700", "2006-01-02 15:04:05 MST", "2006-01-02T15:04:05", "2006-01-02 15:04:05 -0700 MST",
	"02/Jan/2006:15:04:05", "02/Jan/2006 15:04:05", time.RFC1123, time.RFC1123Z, time.RFC850, time.RFC822Z, time.UnixDate, time.RubyDate, time.ANSIC,
}

const commonTime = "02/Jan/2006:15:04:05 -0700"

// parseStamp reads a time that is a text. Many lines have that of the line before.
func (p *parser) parseStamp(text string) (at time.Time, ok bool) {
	if text == p.stamp && text != "" {
		return p.at, true
	}
	at, err := time.Parse(layouts[p.layout], text)
	if ok = err == nil; !ok {
		at, ok = parseUnix(text)
	}
	for i := 0; !ok && i < len(layouts); i++ {
		if at, err = time.Parse(layouts[i], text); err == nil {
			p.layout, ok = i, true
		}
	}
	if ok {
		p.stamp, p.at = text, at
	}
	return at, ok
}

// parseUnix reads seconds, milliseconds, microseconds or nanoseconds since 1970, to the
// microsecond. In seconds, the numbers from which on it is the next smaller unit lie after
// the year 5000; in that unit, before 1980.
func parseUnix(text string) (time.Time, bool) {
	n, err := strconv.ParseFloat(text, 64)
	if err != nil || !(n >= 0 && n < math.MaxInt64) {
		return time.Time{}, false
	}
	micros := n * 1e6
	switch {
	case n >= 1e17:
		micros = n / 1e3
	case n >= 1e14:
		micros = n
	case n >= 1e11:
		micros = n * 1e3
	}
	return time.UnixMicro(int64(math.Round(micros))), true
}

// parseDuration reads a duration without a unit, as Caddy writes it, or with one. Seconds have a
// fraction, as good as always; milliseconds have none.
func (p *parser) parseDuration(text string) time.Duration {
	if d, err := time.ParseDuration(text); err == nil {
		return max(d, NoDuration)
	}
	if p.fractional = p.fractional || strings.ContainsAny(text, ".eE"); p.fractional {
		return durationOf(text, time.Second)
	}
	return durationOf(text, time.Millisecond)
}

// longest is the longest duration that is believed.
const longest = 30 * 24 * time.Hour

// durationOf reads a number of units.
func durationOf(text string, unit time.Duration) time.Duration {
	n, err := strconv.ParseFloat(text, 64)
	if err != nil || !(n >= 0) {
		return NoDuration
	}
	return time.Duration(math.Round(min(n*float64(unit), float64(longest))))
}

// wrapper is how docker compose logs, Kubernetes' container runtimes, and syslog or journalctl begin
// a line.
var wrapper = regexp.MustCompile(`^(?:[\w.-]{1,80} +\| ?|(?:<\d{1,3}>)?(?:\d )?(?:[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d|\d{4}-\d\d-\d\dT[\d:.]+(?:Z|[+-]\d\d:?\d\d)) (?:(?:stdout|stderr) [FP] |[\w.:-]+ [\w./-]+(?:\[\d+\])?: ))`)

// unwrap returns the line that a log holds within another one: behind the prefix of a
// container runtime or of syslog, or in Docker's JSON.
func unwrap(line string) string {
	switch {
	case len(line) < 12:
	case strings.HasPrefix(line, `{"log":"`): // Docker's json-file
		return strings.TrimRight(gjson.Get(line, "log").Str, "\r\n\t ")
	case line[0] == '{':
	case line[0] == '<', line[3] == ' ', line[4] == '-' && line[10] == 'T', strings.Contains(line[:min(len(line), 90)], " | "):
		return line[len(wrapper.FindString(line)):]
	}
	return line
}

// accessLogger is the name of Caddy's access log. A dot and a name may follow.
const accessLogger = "http.log.access"

// A namedLine is what the fields of a line say: those of Caddy, the variables of nginx, and what
// Traefik, Envoy, lograge and Cloudflare's Logpush call them. The line need not be JSON.
type namedLine struct {
	*Request
	*parser
	times
	logger, message gjson.Result
	client, given   gjson.Result // what the flags name

	unit time.Duration // of elapsed; 0 means that of Caddy's

	caddy  bool // the request is an object, which is Caddy's
	inside bool // that object
	rails  bool // lograge has written the line, whose durations are in milliseconds

	peer, forwarded, query string
	site                   string // of a virtual host, which names the host if nothing else does
}

// Times are when a request began and ended, and how long it took, as far as a line says.
type times struct{ began, ended, elapsed gjson.Result }

// flagged notes a field if a flag names it.
func (l *namedLine) flagged(name string, value gjson.Result) {
	if l.options.Client != "" && name == l.options.Client {
		l.client = value
	}
	if l.options.TimeField != "" && name == l.options.TimeField {
		l.given = value
	}
}

// A setter notes the value of a field.
type setter func(l *namedLine, value gjson.Result)

// fields are those of a line, by their names, and parts those of the request.
var (
	fields = named(map[string]setter{
		"ts time timestamp @timestamp t date datetime time_iso8601 time_local msec EdgeEndTimestamp": func(l *namedLine, v gjson.Result) { once(&l.ended, v) },
		"EdgeStartTimestamp StartUTC start_time":                                                     func(l *namedLine, v gjson.Result) { l.began = v },

		"logger":      func(l *namedLine, v gjson.Result) { l.logger = v },
		"msg message": func(l *namedLine, v gjson.Result) { once(&l.message, v) },

		"duration":                         lasts(0),
		"request_time":                     lasts(time.Second),
		"OriginResponseDurationMs took_ms": lasts(time.Millisecond),
		"took_us":                          lasts(time.Microsecond),
		"Duration":                         lasts(time.Nanosecond),
		"controller view db":               func(l *namedLine, _ gjson.Result) { l.rails = true },

		"status EdgeResponseStatus DownstreamStatus response_code":                func(l *namedLine, v gjson.Result) { l.Status = max(0, int(v.Int())) }, // HAProxy has -1 if there was no response
		"size body_bytes_sent bytes_sent EdgeResponseBytes DownstreamContentSize": func(l *namedLine, v gjson.Result) { l.Size = count(v) },
		"bytes_read": func(l *namedLine, v gjson.Result) { l.Received = count(v) },
		"throttle":   func(l *namedLine, v gjson.Result) { l.Throttle = v.Raw },
		"in_flight": func(l *namedLine, v gjson.Result) {
			l.InFlight, l.Waited = v.Get("decision").Str, durationOf(v.Get("waited").Raw, time.Second)
		},
		"resp_headers": func(l *namedLine, v gjson.Result) { // those of Caddy's redirect
			l.Upgraded = l.caddy && !l.TLS && v.Get("Connection.0").Str == "close" && strings.HasPrefix(v.Get("Location.0").Str, "https://")
		},
		"request": func(l *namedLine, v gjson.Result) {
			if v.IsObject() {
				l.caddy, l.inside, l.Host, l.URI = true, true, "", ""
				v.ForEach(l.part)
				l.inside = false
			} else if !l.parseRequestLine(v.Str) {
				l.URI = ""
			}
		},
	})

	parts = named(map[string]setter{
		"remote_ip":                 func(l *namedLine, v gjson.Result) { l.Remote = v.Str },
		"client_ip ClientIP":        func(l *namedLine, v gjson.Result) { l.peer = v.Str },
		"remote_addr ClientHost ip": func(l *namedLine, v gjson.Result) { l.peer = cmp.Or(l.peer, v.Str) }, // which may be a proxy
		"peer":                      func(l *namedLine, v gjson.Result) { l.readPeer(v.Str) },
		"extras":                    func(l *namedLine, v gjson.Result) { l.readExtras(v.Str) },
		"client_port":               func(l *namedLine, v gjson.Result) { l.peer = v.Str[:max(0, strings.LastIndexByte(v.Str, ':'))] }, // HAProxy has no brackets
		"http_x_forwarded_for x_forwarded_for fwd": func(l *namedLine, v gjson.Result) { l.forwarded = v.Str },

		"proto server_protocol request_proto ClientRequestProtocol RequestProtocol protocol": func(l *namedLine, v gjson.Result) { l.Proto = v.Str },
		"method request_method ClientRequestMethod RequestMethod":                            func(l *namedLine, v gjson.Result) { l.Method = v.Str },
		"vhost server_name": func(l *namedLine, v gjson.Result) { l.site = dashless(v.Str) }, // which may be a name for all
		"host http_host ClientRequestHost RequestHost authority": func(l *namedLine, v gjson.Result) { l.Host = cmp.Or(l.Host, dashless(v.Str)) },
		"request_uri":                           func(l *namedLine, v gjson.Result) { l.URI = v.Str },
		"uri path ClientRequestURI RequestPath": func(l *namedLine, v gjson.Result) { l.URI = cmp.Or(l.URI, v.Str) }, // which may lack the query
		"args query_string":                     func(l *namedLine, v gjson.Result) { l.query = strings.TrimPrefix(dashless(v.Str), "?") },

		"http_referer http_referrer ClientRequestReferer request_Referer":      func(l *namedLine, v gjson.Result) { l.Referer = dashless(v.Str) },
		"http_user_agent ClientRequestUserAgent request_User-Agent user_agent": func(l *namedLine, v gjson.Result) { l.Agent = v.Str },
		"headers": func(l *namedLine, v gjson.Result) {
			if v.IsObject() {
				l.HeaderJSON, l.Agent = v.Raw, v.Get("User-Agent.0").Str
			}
		},
		"tls": func(l *namedLine, v gjson.Result) { l.TLS = v.IsObject() },
	})
)

// named has a setter for each of some names.
func named(of map[string]setter) map[string]setter {
	all := make(map[string]setter)
	for names, set := range of {
		for name := range strings.FieldsSeq(names) {
			all[name] = set
		}
	}
	return all
}

// lasts notes a duration in such units.
func lasts(unit time.Duration) setter {
	return func(l *namedLine, v gjson.Result) { l.elapsed, l.unit = v, unit }
}

// field notes a field.
func (l *namedLine) field(name, value gjson.Result) bool {
	l.flagged(name.Str, value)
	if set := fields[name.Str]; set != nil {
		set(l, value)
		return true
	}
	return l.part(name, value)
}

// part notes a field of the request. Beside Caddy's request it has been added by somebody.
func (l *namedLine) part(name, value gjson.Result) bool {
	if set := parts[name.Str]; set != nil && (l.inside || !l.caddy) {
		set(l, value)
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
	if p.options.Client != "" && !l.client.Exists() { // such as request.headers.X-Real-Ip.0
		l.client = gjson.Get(line, p.options.Client)
	}
	timed := l.began.Exists() || l.ended.Exists()
	switch {
	case !strings.HasSuffix(line, "}"), !(l.caddy && timed) && !gjson.Valid(line):
		return unreadable, "no valid JSON: want one object in each line, as jq -c . prints"
	case !l.caddy && (l.logger.Exists() || !timed),
		l.caddy && l.logger.Exists() && l.logger.Str != accessLogger && !strings.HasPrefix(l.logger.Str, accessLogger+"."),
		l.caddy && !l.logger.Exists() && l.message.Str != "" && l.message.Str != "handled request" && l.message.Str != "NOP": // such as an error, which the access log repeats
		return other, ""
	}
	return l.finish()
}

// lineOf returns a line of which no field is known.
func (p *parser) lineOf(r *Request) namedLine {
	*r = Request{Size: -1, Received: -1, Duration: NoDuration, Place: Place{length: r.length}}
	return namedLine{Request: r, parser: p}
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
	read, said := parseUnix, verbatim(stamp)
	if stamp.Type == gjson.String {
		read = l.parseStamp
	}
	at, ok := read(said)
	if !ok {
		return unreadable, "unknown time " + command.Printable(said, 40)
	}
	if r.Caddy = l.caddy; !l.caddy && (r.URI == "" || r.Method == "") { // the server answered what was no HTTP
		return other, ""
	}
	r.Host = cmp.Or(r.Host, l.site)
	if l.query != "" && !strings.Contains(r.URI, "?") {
		r.URI += "?" + l.query
	}
	l.sentBy(cmp.Or(l.peer, r.Remote, l.forwarded))
	elapsed, unit := verbatim(l.elapsed), l.unit
	switch {
	case l.given.Exists():
		elapsed, unit = verbatim(l.given), l.parser.unit
	case l.caddy:
		unit = 0
	case l.rails:
		unit = cmp.Or(unit, time.Millisecond)
	}
	if r.Duration = durationOf(elapsed, unit); unit == 0 {
		r.Duration = l.parseDuration(elapsed)
	}
	return l.timed(r, at, !l.began.Exists())
}

// verbatim returns a text, or a number as the line has it.
func verbatim(v gjson.Result) string { return cmp.Or(v.Str, v.Raw) }

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
	if l.options.Client != "" && l.options.Client != "remote_addr" {
		who = l.client.String()
	} else if l.options.Client == "" && l.forwarded != "" {
		named = addressIn(l.forwarded)
	}
	r.Client, r.ClientText = addressIn(who), who
	if isPublic(named) && named != r.Client {
		r.Named = named
	}
	if r.Client.IsValid() && parseAddr(who) != r.Client {
		r.ClientText = r.Client.String()
	}
	if r.Named.IsValid() && !isPublic(r.Client) {
		r.behind(named)
	}
	who = r.ClientText
	if r.Remote = cmp.Or(r.Remote, who); r.Client.IsValid() || len(who) < 4 || who == Redacted || strings.HasPrefix(who, "unix:") {
		return
	}
	sum, of := sha256.Sum256([]byte(who)), [16]byte{}
	copy(of[:8], sum[:]) // keys have no more of it
	of[0] = 0xfd
	r.Client, r.StandsIn = netip.AddrFrom16(of), true
}

// behind sets the client that a proxy names.
func (r *Request) behind(client netip.Addr) {
	r.Client, r.ClientText, r.Behind, r.StandsIn = client, client.String(), true, false
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
	r.fraction, r.At = at.Nanosecond() != 0, at.UTC()
	if end && r.Duration > 0 {
		r.At = r.At.Add(-r.Duration)
	}
	r.Host = cmp.Or(r.Host, p.options.Host)
	if strings.Contains(r.Throttle, `"unlogged"`) {
		outcomes, _ := r.Outcomes() // the summary counts what cannot be read
		for _, o := range outcomes {
			r.Unlogged += max(0, o.Unlogged)
		}
	}
	return request, ""
}
