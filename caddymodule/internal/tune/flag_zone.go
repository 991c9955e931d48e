package tune

import (
	"regexp"
	"strconv"
	"strings"

	"github.com/caddyserver/caddy/v2/caddyconfig"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/usage"
)

// flagConfig adapts a Caddyfile with one zone, made of flags, so that they are spelled and
// checked as there. Its errors name the flag, not a place in a file that nobody has.
func flagConfig(limit string, keys []string, cost string) ([]byte, error) {
	lines, flags := []string{"limit" + quoted(strings.Fields(limit))}, []string{"--limit"}
	if len(keys) > 0 { // plain, since whoever runs this can read the log
		lines = append(lines, "key"+quoted(strings.Fields(strings.Join(keys, " ")))+" {", "plain", "}")
		flags = append(flags, "--key", "--key", "--key")
	}
	if cost != "" {
		lines, flags = append(lines, "cost"+quoted([]string{cost})), append(flags, "--cost")
	}
	const before = ":80 {\nthrottle {\nzone limit {\n"
	caddyfile := before + strings.Join(lines, "\n") + "\n}\n}\n}\n"
	config, _, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte(caddyfile), map[string]any{"filename": "flags"})
	if err == nil {
		return config, nil
	}
	said := regexp.MustCompile(`^(?:parsing caddyfile tokens for 'throttle': )?(?:zone "limit": )?(?:parsing \w+: )?(.*), at flags:(\d+)$`).FindStringSubmatch(err.Error())
	if said == nil {
		return nil, usage.Errorf("reading the limit of the flags: %w", err)
	}
	line, _ := strconv.Atoi(said[2]) // digits
	if line -= 1 + strings.Count(before, "\n"); line < 0 || line >= len(flags) {
		return nil, usage.Errorf("reading the limit of the flags: %s", said[1])
	}
	return nil, usage.Errorf("%s: %s", flags[line], said[1])
}

// quoted returns words as tokens of a Caddyfile, each after a space.
func quoted(words []string) (tokens string) {
	for _, word := range words {
		tokens += ` "` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", " ").Replace(word) + `"`
	}
	return tokens
}
