package board

import (
	"encoding/json"
	"errors"
	"io"
	"io/fs"

	"go.uber.org/zap"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/override"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/snapshot"
)

// A saved is the content of the file of a replica.
type saved struct {
	ID      string            `json:"id"`
	Host    string            `json:"host"`
	Changes []*record         `json:"changes"`
	Journal []override.Change `json:"journal"` // oldest first
}

// A disk keeps a replica over restarts.
type disk struct {
	path  string
	file  *snapshot.File // nil if it has none
	saved bool           // the file has all changes
}

// open takes another file, or none if path is empty.
func (d *disk) open(path string, logger *zap.Logger) {
	d.close()
	if d.path = path; path == "" {
		return
	}
	var err error
	if d.file, err = snapshot.Open(path); err != nil {
		logger.Warn("no copy of the changes at run time is kept, so a restart may end them", zap.String("file", path), zap.Error(err))
	}
}

// read returns what the file has, or nil if there is none that can be used.
func (d *disk) read(logger *zap.Logger) *saved {
	if d.file == nil {
		return nil
	}
	s := new(saved)
	content, err := d.file.Read()
	if err == nil {
		err = json.Unmarshal(content, s)
	}
	if err == nil {
		return s
	}
	if !errors.Is(err, fs.ErrNotExist) {
		aside, failed := d.file.SetAside()
		logger.Warn("the copy of the changes at run time cannot be used", zap.Error(errors.Join(err, failed)), zap.String("renamed_to", aside))
	}
	return nil
}

func (d *disk) write(s *saved, logger *zap.Logger) {
	if d.file == nil {
		return
	}
	err := d.file.Write(func(w io.Writer) error { return json.NewEncoder(w).Encode(s) })
	if d.saved = err == nil; !d.saved {
		logger.Warn("the copy of the changes at run time cannot be written, so a restart may end them", zap.String("file", d.path), zap.Error(err))
	}
}

func (d *disk) close() {
	if d.file != nil {
		_ = d.file.Close() // nothing was written to the lock
		d.file, d.saved = nil, false
	}
}
