// Package applications tests what recipes and README say of applications, by real ones and people who use them.
package applications

import (
	"testing"

	"github.com/caddy-throttle/caddy-throttle/tests/internal/system"
)

func TestMain(m *testing.M) { system.Main(m) }
