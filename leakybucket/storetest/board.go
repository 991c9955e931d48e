package storetest

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// A boardSubject is a store with a board that a case examines.
type boardSubject struct {
	*subject
	board leakybucket.Board
}

// boards begins a case of a store that has a board, if it has.
func boards(tb testing.TB, open Open) (s boardSubject, ok bool) {
	s.subject = beginHeld(tb, open, Need{})
	if s.board, ok = s.store.(leakybucket.Board); !ok {
		s.Log("not examined: the store is no leakybucket.Board")
	}
	return s, ok
}

func (s *boardSubject) exchange(call leakybucket.BoardCall) leakybucket.BoardAnswer {
	s.Helper()
	answer, err := s.board.Exchange(context.Background(), call)
	if err != nil {
		s.Fatalf("exchange %+v: got error %v, want none", call, err)
	}
	slices.SortFunc(answer.Posts, func(a, b leakybucket.Post) int { return cmp.Compare(a.Version, b.Version) })
	slices.SortFunc(answer.Beats, func(a, b leakybucket.Beat) int { return cmp.Compare(a.Node, b.Node) })
	return answer
}

// posts writes, and wants these posts above a version afterwards.
func (s *boardSubject) posts(after int64, want []leakybucket.Post, posts ...leakybucket.Post) {
	s.Helper()
	latest := int64(0)
	for _, p := range want {
		latest = p.Version
	}
	answer := s.exchange(leakybucket.BoardCall{Posts: posts, After: after})
	if fmt.Sprint(answer.Posts) != fmt.Sprint(want) || answer.Latest < latest {
		s.Fatalf("board above version %d after %+v: got %+v, latest %d, want %+v", after, posts, answer.Posts, answer.Latest, want)
	}
}

func post(name string, version int64, text string, was int64) leakybucket.Post {
	return leakybucket.Post{Name: name, Version: version, Text: text, Was: was}
}

// boardReplaces: a post is written over the version that its writer has seen, and above
// all others.
func boardReplaces(tb testing.TB, open Open) {
	s, ok := boards(tb, open)
	if !ok {
		return
	}
	all := func(p ...leakybucket.Post) []leakybucket.Post { return p }
	if got := s.exchange(leakybucket.BoardCall{}); got.Latest != 0 || len(got.Posts) > 0 || len(got.Beats) > 0 {
		s.Fatalf("new board: got %+v, want nothing", got)
	}
	const first = 1 << 50 // as microseconds since 1970 are
	bytes := "\x01 any \"text\" of\n bytes \xc3\xbc"
	a, b := post("a", first, bytes, 0), post("b/ü", first+1, "2", 0)
	s.posts(0, all(a, b), a, b)
	s.posts(first, all(b))
	s.posts(first+1, nil)
	s.posts(0, all(a, b), post("a", first+2, "not seen", 0), post("c", first+2, "never there", 7), post("a", first+2, "older", first-1))
	s.posts(0, all(a, b), post("c", first+1, "not above", 0))
	next := post("a", first+2, "3", first)
	s.posts(0, all(post("b/ü", first+1, "2", 0), post("a", first+2, "3", 0)), next)
	s.posts(first+1, all(post("a", first+2, "3", 0), post("c", first+3, "4", 0)), post("c", first+3, "4", 0))
	s.posts(0, all(b, post("c", first+3, "4", 0)), post("a", first+4, "", first+2))
	s.posts(0, all(b, post("c", first+3, "4", 0), post("a", first+9, "back", 0)), post("a", first+9, "back", 0))
}

// boardBeats: what nodes say is read by the others for a minute, with its age.
func boardBeats(tb testing.TB, open Open) {
	s, ok := boards(tb, open)
	if !ok {
		return
	}
	says := func(at time.Duration, node, text string, want string) {
		s.Helper()
		s.at(at)
		answer := s.exchange(leakybucket.BoardCall{Node: node, Beat: text})
		if got := fmt.Sprint(answer.Beats); got != want || len(answer.Posts) > 0 {
			s.Fatalf("%q at %v: got beats %s and posts %v, want %s", node, at, got, answer.Posts, want)
		}
	}
	says(0, "one", "a", "[]")
	says(time.Second, "two", "b", "[{one 1s a}]")
	says(2*time.Second, "one", "c", "[{two 1s b}]")
	says(30*time.Second, "", "nothing", "[{one 28s c} {two 29s b}]")
	says(61500*time.Millisecond, "", "", "[{one 59.5s c}]")
	says(2*time.Minute, "", "", "[]")
	says(3*time.Minute, "two", "d", "[]")
	s.posts(0, []leakybucket.Post{post("two", 1, "x", 0)}, post("two", 1, "x", 0))
}

// boardContended: of several writers who have seen the same, one writes, and all see it.
func boardContended(tb testing.TB, open Open) {
	s, ok := boards(tb, open)
	if !ok {
		return
	}
	const writers, rounds = 6, 20
	has := post("all", 0, "", 0)
	for range rounds {
		var wg sync.WaitGroup
		answers := make([]leakybucket.BoardAnswer, writers)
		for w := range writers {
			wg.Go(func() {
				p := post("all", has.Version+1, fmt.Sprint(w), has.Version)
				var err error
				answers[w], err = s.board.Exchange(context.Background(), leakybucket.BoardCall{Posts: []leakybucket.Post{p}, After: has.Version, Node: p.Text, Beat: p.Text})
				if err != nil {
					s.Errorf("contended exchange: got error %v, want none", err)
				}
			})
		}
		wg.Wait()
		wrote := 0
		for w, answer := range answers {
			if fmt.Sprint(answer.Posts) != fmt.Sprint(answers[0].Posts) || len(answer.Posts) != 1 {
				s.Fatalf("writers who saw version %d: got %v and %v, want the same post", has.Version, answer.Posts, answers[0].Posts)
			}
			if answer.Posts[0].Text == fmt.Sprint(w) {
				wrote++
			}
		}
		if has = answers[0].Posts[0]; wrote != 1 {
			s.Fatalf("got %d writers of one version, want 1", wrote)
		}
	}
}
