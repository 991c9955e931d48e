package redisstore

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/redis/rueidis"
)

// Check asks all servers for their settings and returns a warning for each that
// breaks limits: a maxmemory-policy that evicts keys before they expire. A server
// that refuses to tell is a warning too. It is an error if a server does not answer
// before ctx ends.
func (s *Store) Check(ctx context.Context) (warnings []string, err error) {
	warnings, err = ask(ctx, s.connection, checkNodes)
	return warnings, s.connection.explain("checking", err)
}

func checkNodes(c rueidis.Client) ([]string, error) {
	var warnings []string
	nodes := c.Nodes()
	for _, address := range slices.Sorted(maps.Keys(nodes)) {
		node := nodes[address]
		info, err := node.Do(context.Background(), node.B().Info().Build()).ToString()
		_, policy, _ := strings.Cut(info, "maxmemory_policy:")
		policy, _, _ = strings.Cut(policy, "\r")
		switch e, answered := rueidis.IsRedisErr(err); {
		case answered:
			warnings = append(warnings, fmt.Sprintf("%s: cannot see its maxmemory-policy: %s: want noeviction or volatile-ttl", address, e.Error()))
		case err != nil:
			return nil, err
		case policy != "noeviction" && policy != "volatile-ttl":
			warnings = append(warnings, fmt.Sprintf("%s: maxmemory-policy is %q: a full server forgets whom it limited: want noeviction or volatile-ttl", address, policy))
		}
	}
	return warnings, nil
}
