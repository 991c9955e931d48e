package accesslog

import (
	"strings"
	"time"

	"github.com/tidwall/gjson"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/text"
)

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
