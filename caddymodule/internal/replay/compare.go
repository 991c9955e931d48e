package replay

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// A Window is another algorithm to run beside the bucket: a window of capacity / leak
// seconds that admits the capacity, so that it has the same burst and the same
// long-run rate. It is cut into parts: with one, it is a fixed window; with more, it
// slides by one part.
type Window struct{ Parts int }

const (
	slidingParts = 10
	mostParts    = 1000
)

// String returns the word for the algorithm.
func (w Window) String() string {
	if w.Parts == 1 {
		return "fixed"
	}
	return fmt.Sprintf("sliding=%d", w.Parts)
}

// ParseWindows reads algorithms such as fixed,sliding=10.
func ParseWindows(words string) (windows []Window, err error) {
	if words == "" {
		return nil, nil
	}
	for word := range strings.SplitSeq(words, ",") {
		parts := 0
		switch name, number, given := strings.Cut(word, "="); {
		case word == "fixed":
			parts = 1
		case word == "sliding":
			parts = slidingParts
		case name == "sliding" && given:
			parts, err = strconv.Atoi(number)
			if err != nil || parts < 2 || parts > mostParts {
				return nil, fmt.Errorf("invalid number of parts %q in --compare: want sliding=<n>, from 2 to %d", number, mostParts)
			}
		default:
			return nil, fmt.Errorf("unknown algorithm %q in --compare: want fixed, sliding or sliding=<n>, with commas between", word)
		}
		windows = append(windows, Window{parts})
	}
	return windows, nil
}

// A Comparison is what an algorithm did with the same requests, keys and costs.
type Comparison struct {
	Algorithm  string  `json:"algorithm"` // bucket, fixed or sliding=<parts>
	Refused    int64   `json:"refused"`
	MostSecond float64 `json:"most_in_a_second"` // units that any second admitted of one key
	MostMinute float64 `json:"most_in_a_minute"`
}

// An algorithm is one that runs. With no parts it is the bucket, which has decided
// already.
type algorithm struct {
	Window
	refused int64
}

// algorithms returns the bucket and the others, or nothing if there are no others.
func algorithms(windows []Window) []algorithm {
	if len(windows) == 0 {
		return nil
	}
	all := []algorithm{{}}
	for _, w := range windows {
		all = append(all, algorithm{Window: w})
	}
	return all
}

// lately is what an algorithm has admitted of a key.
type lately struct {
	parts []float64 // by number of the part, modulo their count
	part  int64     // the newest
	total float64   // of all parts

	admitted               []admission // within the last minute
	second                 int         // index of the first within the last second
	inSecond, inMinute     float64
	mostSecond, mostMinute float64
}

// An admission is what a key was admitted at an instant.
type admission struct {
	at   time.Time
	cost float64
}

// add lets the algorithm decide about a request of a key.
func (a *algorithm) add(k *key, index int, d *Decided) {
	for len(k.lately) <= index {
		k.lately = append(k.lately, new(lately))
	}
	l := k.lately[index]
	admitted := !d.refused()
	if a.Parts > 0 {
		admitted = a.take(l, d)
	}
	if admitted {
		l.note(d.Request.At, d.Cost)
	} else {
		a.refused++
	}
}

// take decides as a window of parts does.
func (a *algorithm) take(l *lately, d *Decided) bool {
	if d.Capacity <= 0 || d.Leak <= 0 {
		return !d.refused() // the zone has no bucket, or denies the key
	}
	if l.parts == nil {
		l.parts = make([]float64, a.Parts)
	}
	part := int64(float64(d.Request.At.UnixMicro()) / (d.Capacity / d.Leak / float64(a.Parts) * 1e6))
	for n := l.part + 1; n <= part && n <= l.part+int64(a.Parts); n++ {
		at := n % int64(a.Parts)
		l.total -= l.parts[at]
		l.parts[at] = 0
	}
	if part > l.part+int64(a.Parts) {
		clear(l.parts)
		l.total = 0
	}
	l.part = max(l.part, part)
	if l.total+d.Cost > d.Capacity*(1+1e-9) {
		return false
	}
	l.total += d.Cost
	l.parts[l.part%int64(a.Parts)] += d.Cost
	return true
}

// note notes an admission for the most that a second and a minute admitted. Both
// intervals are open at their end: two requests just a second apart are in different
// seconds.
func (l *lately) note(at time.Time, cost float64) {
	for l.second < len(l.admitted) && at.Sub(l.admitted[l.second].at) >= time.Second {
		l.inSecond -= l.admitted[l.second].cost
		l.second++
	}
	old := 0
	for old < len(l.admitted) && at.Sub(l.admitted[old].at) >= time.Minute {
		l.inMinute -= l.admitted[old].cost
		old++
	}
	if old > 0 {
		l.admitted = l.admitted[:copy(l.admitted, l.admitted[old:])]
		l.second -= old
	}
	if len(l.admitted) == 0 {
		l.inSecond, l.inMinute = 0, 0 // without what rounding has left
	}
	l.admitted = append(l.admitted, admission{at, cost})
	l.inSecond += cost
	l.inMinute += cost
	l.mostSecond, l.mostMinute = max(l.mostSecond, l.inSecond), max(l.mostMinute, l.inMinute)
}

// comparison returns what the algorithm did.
func (a *algorithm) comparison(keys map[string]*key, index int) Comparison {
	c := Comparison{Algorithm: "bucket", Refused: a.refused}
	if a.Parts > 0 {
		c.Algorithm = a.String()
	}
	for _, k := range keys {
		if index < len(k.lately) {
			c.MostSecond = max(c.MostSecond, k.lately[index].mostSecond)
			c.MostMinute = max(c.MostMinute, k.lately[index].mostMinute)
		}
	}
	return c
}
