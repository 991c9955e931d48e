package cli

import (
	"bytes"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"
)

func TestTheVersionIsThatOfTheModuleOrOfTheClone(t *testing.T) {
	const module = "github.com/caddy-throttle/caddy-throttle"
	other := &debug.Module{Path: "example.com/other", Version: "v9.9.9"}
	for _, test := range []struct {
		name, stamped string
		build         *debug.BuildInfo
		want          string
	}{
		{"built by xcaddy from a tag", "", &debug.BuildInfo{Deps: []*debug.Module{other, {Path: module, Version: "v0.1.0"}}}, "v0.1.0"},
		{
			"built by xcaddy from a clone", "v0.1.0-2-gabc",
			&debug.BuildInfo{Deps: []*debug.Module{{Path: module, Version: "v0.0.0", Replace: &debug.Module{Path: "/src", Version: "(devel)"}}}},
			"v0.1.0-2-gabc",
		},
		{"built by xcaddy from a fork", "", &debug.BuildInfo{Deps: []*debug.Module{{Path: module, Version: "v0.1.0", Replace: &debug.Module{Path: "example.com/fork", Version: "v0.1.1"}}}}, "v0.1.1"},
		{"built in a clone", "v0.1.0-2-gabc", &debug.BuildInfo{Main: debug.Module{Path: module, Version: "(devel)"}}, "v0.1.0-2-gabc"},
		{"built in a folder without a stamp", "", &debug.BuildInfo{Main: debug.Module{Path: module, Version: "(devel)"}}, "(devel)"},
		{"without build information", "", nil, "(devel)"},
	} {
		if got := throttleVersion(test.build, test.stamped); got != test.want {
			t.Errorf("%s: got %s, want %s", test.name, got, test.want)
		}
	}
}

func TestTheVersionCommandNamesCaddyAndGo(t *testing.T) {
	for _, test := range []struct{ flag, want string }{
		{"--json=false", "Go " + runtime.Version() + " " + runtime.GOOS + "/" + runtime.GOARCH + "\n"},
		{"--json", `"go": "` + runtime.Version() + `"`},
	} {
		var out bytes.Buffer
		cmd := versionCommand().cobra()
		cmd.SetOut(&out)
		cmd.SetArgs([]string{test.flag})
		if err := cmd.Execute(); err != nil || !strings.Contains(out.String(), test.want) {
			t.Errorf("%s: got %v and\n%swant %q", test.flag, err, out.String(), test.want)
		}
	}
}
