package tune

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/tune/internal/clients"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/tune/internal/replay"
)

func summaryCommand() *cobra.Command {
	return new(logFlags).reads(&cobra.Command{
		Use:   "summary LOG...",
		Short: "Shows what throttle decided, from Caddy's access logs",
		Long: `
Shows what throttle decided, by the field throttle of Caddy's access logs. For every
zone that was asked, not only the one that decided: how many requests it admitted
and refused, or would have refused in shadow, which keys and routes that concerns,
and how near all other keys came.`,
		Example: `  caddy throttle summary /var/log/caddy/access.log*`,
	}, func(in *logReader) (finding, error) { return summarize(in), nil })
}

// summarize counts what zones decided.
func summarize(in *logReader) *Report {
	tally, decided, broken, notes := make(replay.Tally), 0, 0, []string{}
	var known clients.Log
	table := known.By(32, 64)
	for batch := range in.batches() {
		for _, req := range batch {
			known.Add(req)
			outcomes, err := req.Outcomes()
			if err != nil {
				broken++
			}
			asked := 0
			for _, o := range outcomes {
				if o.Zone == "" || o.Decision == "" {
					continue
				}
				tally.Add(&o, req)
				asked = 1
			}
			decided += asked
		}
	}
	if decided == 0 {
		notes = append(notes, "No line has the field throttle: no zone was asked, or the log is not that of a site with throttle. "+
			"To see what a limit would do, run caddy throttle replay or recommend.")
	} else {
		notes = append(notes, fmt.Sprintf("requests that a zone was asked about: %d of %d.", decided, in.Stats().Requests))
	}
	if broken > 0 {
		notes = append(notes, fmt.Sprintf("fields throttle that could not be read: %d.", broken))
	}
	return reportOf(in, tally.Zones(func(string) *clients.Table { return table }), &known, notes)
}
