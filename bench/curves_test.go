package bench

import (
	"context"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/memstore"
)

var curvesFile = flag.String("curves", "", "measure the cost as work grows, and draw it to this SVG file")

// A curve is the processor time of one decision as something grows.
type curve struct {
	title  string
	values []int
	lines  []line
}

type line struct {
	name        string
	nanoseconds []float64 // for each value
}

// TestCurves draws what one decision costs as work grows.
func TestCurves(t *testing.T) {
	if *curvesFile == "" {
		t.Skip("SKIPPED: measures; run ./run.sh --curves")
	}
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	curves := []curve{keysCurve(), zonesCurve(), callersCurve()}
	for _, c := range curves {
		t.Log(c.table())
	}
	if err := os.WriteFile(*curvesFile, []byte(draw(curves)), 0o644); err != nil {
		t.Fatal(err)
	}
}

// perDecision returns the processor time of one call of take in this thread.
func perDecision(take func(i int)) float64 {
	const (
		parts = 1500
		part  = 200
	)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	took := make([]time.Duration, parts)
	for n := range took {
		began := threadTime()
		for i := n * part; i < (n+1)*part; i++ {
			take(i)
		}
		took[n] = threadTime() - began
	}
	return good(took) / part
}

var curveLimit = leakybucket.Limit{Capacity: 1e8, Leak: 0.2}

// chargesOf returns so many charges of one request, each in a zone of its own.
func chargesOf(zones int) ([]leakybucket.Charge, []leakybucket.Decision) {
	charges := make([]leakybucket.Charge, zones)
	for i := range charges {
		charges[i] = leakybucket.Charge{Zone: fmt.Sprint("zone", i), Limit: curveLimit, Cost: 1}
	}
	return charges, make([]leakybucket.Decision, zones)
}

func keysCurve() curve {
	c := curve{title: "keys, asked at random", lines: []line{{name: "memstore"}}}
	ctx := context.Background()
	for keys := 1000; keys <= 10_000_000; keys *= 10 {
		s := memstore.New(memstore.Options{MaxBuckets: keys + keys/4})
		charges, decisions := chargesOf(1)
		for i := range keys {
			charges[0].Key = ipv4(uint32(i)).String()
			_ = s.Take(ctx, charges, decisions)
		}
		rng, order := rand.New(rand.NewPCG(1, 1)), make([]uint32, 1<<19)
		for i := range order {
			order[i] = uint32(rng.IntN(keys))
		}
		asked := ipv4Keys(order)
		c.add(keys, perDecision(func(i int) {
			charges[0].Key = asked.at(i % asked.len())
			_ = s.Take(ctx, charges, decisions)
		}))
		s = nil
		runtime.GC()
	}
	return c
}

func zonesCurve() curve {
	c := curve{title: "zones of one request", lines: []line{{name: "memstore"}}}
	s, ctx := memstore.New(memstore.Options{}), context.Background()
	for _, zones := range []int{1, 2, 3, 5, 10, 20} {
		charges, decisions := chargesOf(zones)
		for i := range charges {
			charges[i].Key = ipv4(uint32(i)).String()
		}
		c.add(zones, perDecision(func(int) { _ = s.Take(ctx, charges, decisions) }))
		runtime.GC()
	}
	return c
}

// callersCurve counts the processor time of the whole process, since callers wait for each
// other.
func callersCurve() curve {
	const decisions = 1 << 20
	c := curve{title: "callers at the same time, 10,000 keys", lines: []line{{name: "1 core"}, {name: "2 cores"}}}
	names := make([]string, 10_000)
	for i := range names {
		names[i] = ipv4(uint32(i)).String()
	}
	for callers := 1; callers <= 1024; callers *= 4 {
		var ns [2]float64
		for cores := 1; cores <= 2; cores++ {
			before := runtime.GOMAXPROCS(cores)
			best := math.Inf(1)
			for range 5 {
				s := memstore.New(memstore.Options{})
				var all sync.WaitGroup
				began := processTime()
				for caller := range callers {
					all.Go(func() {
						charges, decided := chargesOf(1)
						for i := range decisions / callers {
							charges[0].Key = names[(i*7919+caller*104_729)%len(names)]
							_ = s.Take(context.Background(), charges, decided)
						}
					})
				}
				all.Wait()
				best = min(best, float64(processTime()-began)/decisions)
				runtime.GC()
			}
			ns[cores-1] = best
			runtime.GOMAXPROCS(before)
		}
		c.add(callers, ns[:]...)
	}
	return c
}

// processTime returns how long the process has run.
func processTime() time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		panic(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

func (c *curve) add(value int, nanoseconds ...float64) {
	c.values = append(c.values, value)
	for i, ns := range nanoseconds {
		c.lines[i].nanoseconds = append(c.lines[i].nanoseconds, ns)
	}
}

// table returns the curve as Markdown.
func (c *curve) table() string {
	head, rule, rows := "| "+c.title, "|---", ""
	for _, v := range c.values {
		head, rule = head+" | "+number3(v), rule+"|---"
	}
	for _, l := range c.lines {
		rows += "| " + l.name
		for _, ns := range l.nanoseconds {
			rows += fmt.Sprintf(" | %.0f", ns)
		}
		rows += " |\n"
	}
	return "\n" + head + " |\n" + rule + "|\n" + rows
}

// number3 writes 1000000 as 1,000,000.
func number3(n int) string {
	if n < 1000 {
		return fmt.Sprint(n)
	}
	return fmt.Sprintf("%s,%03d", number3(n/1000), n%1000)
}

const (
	panelWidth, panelHeight = 360, 250
	marginLeft, marginTop   = 56, 34
	plotWidth, plotHeight   = 280, 160
)

// draw returns an SVG with a panel for each curve. Its colours follow the reader's
// preference for dark or light.
func draw(curves []curve) string {
	rows := (len(curves) + 1) / 2
	var svg strings.Builder
	fmt.Fprintf(&svg, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%[1]d" height="%[2]d" role="img" font-family="system-ui, sans-serif" font-size="11">
<title>Processor time of one decision as work grows</title>
<style>
.ground { fill: #ffffff } text { fill: #1f2328 } .grid { stroke: #d0d7de } .a { stroke: #0969da; fill: none } .b { stroke: #bc4c00; fill: none } text.a { stroke: none; fill: #0969da } text.b { stroke: none; fill: #bc4c00 }
@media (prefers-color-scheme: dark) {
.ground { fill: #0d1117 } text { fill: #e6edf3 } .grid { stroke: #30363d } .a { stroke: #58a6ff } .b { stroke: #f0883e } text.a { fill: #58a6ff } text.b { fill: #f0883e }
}
</style>
<rect class="ground" width="100%%" height="100%%"/>
`, 2*panelWidth, rows*panelHeight)
	for i := range curves {
		fmt.Fprintf(&svg, "<g transform=\"translate(%d %d)\">\n", i%2*panelWidth, i/2*panelHeight)
		curves[i].draw(&svg)
		svg.WriteString("</g>\n")
	}
	svg.WriteString("</svg>\n")
	return svg.String()
}

func (c *curve) draw(svg *strings.Builder) {
	highest := 0.0
	for _, l := range c.lines {
		for _, ns := range l.nanoseconds {
			highest = max(highest, ns)
		}
	}
	step := math.Pow(10, math.Floor(math.Log10(highest)))
	switch {
	case highest/step < 2:
		step /= 4
	case highest/step < 5:
		step /= 2
	}
	top := math.Ceil(highest/step) * step
	first, last := math.Log(float64(c.values[0])), math.Log(float64(c.values[len(c.values)-1]))
	x := func(v int) float64 { return marginLeft + plotWidth*(math.Log(float64(v))-first)/(last-first) }
	y := func(ns float64) float64 { return marginTop + plotHeight*(1-ns/top) }
	fmt.Fprintf(svg, "<text x=\"%d\" y=\"18\" font-weight=\"600\">ns by %s</text>\n", 12, c.title)
	for ns := 0.0; ns <= top+step/2; ns += step {
		fmt.Fprintf(svg, "<line class=\"grid\" x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1[3]f\"/><text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%.0f</text>\n",
			marginLeft, marginLeft+plotWidth, y(ns), marginLeft-6, y(ns)+4, ns)
	}
	for _, v := range c.values {
		label := number3(v)
		if v >= 10_000 {
			label = fmt.Sprintf("1e%.0f", math.Log10(float64(v)))
		}
		fmt.Fprintf(svg, "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%s</text>\n", x(v), marginTop+plotHeight+16, label)
	}
	for i, l := range c.lines {
		class, points := string(rune('a'+i)), ""
		for n, ns := range l.nanoseconds {
			points += fmt.Sprintf("%.1f,%.1f ", x(c.values[n]), y(ns))
		}
		fmt.Fprintf(svg, "<polyline class=\"%s\" stroke-width=\"2\" points=\"%s\"/>\n", class, strings.TrimSpace(points))
		if len(c.lines) > 1 {
			fmt.Fprintf(svg, "<text class=\"%s\" x=\"%d\" y=\"%d\">%s</text>\n", class, marginLeft+140*i, marginTop+plotHeight+34, l.name)
		}
	}
}
