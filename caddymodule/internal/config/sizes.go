package config

import (
	"fmt"

	"github.com/dustin/go-humanize"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// leastPlainSize is the least size without a unit. Less is hardly meant as bytes.
const leastPlainSize = 512

// parseSize reads a size of up to most bytes, which are whole MiB.
func parseSize(word string, most uint64) (int64, error) {
	size, err := humanize.ParseBytes(word)
	if n, plain := leakybucket.ParseCost(word); plain && 0 < n && n < leastPlainSize {
		return 0, fmt.Errorf("invalid size %q: it has no unit: did you mean %sKiB?", word, word)
	}
	if err != nil || size < 1 || size > most {
		return 0, fmt.Errorf("invalid size %q: want one such as 64KiB, up to %dMiB", word, most>>20)
	}
	return int64(size), nil
}
