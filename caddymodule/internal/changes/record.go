package changes

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/override"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/snapshot"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/store"
)

const (
	// format is that of the file and of the store's texts. Another one is an error.
	format = 1

	// keptLonger is how long a record is kept after the end of its change, so that nodes whose
	// clocks differ forget it together.
	keptLonger = time.Hour

	// mostKept is the longest that a record is kept for what it has replaced.
	mostKept = 2 * override.Longest

	// mostNumber leaves room for the numbers of those who replace a record.
	mostNumber = store.MostNumber - 1<<40
)

// A record is a change, or the end of one.
type record struct {
	override.Entry
	Host   string    `json:"host,omitempty"` // where it was made
	Kept   time.Time `json:"kept"`           // the end of it and of all that it has replaced
	Number int64     `json:"number,omitempty"`
	Format int       `json:"format,omitempty"` // in the store; the file has one

	synced bool // the store has it, or one of a higher number
}

// replaces lets a record take the place of another, or of none.
func (r *record) replaces(last *record) {
	if last != nil && r.Ended {
		r.Until = last.Until
	}
	if r.Kept = r.Until; last != nil && last.Kept.After(r.Kept) {
		r.Kept = last.Kept
	}
}

// forgettable reports whether nobody needs to know the record any more.
func (r *record) forgettable(now time.Time) bool { return now.After(r.Kept.Add(keptLonger)) }

// same reports whether two records of one name are one change.
func (r *record) same(other *record) bool {
	return r.Since.Equal(other.Since) && r.Until.Equal(other.Until) && r.Ended == other.Ended && r.Limit == other.Limit && r.By == other.By
}

// journaled returns what the journal has of a change.
func (r *record) journaled(via string) override.Change {
	c := override.Change{At: r.Since, Action: string(r.Kind), Of: r.Of(), Limit: r.Limit, Until: &r.Until, Note: r.Note}
	if c.By, c.Via = r.By, via; r.Ended {
		c.Action, c.Until = "un"+c.Action, nil
	}
	return c
}

// check returns an error for what no Caddy of this version can have made.
func (r *record) check() error {
	switch err := r.Check(); {
	case err != nil:
		return err
	case r.Number <= 0 || r.Number >= mostNumber:
		return fmt.Errorf("invalid number %d", r.Number)
	case r.Kept.Before(r.Since) || r.Kept.After(r.Since.Add(mostKept)):
		return fmt.Errorf("it is kept until %v, and is of %v", r.Kept, r.Since)
	}
	return nil
}

// encode returns the text of a record for the store.
func (r *record) encode() store.Text {
	says := *r
	says.Format, says.Number = format, 0 // the number is beside the text
	raw, _ := json.Marshal(says)         // which fails for no record that was checked
	return store.Text{Name: r.Path(), Number: r.Number, End: leakybucket.Instant(r.Kept.Add(keptLonger).UnixMicro()), Text: string(raw)}
}

// decode reads a text of the store, which anybody may have written.
func decode(t store.Text) (*record, error) {
	r := new(record)
	if err := unmarshal([]byte(t.Text), r, &r.Format); err != nil {
		return nil, err
	}
	if r.Number = t.Number; r.Path() != t.Name {
		return nil, fmt.Errorf("it is of %s", r.Path())
	}
	return r, r.check()
}

// unmarshal reads JSON of our format. An error says so if it has another one.
func unmarshal(raw []byte, into any, is *int) error {
	err := json.Unmarshal(raw, into)
	if *is != format && (err == nil || *is != 0) {
		return fmt.Errorf("it has format %d, of another version of throttle: this one knows format %d", *is, format)
	}
	return err
}

// decodeTexts reads what a store has, without what has ended.
func decodeTexts(all store.Texts, now time.Time) (read []*record, skips []error) {
	for _, t := range all.Texts {
		switch k, err := decode(t); {
		case err != nil:
			skips = append(skips, fmt.Errorf("%.100q: %w", t.Name, err))
		case !k.forgettable(now):
			read = append(read, k)
		}
	}
	if left := all.Count - len(all.Texts); left > 0 {
		skips = append(skips, fmt.Errorf("there are %d, of which %d are read", all.Count, len(all.Texts)))
	}
	return read, skips
}

// records are those of a node. They follow the rule of numbers: of each name, the highest stands.
type records map[override.Name]*record

// number returns the number of a change that is made now, above all that were seen.
func (all records) number(now time.Time) int64 {
	highest := now.UnixMicro() - 1
	for _, k := range all {
		highest = max(highest, k.Number)
	}
	return highest + 1
}

// merge takes over all records of a store, and returns those that are new here. It adds to skips
// for which there is no room, and notes which of the own ones the store has.
func (all records) merge(read []*record, skips []error) (taken []*record, _ []error) {
	for _, own := range all {
		own.synced = false
	}
	for _, k := range read {
		switch own := all[k.Name]; {
		case own == nil && len(all) >= store.MostTexts:
			skips = append(skips, fmt.Errorf("%.100q: there are more than %d", k.Path(), store.MostTexts))
		case own != nil && own.Number > k.Number: // the store is told again
		case own != nil && own.Number == k.Number && own.same(k):
			own.synced = true
		default: // of two with one number, the one in the store stands
			k.synced = true
			all[k.Name] = k
			taken = append(taken, k)
		}
	}
	return taken, skips
}

// pending returns the records that the store does not have, those that are kept longest first: a store
// whose clock is ahead refuses the others, and nothing is sent after a call that it refuses.
func (all records) pending() (pending []*record) {
	for _, k := range all {
		if !k.synced {
			pending = append(pending, k)
		}
	}
	slices.SortFunc(pending, func(a, b *record) int { return b.Kept.Compare(a.Kept) })
	return pending
}

// logSkipped says how much cannot be used, and why.
func logSkipped(skips []error, logger *zap.Logger) {
	if len(skips) > 0 {
		logger.Warn("skipping what is no change at run time", zap.Int("count", len(skips)), zap.NamedError("first", skips[0]))
	}
}

// A content is that of the file.
type content[T any] struct {
	Format  int               `json:"format"`
	Changes []T               `json:"changes"`
	Journal []override.Change `json:"journal"` // oldest first
}

// decodeFile reads the content of the file. Changes that are broken are skipped. An error means that
// nothing of it can be used.
func decodeFile(raw []byte) (all []*record, journal []override.Change, skips []error, err error) {
	var of content[json.RawMessage]
	if err = unmarshal(raw, &of, &of.Format); err != nil {
		return nil, nil, nil, err
	}
	for i, raw := range of.Changes {
		r := new(record)
		if err := cmp.Or(json.Unmarshal(raw, r), r.check()); err != nil {
			skips = append(skips, fmt.Errorf("change %d: %w", i+1, err))
			continue
		}
		all = append(all, r)
	}
	return all, of.Journal, skips, nil
}

// A disk keeps the changes over restarts.
type disk struct {
	path    string         // empty before the first one, and once the file is given up
	file    *snapshot.File // nil if it cannot be had yet
	changed int            // how often something was
	has     int            // how often, when the file was last written
	writing chan struct{}  // closed when the file is no longer being written or opened; nil if it is not
	failing bool           // the last attempt failed, which was logged
}

// open takes the file, and returns what it has. A file that cannot be used is set aside.
func open(path string, logger *zap.Logger) (file *snapshot.File, all []*record, journal []override.Change, err error) {
	if file, err = snapshot.Open(path); err != nil {
		return nil, nil, nil, err
	}
	var skips []error
	unusable := file.Load(func(raw []byte) (err error) {
		all, journal, skips, err = decodeFile(raw)
		return err
	})
	logger = logger.With(zap.String("file", path))
	if unusable != nil {
		logger.Error("the copy of the changes at run time cannot be used", zap.Error(unusable))
	}
	logSkipped(skips, logger)
	return file, all, journal, nil
}

// writeFile writes the file, and returns when the disk has it.
func writeFile(file *snapshot.File, all []*record, journal []override.Change) error {
	slices.SortFunc(all, func(a, b *record) int { return cmp.Compare(a.Number, b.Number) })
	return file.Write(func(w io.Writer) error { return json.NewEncoder(w).Encode(content[*record]{format, all, journal}) })
}

// note notes how an attempt ended, and logs it if that is new.
func (d *disk) note(err error, logger *zap.Logger) {
	switch logger = logger.With(zap.String("file", d.path)); {
	case err != nil && !d.failing:
		logger.Warn("the copy of the changes at run time cannot be written, so a restart may end them; this is tried again every second", zap.Error(err))
	case err == nil && d.failing:
		logger.Info("the copy of the changes at run time is written again")
	}
	d.failing = err != nil
}
