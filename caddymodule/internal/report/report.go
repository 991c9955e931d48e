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
	"strings"
	"time"

	"github.com/dustin/go-humanize"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/accesslog"
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
	for _, r := range zones {
		data.Zones = append(data.Zones, zoneOf(r))
	}
	return parsed.Execute(w, data)
}

var parsed = template.Must(template.New("report").Funcs(template.FuncMap{
	"comma":   func(n int) string { return humanize.Comma(int64(n)) },
	"amount":  humanize.Commaf,
	"share":   recommend.Share,
	"span":    recommend.Span,
	"number":  recommend.Number,
	"counted": recommend.Counted,
	"text":    func(s string) string { return text.Printable(s, 60) },
}).Parse(page))

// A zone is what the page shows of one.
type zone struct {
	*recommend.Result
	Best  recommend.Point
	Peaks chart
	Time  chart
	Span  string
	Per   string // hour or day
}

func zoneOf(r *recommend.Result) zone {
	z := zone{Result: r, Best: r.Units.Best(), Peaks: peaks(r), Span: recommend.Span(r.To.Sub(r.From).Seconds())}
	z.Time, z.Per = refusals(r.Hours)
	return z
}

// A chart is drawn in percent of its width, so that its text keeps its size on phones,
// and in pixels of its height.
type chart struct {
	Height  int
	Grid    []line
	Bars    []bar
	Labels  []label
	Rule    *rule
	Figures []string // what the bars say
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
	}
	label struct {
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

// add draws a bar of a step of the width, whose lower part is another kind, and labels one in
// so many.
func (c *chart) add(i, n, labelled int, height, lower float64, upperClass, lowerClass, name, figure string) {
	step := 100 / float64(n)
	x, width := (float64(i)+0.08)*step, 0.84*step
	c.Bars = append(c.Bars,
		bar{x, width, plotHeight - height, height - lower, "bar " + upperClass, figure},
		bar{x, width, plotHeight - lower, lower, "bar " + lowerClass, figure})
	c.Figures = append(c.Figures, figure)
	if every := (n + labelled - 1) / labelled; i%every == 0 && (i == 0 || (float64(i)+0.5)*step < 97) {
		c.Labels = append(c.Labels, label{(float64(i) + 0.5) * step, name, i/every%2 != 0})
	}
}

// peaks draws how many keys need which capacity, and the limit among them.
func peaks(r *recommend.Result) chart {
	c := chart{Height: plotHeight}
	most := 1
	for _, b := range r.Histogram {
		most = max(most, b.Keys)
	}
	// A single busy client must be visible beside thousands of others.
	decades := math.Ceil(math.Log10(float64(most) + 1))
	height := func(keys int) float64 { return plotHeight * math.Log10(float64(keys)+1) / decades }
	c.Grid = append(c.Grid, line{plotHeight, "0"})
	for n := range int(decades) + 1 {
		value := math.Pow10(n)
		if h := height(int(value)); h <= plotHeight {
			c.Grid = append(c.Grid, line{plotHeight - h, short(value)})
		}
	}
	const labelled = 8
	for i, b := range r.Histogram {
		// The parts are as high as their shares, since the scale is logarithmic.
		h := height(b.Keys)
		c.add(i, len(r.Histogram), labelled, h, h*float64(b.People)/float64(max(1, b.Keys)), "robot", "people", "≤"+short(b.Below),
			fmt.Sprintf("at most %s: %s, %s of them people", humanize.Commaf(b.Below), recommend.Counted(b.Keys, r.Noun()), humanize.Comma(int64(b.People))))
	}
	// The bars are powers of two: the capacity lies between two of them.
	capacity := r.Units.Best().Capacity
	if x := (math.Log2(max(1, capacity)) + 1) * 100 / float64(max(1, len(r.Histogram))); x <= 100 {
		c.Rule = &rule{x, "limit " + humanize.Commaf(capacity), x > 50}
	}
	return c
}

// mostBars is how many bars a chart of time has. Longer logs are shown by day.
const mostBars = 96

// refusals draws requests over time, and those that would be refused.
func refusals(hours []accesslog.Hour) (c chart, per string) {
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
	const labelled = 6
	for i := range n {
		from := first.Add(time.Duration(i) * length)
		name := from.Format("Jan 2, 15h")
		if length > time.Hour {
			name = from.Format("Jan 2")
		}
		c.add(i, n, labelled, plotHeight*float64(requests[i])/top, plotHeight*float64(refused[i])/top, "people", "refused", name,
			fmt.Sprintf("%s: %s, %s refused", from.Format("2006-01-02 15:04"), recommend.Counted(requests[i], "request"), humanize.Comma(int64(refused[i]))))
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
func short(n float64) string { return strings.ReplaceAll(humanize.SIWithDigits(n, 1, ""), " ", "") }
