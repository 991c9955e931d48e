package store

import (
	"context"
	"errors"
	"strconv"
	"testing"
)

// pages is a Lister of pages of two buckets, which ends with an error if it has one.
type pages struct {
	n   int
	err error
}

func (p pages) List(_ context.Context, _ Filter, cursor string) (some []Entry, next string, err error) {
	at, _ := strconv.Atoi(cursor)
	if at == p.n {
		return nil, "", p.err
	}
	return []Entry{{Key: "a" + cursor}, {Key: "b" + cursor}}, strconv.Itoa(at + 1), nil
}

func TestListAllGoesThroughAllPagesUntilItIsStopped(t *testing.T) {
	broken := errors.New("broken")
	for _, test := range []struct {
		of           pages
		most, listed int
		err          error
	}{
		{pages{n: 3}, 100, 6, nil},
		{pages{n: 3}, 3, 3, nil},
		{pages{n: 0}, 100, 0, nil},
		{pages{n: 2, err: broken}, 100, 4, broken},
		{pages{n: 2, err: broken}, 4, 4, nil},
	} {
		listed := 0
		var failed error
		for _, err := range ListAll(context.Background(), test.of, Filter{}) {
			if failed = err; err == nil {
				listed++
			}
			if listed == test.most {
				break
			}
		}
		if listed != test.listed || failed != test.err {
			t.Errorf("%+v, stopped after %d: got %d buckets and error %v, want %d and %v", test.of, test.most, listed, failed, test.listed, test.err)
		}
	}
}
