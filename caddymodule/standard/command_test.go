package standard_test

import (
	"bytes"
	"strings"
	"testing"

	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

// Manual pages are made from Markdown, which takes words in angle brackets for HTML.
func TestManualPagesKeepTheArguments(t *testing.T) {
	all := &cobra.Command{Use: "throttle"}
	caddycmd.Commands()["throttle"].CobraFunc(all)
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
