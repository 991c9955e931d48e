// Package commands tests what operators use: commands, the example, replays and the inspector.
package commands

import (
	"testing"

	"github.com/caddy-throttle/caddy-throttle/tests/internal/system"
)

func TestMain(m *testing.M) { system.Main(m) }
