package store

import (
	"context"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// A Registry is a store that also keeps a few short texts for the processes that share it,
// such as the bans of an operator. It does not know what they say.
type Registry interface {
	// Texts returns all texts, and the mark of the last write. If that is seen, nothing was
	// written since, and no texts are returned. A seen of -1 asks for all of them.
	Texts(ctx context.Context, seen int64) (Texts, error)

	// PutTexts writes texts, of which no two have the same name, in one atomic step. A text is
	// left out, which is no error, if the store has one of its name with a number at or above
	// its own, or if it has ended.
	//
	// If any text is written, the write gets a random mark from 1 to [MostNumber]-1. So no
	// two writes have the same, even if the store was flushed or restored in between. It returns
	// the marks of the last write before and after the call, which are equal if nothing was
	// written. After an error, texts may have been written, or be written later.
	PutTexts(ctx context.Context, texts []Text) (before, last int64, err error)
}

// A Text is kept in a [Registry] by its name.
type Text struct {
	Name   string
	Number int64 // of two texts of one name, the one with the higher number is kept
	End    leakybucket.Instant
	Text   string
}

// Bounds of a [Registry].
const (
	MostTexts   = 10_000  // that Texts returns
	LongestText = 4096    // in bytes, with the name
	MostNumber  = 1 << 52 // numbers and marks are below it; microseconds since 1970 reach it in 2112
)

// Texts is what a [Registry] has.
type Texts struct {
	Last  int64 // the mark of the last write; 0 if there was none
	Count int   // how many texts the store has, which may be more than are returned

	// Texts are at most [MostTexts], in any order, without those that have ended. What
	// somebody else has left in their place and is too long, or is no text of a registry, has
	// the number 0.
	Texts []Text
}
