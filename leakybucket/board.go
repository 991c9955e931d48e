package leakybucket

import (
	"context"
	"time"
)

// A Board is a store that keeps a few short texts for the processes that share it, besides
// their buckets. It knows nothing of what they say.
type Board interface {
	// BoardName says which board of its servers it is. Stores that share one have equal
	// names.
	BoardName() string

	// Exchange writes posts and then reads the board, in one atomic step.
	//
	// A post is written if the board has Was as the version of its name, and no version
	// at or above its own. Otherwise it is left out, which is no error: the answer shows
	// what the board has. After an error, posts may or may not have been written.
	Exchange(ctx context.Context, call BoardCall) (BoardAnswer, error)
}

// A BoardCall is what a process tells a [Board], and what it asks.
type BoardCall struct {
	Posts []Post // to be written, by their versions, lowest first
	After int64  // the highest version that the caller has read

	// Node names the caller, and Beat is what it says of itself. The board keeps it for
	// a minute. An empty Node says nothing.
	Node, Beat string
}

// A BoardAnswer is what a [Board] has.
type BoardAnswer struct {
	Posts  []Post // with versions above [BoardCall].After, in any order; Was is not set
	Latest int64  // the highest version written so far, 0 on an empty board
	Beats  []Beat // of the other nodes of the last minute, in any order
}

// A Post is a text on a [Board]. There is one of each name.
type Post struct {
	Name    string
	Version int64
	Text    string // empty takes the name off the board
	Was     int64  // the version that is replaced; 0 if there is none
}

// A Beat is what a node has said of itself last.
type Beat struct {
	Node string
	Age  time.Duration
	Text string
}
