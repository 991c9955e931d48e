// Package usage ends commands: what they print of an error, and which code they exit with.
// Begin with [Fail].
package usage

import (
	"errors"
	"fmt"

	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	"github.com/spf13/cobra"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/text"
)

// An Error says that a command is used in a wrong way.
type Error struct{ error }

// Errorf returns an [Error].
func Errorf(format string, args ...any) error { return Wrap(fmt.Errorf(format, args...)) }

// Wrap makes an error an [Error].
func Wrap(err error) error { return Error{err} }

// exitUsage is the exit code of an [Error]. All others exit with 1.
const exitUsage = 2

// Fail prints an error, and returns what makes Caddy exit with its code. Caddy would
// print it with a logger, which a replay's config has silenced.
func Fail(cmd *cobra.Command, err error) error {
	if err == nil {
		return nil
	}
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	_, _ = fmt.Fprintf(cmd.ErrOrStderr(), "Error: %v\n", err)
	var wrong Error
	if errors.As(err, &wrong) {
		return caddycmd.WrapCommandFuncForCobra(func(caddycmd.Flags) (int, error) { return exitUsage, nil })(cmd, nil)
	}
	return err
}

// FailFlags makes a command fail with an [Error] if its flags are wrong.
func FailFlags(cmd *cobra.Command) {
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return Fail(cmd, Wrap(err)) })
}

// RefuseUnknown makes a command that does nothing by itself refuse names that are none
// of its commands. Alone, it shows its help.
func RefuseUnknown(cmd *cobra.Command) {
	FailFlags(cmd)
	cmd.FParseErrWhitelist.UnknownFlags = true // they belong to the unknown command
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return cmd.Help()
		}
		var known []string
		for _, c := range cmd.Commands() {
			known = append(known, c.Name())
		}
		return Fail(cmd, Wrap(text.Unknown("command", args[0], "", known)))
	}
}
