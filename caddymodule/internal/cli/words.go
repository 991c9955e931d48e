package cli

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode/utf16"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/admin/wire"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/text"
)

// sanitize returns text from clients as a terminal may show it.
func sanitize(from string) string { return text.Printable(from, 100) }

// shortKey is sanitize for keys in tables, where long ones are cut. why and release accept
// them so; limit wants the whole one, from --json.
func shortKey(key string) string { return text.Printable(key, 40) }

// asShown returns what a text from a terminal stands for, if the terminal showed it escaped.
func asShown(shown string) string {
	if strings.Contains(shown, `\`) {
		if text, err := strconv.Unquote(`"` + strings.ReplaceAll(shown, `"`, `\"`) + `"`); err == nil {
			return text
		}
	}
	return shown
}

// printableLine is what a terminal may show of a message that quotes what it complains
// of: without a second escape of the quotes in it.
func printableLine(message string) string {
	return strings.ReplaceAll(text.Printable(message, 2000), `\\`, `\`)
}

// escapeJSON escapes what a terminal should not show, which in JSON stands in strings
// alone.
func escapeJSON(document string) string {
	var b strings.Builder
	for _, r := range document {
		if r == '\n' || r == '\t' || strconv.IsPrint(r) {
			b.WriteRune(r)
			continue
		}
		for _, unit := range utf16.AppendRune(nil, r) {
			fmt.Fprintf(&b, `\u%04x`, unit)
		}
	}
	return b.String()
}

// digits returns a number with few digits.
func digits(n float64) string {
	if math.Abs(n) >= 100 {
		return fmt.Sprintf("%.0f", n)
	}
	return fmt.Sprintf("%.3g", n)
}

// wholeSeconds returns a duration in seconds for people.
func wholeSeconds(s float64) string {
	if s == 0 {
		return "-"
	}
	return lengthText(time.Duration(math.Ceil(s) * float64(time.Second)))
}

// lengthText returns a duration for people, who count long ones in days.
func lengthText(d time.Duration) string {
	if days := d / (24 * time.Hour); days > 1 {
		return fmt.Sprintf("%dd%dh", days, int(d.Hours())%24)
	}
	return d.String()
}

// elapsed returns how long ago something was.
func elapsed(at time.Time) time.Duration { return max(0, time.Since(at)).Round(time.Second) }

// remaining returns how long a span still lasts.
func remaining(until time.Time) string {
	return lengthText(max(0, time.Until(until)).Round(time.Second))
}

// since returns when something was, in local time.
func since(at time.Time) string { return at.Local().Format("01-02 15:04:05") }

// ofKey names a zone, or one key of it.
func ofKey(zone, key string) string {
	if key != "" {
		zone += "/" + key
	}
	return sanitize(zone)
}

// ruleText says which limit a bucket has, and where that comes from.
func ruleText(b *wire.Bucket) string {
	switch b.By {
	case "run_time":
		return "limit " + sanitize(b.From)
	case "override":
		return b.Rule + " by " + sanitize(b.From)
	}
	if b.Share {
		return "store down: a share"
	}
	return b.Rule
}

// verdictText says what becomes of a request now.
func verdictText(b *wire.Bucket) string {
	v, text := &b.Verdict, "fits"
	switch {
	case v.Reason != "":
		text = "refused: " + v.Reason + lasting(v)
	case b.Dearest != nil && b.Dearest.Reason != "":
		v = b.Dearest
		text = "fits; at cost " + digits(v.Cost) + " refused: " + v.Reason + lasting(v)
	}
	if v.Reason != "" && !v.Refused() {
		text += " (shadow)"
	}
	return text
}

// lasting says for how long a request is refused, if that is known.
func lasting(v *wire.Verdict) string {
	if v.For == 0 {
		return ""
	}
	return ", " + wholeSeconds(v.For)
}

// measures returns the cost of a request, and the level and capacity of its bucket. A
// rule without a bucket has none.
func measures(cost, level, capacity float64) (c, l, of string) {
	switch {
	case capacity > 0:
		return digits(cost), digits(level), digits(capacity)
	case cost > 0:
		return digits(cost), "-", "-"
	}
	return "-", "-", "-"
}

// inShadow says what the figures of zones in shadow mean.
const inShadow = "Shadow counts as if all zones of the same throttle were enforced.\n"

// showPartial says that a search did not find everything.
func (c *adminClient) showPartial(complete bool, problem string) {
	if !complete {
		c.say("The search did not reach the end: there may be more. " + text.Printable(problem, 1000))
	}
}

// showLocal says that an answer was given without the shared store.
func (c *adminClient) showLocal(local bool) {
	if local {
		c.say("The store is failing: this is what this Caddy knows, and its share of the limits holds.")
	}
}
