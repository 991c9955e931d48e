// Package requests tests how requests come in and are refused: over protocols, through proxies, in any spelling.
package requests

import (
	"testing"

	"github.com/caddy-throttle/caddy-throttle/tests/internal/system"
)

func TestMain(m *testing.M) { system.Main(m) }
