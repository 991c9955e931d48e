package redisstore

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/redis/rueidis"
)

// Check asks all servers for their settings and returns a warning for each that
// breaks limits: a maxmemory-policy that evicts keys before they expire, or a
// version that is too old. A server that refuses to tell is a warning too. It is
// an error if a server does not answer before ctx ends.
func (s *Store) Check(ctx context.Context) (warnings []string, err error) {
	warnings, err = ask(ctx, s.connection, checkNodes)
	if err != nil {
		return nil, fmt.Errorf("checking: %w", s.connection.explain(err))
	}
	return warnings, nil
}

func checkNodes(c rueidis.Client) ([]string, error) {
	var warnings []string
	nodes := c.Nodes()
	for _, address := range slices.Sorted(maps.Keys(nodes)) {
		node := nodes[address]
		info, err := node.Do(context.Background(), node.B().Info().Build()).ToString()
		if e, ok := rueidis.IsRedisErr(err); ok {
			warnings = append(warnings, fmt.Sprintf("%s: cannot see its maxmemory-policy: %s: want noeviction or volatile-ttl", address, e.Error()))
		} else if err != nil {
			return nil, err
		} else {
			warnings = append(warnings, review(address, info)...)
		}
	}
	return warnings, nil
}

// review returns the warnings about a server with this INFO.
func review(address, info string) (warnings []string) {
	fields := make(map[string]string)
	for line := range strings.Lines(info) {
		if name, value, found := strings.Cut(strings.TrimSpace(line), ":"); found {
			fields[name] = value
		}
	}
	switch policy := fields["maxmemory_policy"]; policy {
	case "noeviction", "volatile-ttl":
	default:
		warnings = append(warnings, fmt.Sprintf("%s: maxmemory-policy is %q: a full server forgets whom it limited: want noeviction or volatile-ttl", address, policy))
	}
	if version := fields["redis_version"]; !atLeast(version, 6, 2) {
		warnings = append(warnings, fmt.Sprintf("%s: it is version %q: want Redis 6.2 or later, or Valkey", address, version))
	}
	return warnings
}

func atLeast(version string, major, minor int) bool {
	words := append(strings.Split(version, "."), "", "")
	gotMajor, err := strconv.Atoi(words[0])
	gotMinor, _ := strconv.Atoi(words[1])
	return err == nil && (gotMajor > major || gotMajor == major && gotMinor >= minor)
}
