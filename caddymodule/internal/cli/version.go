package cli

import (
	"cmp"
	"encoding/json"
	"runtime"
	"runtime/debug"

	"github.com/caddyserver/caddy/v2"
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

func versionCommand() command {
	return command{
		local: true, use: "version", short: "Prints the versions of caddy-throttle, Caddy and Go",
		long: "Prints the versions that this program was built from. It needs no running Caddy.",
		run: func(c *adminClient, _ []string) error {
			build, _ := debug.ReadBuildInfo()
			simple, _ := caddy.Version()
			v := versions{throttleVersion(build, stamped), simple, runtime.Version(), runtime.GOOS + "/" + runtime.GOARCH}
			answer, err := json.Marshal(v)
			c.keepAnswer(answer)
			c.printf("caddy-throttle %s\nCaddy %s\nGo %s %s\n", v.Throttle, v.Caddy, v.Go, v.Platform)
			return err
		},
	}
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
