// Package swarm tests in_flight: who gets in under a swarm, waits, holds a slot and keeps a pass.
package swarm

import (
	"testing"

	"github.com/caddy-throttle/caddy-throttle/tests/internal/system"
)

func TestMain(m *testing.M) { system.Main(m) }
