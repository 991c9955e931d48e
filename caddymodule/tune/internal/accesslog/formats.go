package accesslog

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tidwall/gjson"
)

// formats are those of lines that are no JSON, in the spelling of nginx.
var formats = []pattern{
	// combined and common
	mustCompile(`$peer [$time_local] "$request" $status $body_bytes_sent "$http_referer" "$http_user_agent"$extras`),
	mustCompile(`$peer [$time_local] "$request" $status $body_bytes_sent $extras`),
	mustCompile(`$peer [$time_local] "$request" $status $body_bytes_sent`),
	// Nginx Proxy Manager
	mustCompile(`[$time_local] $cache $upstream $status - $request_method $scheme $host "$request_uri" [Client $remote_addr] [Length $body_bytes_sent] [Gzip $gzip] [Sent-to $server] "$http_user_agent" "$http_referer"`),
	mustCompile(`[$time_local] $status - $request_method $scheme $host "$request_uri" [Client $remote_addr] [Length $body_bytes_sent] [Gzip $gzip] "$http_user_agent" "$http_referer"`),
	// HAProxy's httplog
	mustCompile(`$client_port [$start_time] $frontend $backend/$server $tr/$tw/$tc/$tr/$took_ms $status $body_bytes_sent $cookie $set $ended_as $conns $queue "$request"`),
	// Gandi
	mustCompile(`$host $remote_addr $ident $remote_user [$time_local] ($request_time s) "$request" $status $body_bytes_sent "$http_referer" "$http_user_agent"`),
	// Amazon's load balancers, and S3
	mustCompile(`$type $time_iso8601 $elb $remote_addr $target $wait $request_time $reply $status $of_target $received $body_bytes_sent "$request" "$http_user_agent"`),
	mustCompile(`$time_iso8601 $elb $remote_addr $target $wait $request_time $reply $status $of_target $received $body_bytes_sent "$request" "$http_user_agent"`),
	mustCompile(`$owner $bucket [$start_time] $remote_addr $requester $id $operation $key "$request" $status $error $body_bytes_sent $object $took_ms $turnaround "$http_referer" "$http_user_agent"`),
	// Envoy
	mustCompile(`[$start_time] "$request" $status $flags $received $body_bytes_sent $took_ms $upstream "$http_x_forwarded_for" "$http_user_agent" "$id" "$host" "`),
}

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

// w3c returns the fields that a heading of IIS or CloudFront names. What is between them in lines
// need not be a space.
func w3c(names, between string) (f pattern) {
	for i, name := range strings.Fields(names) {
		f = append(f, struct{ text, name string }{strings.Repeat(between, min(i, 1)), name})
	}
	return append(f, struct{ text, name string }{})
}

func mustCompile(spelled string) pattern {
	f, err := compile(spelled)
	if err != nil {
		panic(err)
	}
	return f
}

// match notes each field of a line, or returns false if the line has others.
func (f pattern) match(l *namedLine, line string) (ok bool) {
	for i, field := range f {
		if line, ok = strings.CutPrefix(line, field.text); !ok || field.name == "" {
			return ok
		}
		value, end, next, until := "", 0, f[i+1].text, line
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
	if p.given {
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
	} else if p.begun != nil {
		return other, ""
	}
	for _, s := range strangers {
		if s.MatchString(line) {
			why = s.what
		}
	}
	return unreadable, why
}

// readRails reads what Rails says when a request begins or ends.
func (l *namedLine) readRails(m []string) (verdict, string) {
	p, by, done := l.parser, m[1]+m[2], -1
	for i, b := range p.begun {
		if b.by == by {
			done = i
		}
	}
	switch {
	case m[3] != "":
		l.Method, l.URI, l.peer, l.began = m[3], m[4], m[5], textOf(m[6])
		if v, why := l.finish(); v != request {
			return v, why
		}
		if p.begun = append(p.begun, begun{by, *l.Request}); done < 0 && len(p.begun) > mostBegun {
			done = 0
		}
	case done >= 0:
		b := &p.begun[done]
		if b.Status = http.StatusNotFound; m[7] != "" {
			b.Status, _ = strconv.Atoi(m[7])
		}
		b.Duration = durationOf(m[8], time.Millisecond)
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
	{regexp.MustCompile(`^\[\w{3} \w{3} [ \d]\d [\d:.]+ \d{4}\] |^\d{4}/\d\d/\d\d [\d:]{8} \[\w+\] |^\[[\d-]+ [\d:]+\] \w+\.[A-Z]+: `), "an error log: give the access log"},
	{regexp.MustCompile(`^\[(\{|$)`), "a list of JSON: want one object in each line, as jq -c .[] prints"},
	{regexp.MustCompile("\tINFO\t"), "Caddy's console format, which has no defined fields: log as JSON"},
}
