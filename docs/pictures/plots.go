package main

import (
	"cmp"
	_ "embed" // for what was measured
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

func at(seconds float64) leakybucket.Instant {
	return leakybucket.Instant(math.Round(seconds * 1e6))
}

// level shows how a bucket fills and leaks, and what a refused client is told.
func level() string {
	const cost, until = 4.0, 14.0
	limit := leakybucket.Limit{Capacity: 10, Leak: 1}
	c := newCanvas(800, 430, "A bucket of capacity 10 that leaks 1 a second",
		"Requests of cost 4 raise the level at 0, 1 and 2 seconds. The one at 3 seconds does not fit. It would fit 3 seconds later, and the bucket is empty 9 seconds later.")
	p := plot{c, 62, 84, 770, 300, 0, until, 14}
	p.axes(1, 2, " s")
	c.text("small soft", 62, 72, "start", "level")

	var state leakybucket.State
	points := []float64{p.x(0), p.y(0)}
	refusedAt, refusedLevel := 0.0, 0.0
	for _, t := range []float64{0, 1, 2, 3} {
		before := limit.Level(state, at(t))
		points = append(points, p.x(t), p.y(before))
		next, was := limit.Take(state, cost, at(t))
		if !was.Poured {
			refusedAt, refusedLevel = t, was.Level
			continue
		}
		state = next
		points = append(points, p.x(t), p.y(before+cost))
	}
	fit, empty := limit.TimeToFit(refusedLevel, cost).Seconds(), limit.TimeToEmpty(refusedLevel).Seconds()
	points = append(points, p.x(refusedAt+empty), p.y(0))
	c.path("area", points...)
	c.path("curve", append(points, p.x(until), p.y(0))...)
	p.path("bad dash", p.left, p.y(limit.Capacity), p.right, p.y(limit.Capacity))
	c.text("small red", p.right, p.y(limit.Capacity)-8, "end", "capacity: the burst")
	c.text("small blue", p.x(8.2), p.y(4.9), "start", "leak: the sustained rate")

	c.cross(p.x(refusedAt), p.y(refusedLevel+cost))
	p.path("bad dash", p.x(refusedAt), p.y(refusedLevel), p.x(refusedAt), p.y(refusedLevel+cost))
	c.text("red", p.x(refusedAt)+14, p.y(refusedLevel+cost)+6, "start", fmt.Sprintf("refused: %g + %g is more than %g", refusedLevel, cost, limit.Capacity))
	for _, mark := range []struct{ t, end float64 }{{refusedAt, 410}, {refusedAt + fit, 366}, {refusedAt + empty, 410}} {
		p.path("axis dash", p.x(mark.t), p.y(limit.Level(state, at(mark.t))), p.x(mark.t), p.bottom)
		p.path("axis dash", p.x(mark.t), p.bottom+30, p.x(mark.t), mark.end)
	}
	p.span(refusedAt, refusedAt+fit, 360, "small strong", fmt.Sprintf("time to fit: %g s", fit))
	c.text("small soft", p.x(refusedAt+fit)+10, 352, "start", "the page says this, and retry_after fit")
	p.span(refusedAt, refusedAt+empty, 404, "small strong", fmt.Sprintf("time to empty: %g s", empty))
	c.text("small soft", p.x(refusedAt)+164, 396, "start", "Retry-After says this by default")
	return c.svg()
}

// fixedWindow compares what passes around the turn of a window.
func fixedWindow() string {
	limit := leakybucket.Limit{Capacity: 100, Leak: 100.0 / 60}
	c := newCanvas(800, 400, "100 a minute: leaky bucket and fixed window",
		"A client sends 100 requests in the last second of a minute and 100 in the first second of the next. A fixed window passes 200 within two seconds, the leaky bucket about 100.")
	p := plot{c, 62, 84, 600, 330, 50, 70, 220}
	p.axes(5, 50, " s")
	c.text("small soft", 62, 72, "start", "requests passed")
	p.path("axis dash", p.x(60), p.y(220), p.x(60), p.y(0))
	c.text("small soft", p.x(60), p.top-4, "middle", "the window turns")

	var state leakybucket.State
	var leaky, window []float64
	leaky, window = append(leaky, p.x(50), p.y(0)), append(window, p.x(50), p.y(0))
	passed, counted, total, minute := 0.0, 0, 0.0, 0
	step := func(points []float64, t, before, after float64) []float64 {
		return append(points, p.x(t), p.y(before), p.x(t), p.y(after))
	}
	for i := range 200 {
		t := 59 + float64(i)/100
		next, was := limit.Take(state, 1, at(t))
		if was.Poured {
			state = next
			leaky = step(leaky, t, passed, passed+1)
			passed++
		}
		if now := int(t) / 60; now != minute {
			minute, counted = now, 0
		}
		if counted < 100 {
			counted++
			window = step(window, t, total, total+1)
			total++
		}
	}
	leaky, window = append(leaky, p.x(70), p.y(passed)), append(window, p.x(70), p.y(total))
	p.path("bad", window...)
	p.path("curve", leaky...)
	c.text("strong red", 612, p.y(total)+5, "start", fmt.Sprintf("fixed window: %g", total))
	c.text("small soft", 612, p.y(total)+26, "start", "twice the limit in 2 s")
	c.text("strong blue", 612, p.y(passed)+5, "start", fmt.Sprintf("leaky bucket: %g", passed))
	c.text("small soft", 612, p.y(passed)+26, "start", "the burst, and the leak")
	c.text("small soft", 62, 384, "start", "A client sends 100 requests from 59 s to 60 s, and 100 more from 60 s to 61 s.")
	return c.svg()
}

// delay shows when requests that come at once are served.
func delay() string {
	const requests = 9
	limit := leakybucket.Limit{Capacity: 6, Leak: 10}
	c := newCanvas(800, 420, "delay: a queue of 5 that moves at 10 a second",
		"Nine requests come at once to a zone with limit 6 10/s. The first passes, five wait 100 to 500 milliseconds, three are refused.")
	c.text("small soft", 28, 62, "start", "With limit 6 10/s and delay in the zone, nine requests come at once.")
	p := plot{c, 120, 84, 640, 370, 0, 0.6, requests}
	for v := 0; v <= 6; v++ {
		x := p.x(float64(v) / 10)
		p.path("grid", x, p.top, x, p.bottom)
		c.text("small soft", x, p.bottom+22, "middle", fmt.Sprintf("%d ms", v*100))
	}
	p.path("axis", p.left, p.top, p.left, p.bottom, p.right, p.bottom)
	var state leakybucket.State
	for i := range requests {
		y := p.y(float64(requests-i) - 0.5)
		c.text("small soft", p.left-12, y+5, "end", fmt.Sprintf("request %d", i+1))
		next, was := limit.Take(state, 1, at(0))
		if !was.Poured {
			c.cross(p.x(0)+12, y)
			c.text("small red halo", p.x(0)+28, y+5, "start", fmt.Sprintf("refused: retry in %d ms", limit.TimeToFit(was.Level, 1).Milliseconds()))
			continue
		}
		state = next
		wait := limit.Delay(was.Level, 0)
		c.rect("area", p.x(0), y-9, p.x(wait.Seconds())-p.x(0), 18, 0)
		c.dot("green", p.x(wait.Seconds()), y, 7)
		label := "passes at once"
		if wait > 0 {
			label = fmt.Sprintf("passes after %d ms", wait.Milliseconds())
		}
		c.text("small halo", p.x(wait.Seconds())+16, y+5, "start", label)
	}
	return c.svg()
}

// measured is one line of scraper.csv, which a test of WordPress measures: see
// tests/applications/wordpress_scraper_test.go.
type measured struct{ second, pages, took float64 }

//go:embed scraper.csv
var scraperCSV string

// measurements returns those of the person or the scraper, in shadow or enforced, in their order.
func measurements(limits, who string) (all []measured) {
	for line := range strings.Lines(scraperCSV) {
		if line, ok := strings.CutPrefix(line, limits+","+who+","); ok {
			var m measured
			_, _ = fmt.Sscanf(line, "%g,%g,%g", &m.second, &m.pages, &m.took) // the scraper's have no third
			all = append(all, m)
		}
	}
	slices.SortFunc(all, func(a, b measured) int { return cmp.Compare(a.second, b.second) })
	return all
}

// scraperArrives at this second, and has used up its burst by the other, with limits.
const scraperArrives, burstEnds = 10, 36

// typical returns the median of how long the person's pages take beside the scraper.
func typical(limits string) float64 {
	var took []float64
	for _, m := range measurements(limits, "person") {
		if m.second >= scraperArrives {
			took = append(took, m.took)
		}
	}
	slices.Sort(took)
	return took[len(took)/2]
}

// scraper shows what limits are worth to a person, beside a scraper.
func scraper() string {
	const length = 60
	c := newCanvas(800, 500, "An old WordPress, a scraper and a person",
		fmt.Sprintf("Measured at a WordPress with five PHP workers. Without limits, the person's pages take %.1f seconds. With limits, they take %.1f seconds, and the scraper gets a burst, then two pages a second.", typical("shadow"), typical("enforced")))
	lines := []struct{ limits, class, ink, name string }{{"shadow", "bad", "red", "without limits"}, {"enforced", "curve", "blue", "with limits"}}

	person := plot{c, 62, 96, 640, 250, 0, length, 6}
	person.axes(10, 2, " s")
	c.text("small soft", 28, 76, "start", "How many seconds the person waits for a page")
	pages := plot{c, 62, 334, 640, 460, 0, length, 20}
	pages.axes(10, 5, " s")
	c.text("small soft", 28, 314, "start", "How many pages a second the scraper gets")
	for _, p := range []plot{person, pages} {
		p.path("axis dash", p.x(scraperArrives), p.bottom, p.x(scraperArrives), p.top-4)
	}
	c.text("small halo", pages.x(scraperArrives)+8, pages.y(17), "start", "the scraper arrives, with 40 connections")
	c.text("small blue halo", pages.x(16), pages.y(2.5), "start", "the burst: 120 pages")

	for _, line := range lines {
		var points []float64
		for _, m := range measurements(line.limits, "person") {
			points = append(points, person.x(m.second), person.y(m.took))
			c.dot(line.ink, person.x(m.second), person.y(m.took), 3.5)
		}
		person.path(line.class, points...)
		c.text("small soft", 652, person.y(typical(line.limits))-15, "start", line.name)
		c.text("strong "+line.ink, 652, person.y(typical(line.limits))+5, "start", fmt.Sprintf("%.1f seconds", typical(line.limits)))

		points = nil
		of := measurements(line.limits, "scraper")
		for i := 0; i < len(of); i += 2 {
			points = append(points, pages.x(of[i].second+1), pages.y((of[i].pages+of[i+1].pages)/2))
		}
		pages.path(line.class, points...)
		rate, n := 0.0, 0.0
		for _, m := range of {
			if m.second >= burstEnds {
				rate, n = rate+m.pages, n+1
			}
		}
		c.text("strong "+line.ink, 652, pages.y(rate/n)+5, "start", fmt.Sprintf("%.0f a second", rate/n))
	}
	return c.svg()
}

// block shows how blocks grow while a client goes on, and what ends that.
func block() string {
	ladder := &leakybucket.Ladder{Steps: []time.Duration{10 * time.Minute, time.Hour, 24 * time.Hour}}
	c := newCanvas(800, 330, "block 10m 1h 1d: each block is longer, until the client is quiet",
		"An overflow blocks for 10 minutes. Another within 10 minutes of its end blocks for an hour, the next for a day. After a quiet day an overflow blocks for 10 minutes again.")
	const bottom = 250
	x := 36.0
	var state leakybucket.State
	now := at(0)
	for _, pause := range []time.Duration{0, 4 * time.Minute, 20 * time.Minute, 25 * time.Hour} {
		if pause > 0 {
			width, label := 84.0, map[bool]string{true: "quiet", false: "served"}[pause >= 24*time.Hour]
			if label == "quiet" {
				width = 110
			}
			_, _ = fmt.Fprintf(c, "<path class=\"arrow\" d=\"M%.4g %dH%.4g\"/>\n", x+6, bottom-12, x+width-8)
			c.text("small soft", x+width/2, bottom-42, "middle", label)
			c.text("small soft", x+width/2, bottom-24, "middle", short(pause))
			x += width
		}
		now = now.Add(pause)
		charge := leakybucket.Charge{Limit: leakybucket.Limit{Capacity: 5, Leak: 5.0 / 3600}, Cost: 1, Block: ladder}
		for d := (leakybucket.Decision{Poured: true}); d.Poured; { // until it overflows
			charge.Take(&state, now, &d)
		}
		length := state.BlockedUntil.Sub(now)
		width, height := 84+40*math.Log10(length.Minutes()/10), 44+40*float64(state.Step)
		c.rect("rose", x, bottom-height, width, height, 3)
		c.text("strong red", x+width/2, bottom-height/2+6, "middle", short(length))
		c.cross(x+6, bottom+24)
		c.text("small red", x+20, bottom+29, "start", "overflow")
		x += width
		now = state.BlockedUntil
	}
	c.path("axis", 28, bottom, 780, bottom)
	c.text("small soft", 28, 64, "start", "An overflow soon after a block takes the next step. After staying quiet for as long as")
	c.text("small soft", 28, 84, "start", "its last block, a client starts at the first step again.")
	return c.svg()
}

// short writes a duration in its largest unit.
func short(d time.Duration) string {
	switch {
	case d < time.Hour:
		return fmt.Sprintf("%g min", d.Minutes())
	case d < 24*time.Hour:
		return fmt.Sprintf("%g h", d.Hours())
	case d == 24*time.Hour:
		return "1 day"
	}
	return fmt.Sprintf("%g h", d.Hours())
}
