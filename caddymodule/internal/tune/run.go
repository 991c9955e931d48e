package tune

import (
	"context"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/usage"
)

// Runnable lets a command run, and exit with the code that its error means.
func Runnable(cmd *cobra.Command, run func(ctx context.Context, logs []string) error) *cobra.Command {
	cmd.RunE = func(cmd *cobra.Command, logs []string) error {
		ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
		defer stop()
		context.AfterFunc(ctx, stop) // the next signal ends the process
		if len(logs) == 0 {
			return usage.Fail(cmd, usage.Errorf("no log given: want files, or - for the standard input"))
		}
		debug.SetGCPercent(gcPercent)
		return usage.Fail(cmd, run(ctx, logs))
	}
	usage.FailFlags(cmd)
	return cmd
}

// gcPercent makes the garbage collector run less often: little is kept of a log, and
// much is read.
const gcPercent = 400
