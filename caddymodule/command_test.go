package caddymodule

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/cli"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/tune"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/usage"
)

// Manual pages are made from Markdown, which takes words in angle brackets for HTML.
func TestManualPagesKeepTheArguments(t *testing.T) {
	all := &cobra.Command{Use: "throttle"}
	all.AddCommand(tune.Commands()...)
	all.AddCommand(cli.Commands()...)
	for _, command := range all.Commands() {
		var page bytes.Buffer
		if err := doc.GenMan(command, &doc.GenManHeader{Section: "8"}, &page); err != nil {
			t.Fatal(err)
		}
		plain := strings.NewReplacer(`\fB`, "", `\fP`, "", `\-`, "-", `\[`, "[", `\]`, "]").Replace(page.String())
		if !strings.Contains(plain, command.UseLine()) {
			t.Errorf("got no %q in\n%s", command.UseLine(), plain[:min(len(plain), 400)])
		}
		if text := command.Long + command.Flags().FlagUsages(); strings.Contains(text, "<") {
			t.Errorf("%s: got words in angle brackets in\n%s", command.Name(), text)
		}
	}
}

// The flags make up a Caddyfile. Its lines are nothing to the caller.
func TestErrorsInFlagsNameTheFlag(t *testing.T) {
	for _, test := range []struct {
		flags tune.ReplayFlags
		want  string
	}{
		{tune.ReplayFlags{Limit: "x 1/s"}, `--limit: invalid capacity "x": want a number from `},
		{tune.ReplayFlags{Limit: "5 1/q"}, `--limit: invalid rate "1/q": want <number>/<s|m|h|d>`},
		{tune.ReplayFlags{Limit: "5 1/s}\n"}, `--limit: invalid rate "1/s}": want `},
		{tune.ReplayFlags{Limit: "1 1/s", Cost: "5"}, "--cost: invalid cost 5: it can never fit the capacity of 1"},
		{tune.ReplayFlags{Limit: "5 1/s", Cost: "1", Keys: []string{"host", "foo"}}, `--key: unknown key source "foo"`},
		{tune.ReplayFlags{Limit: "5 1/s", Keys: []string{" "}}, "--key: "},
	} {
		_, err := test.flags.LoadConfig()
		var wrong usage.Error
		if !errors.As(err, &wrong) || !strings.HasPrefix(err.Error(), test.want) || strings.Contains(err.Error(), "at flags") {
			t.Errorf("got %v, want it to begin with %s", err, test.want)
		}
	}
}
