// Package report writes what was recommended as one page that needs nothing else: no
// script, no network, and a policy that forbids both. Begin with [Write].
package report

import (
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"fmt"
	"html/template"
	"io"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/dustin/go-humanize"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/recommend"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/text"
)

//go:embed report.html
var page string

//go:embed report.css
var style string

// A Setting is one that the page names, such as an option of the command.
type Setting struct{ Name, Value string }

// Write writes a page about the zones, and notes about all of them. Texts from logs are
// made printable and escaped.
func Write(w io.Writer, zones []*recommend.Result, notes []string, settings []Setting) error {
	hash := sha256.Sum256([]byte(style))
	data := struct {
		Style    template.CSS
		Policy   string
		Settings []Setting
		Notes    []string
		Zones    []zone
	}{
		Notes:  notes,
		Style:  template.CSS(style), // ours, and the policy holds its hash
		Policy: "default-src 'none'; base-uri 'none'; form-action 'none'; style-src 'sha256-" + base64.StdEncoding.EncodeToString(hash[:]) + "'",
	}
	for _, s := range settings {
		data.Settings = append(data.Settings, Setting{s.Name, text.Printable(s.Value, 300)})
	}
	for i, r := range zones {
		data.Zones = append(data.Zones, zoneOf(i, r))
	}
	return parsed.Execute(w, data)
}

var parsed = template.Must(template.New("report").Funcs(template.FuncMap{
	"comma":   func(n int) string { return humanize.Comma(int64(n)) },
	"share":   recommend.Share,
	"span":    recommend.Span,
	"number":  recommend.Number,
	"counted": recommend.Counted,
	"text":    func(s string) string { return text.Printable(s, 60) },
}).Parse(page))

// A zone is what the page shows of one.
type zone struct {
	*recommend.Result
	ID    int
	Noun  string
	Best  recommend.Point
	Units curve
	Times *curve
	Peaks chart
	Time  chart
	Span  string
	Per   string // hour or day
}

// A curve is a table and its chart.
type curve struct {
	recommend.Curve
	Capacity, Load chart
}

func zoneOf(id int, r *recommend.Result) zone {
	z := zone{
		Result: r, ID: id, Noun: r.Noun(), Best: r.Units.Best(),
		Units: curveOf(r.Units), Peaks: peaks(r), Span: recommend.Span(r.To.Sub(r.From).Seconds()),
	}
	if r.Seconds != nil && len(r.Withheld) == 0 {
		c := curveOf(*r.Seconds)
		z.Times = &c
	}
	z.Time, z.Per = refusals(r.Hours)
	return z
}

// A chart is drawn in percent of its width, so that its text keeps its size on phones,
// and in pixels of its height.
type chart struct {
	Height int
	Grid   []line
	Bars   []bar
	Marks  []mark
	Lines  []segment
	Labels []label
	Rule   *rule
}

// plotHeight is that of all charts, in pixels, without the labels below.
const plotHeight = 180

type (
	line struct {
		Y    float64
		Text string
	}
	bar struct {
		X, Width, Y, Height float64
		Class, Title        string
		Name                string
		Value               float64
	}
	mark struct {
		X, Y  float64
		Best  bool
		Title string
		Name  string
		Value float64
	}
	segment struct{ X1, Y1, X2, Y2 float64 }
	label   struct {
		X     float64
		Text  string
		Minor bool // left out on phones
	}
	rule struct {
		X    float64
		Text string
		Left bool // the text is left of the line
	}
)

// curveOf draws the capacities of a curve, on a logarithmic scale, and the shares of
// the load that they refuse.
func curveOf(c recommend.Curve) curve {
	r := curve{Curve: c, Capacity: chart{Height: plotHeight}, Load: chart{Height: plotHeight}}
	most, best := 1.0, 0.0
	for _, p := range c.Points {
		most, best = max(most, p.Capacity), max(best, p.RefusedLoad)
	}
	decades := max(1, math.Ceil(math.Log10(most)))
	y := func(capacity float64) float64 { return plotHeight * (1 - math.Log10(max(1, capacity))/decades) }
	for n := range int(decades) + 1 {
		value := math.Pow10(n)
		r.Capacity.Grid = append(r.Capacity.Grid, line{y(value), short(value)})
	}
	top := niceShare(best)
	for n := range 5 {
		value := top * float64(n) / 4
		r.Load.Grid = append(r.Load.Grid, line{plotHeight * (1 - value/top), strconv.FormatFloat(100*value, 'g', 6, 64) + "%"})
	}
	step := 100 / float64(len(c.Points))
	for i, p := range c.Points {
		x := (float64(i) + 0.5) * step
		recommended := i == c.Recommended
		r.Capacity.Marks = append(r.Capacity.Marks, mark{
			x, y(p.Capacity), recommended, fmt.Sprintf("leak %s: capacity %s", p.Leak, recommend.Number(p.Capacity)), p.Leak, p.Capacity,
		})
		if i > 0 {
			r.Capacity.Lines = append(r.Capacity.Lines, segment{x - step, y(c.Points[i-1].Capacity), x, y(p.Capacity)})
		}
		height := plotHeight * p.RefusedLoad / top
		class := "bar"
		if recommended {
			class = "bar best"
		}
		r.Load.Bars = append(r.Load.Bars, bar{
			x - 0.35*step, 0.7 * step, plotHeight - height, height, class,
			fmt.Sprintf("leak %s: %s of the load refused", p.Leak, recommend.Share(p.RefusedLoad)), p.Leak, p.RefusedLoad,
		})
		tick := label{x, p.Leak, i%3 != 0}
		r.Capacity.Labels, r.Load.Labels = append(r.Capacity.Labels, tick), append(r.Load.Labels, tick)
	}
	return r
}

// niceShare returns a round share that is not below best.
func niceShare(best float64) float64 {
	for _, top := range []float64{0.04, 0.1, 0.2, 0.4, 0.6, 0.8} {
		if best <= top {
			return top
		}
	}
	return 1
}

// peaks draws how many keys need which capacity.
func peaks(r *recommend.Result) chart {
	c := chart{Height: plotHeight}
	most := 1
	for _, b := range r.Histogram {
		most = max(most, b.Keys)
	}
	// A single busy client must be visible beside thousands of others.
	decades := max(1, math.Ceil(math.Log10(float64(most)+1)))
	height := func(keys int) float64 { return plotHeight * math.Log10(float64(keys)+1) / decades }
	c.Grid = append(c.Grid, line{plotHeight, "0"})
	for n := range int(decades) + 1 {
		value := math.Pow10(n)
		if h := height(int(value)); h <= plotHeight {
			c.Grid = append(c.Grid, line{plotHeight - h, short(value)})
		}
	}
	step := 100 / float64(max(1, len(r.Histogram)))
	capacity := r.Units.Best().Capacity
	for i, b := range r.Histogram {
		class := "bar"
		if b.Below > capacity && (i == 0 || r.Histogram[i-1].Below >= capacity) {
			class = "bar refused"
		}
		h := height(b.Keys)
		c.Bars = append(c.Bars, bar{
			(float64(i) + 0.08) * step, 0.84 * step, plotHeight - h, h, class,
			fmt.Sprintf("%s need at most %s", recommend.Counted(b.Keys, r.Noun()), recommend.Number(b.Below)), recommend.Number(b.Below), float64(b.Keys),
		})
		c.Labels = append(c.Labels, label{(float64(i) + 0.5) * step, "≤" + short(b.Below), i%2 != 0})
	}
	if len(r.Histogram) > 0 {
		// The bars are powers of two: the capacity lies between two of them.
		at := math.Log2(max(1, capacity)) + 1
		if x := at * step; x <= 100 {
			c.Rule = &rule{x, "capacity " + recommend.Number(capacity), x > 50}
		}
	}
	return c
}

// mostBars is how many bars a chart of time has. Longer logs are shown by day.
const mostBars = 96

// refusals draws requests over time, and those that would be refused.
func refusals(hours []recommend.Hour) (c chart, per string) {
	c, per = chart{Height: plotHeight}, "hour"
	if len(hours) == 0 {
		return c, per
	}
	length := time.Hour
	first, last := hours[0].From, hours[len(hours)-1].From
	if last.Sub(first) >= mostBars*time.Hour {
		length, per = 24*time.Hour, "day"
	}
	for last.Sub(first) >= 4*mostBars*length {
		length, per = 2*length, recommend.Span((2 * length).Seconds())
	}
	first = first.Truncate(length)
	n := int(last.Sub(first)/length) + 1
	requests, refused := make([]int, n), make([]int, n)
	most := 1
	for _, h := range hours {
		i := int(h.From.Sub(first) / length)
		requests[i] += h.Requests
		refused[i] += h.Refused
		most = max(most, requests[i])
	}
	top := nice(float64(most))
	for i := range 5 {
		value := top * float64(i) / 4
		c.Grid = append(c.Grid, line{plotHeight * (1 - value/top), short(value)})
	}
	step := 100 / float64(n)
	every := max(1, (n+5)/6)
	for i := range n {
		from := first.Add(time.Duration(i) * length)
		x := float64(i) * step
		title := fmt.Sprintf("%s: %s, %s refused", from.Format("2006-01-02 15:04"), recommend.Counted(requests[i], "request"), humanize.Comma(int64(refused[i])))
		h, red := plotHeight*float64(requests[i])/top, plotHeight*float64(refused[i])/top
		c.Bars = append(c.Bars,
			bar{x + 0.1*step, 0.8 * step, plotHeight - h, h - red, "bar", title, from.Format(time.RFC3339), float64(requests[i] - refused[i])},
			bar{x + 0.1*step, 0.8 * step, plotHeight - red, red, "bar refused", title, from.Format(time.RFC3339), float64(refused[i])})
		if i%every == 0 && x < 90 {
			caption := from.Format("Jan 2, 15h")
			if length > time.Hour {
				caption = from.Format("Jan 2")
			}
			c.Labels = append(c.Labels, label{x + step/2, caption, i/every%2 != 0})
		}
	}
	return c, per
}

// nice returns a round number that is not below n, and that four divides.
func nice(n float64) float64 {
	unit := math.Pow10(int(math.Floor(math.Log10(max(4, n)))))
	for _, factor := range []float64{1, 2, 4, 6, 8, 10} {
		if top := factor * unit; n <= top && top >= 4 {
			return top
		}
	}
	return 20 * unit
}

// short writes a number for an axis, with one decimal.
func short(n float64) string {
	switch {
	case n >= 1e6:
		return strings.TrimSuffix(strconv.FormatFloat(n/1e6, 'f', 1, 64), ".0") + "M"
	case n >= 1e4:
		return strings.TrimSuffix(strconv.FormatFloat(n/1e3, 'f', 1, 64), ".0") + "k"
	}
	return recommend.Number(n)
}
