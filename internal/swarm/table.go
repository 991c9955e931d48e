package swarm

import (
	"encoding/csv"
	"fmt"
	"html"
	"io"
	"math"
	"strings"
)

// A Row is a result in a table.
type Row struct {
	Traffic string // such as "x10, fresh addresses"
	Site    string // such as "nginx limit_conn"
	*Result
}

var columns = []string{"traffic", "site", "members %", "first %", "first within 10 s %", "NAT %", "fetches %", "sessions completed %", "robots served %", "cookie robots served %", "utilisation"}

// cells returns the row as text. A dash stands for what the trial has not tried.
func (r *Row) cells() []string {
	percent := func(share float64) string {
		if math.IsNaN(share) {
			return "-"
		}
		return fmt.Sprintf("%.0f", 100*share)
	}
	return []string{
		r.Traffic, r.Site, percent(r.Member.Share()), percent(r.First.Share()), percent(ratio(r.First.Within10, r.First.Wanted)), percent(r.NAT.Share()),
		percent(r.First.FetchShare()), percent(r.First.Completed()), percent(ratio(r.Robot.Served, r.Robot.Requests)),
		percent(ratio(r.Cookie.Served, r.Cookie.Requests)), fmt.Sprintf("%.2f", r.Utilisation),
	}
}

// Table returns the rows as a table of Markdown.
func Table(rows []Row) string {
	var text strings.Builder
	fmt.Fprintf(&text, "| %s |\n|%s\n", strings.Join(columns, " | "), strings.Repeat("---|", len(columns)))
	for _, row := range rows {
		fmt.Fprintf(&text, "| %s |\n", strings.Join(row.cells(), " | "))
	}
	return text.String()
}

// WriteCSV writes the rows as CSV, for plots.
func WriteCSV(w io.Writer, rows []Row) error {
	out := csv.NewWriter(w)
	if err := out.Write(columns); err != nil {
		return err
	}
	for _, row := range rows {
		if err := out.Write(row.cells()); err != nil {
			return err
		}
	}
	out.Flush()
	return out.Error()
}

// WriteSVG draws what newcomers and members got: two bars for each row.
func WriteSVG(w io.Writer, title string, rows []Row) error {
	const width, left, line = 720, 330, 40
	height := 50 + line*len(rows)
	var text strings.Builder
	fmt.Fprintf(&text, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="13" role="img">`+"\n", width, height)
	fmt.Fprintf(&text, "<title>%s</title>\n<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n<text x=\"10\" y=\"22\" font-weight=\"bold\">%[1]s</text>\n", html.EscapeString(title))
	for i, row := range rows {
		y := 40 + line*i
		fmt.Fprintf(&text, `<text x="%d" y="%d" text-anchor="end">%s: %s</text>`+"\n", left-10, y+20, html.EscapeString(row.Traffic), html.EscapeString(row.Site))
		for j, bar := range []struct {
			of    string
			share float64
			fill  string
		}{{"members", row.Member.Share(), "#7aa6c2"}, {"first-time visitors", row.First.Share(), "#1f5f8b"}} {
			if math.IsNaN(bar.share) {
				continue
			}
			length := bar.share * (width - left - 170)
			fmt.Fprintf(&text, `<rect x="%d" y="%d" width="%.0f" height="14" fill="%s"/><text x="%.0f" y="%d" font-size="11">%.0f %% of %s</text>`+"\n",
				left, y+3+16*j, length, bar.fill, float64(left)+length+6, y+14+16*j, 100*bar.share, bar.of)
		}
	}
	text.WriteString("</svg>\n")
	_, err := io.WriteString(w, text.String())
	return err
}
