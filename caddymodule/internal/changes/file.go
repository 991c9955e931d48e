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

	"go.uber.org/zap"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/override"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/snapshot"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/store"
)

// A content is that of the file.
type content struct {
	Format  int               `json:"format"`
	Changes []json.RawMessage `json:"changes"` // records
	Journal []json.RawMessage `json:"journal"` // oldest first
}

// longestFile is several times what 10,000 changes need.
const longestFile = 64 << 20

// encodeFile returns the content of the file.
func encodeFile(all records, journal []override.Change) ([]byte, error) {
	sorted := slices.SortedFunc(maps.Values(all), func(a, b *record) int { return cmp.Compare(a.Number, b.Number) })
	return json.Marshal(struct {
		Format  int               `json:"format"`
		Changes []*record         `json:"changes"`
		Journal []override.Change `json:"journal"`
	}{format, sorted, journal})
}

// decodeFile reads the content of the file. An error means that nothing of it can be used.
func decodeFile(raw []byte) (kept []*record, journal []override.Change, skips skipped, err error) {
	var c content
	if err = unmarshal(raw, &c, &c.Format); err != nil {
		return nil, nil, skips, err
	}
	for i, raw := range c.Changes {
		k := new(record)
		err := json.Unmarshal(raw, &k)
		switch {
		case err == nil && k == nil:
			err = errors.New("it is null")
		case err == nil:
			err = k.check()
		}
		if err == nil && len(kept) == store.MostTexts {
			err = fmt.Errorf("there are more than %d", len(kept))
		}
		if err != nil {
			skips.add(1, fmt.Errorf("change %d: %w", i+1, err))
			continue
		}
		kept = append(kept, k)
	}
	for _, raw := range c.Journal[max(0, len(c.Journal)-mostJournal):] {
		var change override.Change
		if json.Unmarshal(raw, &change) == nil && change.Action != "" {
			journal = append(journal, change)
		}
	}
	return kept, journal, skips, nil
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
		return
	}
	d.file.Largest = longestFile
}

// read returns what the file has. A file that cannot be used is set aside.
func (d *disk) read(logger *zap.Logger) (kept []*record, journal []override.Change) {
	if d.file == nil {
		return nil, nil
	}
	raw, err := d.file.Read()
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var skips skipped
	if err == nil {
		kept, journal, skips, err = decodeFile(raw)
	}
	if err != nil {
		aside, failed := d.file.SetAside()
		logger.Error("the copy of the changes at run time cannot be used", zap.Error(errors.Join(err, failed)), zap.String("file", d.path), zap.String("renamed_to", aside))
	}
	new(skipped).log(skips, logger.With(zap.String("file", d.path)))
	return kept, journal
}

// write writes the file, and returns when the disk has it.
func (d *disk) write(all records, journal []override.Change, logger *zap.Logger) {
	if d.file == nil {
		return
	}
	raw, err := encodeFile(all, journal)
	if err == nil {
		err = d.file.Write(func(w io.Writer) error {
			_, err := w.Write(raw)
			return err
		})
	}
	if d.saved = err == nil; !d.saved {
		logger.Warn("the copy of the changes at run time cannot be written, so a restart may end them", zap.String("file", d.path), zap.Error(err))
	}
}
