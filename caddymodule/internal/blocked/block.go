// Package blocked has what is known of a running block of a bucket.
package blocked

import "time"

// A Block is a known block.
type Block struct {
	Until time.Time
	Seen  time.Time // when Level was so
	Level float64   // of the bucket, in units
}
