package caddymodule

import (
	"context"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/accesslog"
	logreplay "github.com/caddy-throttle/caddy-throttle/caddymodule/internal/replay"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/summary"
)

func summaryCommand() *cobra.Command {
	var f logFlags
	cmd := &cobra.Command{
		Use:   "summary LOG...",
		Short: "Shows what throttle decided, from Caddy's access logs",
		Long: `
Shows what throttle decided, by the field throttle of Caddy's access logs. For every
zone that was asked, not only the one that decided: how many requests it admitted
and refused, or would have refused in shadow, which keys and routes that concerns,
and how near all other keys came.`,
		Example: `  caddy throttle summary /var/log/caddy/access.log*`,
	}
	f.add(cmd)
	return runnable(cmd, func(ctx context.Context, logs []string) error { return summarize(ctx, &f, logs) })
}

func summarize(ctx context.Context, f *logFlags, logs []string) error {
	in, err := f.open(ctx, logs)
	if err != nil {
		return err
	}
	defer in.close()
	var s summary.Summary
	if err := in.each(func(r *accesslog.Request) error { s.Add(r); return nil }); err != nil {
		return err
	}
	if f.json {
		err = printJSON(struct {
			Log     logreplay.Log `json:"log"`
			Partial bool          `json:"partial"`
			*summary.Report
		}{logOf(in, logs), in.interrupted, s.Report()})
	} else {
		if in.interrupted {
			fmt.Println("Interrupted: the figures are those of the requests so far.")
		}
		err = s.Write(os.Stdout)
	}
	if err != nil {
		return err
	}
	return in.broken()
}
