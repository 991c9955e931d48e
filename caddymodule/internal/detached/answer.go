package detached

import (
	"slices"
	"sync"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/body"
)

const (
	// mostAnswer and mostAnswers bound how much of one answer, and of all together, waits
	// for clients that read slowly.
	mostAnswer  = 1 << 20
	mostAnswers = 64 << 20

	// An answer begins with a small piece, and mostly needs no other. Until that is full
	// or the handler flushes, nothing is sent, as by net/http.
	smallPiece = 4 << 10
	largePiece = 32 << 10
)

var (
	// Answers are those that wait for clients that read slowly.
	Answers = body.NewMemory(mostAnswers)

	smallPieces = sync.Pool{New: func() any { return new([smallPiece]byte) }}
)

// An answer is what the next handler has written and the client has not got yet.
type answer struct {
	pieces [][]byte // of the capacity of a small or a large piece
	held   int      // bytes of the memory
}

// add appends as much of p as there is memory for, and returns how much that is.
func (a *answer) add(p []byte) (n int) {
	for n < len(p) {
		last := len(a.pieces) - 1
		if last < 0 || len(a.pieces[last]) == cap(a.pieces[last]) {
			size := largePiece
			if last < 0 && len(p) <= smallPiece {
				size = smallPiece
			}
			if a.held+size > mostAnswer || !Answers.Reserve(int64(size)) {
				return n
			}
			a.held += size
			if size == smallPiece {
				a.pieces = append(a.pieces, smallPieces.Get().(*[smallPiece]byte)[:0])
			} else {
				a.pieces = append(a.pieces, make([]byte, 0, size))
			}
			last++
		}
		piece := a.pieces[last]
		more := copy(piece[len(piece):cap(piece)], p[n:])
		a.pieces[last] = piece[:len(piece)+more]
		n += more
	}
	return n
}

// next takes the first piece out, which the caller gives back by free.
func (a *answer) next() (piece []byte) {
	piece = a.pieces[0]
	a.pieces = slices.Delete(a.pieces, 0, 1)
	return piece
}

// free gives a piece back.
func (a *answer) free(piece []byte) {
	a.held -= cap(piece)
	Answers.Return(int64(cap(piece)))
	if cap(piece) == smallPiece {
		smallPieces.Put((*[smallPiece]byte)(piece[:smallPiece]))
	}
}
