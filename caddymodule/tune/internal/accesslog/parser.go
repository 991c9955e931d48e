package accesslog

import (
	"math"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/tidwall/gjson"
)

// earliest is the first time that is believed. Clocks that were never set say 1970.
var earliest = time.Date(1995, 1, 1, 0, 0, 0, 0, time.UTC)

// A verdict is what a line turned out to be.
type verdict uint8

const request, other, unreadable verdict = 0, 1, 2

// A parser reads the lines of one file. It remembers what it has learned about them.
type parser struct {
	timeField   string        // of the duration; empty means the usual one
	unit        time.Duration // of that field; 0 means the usual one
	clientField string        // of the client; empty means the usual one
	formats     []pattern     // of lines that are no JSON
	given       bool          // of all lines
	latest      time.Time     // the last time that is believed
	host        string        // of requests whose line has none

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
	case line[0] == '{' && !p.given:
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
