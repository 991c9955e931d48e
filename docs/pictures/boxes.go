package main

import "fmt"

// request shows a request's way through the zones.
func request() string {
	c := newCanvas(800, 470, "A request's way",
		"An exempt request goes straight to the upstream. Others find the zones that match, a key and a cost in each. If all zones fit, all are charged; the request may wait, is served, and the charge is corrected. Otherwise none is charged and the request is refused.")
	const width, height = 156.0, 86.0
	columns := []float64{28, 224, 420, 616}
	rows := []float64{76, 216, 356}
	box := func(class string, column, row int, title string, lines ...string) {
		x, y := columns[column], rows[row]
		c.rect(class, x, y, width, height, 8)
		c.text("strong", x+width/2, y+28, "middle", title)
		for i, line := range lines {
			c.text("small soft", x+width/2, y+50+18*float64(i), "middle", line)
		}
	}
	arrow := func(points ...float64) { c.path("arrow", points...) }
	right := func(column, row int) {
		y := rows[row] + height/2
		arrow(columns[column]+width+3, y, columns[column+1]-4, y)
	}

	box("box", 0, 0, "exempt?", "static files, checks:", "nothing is charged")
	box("box", 1, 0, "match", "which zones match", "the request")
	box("box", 2, 0, "key", "whose bucket:", "address, account, ...")
	box("box", 3, 0, "cost", "1, or what the body", "or a matcher says")
	box("box", 3, 1, "all or none", "does it fit in", "every zone's bucket?")
	box("box", 2, 1, "wait", "delay, or a free slot", "of in_flight")
	box("box", 1, 1, "upstream", "your site", "")
	box("box", 0, 1, "settle", "correct the charge:", "what it really cost")
	box("rose", 3, 2, "refused", "nothing is charged;", "429 and Retry-After")
	right(0, 0)
	right(1, 0)
	right(2, 0)
	middle := columns[3] + width/2
	arrow(middle, rows[0]+height+3, middle, rows[1]-4)
	arrow(middle, rows[1]+height+3, middle, rows[2]-4)
	for column := 3; column > 0; column-- {
		y := rows[1] + height/2
		arrow(columns[column]-3, y, columns[column-1]+width+4, y)
	}
	c.text("small green", columns[2]+width+21, rows[1]+height/2-14, "middle", "yes")
	c.text("small red", middle+10, rows[1]+height+32, "start", "no")
	// The exempt go round.
	turn := (rows[0] + height + rows[1]) / 2
	arrow(columns[0]+width/2, rows[0]+height+3, columns[0]+width/2, turn, columns[1]+width/2, turn, columns[1]+width/2, rows[1]-4)
	c.text("small green", columns[0]+width/2+10, turn-8, "start", "exempt")
	// Some wait in vain.
	wait := columns[2] + width/2
	arrow(wait, rows[1]+height+3, wait, rows[2]+height/2, columns[3]-4, rows[2]+height/2)
	c.text("small red", wait+10, rows[1]+height+32, "start", "too long")
	c.text("small soft", 28, rows[2]+24, "start", "If a zone settles, the charge is a reservation.")
	c.text("small soft", 28, rows[2]+46, "start", "The response, its time or its size then says what")
	c.text("small soft", 28, rows[2]+68, "start", "the request really cost, and the bucket is corrected.")
	return c.svg()
}

// house shows the packages, and what each is built upon.
func house() string {
	c := newCanvas(800, 678, "The house",
		"Packages from the top to the bottom: the guests inspector, crawler, listener and tune, then caddymodule, then the Caddyfile and what steers at run time, the engine with its stores and telemetry, config, limit, which is the zone and the verdict, the packages of one concept, and leakybucket. Arrows point down, to what a package is built upon.")
	const height, step = 62.0, 88.0
	left := []float64{28, 286, 544}
	top := func(row int) float64 { return 60 + step*float64(row) }
	width := func(columns int) float64 { return 258*float64(columns) - 30 }
	box := func(column, row, columns int, title, line string) {
		x := left[column] + width(columns)/2
		c.rect("box", left[column], top(row), width(columns), height, 8)
		c.text("strong", x, top(row)+26, "middle", title)
		c.text("small soft", x, top(row)+47, "middle", line)
	}
	down := func(column, from, to int) {
		x := left[column] + width(1)/2
		c.path("arrow", x, top(from)+height+3, x, top(to)-4)
	}
	box(0, 0, 3, "guests: inspector, crawler, listener, tune", "what not every site needs; standard imports them all")
	box(0, 1, 3, "caddymodule", "Caddy's modules and their registration, and the doors for guests")
	box(0, 2, 1, "caddyfile", "from Caddyfiles to config")
	box(1, 2, 1, "engine", "decide, admit, serve, settle")
	box(2, 2, 1, "admin, cli", "to look and to steer")
	box(1, 3, 1, "telemetry", "counters, log lines, events")
	box(2, 3, 1, "stores", "what outlives a config")
	box(0, 3, 1, "config", "JSON, its manual, defaults")
	box(0, 4, 2, "limit", "a compiled zone; a request and its verdict; settling")
	box(0, 5, 3, "one concept each", "option, perkey, body, record, refusal, override, ...")
	box(0, 6, 3, "leakybucket", "the model and its stores, a library of its own")
	for column := range left {
		for row := range 3 {
			down(column, row, row+1)
		}
	}
	down(0, 3, 4)
	down(1, 3, 4)
	down(2, 3, 5)
	down(0, 4, 5)
	down(1, 5, 6)
	return c.svg()
}

// A screen is what one phone shows. Its texts and colours are those of the built-in
// page.
type screen struct {
	back, card, text, soft string
	title                  string
	reason                 []string
	wait, time             string
	done                   float64 // of the bar
	then                   []string
	code                   string // the words before the support code
}

var screens = []screen{
	{
		back: "#f3f4f6", card: "#fff", text: "#1c2128", soft: "#535c68",
		title: "One moment, please", reason: []string{"This site is receiving too many", "requests right now."},
		wait: "Please wait", time: "26 seconds", done: 0.15, then: []string{"This page will then reload by", "itself."},
		code: "Support code:",
	},
	{
		back: "#14171b", card: "#1e2329", text: "#e8eaed", soft: "#a9b2bd",
		title: "Einen Moment, bitte", reason: []string{"Bei dieser Website gehen gerade", "zu viele Anfragen ein."},
		wait: "Bitte warten Sie", time: "12 Sekunden", done: 0.6, then: []string{"Danach lädt diese Seite von", "selbst neu."},
		code: "Support-Code:",
	},
}

const accent = "#3578c6"

// refusal shows what a refused person sees, on a phone in light and one in dark.
func refusal() string {
	c := newCanvas(800, 560, "What a refused person sees",
		"Two phones show the built-in page: a heading, one sentence on the reason, the wait with a bar, that the page reloads by itself, and a support code. One is in English and light, one in German and dark.")
	const width, height, card = 312.0, 470.0, 272.0
	rect := func(colour string, x, y, width, height, radius float64) {
		_, _ = fmt.Fprintf(c, "<rect style=\"fill:%s\" x=\"%.4g\" y=\"%.4g\" width=\"%.4g\" height=\"%.4g\" rx=\"%.4g\"/>\n", colour, x, y, width, height, radius)
	}
	line := func(colour, more string, x, y float64, text string) {
		_, _ = fmt.Fprintf(c, "<text style=\"fill:%s;%s\" x=\"%.4g\" y=\"%.4g\">%s</text>\n", colour, more, x, y, text)
	}
	for i, s := range screens {
		x, y := 60+368*float64(i), 66.0
		c.rect("phone", x, y, width, height, 34)
		rect(s.back, x+10, y+10, width-20, height-20, 26)
		c.rect("phone", x+width/2-38, y+18, 76, 16, 8)
		left, top := x+22, y+(height-card)/2
		rect(s.card, left, top, width-44, card, 8)
		rect(accent, left, top, width-44, 5, 0)
		left += 18
		at := top + 40
		next := func(more float64) float64 { at += more; return at - more }
		line(s.text, "font-size:20px;font-weight:700", left, next(26), s.title)
		for _, text := range s.reason {
			line(s.text, "font-size:14px", left, next(20), text)
		}
		at += 16
		line(s.text, "font-size:17px", left, next(24), s.wait)
		line(s.text, "font-size:17px", left, next(16), "<tspan style=\"font-weight:700\">"+s.time+"</tspan>.")
		rect(s.back, left, at, width-80, 7, 3.5)
		rect(accent, left, at, (width-80)*s.done, 7, 3.5)
		at += 32
		for _, text := range s.then {
			line(s.soft, "font-size:14px", left, next(20), text)
		}
		at += 6
		line(s.soft, "font-size:13px", left, at, s.code+" 7K2M-Q8XD")
	}
	return c.svg()
}
