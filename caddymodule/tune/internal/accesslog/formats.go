package accesslog

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tidwall/gjson"
)

// formats are those of lines that are no JSON, in the spelling of nginx.
var formats = compiled(
	// combined and common
	`$peer [$time_local] "$request" $status $body_bytes_sent "$http_referer" "$http_user_agent"$extras`,
	`$peer [$time_local] "$request" $status $body_bytes_sent $extras`,
	`$peer [$time_local] "$request" $status $body_bytes_sent`,
	// Nginx Proxy Manager
	`[$time_local] $cache $upstream $status - $request_method $scheme $host "$request_uri" [Client $remote_addr] [Length $body_bytes_sent] [Gzip $gzip] [Sent-to $server] "$http_user_agent" "$http_referer"`,
	`[$time_local] $status - $request_method $scheme $host "$request_uri" [Client $remote_addr] [Length $body_bytes_sent] [Gzip $gzip] "$http_user_agent" "$http_referer"`,
	// HAProxy's httplog
	`$client_port [$start_time] $frontend $backend/$server $tr/$tw/$tc/$tr/$took_ms $status $body_bytes_sent $cookie $set $ended_as $conns $queue "$request"`,
)

// A pattern is the fields of a line, each behind some text. The last has no name, and is what the line
// must go on with.
type pattern []struct{ text, name string }

// fieldSpelling finds the fields of nginx and of Apache.
var fieldSpelling = regexp.MustCompile(`\$(?:\{(\w+)\}|(\w+))|%[!<>\d,]*(?:\{([^}]*)\})?([a-zA-Z])`)

// apacheFields are the names of nginx for fields of Apache that have no name.
var apacheFields = map[string]string{
	"h": "remote_addr", "a": "remote_addr", "u": "remote_user", "t": "start_time", "r": "request", "s": "status", "b": "body_bytes_sent", "B": "body_bytes_sent", "O": "bytes_sent",
	"D": "took_us", "T": "request_time", "v": "host", "V": "host", "m": "request_method", "U": "uri", "q": "args", "H": "server_protocol",
}

// compile reads the fields of a line, in the spelling of Apache or of nginx.
func compile(spelled string) (f pattern, err error) {
	spelled = strings.NewReplacer(`\"`, `"`, `\t`, "\t", "%t", "[$start_time]").Replace(spelled)
	from, known := 0, new(parser).lineOf(new(Request))
	for _, at := range fieldSpelling.FindAllStringSubmatchIndex(spelled, -1) {
		part := func(n int) string { return spelled[max(0, at[2*n]):max(0, at[2*n+1])] }
		before, name, brace, letter := spelled[from:at[0]], part(1)+part(2), part(3), part(4)
		if from > 0 && before == "" {
			return nil, fmt.Errorf("nothing is between two fields at %q", spelled[at[0]:])
		}
		from = at[1]
		switch {
		case name != "":
		case letter == "i":
			name = "http_" + strings.ToLower(strings.ReplaceAll(brace, "-", "_"))
		case letter == "T" && (brace == "us" || brace == "ms"):
			name = "took_" + brace
		case brace == "" || letter == "a" || letter == "t":
			name = cmp.Or(apacheFields[letter], letter)
		default:
			name = brace
		}
		f = append(f, struct{ text, name string }{before, name})
		known.field(textOf(name), textOf("GET a:1"))
	}
	switch {
	case !known.ended.Exists() && !known.began.Exists():
		return nil, errors.New("it has no time, such as $time_local or %t")
	case known.URI == "" || known.Method == "":
		return nil, errors.New("it has no request, such as $request or %r")
	}
	return append(f, struct{ text, name string }{spelled[from:], ""}), nil
}

// textOf returns a text as JSON has it.
func textOf(text string) gjson.Result { return gjson.Result{Type: gjson.String, Str: text} }

func compiled(spelled ...string) (all []pattern) {
	for _, fields := range spelled {
		f, err := compile(fields)
		if err != nil {
			panic(err)
		}
		all = append(all, f)
	}
	return all
}

// match notes each field of a line, or returns false if the line has others.
func (f pattern) match(l *namedLine, line string) (ok bool) {
	for i, field := range f {
		if line, ok = strings.CutPrefix(line, field.text); !ok || field.name == "" {
			return ok
		}
		value, end, next := "", 0, f[i+1].text
		switch {
		case next == "":
			value, end = line, len(line)
		case strings.HasSuffix(field.text, `"`) && next[0] == '"':
			var rest string
			if value, rest, ok = quoted(line); !ok {
				return false
			}
			end = len(line) - len(rest) - 1
		default:
			var until string
			switch field.name { // the client may have written the user
			case "peer":
				until, _, ok = strings.Cut(line, `] "`)
				end = strings.LastIndex(until, next)
			case "remote_user":
				until, _, _ = strings.Cut(line, `"`)
				end = strings.LastIndex(until, next)
			default:
				end = strings.Index(line, next)
			}
			if end < 0 || !ok {
				return false
			}
			value = line[:end]
		}
		if field.name == "status" && value != "-" {
			if n, err := strconv.Atoi(value); err != nil || n > 999 || n > 0 && n < 100 {
				return false
			}
		}
		l.field(textOf(field.name), textOf(value))
		line = line[end:]
	}
	return true
}

var (
	// Before what Rails writes may be the process, and behind it tags, such as an ID.
	railsLine = regexp.MustCompile(`^(?:[A-Z], \[[^#\]]*#(\d+)\] +[A-Z]+ -- [^:]*: )?(.*?)(?:Started ([A-Z]+) "(.*)" for (\S+) at ([\d :+-]+)$|Completed (\d{3})\b(?:[^(]* in ([\d.]+)ms)?|ActionController::RoutingError \()`)

	// What Rails writes before its first request, such as a migration, looks like this.
	railsLogger = regexp.MustCompile(`^[A-Z], \[[^#\]]*#\d+\] +[A-Z]+ -- `)

	railsStamp = regexp.MustCompile(`\d{4}-\d\d-\d\dT[\d:.]+`)
)

// A begun request of Rails is complete with a second line of the same process and tags.
type begun struct {
	by string
	Request
}

// mostBegun is how many requests of Rails may be incomplete: some are never completed.
const mostBegun = 256

// parseText reads a line that is no JSON, which has one of these formats.
func (p *parser) parseText(r *Request, formats []pattern, line string) (v verdict, why string) {
	why = "unknown format: name its fields with --fields, in the spelling of Apache's LogFormat or nginx's log_format"
	if p.options.Fields != "" {
		why = "it does not have the fields that were named"
	}
	for _, f := range formats {
		l := p.lineOf(r)
		if !f.match(&l, line) {
			continue
		}
		if v, why = l.finish(); v != unreadable {
			return v, why
		}
	}
	l := p.lineOf(r)
	if strings.Contains(line, "method=") && strings.Contains(line, " path=") { // lograge
		for word := range strings.FieldsSeq(line) {
			name, value, _ := strings.Cut(word, "=")
			l.field(textOf(name), textOf(strings.Trim(value, `"`)))
		}
		if stamp := railsStamp.FindString(line); stamp != "" {
			once(&l.ended, textOf(stamp))
		}
		return l.finish()
	}
	if m := railsLine.FindStringSubmatch(line); m != nil {
		return l.readRails(m)
	} else if p.threads != nil || railsLogger.MatchString(line) {
		return other, ""
	}
	for _, s := range strangers {
		if s.MatchString(line) {
			return unreadable, s.what
		}
	}
	return unreadable, why
}

// readRails reads what Rails says when a request begins or ends. A process that serves several at
// once writes their lines in any order. Unless tags tell them apart, nobody knows which one ends.
func (l *namedLine) readRails(m []string) (verdict, string) {
	p, by := l.parser, m[1]+m[2]
	if p.threads == nil {
		p.threads = make(map[string]bool)
	}
	done := slices.IndexFunc(p.begun, func(b begun) bool { return b.by == by })
	switch {
	case m[3] != "":
		l.Method, l.URI, l.peer, l.began = m[3], m[4], m[5], textOf(m[6])
		v, why := l.finish()
		if l.Mixed = done >= 0 || p.threads[by]; v != request || p.threads[by] {
			return v, why
		}
		if p.begun = append(p.begun, begun{by, *l.Request}); done < 0 && len(p.begun) > mostBegun {
			done = 0
		}
		if m[2] == "" {
			p.threads[by] = false
		}
	case done >= 0:
		if b := &p.begun[done]; !b.Mixed {
			if b.Status = http.StatusNotFound; m[7] != "" {
				b.Status, _ = strconv.Atoi(m[7])
			}
			b.Duration = durationOf(m[8], time.Millisecond)
		}
	default:
		if _, known := p.threads[by]; known { // more requests have ended than begun one after another
			p.threads[by] = true
		}
	}
	if done < 0 {
		return other, ""
	}
	*l.Request = p.begun[done].Request
	p.begun = slices.Delete(p.begun, done, done+1)
	return p.timed(l.Request, l.At, false)
}

// strangers are logs that cannot be read, and what to do.
var strangers = []struct {
	*regexp.Regexp
	what string
}{
	{regexp.MustCompile(`^\S+ - \S* +\d\d/\w{3}/\d{4}:[\d:]{8} [+-]\d{4} "`), "the access log of PHP-FPM, which knows no visitors: give that of the web server"},
	{regexp.MustCompile(`^\[\w{3} \w{3} [ \d]\d [\d:.]+ \d{4}\] \[|^\d{4}/\d\d/\d\d [\d:]{8} \[\w+\] |^\[[\d-]+ [\d:]+\] \w+\.[A-Z]+: `), "an error log: give the access log"},
	{regexp.MustCompile(`^\[(\{|$)`), "a list of JSON: want one object in each line, as jq -c .[] prints"},
	{regexp.MustCompile(`\t(\x1b\[\d+m)?(INFO|ERROR)\b`), "Caddy's console format, which has no defined fields: log as JSON (format json)"},
	{regexp.MustCompile(`^([a-z]+\d? )?\d{4}-\d\d-\d\dT\S+ \S+ [\d.]+:\d+ \S+ -?[\d.]+ -?[\d.]+ `), `a log of Amazon's load balancer: give --fields '$type $time_iso8601 $elb $remote_addr $target $wait $request_time $reply $status $of_target $received $body_bytes_sent "$request" "$http_user_agent"', without $type if it is a classic one`},
	{regexp.MustCompile(`^\[[\d-]+T[\d:.]+Z\] "`), `a log of Envoy: give --fields '[$start_time] "$request" $status $flags $received $body_bytes_sent $took_ms $upstream "$http_x_forwarded_for" "$http_user_agent" "$id" "$host" "'`},
}

// readPeer reads what is before the time of a combined line: the client's address, or a list of
// them, behind the name of the virtual host if there is one.
func (l *namedLine) readPeer(text string) {
	text = strings.TrimPrefix(strings.TrimRight(text, " "), `"`) // LiteSpeed quotes the whole line
	first, rest := word(text)
	list := []string{first}
	for strings.HasSuffix(first, ",") && rest != "" {
		first, rest = word(rest)
		list = append(list, first)
	}
	first = strings.Join(list, "")
	if second, after := word(rest); after != "" && addressIn(second).IsValid() && !addressIn(first).IsValid() {
		l.Host, first = dashless(first), second
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
		case l.options.TimeField != "":
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
	word, rest, _ = strings.Cut(strings.TrimLeft(text, " "), " ")
	return word, rest
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
