package redisstore

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// BoardName implements [leakybucket.Board]. It is the key of the hash that holds the board.
func (s *Store) BoardName() string { return s.prefix + "@board" }

// Exchange implements [leakybucket.Board]. It is one round trip, or two when the server has
// forgotten the script.
func (s *Store) Exchange(ctx context.Context, call leakybucket.BoardCall) (leakybucket.BoardAnswer, error) {
	args := []string{s.now(), strconv.FormatInt(call.After, 10), call.Node, call.Beat}
	for _, p := range call.Posts {
		args = append(args, p.Name, strconv.FormatInt(p.Version, 10), strconv.FormatInt(p.Was, 10), p.Text)
	}
	reply, err := ask(ctx, s.connection, func(c rueidis.Client) ([]string, error) {
		return boardScript.Exec(context.Background(), c, []string{s.BoardName()}, args).AsStrSlice()
	})
	var answer leakybucket.BoardAnswer
	if err == nil {
		answer, err = parseBoard(reply)
	}
	return answer, s.connection.explain("asking the board", err)
}

func parseBoard(reply []string) (answer leakybucket.BoardAnswer, err error) {
	if len(reply)%3 != 1 {
		return answer, errGarbage
	}
	if answer.Latest, err = strconv.ParseInt(reply[0], 10, 64); err != nil {
		return answer, errGarbage
	}
	for row := range slices.Chunk(reply[1:], 3) {
		number, err := strconv.ParseInt(row[1], 10, 64)
		if post, is := strings.CutPrefix(row[0], "="); is {
			answer.Posts = append(answer.Posts, leakybucket.Post{Name: post, Version: number, Text: row[2]})
		} else if node, is := strings.CutPrefix(row[0], "~"); is {
			answer.Beats = append(answer.Beats, leakybucket.Beat{Node: node, Age: time.Duration(number) * time.Microsecond, Text: row[2]})
		} else {
			err = errGarbage
		}
		if err != nil {
			return answer, errGarbage
		}
	}
	return answer, nil
}

var _ leakybucket.Board = (*Store)(nil)
