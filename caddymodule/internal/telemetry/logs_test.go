package telemetry_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/refusal"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/servertest"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

// accessLines returns the lines of the access log: the status, and how many refusals
// before each were not logged.
func accessLines(t *testing.T, s *servertest.Site) (lines []string) {
	t.Helper()
	for _, line := range s.Logs.Lines(t, "handled request") {
		field, _ := line["throttle"].(map[string]any)
		lines = append(lines, strings.TrimSpace(fmt.Sprint(line["status"], " ", field["unlogged"])))
	}
	return lines
}

func TestLogRefusedLimitsTheLinesOfRefusals(t *testing.T) {
	for _, test := range []struct {
		option string
		want   []string
	}{
		{"", []string{"200 <nil>", "429 <nil>", "429 <nil>", "429 <nil>", "429 <nil>", "429 <nil>", "429 <nil>", "200 <nil>"}},
		{"refusal log all", []string{"200 <nil>", "429 <nil>", "429 <nil>", "429 <nil>", "429 <nil>", "429 <nil>", "429 <nil>", "200 <nil>"}},
		{"refusal log 2/s", []string{"200 <nil>", "429 <nil>", "429 <nil>", "429 3", "200 <nil>"}},
		{"refusal log 1/m", []string{"200 <nil>", "429 <nil>", "200 5"}},
		{"refusal log off", []string{"200 <nil>", "200 6"}},
		{"refusal log off\nshadow", []string{"200 <nil>", "200 <nil>", "200 <nil>", "200 <nil>", "200 <nil>", "200 <nil>", "200 <nil>", "200 <nil>"}},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := servertest.Run(t, "http:// {\nlog\nthrottle {\nzone some {\nlimit 1 1/m\n"+test.option+"\n}\n}\nrespond ok\n}")
			c := s.From(servertest.Someone)
			c.Statuses(6, "/")
			<-time.After(30 * time.Second)
			c.Get("/")
			<-time.After(2 * time.Minute)
			c.Get("/")
			check.Slices(t, accessLines(t, s), test.want, "%q", test.option)
			got := s.Counts(t)["some"]
			check.That(t, got["refused capacity"]+got["shadow_refused capacity"] == 6, "%q: got %v, want all 6 refusals counted", test.option, got)
		})
	}
}

// Lines of other zones, and those that log_skip drops anyhow, do not tell.
func TestUnloggedRefusalsAreToldByTheirZoneOnly(t *testing.T) {
	s := servertest.Run(t, `http:// {
		log
		log_skip /quiet
		@a path /a* /quiet
		throttle @a {
			zone a {
				limit 1 1/h
				refusal log off
			}
		}
		throttle /b* {
			zone b {
				limit 5 1/h
				refusal log off
			}
		}
		respond ok
	}`)
	for _, path := range []string{"/a", "/a", "/a", "/b", "/quiet"} {
		s.From(servertest.Someone).Get(path)
	}
	s.From("203.0.113.98:1").Get("/quiet") // admitted, and its line is dropped
	s.From("203.0.113.99:1").Get("/a")
	check.Slices(t, accessLines(t, s), []string{"200 <nil>", "200 <nil>", "200 2"})
}

func TestLogRefusedIsAllOffOrARate(t *testing.T) {
	for _, text := range []string{"none", "10", "0/s", "-1/s", "10/w", ""} {
		_, err := refusal.ParseLog(text)
		check.That(t, err != nil && strings.Contains(err.Error(), "want all, off or a rate"), "%q: got %v, want an error that says what would be right", text, err)
	}
}

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
			s.From(addr).Statuses(3, "/login")
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
		check.Slices(t, got, want)
	})
}
