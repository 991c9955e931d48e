package storetest

import (
	"context"
	"maps"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// A referenceBoard is the board of the reference.
type referenceBoard struct {
	posts  map[string]leakybucket.Post
	beats  map[string]referenceBeat
	latest int64
}

type referenceBeat struct {
	at   leakybucket.Instant
	text string
}

func (s *reference) BoardName() string { return "board" }

func (s *reference) Exchange(_ context.Context, call leakybucket.BoardCall) (answer leakybucket.BoardAnswer, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := &s.board
	if b.posts == nil {
		b.posts, b.beats = make(map[string]leakybucket.Post), make(map[string]referenceBeat)
	}
	for _, p := range call.Posts {
		may := p.Version > b.latest && b.posts[p.Name].Version == p.Was
		if s.mayPost != nil {
			may = s.mayPost(b, p)
		}
		if !may {
			continue
		}
		b.latest = max(b.latest, p.Version)
		if p.Was = 0; p.Text == "" {
			delete(b.posts, p.Name)
		} else {
			b.posts[p.Name] = p
		}
	}
	now := s.clock()
	for node, beat := range b.beats {
		age := now.Sub(beat.at)
		if s.keepsBeats || age <= time.Minute && node != call.Node {
			answer.Beats = append(answer.Beats, leakybucket.Beat{Node: node, Age: age, Text: beat.text})
		}
	}
	if call.Node != "" {
		b.beats[call.Node] = referenceBeat{now, call.Beat}
	}
	for p := range maps.Values(b.posts) {
		if p.Version > call.After {
			answer.Posts = append(answer.Posts, p)
		}
	}
	answer.Latest = b.latest
	return answer, nil
}

var boardMutants = []mutant{
	{"replaces what the writer has not seen", "board replaces what was seen", bugs{mayPost: func(b *referenceBoard, p leakybucket.Post) bool { return p.Version > b.latest }}},
	{"lets versions fall", "board replaces what was seen", bugs{mayPost: func(b *referenceBoard, p leakybucket.Post) bool { return b.posts[p.Name].Version == p.Was }}},
	{"keeps beats for ever", "board keeps beats for a minute", bugs{keepsBeats: true}},
	{"lets two write at once", "board under contention", bugs{mayPost: func(b *referenceBoard, p leakybucket.Post) bool { return p.Version >= b.latest }}},
}
