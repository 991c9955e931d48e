package replay

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A Window is another algorithm to run beside the bucket: a window of capacity / leak
// seconds that admits the capacity, so that it has the same burst and the same
// long-run rate. It is cut into parts: with one, it is a fixed window; with more, it
// slides by one part. Without parts it is the bucket itself, which has decided already.
type Window struct{ Parts int }

const (
	slidingParts = 10
	mostParts    = 1000
)

// String returns the word for the algorithm.
func (w Window) String() string {
	switch w.Parts {
	case 0:
		return "bucket"
	case 1:
		return "fixed"
	}
	return fmt.Sprintf("sliding=%d", w.Parts)
}

// ParseWindows reads algorithms such as fixed,sliding=10. The first that it returns is the
// bucket.
func ParseWindows(words string) ([]Window, error) {
	if words == "" {
		return nil, nil
	}
	windows := []Window{{}}
	for word := range strings.SplitSeq(words, ",") {
		name, number, given := strings.Cut(word, "=")
		parts, err := strconv.Atoi(number)
		switch {
		case word == "fixed":
			parts = 1
		case word == "sliding":
			parts = slidingParts
		case name != "sliding" || !given:
			return nil, fmt.Errorf("unknown algorithm %q in --compare: want fixed, sliding or sliding=<n>, with commas between", word)
		case err != nil || parts < 2 || parts > mostParts:
			return nil, fmt.Errorf("invalid number of parts %q in --compare: want sliding=<n>, from 2 to %d", number, mostParts)
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

// An algorithm is one that runs.
type algorithm struct {
	Window
	refused int64
}

// lately is what an algorithm has admitted of a key.
type lately struct {
	parts []float64 // by number of the part, modulo their count
	part  int64     // the newest
	total float64   // of all parts

	admitted       []admission // within the last minute
	second, minute interval
}

// An admission is what a key was admitted at an instant.
type admission struct {
	at   time.Time
	cost float64
}

// An interval is the last admissions of some time.
type interval struct {
	from      int // index of the first
	sum, most float64
}

// add lets the algorithm decide about a request of a key.
func (a *algorithm) add(k *key, index int, d *Decided) {
	for len(k.lately) <= index {
		k.lately = append(k.lately, new(lately))
	}
	l := k.lately[index]
	if admitted := !d.refused(); a.Parts == 0 && !admitted || a.Parts > 0 && !a.take(l, d) {
		a.refused++
		return
	}
	l.admitted = append(l.admitted, admission{d.Request.At, d.Cost})
	l.second.note(l.admitted, time.Second)
	l.minute.note(l.admitted, time.Minute)
	if old := l.minute.from; old > 0 {
		l.admitted = slices.Delete(l.admitted, 0, old)
		l.second.from, l.minute.from = l.second.from-old, 0
	}
}

// note adds the last admission. Intervals are open at their end: two requests just a second
// apart are in different seconds.
func (i *interval) note(admitted []admission, length time.Duration) {
	last := len(admitted) - 1
	for ; admitted[last].at.Sub(admitted[i.from].at) >= length; i.from++ {
		i.sum -= admitted[i.from].cost
	}
	if i.from == last {
		i.sum = 0 // without what rounding has left
	}
	i.sum += admitted[last].cost
	i.most = max(i.most, i.sum)
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

// comparison returns what the algorithm did.
func (a *algorithm) comparison(keys map[string]*key, index int) Comparison {
	c := Comparison{Algorithm: a.String(), Refused: a.refused}
	for _, k := range keys {
		if index < len(k.lately) {
			c.MostSecond = max(c.MostSecond, k.lately[index].second.most)
			c.MostMinute = max(c.MostMinute, k.lately[index].minute.most)
		}
	}
	return c
}
