package redisstore

import (
	"context"
	_ "embed"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/rueidis"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

//go:embed board.lua
var boardLua string

var boardScript = rueidis.NewLuaScript(boardLua)

// BoardName implements [leakybucket.Board]. It is the key of the hash that holds the board.
func (s *Store) BoardName() string { return s.prefix + "@board" }

// Exchange implements [leakybucket.Board]. It is one round trip, or two when the server has
// forgotten the script.
func (s *Store) Exchange(ctx context.Context, call leakybucket.BoardCall) (leakybucket.BoardAnswer, error) {
	args := []string{s.now(), strconv.FormatInt(call.After, 10), call.Node, call.Beat}
	for _, p := range call.Posts {
		args = append(args, p.Name, strconv.FormatInt(p.Version, 10), strconv.FormatInt(p.Was, 10), p.Text)
	}
	reply, err := ask(ctx, s.connection, func(c rueidis.Client) ([]rueidis.RedisMessage, error) {
		return boardScript.Exec(context.Background(), c, []string{s.BoardName()}, args).ToArray()
	})
	var answer leakybucket.BoardAnswer
	if err == nil {
		answer, err = parseBoard(reply)
	}
	if err != nil {
		return answer, fmt.Errorf("asking the board: %w", s.connection.explain(err))
	}
	return answer, nil
}

func parseBoard(reply []rueidis.RedisMessage) (answer leakybucket.BoardAnswer, err error) {
	if len(reply) != 3 {
		return answer, errGarbage
	}
	text, err := reply[0].ToString()
	if err != nil {
		return answer, err
	}
	if answer.Latest, err = strconv.ParseInt(text, 10, 64); err != nil {
		return answer, errGarbage
	}
	posts, err := reply[1].AsStrSlice()
	if err != nil {
		return answer, err
	}
	for i := 0; i+2 < len(posts); i += 3 {
		p := leakybucket.Post{Name: posts[i], Text: posts[i+2]}
		if p.Version, err = strconv.ParseInt(posts[i+1], 10, 64); err != nil {
			return answer, errGarbage
		}
		answer.Posts = append(answer.Posts, p)
	}
	beats, err := reply[2].ToArray()
	if err != nil {
		return answer, err
	}
	for i := range beats {
		words, err := beats[i].AsStrSlice()
		if err != nil || len(words) != 3 {
			return answer, errGarbage
		}
		age, err := strconv.ParseInt(words[1], 10, 64)
		if err != nil {
			return answer, errGarbage
		}
		answer.Beats = append(answer.Beats, leakybucket.Beat{Node: words[0], Age: time.Duration(age) * time.Microsecond, Text: words[2]})
	}
	return answer, nil
}

var _ leakybucket.Board = (*Store)(nil)
