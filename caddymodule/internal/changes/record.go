package changes

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
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

	synced bool // the store has it, or one of a higher number
}

// replaces lets a record take the place of another, or of none.
func (r *record) replaces(last *record) {
	r.Kept = r.Until
	if last == nil {
		return
	}
	if r.Ended {
		r.Until = last.Until
	}
	for _, end := range []time.Time{r.Until, last.Kept} {
		if end.After(r.Kept) {
			r.Kept = end
		}
	}
	if latest := r.Since.Add(mostKept); r.Kept.After(latest) { // the clock was set back
		r.Kept = latest
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
	switch err := r.Entry.Check(); {
	case err != nil:
		return err
	case r.Number <= 0 || r.Number >= mostNumber:
		return fmt.Errorf("invalid number %d", r.Number)
	case r.Kept.Before(r.Since) || r.Kept.After(r.Since.Add(mostKept)):
		return fmt.Errorf("it is kept until %v, and is of %v", r.Kept, r.Since)
	}
	return nil
}

// A written record is what the text of the store says of one.
type written struct {
	Format int `json:"format"`
	record
}

// encode returns the text of a record for the store.
func (r *record) encode() store.Text {
	says := written{format, *r}
	says.Number = 0              // it is beside the text
	raw, _ := json.Marshal(says) // which fails for no record that was checked
	return store.Text{Name: r.Path(), Number: r.Number, End: leakybucket.Instant(r.Kept.Add(keptLonger).UnixMicro()), Text: string(raw)}
}

// length is that of the record in the store, in bytes.
func (r *record) length() int {
	t := r.encode()
	return len(t.Name) + len(t.Text)
}

// decode reads a text of the store, which anybody may have written.
func decode(t store.Text) (*record, error) {
	var says written
	if t.Number == 0 {
		return nil, errors.New("it is no change")
	}
	if err := unmarshal([]byte(t.Text), &says, &says.Format); err != nil {
		return nil, err
	}
	r := &says.record
	if r.Number = t.Number; r.Path() != t.Name {
		return nil, fmt.Errorf("it is of %s", r.Path())
	}
	return r, r.check()
}

// unmarshal reads JSON of our format. An error says so if it has another one.
func unmarshal(raw []byte, into any, is *int) error {
	switch err := json.Unmarshal(raw, into); {
	case *is == format || err != nil && *is == 0:
		return err
	case *is == 0:
		return errors.New("it has no format")
	}
	return fmt.Errorf("it has format %d, of another version of throttle: this one knows format %d", *is, format)
}

// decodeTexts reads what a store has, without what has ended.
func decodeTexts(all store.Texts, now time.Time) (read []*record, skips skipped) {
	for _, t := range all.Texts {
		switch k, err := decode(t); {
		case err != nil:
			skips.add(1, fmt.Errorf("%.100q: %w", t.Name, err))
		case !k.forgettable(now):
			read = append(read, k)
		}
	}
	if left := all.Count - len(all.Texts); left > 0 {
		skips.add(left, fmt.Errorf("there are %d, of which %d are read", all.Count, len(all.Texts)))
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

// merge takes over all records of a store, and returns those that are new here, and for how many
// there is no room. It notes which of the own ones the store has.
func (all records) merge(read []*record) (taken []*record, tooMany int) {
	for _, own := range all {
		own.synced = false
	}
	for _, k := range read {
		switch own := all[k.Name]; {
		case own == nil && len(all) >= store.MostTexts:
			tooMany++
		case own != nil && own.Number > k.Number: // the store is told again
		case own != nil && own.Number == k.Number && own.same(k):
			own.synced = true
		default: // of two with one number, the one in the store stands
			k.synced = true
			all[k.Name] = k
			taken = append(taken, k)
		}
	}
	return taken, tooMany
}

// pending returns the records that the store does not have, the lowest number first.
func (all records) pending(now time.Time) (pending []*record) {
	for _, k := range all {
		if !k.synced && !k.forgettable(now) {
			pending = append(pending, k)
		}
	}
	slices.SortFunc(pending, func(a, b *record) int { return cmp.Compare(a.Number, b.Number) })
	return pending
}

// forget drops what nobody needs to know any more.
func (all records) forget(now time.Time) {
	maps.DeleteFunc(all, func(_ override.Name, k *record) bool { return k.forgettable(now) })
}

// skipped is what a reader cannot use.
type skipped struct {
	count int
	why   error // of the first
}

func (s *skipped) add(n int, why error) {
	s.count += n
	s.why = cmp.Or(s.why, why)
}

// log says how much is skipped, if that was not the same before.
func (s *skipped) log(now skipped, logger *zap.Logger) {
	if now.count > 0 && (now.count != s.count || fmt.Sprint(now.why) != fmt.Sprint(s.why)) {
		logger.Warn("skipping what is no change at run time", zap.Int("count", now.count), zap.NamedError("first", now.why))
	}
}

// A content is that of the file.
type content struct {
	Format  int               `json:"format"`
	Changes []*record         `json:"changes"`
	Journal []override.Change `json:"journal"` // oldest first
}

// decodeFile reads the content of the file. Changes that are broken are skipped. An error means that
// nothing of it can be used.
func decodeFile(raw []byte) (c content, skips skipped, err error) {
	var of struct {
		Format  int               `json:"format"`
		Changes []json.RawMessage `json:"changes"`
		Journal json.RawMessage   `json:"journal"`
	}
	if err = unmarshal(raw, &of, &of.Format); err != nil {
		return c, skips, err
	}
	for i, raw := range of.Changes {
		k := new(record)
		err := json.Unmarshal(raw, &k)
		switch {
		case err == nil && k == nil:
			err = errors.New("it is null")
		case err == nil:
			err = k.check()
		}
		if err != nil {
			skips.add(1, fmt.Errorf("change %d: %w", i+1, err))
			continue
		}
		c.Changes = append(c.Changes, k)
	}
	if json.Unmarshal(of.Journal, &c.Journal) != nil {
		c.Journal = nil
	}
	return c, skips, nil
}

// A disk keeps the changes over restarts.
type disk struct {
	path  string
	file  *snapshot.File // nil if there is none
	saved bool           // the file has all changes
}

// open takes another file, or none if path is empty.
func (d *disk) open(path string, logger *zap.Logger) {
	if d.file != nil {
		_ = d.file.Close() // nothing was written to the lock
	}
	if *d = (disk{path: path}); path == "" {
		return
	}
	var err error
	if d.file, err = snapshot.Open(path); err != nil {
		d.file = nil
		logger.Warn("no copy of the changes at run time is kept, so a restart may end them", zap.String("file", path), zap.Error(err))
	}
}

// read returns what the file has. A file that cannot be used is set aside.
func (d *disk) read(logger *zap.Logger) (c content) {
	if d.file == nil {
		return c
	}
	raw, err := d.file.Read()
	if errors.Is(err, fs.ErrNotExist) {
		return c
	}
	var skips skipped
	if err == nil {
		c, skips, err = decodeFile(raw)
	}
	if err != nil {
		aside, failed := d.file.SetAside()
		logger.Error("the copy of the changes at run time cannot be used", zap.Error(errors.Join(err, failed)), zap.String("file", d.path), zap.String("renamed_to", aside))
		return content{}
	}
	new(skipped).log(skips, logger.With(zap.String("file", d.path)))
	return c
}

// write writes the file, and returns when the disk has it.
func (d *disk) write(all records, journal []override.Change, logger *zap.Logger) {
	if d.file == nil {
		return
	}
	sorted := slices.SortedFunc(maps.Values(all), func(a, b *record) int { return cmp.Compare(a.Number, b.Number) })
	err := d.file.Write(func(w io.Writer) error { return json.NewEncoder(w).Encode(content{format, sorted, journal}) })
	if d.saved = err == nil; !d.saved {
		logger.Warn("the copy of the changes at run time cannot be written, so a restart may end them", zap.String("file", d.path), zap.Error(err))
	}
}
