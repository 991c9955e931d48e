package swarm

import (
	"fmt"
	"math"
	"strings"
	"time"
)

// A Row is the sum of some trials in a table.
type Row struct {
	Traffic string // such as "x10, fresh addresses"
	Site    string // such as "nginx limit_conn"
	Trials  int
	Lasted  time.Duration // all of them
	*Result               // utilisations summed up
}

var columns = []string{
	"traffic", "site", "trials", "minutes", "members %", "first %", "first within 10 s %", "NAT %", "fetches %",
	"sessions completed %", "robots served %", "cookie robots served %", "scraper served %", "exports served %",
	"refused by the zone %", "utilisation", "wasted work %", "pages took longer by %", "machine",
}

// Utilised returns the mean utilisation.
func (r *Row) Utilised() float64 { return r.Utilisation / float64(r.Trials) }

// cells returns the row as text. A dash stands for what the trial has not tried.
func (r *Row) cells() []string {
	machine := "steady"
	if r.Disturbed() {
		machine = "too busy"
	}
	cells := []string{r.Traffic, r.Site, fmt.Sprint(r.Trials), fmt.Sprintf("%.0f", r.Lasted.Minutes())}
	for _, share := range []float64{
		r.Member.Share(), r.First.Share(), ratio(r.First.Within10, r.First.Wanted), r.NAT.Share(), r.First.FetchShare(),
		r.First.Completed(), ratio(r.Robot.Served, r.Robot.Requests), ratio(r.Cookie.Served, r.Cookie.Requests),
		ratio(r.Scraper.Served, r.Scraper.Requests), ratio(r.Export.Served, r.Export.Requests), r.Refusals(),
	} {
		cells = append(cells, Percent(share))
	}
	return append(cells, fmt.Sprintf("%.2f", r.Utilised()), Percent(r.Waste()), Percent(r.Stretch()), machine)
}

// Percent writes a share with one digit after the point.
func Percent(share float64) string {
	if math.IsNaN(share) {
		return "-"
	}
	return fmt.Sprintf("%.1f", 100*share)
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
