package cli

import (
	"cmp"
	"encoding/json"
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/caddyserver/caddy/v2"
	"github.com/spf13/cobra"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/usage"
)

// stamped is the version that a build from a clone gives itself, by the linker's -X.
var stamped string

// versions is what a program is made of.
type versions struct {
	Throttle string `json:"throttle"`
	Caddy    string `json:"caddy"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

func versionCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use: "version", Short: "Prints the versions of caddy-throttle, Caddy and Go",
		Long: "\nPrints the versions that this program was built from. It needs no running Caddy.",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usage.Fail(cmd, usage.Errorf("want caddy throttle version"))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			build, _ := debug.ReadBuildInfo()
			v := versions{throttleVersion(build, stamped), caddyVersion(), runtime.Version(), runtime.GOOS + "/" + runtime.GOARCH}
			if asJSON {
				out := json.NewEncoder(cmd.OutOrStdout())
				out.SetIndent("", "\t")
				return usage.Fail(cmd, out.Encode(v))
			}
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "caddy-throttle %s\nCaddy %s\nGo %s %s\n", v.Throttle, v.Caddy, v.Go, v.Platform)
			return usage.Fail(cmd, err)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "Print JSON")
	usage.FailFlags(cmd)
	return cmd
}

// throttleVersion returns the version of the module that this package is in. If the
// build has none, because it is of a folder, it is the one that was stamped.
func throttleVersion(build *debug.BuildInfo, stamped string) string {
	const module, folder = "github.com/caddy-throttle/caddy-throttle", "(devel)"
	if build == nil {
		return cmp.Or(stamped, folder)
	}
	for _, m := range append(build.Deps, &build.Main) {
		if m.Path != module {
			continue
		}
		if m.Replace != nil {
			m = m.Replace
		}
		if m.Version != "" && m.Version != folder {
			return m.Version
		}
	}
	return cmp.Or(stamped, folder)
}

func caddyVersion() string {
	simple, _ := caddy.Version()
	return simple
}
