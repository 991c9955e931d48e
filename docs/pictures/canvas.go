package main

import (
	"fmt"
	"html"
	"strings"
)

// A canvas is an SVG that follows the reader's choice of light or dark. Text is
// large enough for a README, which shows pictures about as wide as they are.
type canvas struct {
	strings.Builder
	width, height float64
}

const style = `<style>
svg{color-scheme:light dark;--back:#fff;--ink:#1f2328;--soft:#59636e;--grid:#d1d9e0;--box:#f6f8fa;--blue:#2a6fb8;--fill:#dbeafa;--red:#c3352b;--rose:#fbe3e1;--green:#1a7f4b}
@media(prefers-color-scheme:dark){svg{--back:#0d1117;--ink:#e6edf3;--soft:#9aa4af;--grid:#30363d;--box:#161b22;--blue:#6cb0f5;--fill:#17304d;--red:#ff8178;--rose:#44201f;--green:#56d08a}}
text{font:16px system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;fill:var(--ink)}
.title{font-size:19px;font-weight:600}.soft{fill:var(--soft)}.strong{font-weight:600}
.small{font-size:14px}.blue{fill:var(--blue)}.red{fill:var(--red)}.green{fill:var(--green)}
.halo{paint-order:stroke;stroke:var(--back);stroke-width:5px;stroke-linejoin:round}.back{fill:var(--back)}.area{fill:var(--fill)}.box{fill:var(--box);stroke:var(--grid)}.phone{fill:#0b0d10;stroke:var(--grid)}.rose{fill:var(--rose);stroke:var(--red)}
.axis,.grid{fill:none;stroke:var(--soft)}.grid{stroke:var(--grid)}.dash{stroke-dasharray:6 5}
.curve{fill:none;stroke:var(--blue);stroke-width:2.5;stroke-linejoin:round}.arrow{fill:none;stroke:var(--soft);stroke-width:1.5;marker-end:url(#tip)}
.refused{stroke:var(--red)}.bad{fill:none;stroke:var(--red);stroke-width:2.5}
</style>
<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto-start-reverse"><path d="M0 0 8 4 0 8z" style="fill:context-stroke"/></marker></defs>
`

// newCanvas begins a picture. What it shows is said to people who cannot see it.
func newCanvas(width, height float64, title, shows string) *canvas {
	c := &canvas{width: width, height: height}
	_, _ = fmt.Fprintf(c, "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %g %g\" width=\"%[1]g\" height=\"%[2]g\" role=\"img\" aria-labelledby=\"t d\">\n", width, height)
	_, _ = fmt.Fprintf(c, "<title id=\"t\">%s</title>\n<desc id=\"d\">%s</desc>\n", html.EscapeString(title), html.EscapeString(shows))
	c.WriteString(style)
	c.rect("back", 0, 0, width, height, 10)
	c.text("title", 28, 38, "start", title)
	return c
}

func (c *canvas) svg() string { return c.String() + "</svg>\n" }

// text writes a line of text. The anchor is start, middle or end.
func (c *canvas) text(class string, x, y float64, anchor, text string) {
	_, _ = fmt.Fprintf(c, "<text class=%q x=\"%.4g\" y=\"%.4g\" text-anchor=%q>%s</text>\n", class, x, y, anchor, html.EscapeString(text))
}

func (c *canvas) rect(class string, x, y, width, height, radius float64) {
	_, _ = fmt.Fprintf(c, "<rect class=%q x=\"%.4g\" y=\"%.4g\" width=\"%.4g\" height=\"%.4g\" rx=\"%.4g\"/>\n", class, x, y, width, height, radius)
}

func (c *canvas) dot(class string, x, y, radius float64) {
	_, _ = fmt.Fprintf(c, "<circle class=%q cx=\"%.4g\" cy=\"%.4g\" r=\"%.4g\"/>\n", class, x, y, radius)
}

// cross marks what is refused.
func (c *canvas) cross(x, y float64) {
	const r = 6
	_, _ = fmt.Fprintf(c, "<path class=\"bad\" d=\"M%.4g %.4gl%d %[3]dm0 -%[3]dl-%[3]d %[3]d\"/>\n", x-r, y-r, 2*r)
}

// path draws a line through points, which are x, y, x, y.
func (c *canvas) path(class string, points ...float64) {
	_, _ = fmt.Fprintf(c, "<path class=%q d=\"M", class)
	for i, v := range points {
		if i > 0 {
			c.WriteByte(' ')
		}
		_, _ = fmt.Fprintf(c, "%.4g", v)
	}
	c.WriteString("\"/>\n")
}

// A plot is a part of a canvas with two scales.
type plot struct {
	*canvas
	left, top, right, bottom float64 // on the canvas
	fromX, toX, toY          float64 // in what is shown
}

func (p plot) x(v float64) float64 { return p.left + (v-p.fromX)/(p.toX-p.fromX)*(p.right-p.left) }
func (p plot) y(v float64) float64 { return p.bottom - v/p.toY*(p.bottom-p.top) }

// axes draws the scales, with a mark at each step.
func (p plot) axes(stepX, stepY float64, unitX string) {
	for v := stepY; v <= p.toY; v += stepY {
		p.path("grid", p.left, p.y(v), p.right, p.y(v))
		p.text("small soft", p.left-8, p.y(v)+5, "end", fmt.Sprint(v))
	}
	for v := p.fromX; v <= p.toX; v += stepX {
		p.path("axis", p.x(v), p.bottom, p.x(v), p.bottom+5)
		p.text("small soft", p.x(v), p.bottom+22, "middle", fmt.Sprintf("%.4g%s", v, unitX))
	}
	p.path("axis", p.left, p.top, p.left, p.bottom, p.right, p.bottom)
}

// span draws an arrow with two ends and a text above it.
func (p plot) span(from, to, y float64, class, text string) {
	_, _ = fmt.Fprintf(p, "<path class=\"arrow\" marker-start=\"url(#tip)\" d=\"M%.4g %.4gH%.4g\"/>\n", p.x(from), y, p.x(to))
	p.text(class, p.x(from)+6, y-8, "start", text)
}
