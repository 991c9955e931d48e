// Package command is `caddy throttle`, to which guests add commands, and what these share: how
// they fail, and what a terminal may show. A build without such guests has no command. Begin
// with [Register].
package command

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	"github.com/spf13/cobra"

	"github.com/caddy-throttle/caddy-throttle/caddymodule"
)

// registered are the commands that guests have added.
var registered []func() *cobra.Command

// Register adds a command to `caddy throttle`. It must be called in init. The error of the
// command's Args and RunE is printed, and Caddy exits with 1, or with 2 if it is of
// [UsageErrorf] or the flags are wrong.
func Register(command func() *cobra.Command) {
	if registered == nil {
		caddycmd.RegisterCommand(caddycmd.Command{
			Name:  "throttle",
			Usage: "COMMAND ...", // in capitals, as manual pages lose words in angle brackets
			Short: "Steers rate limits, and tunes them with access logs",
			Long: `
Most commands call a running Caddy, over its admin endpoint: they show what the
limits do, let clients back in, and ban networks for a while.

The exit code is 1 if something fails, and 2 if the command is used in a wrong way.`,
			CobraFunc: addAll,
		})
	}
	registered = append(registered, command)
}

// addAll adds the commands. Alone, `caddy throttle` shows its help. It refuses names that are none
// of them.
func addAll(parent *cobra.Command) {
	var known []string
	for _, command := range registered {
		c := command()
		c.Args, c.RunE = failing(c.Args), failing(c.RunE)
		parent.AddCommand(c)
		known = append(known, c.Name())
	}
	parent.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return fail(cmd, usageError{err}) })
	parent.FParseErrWhitelist.UnknownFlags = true // they belong to the unknown command
	parent.RunE = failing(func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return cmd.Help()
		}
		return usageError{caddymodule.ErrUnknown("command", args[0], known...)}
	})
}

// A usageError says that a command is used in a wrong way.
type usageError struct{ error }

// UsageErrorf returns an error of a command that is used in a wrong way.
func UsageErrorf(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// exitUsage is the exit code of a usageError. All others exit with 1.
const exitUsage = 2

// failing lets a part of a command print its error, and return what makes Caddy exit with its
// code. Caddy would print it with a logger, which a replay's config has silenced.
func failing(part func(*cobra.Command, []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		if part == nil {
			return nil
		}
		return fail(cmd, part(cmd, args))
	}
}

func fail(cmd *cobra.Command, err error) error {
	if err == nil {
		return nil
	}
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	_, _ = fmt.Fprintf(cmd.ErrOrStderr(), "Error: %v\n", err)
	if errors.As(err, new(usageError)) {
		return caddycmd.WrapCommandFuncForCobra(func(caddycmd.Flags) (int, error) { return exitUsage, nil })(cmd, nil)
	}
	return err
}

// Printable returns text that a terminal or a page can show: control bytes, marks of
// text direction, invisible characters and what is no UTF-8 are escaped. What is longer
// than most characters is cut.
func Printable(text string, most int) string {
	n, rest := 0, ""
	for i := range text {
		if n++; n > most {
			text, rest = text[:i], "…"
			break
		}
	}
	quoted := strconv.Quote(text)
	return strings.ReplaceAll(quoted[1:len(quoted)-1], `\"`, `"`) + rest
}
