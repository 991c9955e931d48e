// Package stores tests shared stores, snapshots and reloads: outages, fleets of Caddys, and their operators' nights.
package stores

import (
	"testing"

	"github.com/caddy-throttle/caddy-throttle/tests/internal/system"
)

func TestMain(m *testing.M) { system.Main(m) }
