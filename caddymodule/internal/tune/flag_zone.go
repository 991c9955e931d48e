package tune

import (
	"regexp"
	"strconv"
	"strings"

	"github.com/caddyserver/caddy/v2/caddyconfig"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/usage"
)

// FlagConfig adapts a Caddyfile with one zone, made of flags, so that they are spelled and
// checked as there.
func FlagConfig(limit string, keys []string, cost string) ([]byte, error) {
	var zone flagZone
	zone.add("--limit", "limit", strings.Fields(limit)...)
	if len(keys) > 0 {
		zone.add("--key", "key", strings.Fields(strings.Join(keys, " "))...)
		zone.lines[len(zone.lines)-1] += " {" // whoever runs this can read the log
		zone.add("--key", "plain")
		zone.add("--key", "}")
	}
	if cost != "" {
		zone.add("--cost", "cost", cost)
	}
	return zone.adapt()
}

// A flagZone is a zone of a Caddyfile, made of flags.
type flagZone struct{ lines, flags []string }

// add adds a line for a flag.
func (z *flagZone) add(flag, option string, words ...string) {
	for _, word := range words {
		option += " " + quoteWord(word)
	}
	z.lines, z.flags = append(z.lines, option), append(z.flags, flag)
}

// adapt returns the config. Its errors name the flag, not a place in a file that nobody
// has.
func (z *flagZone) adapt() ([]byte, error) {
	const before = ":80 {\nthrottle {\nzone limit {\n"
	text := before + strings.Join(z.lines, "\n") + "\n}\n}\n}\n"
	config, _, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte(text), map[string]any{"filename": "flags"})
	if err == nil {
		return config, nil
	}
	said := regexp.MustCompile(`^(?:parsing caddyfile tokens for 'throttle': )?(?:zone "limit": |parsing \w+: )?(.*), at flags:(\d+)$`).FindStringSubmatch(err.Error())
	if said == nil {
		return nil, usage.Errorf("reading the limit of the flags: %w", err)
	}
	line, _ := strconv.Atoi(said[2]) // digits
	if line -= 1 + strings.Count(before, "\n"); line < 0 || line >= len(z.flags) {
		return nil, usage.Errorf("reading the limit of the flags: %s", said[1])
	}
	return nil, usage.Errorf("%s: %s", z.flags[line], said[1])
}

// quoteWord returns a word as one token of a Caddyfile.
func quoteWord(word string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", " ").Replace(word) + `"`
}
