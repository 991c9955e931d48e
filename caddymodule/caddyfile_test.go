package caddymodule

import (
	"testing"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/golden"
)

func TestCaddyfilesAdaptAsTheGoldenFilesSay(t *testing.T) { golden.Run(t) }
