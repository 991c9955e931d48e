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

// Check asks the servers how they are set up, and returns in words what will
// make limits wrong: one that evicts keys before they expire, or is too old.
// Where it may not ask, that is a warning too.
func (s *Store) Check(ctx context.Context) (warnings []string, err error) {
	err = s.link.do(ctx, func(c rueidis.Client) error {
		nodes := c.Nodes()
		for _, address := range slices.Sorted(maps.Keys(nodes)) {
			node := nodes[address]
			info, err := node.Do(context.Background(), node.B().Info().Build()).ToString()
			if e, ok := rueidis.IsRedisErr(err); ok {
				warnings = append(warnings, fmt.Sprintf("%s: cannot see its maxmemory-policy: %s: want noeviction or volatile-ttl", address, e.Error()))
			} else if err != nil {
				return err
			} else {
				warnings = append(warnings, review(address, info)...)
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("checking: %w", s.link.explain(err))
	}
	return warnings, nil
}

// review returns what is wrong with a server by its INFO.
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
		warnings = append(warnings, fmt.Sprintf("%s: maxmemory-policy is %q: a full server would forget who was limited: want noeviction or volatile-ttl", address, policy))
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
