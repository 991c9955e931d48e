// Package accesslog reads requests from access logs: the JSON of Caddy, nginx, Traefik and others,
// the common and combined formats, those of Rails, HAProxy and more, and any whose fields are
// named, plain or compressed, rotated or not. Begin with [Open].
//
// Logs hold what clients have sent, so every text in a [Request] may have been written
// by an attacker. Show it with [command.Printable] only.
package accesslog

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/tidwall/gjson"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/command"
)

// NoDuration is the Duration of a request if its line does not say how long it took.
const NoDuration time.Duration = -1

// A Request is a request that a line of an access log tells of. Its texts share the
// memory of the line: clone what is kept for long.
type Request struct {
	// At is when the request arrived. Caddy and nginx log when it ended, so the
	// duration is taken off.
	At time.Time

	// Duration is how long the request took, or NoDuration.
	Duration time.Duration

	Sender
	HeaderFields

	// Host is as the client sent it. Combined logs have none: see Options.Host.
	Host, Method, URI, Proto string

	// TLS is set if the line tells of a TLS connection, and Upgraded if Caddy itself sent the client
	// from HTTP to HTTPS, before any handler. Only Caddy's do.
	TLS, Upgraded bool

	// Status is that of the response. Zero means that the line does not say.
	Status int

	// Size is how many bytes of body were sent, or -1 if the line does not say.
	Size int64

	// Received is how many bytes of the request's body were read, or -1 if the line does
	// not say.
	Received int64

	Decided
	Place
}

// Decided is what Caddy's log says of the limits.
type Decided struct {
	// Throttle is the field of that name in Caddy's log, as JSON, or empty.
	Throttle string

	// InFlight is what an in_flight has decided about the request, such as refused, or empty, and
	// Waited for how long it let the request wait in its queue.
	InFlight string
	Waited   time.Duration

	// Unlogged is how many refusals before this line `refusal log` kept out of the log.
	Unlogged int64
}

// A Sender is whom a request comes from.
type Sender struct {
	// Client is the address of the client: Caddy's client_ip, or the remote address.
	// It is unmapped and has no zone. The zero Addr means that the line has none.
	Client netip.Addr

	// ClientText is the address as the line has it. It may be a hash or a name, for which
	// Client stands in.
	ClientText string
	StandsIn   bool

	// Remote is the address of the peer, which may be a proxy.
	Remote string

	// Named is the client that a proxy names, if it is public and another than the peer. Behind
	// is set if Client is that one.
	Named  netip.Addr
	Behind bool
}

// HeaderFields are those that a line has.
type HeaderFields struct {
	// Agent is the first header User-Agent, or empty.
	Agent string

	// Referer is that of a line that is not Caddy's, and HeaderJSON all headers of one that
	// is, as a JSON object.
	Referer, HeaderJSON string
}

// A Place is where a request was read.
type Place struct {
	// File and Line are where the line is.
	File string
	Line int

	// Caddy is set if the line is Caddy's JSON.
	Caddy bool

	// Mixed is set if the lines of other requests hide what became of this one.
	Mixed bool

	fraction bool // the line's time has a fraction of a second
	length   int  // of the line
}

// An Outcome is what a zone decided about a request, as Caddy's log has it.
type Outcome struct {
	Zone     string  `json:"zone"`
	Key      string  `json:"key"`
	Decision string  `json:"decision"`
	Reason   string  `json:"reason,omitempty"`
	Cost     float64 `json:"cost"`
	Level    float64 `json:"level"`
	Capacity float64 `json:"capacity"`
	Delay    float64 `json:"delay"`              // in seconds
	Unlogged int64   `json:"unlogged,omitempty"` // as that of the request
}

// Outcomes returns what the zones that were asked about the request decided.
func (r *Request) Outcomes() ([]Outcome, error) {
	if r.Throttle == "" {
		return nil, nil
	}
	var field struct {
		Outcome
		Zones []Outcome // all of them, if there is more than the decisive one
	}
	if err := json.Unmarshal([]byte(r.Throttle), &field); err != nil || len(field.Zones) > 0 {
		return field.Zones, err
	}
	return []Outcome{field.Outcome}, nil
}

// Stats say what a [Reader] has read so far. Their JSON is the field log of what commands
// print.
type Stats struct {
	Files      []string  `json:"files"`
	From       time.Time `json:"from"` // the first arrival
	To         time.Time `json:"to"`
	Lines      int64     `json:"lines"`
	Requests   int64     `json:"requests"`
	Other      int64     `json:"other_lines"` // about something else, such as Caddy's other logs
	Unreadable int64     `json:"unreadable_lines"`
	Unlogged   int64     `json:"unlogged"` // refused requests that refusal log kept out of the logs
	Problems   []string  `json:"problems"` // the first unreadable lines, and files that broke off; safe to print

	Broken    error `json:"-"` // why the first file that ended too early did, such as a truncated gzip
	NoClient  int64 `json:"-"` // requests without an address
	StandIns  int64 `json:"-"` // requests with a hash or a name in its place
	Fractions int64 `json:"-"` // requests whose time has a fraction of a second
	Behind    int64 `json:"-"` // requests whose client a proxy names, in the last field or X-Forwarded-For
	Mixed     int64 `json:"-"` // requests whose status and duration are not known
	Upgraded  int64 `json:"-"` // requests that Caddy sent from HTTP to HTTPS

	timed int64 // requests with a duration, without WebSockets
	busy  float64
}

// Doubts says what of the logs may have been read wrong.
func (s *Stats) Doubts() (notes []string) {
	if s.Behind > 0 {
		notes = append(notes, fmt.Sprintf("%s of %s requests count for the client that a proxy names in X-Forwarded-For, because the line's own address is private, or most lines name another. Clients can make it up. --client names another field, such as remote_addr.",
			humanize.Comma(s.Behind), humanize.Comma(s.Requests)))
	}
	if s.Mixed > 0 {
		notes = append(notes, fmt.Sprintf("%s requests have no status and no duration, because Rails served several at once, and the lines do not say to which they belong. For the next log, set config.log_tags = [:request_id].", humanize.Comma(s.Mixed)))
	}
	mean, span := s.busy/float64(max(1, s.timed)), s.To.Sub(s.From).Seconds()
	if atOnce := s.busy / max(1, span); mean > 30 || span > 600 && atOnce > 100 {
		notes = append(notes, fmt.Sprintf("A request took %.4g seconds on average, and %.4g were served at once: that is hardly true. If the log has other units than seconds, name the field and its unit, such as --time-field duration:ms.", mean, atOnce))
	}
	return notes
}

// Complaints says how many lines could not be read, and shows some of them.
func (s *Stats) Complaints() (said string) {
	if s.Unreadable > 0 {
		said = fmt.Sprintf("%s of %s lines could not be read.\n", humanize.Comma(s.Unreadable), humanize.Comma(s.Lines))
	}
	for _, problem := range s.Problems {
		said += "  " + problem + "\n"
	}
	return said
}

// Facts are what logs hold of requests.
type Facts struct {
	Hosts, Caddy, Durations, Sizes bool // of some

	Headers map[string]bool // that were sent, and whether some can be read
}

// hashed is how Caddy's filter of that name writes a value.
var hashed = regexp.MustCompile("^[0-9a-f]{8}$")

func (f *Facts) add(r *Request, headers bool) {
	f.Hosts, f.Caddy, f.Durations, f.Sizes = f.Hosts || r.Host != "", f.Caddy || r.Caddy, f.Durations || r.Duration >= 0, f.Sizes || r.Size >= 0
	if headers {
		for name, value := range r.Headers() {
			f.Headers[name] = f.Headers[name] || value != Redacted && !hashed.MatchString(value)
		}
	}
}

// Shows reports whether the values of a header can be read. Caddy logs all that were sent,
// unless it redacts, hashes or deletes them.
func (f *Facts) Shows(header string) bool {
	readable, sent := f.Headers[header]
	return readable || !sent && f.Caddy && len(f.Headers) > 0
}

// mostProblems is how many unreadable lines are shown.
const mostProblems = 5

// A mistake in a log is an error that is safe to print, and names the log.
func mistake(log string, err error) error {
	if path := (*os.PathError)(nil); errors.As(err, &path) {
		err = path.Err
	}
	return fmt.Errorf("%s: %w", command.Printable(log, 200), err)
}

// Redacted is the value that Caddy logs for cookies and credentials.
const Redacted = "REDACTED"

// Headers iterates over the headers of the request, as far as the line has them. A
// header with several values comes several times.
func (r *Request) Headers() func(yield func(name, value string) bool) {
	return func(yield func(name, value string) bool) {
		if r.HeaderJSON == "" {
			_ = (r.Referer == "" || yield("Referer", r.Referer)) && (dashless(r.Agent) == "" || yield("User-Agent", r.Agent))
			return
		}
		more := true
		gjson.Parse(r.HeaderJSON).ForEach(func(name, values gjson.Result) bool {
			values.ForEach(func(_, value gjson.Result) bool { // a filter may have put a text in the place of the list
				more = value.Type != gjson.String || yield(name.Str, value.Str)
				return more
			})
			return more
		})
	}
}

// assets are the endings of files that browsers load with a page.
var assets = []string{
	"css", "js", "mjs", "map", "png", "jpg", "jpeg", "gif", "webp", "avif", "svg", "ico", "bmp",
	"woff", "woff2", "ttf", "otf", "eot", "mp3", "mp4", "webm", "ogg",
}

// Asset reports whether the request is probably for a static asset, by its ending.
func (r *Request) Asset() bool {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		return false
	}
	name := r.Route()
	dot := strings.LastIndexByte(name, '.')
	return dot >= 0 && len(name)-dot <= 6 && !strings.Contains(name, ".php") && slices.Contains(assets, strings.ToLower(name[dot+1:]))
}

// Route returns the path of the request, without its query.
func (r *Request) Route() string {
	path, _, _ := strings.Cut(r.URI, "?")
	return path
}
