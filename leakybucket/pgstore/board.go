package pgstore

import (
	"bytes"
	"context"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// The signs between the prefix and the names of posts and beats, neighbours that no prefix has.
const (
	postSign = "<"
	beatSign = "="
)

// BoardName implements [leakybucket.Board].
func (s *Store) BoardName() string { return s.board + " " + s.prefix }

// Exchange implements [leakybucket.Board]. It is one round trip. The first one creates the
// table of the board, which is named after that of the buckets.
func (s *Store) Exchange(ctx context.Context, call leakybucket.BoardCall) (answer leakybucket.BoardAnswer, err error) {
	ctx, cancel := context.WithTimeout(ctx, mostPatience)
	defer cancel()
	err = s.besideBatches(ctx, func() (err error) {
		answer, err = s.exchange(ctx, &call)
		if isCode(err, undefinedTable) {
			if err = s.createBoard(ctx); err == nil {
				answer, err = s.exchange(ctx, &call)
			}
		}
		return err
	})
	return answer, s.explain(err)
}

// createBoard creates the table. CREATE TABLE IF NOT EXISTS fails if two do it at once.
func (s *Store) createBoard(ctx context.Context) error {
	batch := new(pgx.Batch)
	batch.Queue(s.sql["board_lock"], s.BoardName())
	batch.Queue(s.sql["board_create"])
	return s.explainChange(s.pool.SendBatch(ctx, batch).Close(), s.board, s.sql["board_create"])
}

func (s *Store) exchange(ctx context.Context, call *leakybucket.BoardCall) (answer leakybucket.BoardAnswer, err error) {
	from, to := []byte(s.prefix+postSign), after(s.prefix+beatSign) // the signs are neighbours
	batch := new(pgx.Batch)
	if len(call.Posts) > 0 {
		batch.Queue(s.sql["board_lock"], s.BoardName())
	}
	for _, p := range call.Posts {
		batch.Queue(s.sql["board_write"], []byte(s.prefix+postSign+p.Name), p.Version, p.Was, []byte(p.Text), from, to)
	}
	var node []byte
	if call.Node != "" {
		node = []byte(s.prefix + beatSign + call.Node)
	}
	batch.Queue(s.sql["board_latest"], from, to).QueryRow(func(row pgx.Row) error { return row.Scan(&answer.Latest) })
	batch.Queue(s.sql["board_read"], instantParam(s.heldAt()), call.After, append([]byte{}, node...), []byte(call.Beat), from, to).Query(func(rows pgx.Rows) error {
		var name, text []byte
		var number int64
		_, err := pgx.ForEachRow(rows, []any{&name, &number, &text}, func() error {
			switch own := string(name[len(s.prefix):]); {
			case strings.HasPrefix(own, postSign):
				answer.Posts = append(answer.Posts, leakybucket.Post{Name: own[1:], Version: number, Text: string(text)})
			case strings.HasPrefix(own, beatSign):
				answer.Beats = append(answer.Beats, leakybucket.Beat{Node: own[1:], Age: time.Duration(number) * time.Microsecond, Text: string(bytes.Clone(text))})
			}
			return nil
		})
		return err
	})
	return answer, s.pool.SendBatch(ctx, batch).Close()
}

var _ leakybucket.Board = (*Store)(nil)
