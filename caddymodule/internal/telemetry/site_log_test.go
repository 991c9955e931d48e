package telemetry_test

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/servertest"
)

func TestASiteLogsRefusalsByZone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := servertest.Run(t, `{
			throttle {
				zone tried {
					limit 1 1/h
					shadow
				}
			}
		}
		http:// {
			throttle {
				zone tried
				zone login {
					limit 1 1/h
				}
			}
			respond ok
		}`)
		for _, addr := range []string{"203.0.113.1:1", "203.0.113.2:1"} {
			for range 3 {
				s.From(addr).Get("/login")
			}
		}
		s.Stop()
		var got []string
		for _, line := range s.Logs.Lines(t, "refuse") {
			got = append(got, fmt.Sprint(line["zone"], ": ", line["msg"], " ", line["requests"], " ", line["distinct_keys"]))
		}
		slices.Sort(got)
		want := []string{
			"login: zone begins to refuse requests <nil> <nil>",
			"login: zone refused requests 4 2",
			"tried: zone would begin to refuse requests <nil> <nil>",
			"tried: zone would have refused requests 4 2",
		}
		if !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	})
}
