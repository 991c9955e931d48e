package tune

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/limit"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/tune/internal/accesslog"
)

// logFacts are what the first requests of a log have.
type logFacts struct {
	hosts     bool // requests name them
	caddy     bool
	durations bool
	headers   map[string]bool // that were sent, and whether some can be read
}

// hashed is how Caddy's filter of that name writes a value.
var hashed = regexp.MustCompile("^[0-9a-f]{8}$")

// factsOf returns what the first requests of a log have.
func factsOf(first []*accesslog.Request) logFacts {
	f := logFacts{headers: make(map[string]bool)}
	for _, req := range first {
		f.caddy = f.caddy || req.Caddy
		f.hosts = f.hosts || req.Host != ""
		f.durations = f.durations || req.Duration >= 0
		for name, value := range req.Headers() {
			f.headers[name] = f.headers[name] || value != accesslog.Redacted && !hashed.MatchString(value)
		}
	}
	return f
}

// shows reports whether the log has the values of a header. Caddy's has all that were sent,
// unless it redacts, hashes or deletes them.
func (f *logFacts) shows(header string) bool {
	readable, sent := f.headers[header]
	return readable || !sent && f.caddy && len(f.headers) > 0
}

// lacks returns why a zone cannot be replayed, or "".
func (f *logFacts) lacks(z *limit.Zone) string {
	for _, k := range z.Key.Sources {
		header := ""
		switch {
		case k.Source == "field":
			return "its key is the form field " + strconv.Quote(k.Name) + ", and logs hold no bodies"
		case strings.Contains(k.Source, "{http.auth."):
			return "its key is the user who has authenticated, and a replay authenticates nobody"
		case k.Source == "cookie":
			header = "Cookie"
		case k.Source == "basic_user":
			header = "Authorization"
		case k.Source == "header":
			header = http.CanonicalHeaderKey(k.Name)
		}
		if header == "" || f.shows(header) {
			continue
		}
		why := "its key is in the header " + header + ", which the log does not show"
		if _, redacted := f.headers[header]; redacted && (header == "Cookie" || header == "Authorization") {
			why += ": set log_credentials in the servers options to log it"
		}
		return why
	}
	for _, cost := range z.Cost {
		if strings.HasPrefix(cost.Value, "body_items") || strings.HasPrefix(cost.Value, "body_bytes") && !f.caddy {
			return "its cost is in the body, and logs hold no bodies"
		}
	}
	switch s := z.Settle; {
	case s == nil:
	case s.Source == "header" && s.After:
		return "it charges what a response header says, which logs do not hold"
	case s.Source == "seconds" && !f.durations:
		return "it settles seconds, and the log has no durations"
	}
	return ""
}

// sentHeader finds the headers and cookies that expressions and placeholders ask for.
var sentHeader = regexp.MustCompile(`\bheader(?:_regexp)?\(\s*(?:\{\s*)?(?:['\x60]|\\")([^'"\x60\\]+)|http\.request\.header\.([A-Za-z0-9-]+)|http\.request\.(cookie)\.`)

// hidden returns the headers that matchers and costs in a part of a config look at and
// that the log does not show.
func (f *logFacts) hidden(part []byte) (names []string) {
	found := func(name string) {
		if name = http.CanonicalHeaderKey(name); !f.shows(name) && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	for _, match := range sentHeader.FindAllStringSubmatch(string(part), -1) {
		found(cmp.Or(match[1], match[2], match[3]))
	}
	var config any
	_ = json.Unmarshal(part, &config) // it was read before
	eachObject(config, func(object map[string]any) {
		for _, matcher := range []string{"header", "header_regexp"} {
			headers, _ := object[matcher].(map[string]any)
			for name := range headers {
				found(name)
			}
		}
	})
	slices.Sort(names)
	return names
}

// eachObject calls f with every object in a part of a config.
func eachObject(part any, f func(object map[string]any)) {
	switch part := part.(type) {
	case []any:
		for _, element := range part {
			eachObject(element, f)
		}
	case map[string]any:
		f(part)
		for _, element := range part {
			eachObject(element, f)
		}
	}
}

// doubts says what a replay of a zone leaves out.
func (f *logFacts) doubts(z *limit.Zone) (notes []string) {
	if z.Settle != nil && z.Settle.Source == "header" {
		notes = append(notes, fmt.Sprintf("zone %s settles what a response header says, which logs do not hold: its charges stay as they were reserved.", z.Name))
	}
	if slices.ContainsFunc(z.Refund, func(r limit.Refund) bool { return r.Cookie != "" || len(r.Match.Headers) > 0 }) {
		notes = append(notes, fmt.Sprintf("zone %s refunds by a cookie or a header of responses, which logs do not hold: such refunds are left out, so right log-ins are charged like wrong ones.", z.Name))
	}
	if z.Delay != nil {
		notes = append(notes, fmt.Sprintf("zone %s delays requests, and nobody waits in a replay: delayed are those whom the level of their bucket would have let wait. How many may wait at once does not count, and the upstream gets them at once.", z.Name))
	}
	if z.TrustDevices != nil {
		notes = append(notes, fmt.Sprintf("zone %s trusts devices, whose cookies logs do not hold: all requests are charged to the account.", z.Name))
	}
	return notes
}
