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
	all.AddCommand(append(tune.Commands(), replayCommand(), recommendCommand())...)
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
		flags replayFlags
		want  string
	}{
		{replayFlags{limit: "x 1/s"}, `--limit: invalid capacity "x": want a number from `},
		{replayFlags{limit: "5 1/q"}, `--limit: invalid rate "1/q": want <number>/<s|m|h|d>`},
		{replayFlags{limit: "5 1/s}\n"}, `--limit: invalid rate "1/s}": want `},
		{replayFlags{limit: "1 1/s", cost: "5"}, "--cost: invalid cost 5: it can never fit the capacity of 1"},
		{replayFlags{limit: "5 1/s", cost: "1", keys: []string{"host", "foo"}}, `--key: unknown key source "foo"`},
		{replayFlags{limit: "5 1/s", keys: []string{" "}}, "--key: "},
	} {
		_, err := test.flags.loadConfig()
		var wrong usage.Error
		if !errors.As(err, &wrong) || !strings.HasPrefix(err.Error(), test.want) || strings.Contains(err.Error(), "at flags") {
			t.Errorf("got %v, want it to begin with %s", err, test.want)
		}
	}
}
