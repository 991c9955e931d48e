package board

import (
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"time"

	"go.uber.org/zap"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/override"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/snapshot"
)

// A saved is the content of the file.
type saved struct {
	ID      string            `json:"id"`
	Host    string            `json:"host"`
	Changes []kept            `json:"changes"`
	Journal []override.Change `json:"journal"` // oldest first
}

// open keeps the changes in a file from now on, and reads it if this is the first. It reports
// whether there is no copy of the board. mu is held.
func (b *Board) open(path string) (fresh bool) {
	first := !b.used
	if b.used = true; path == b.path {
		return first
	}
	b.close()
	if b.path = path; path == "" {
		return first
	}
	var err error
	if b.file, err = snapshot.Open(path); err != nil {
		b.logger.Warn("no copy of the changes at run time is kept, so a restart may end them", zap.String("file", path), zap.Error(err))
		return first
	}
	if !first {
		b.save()
		return false
	}
	if fresh = !b.load(); fresh {
		b.save()
	}
	return fresh
}

// load reads the file, and reports whether there is one.
func (b *Board) load() bool {
	var s saved
	err := b.file.Read(func(r io.ReadSeeker) error { return json.NewDecoder(r).Decode(&s) })
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return false
	case err != nil:
		aside, failed := b.file.SetAside()
		b.logger.Warn("the copy of the changes at run time cannot be used", zap.Error(errors.Join(err, failed)), zap.String("renamed_to", aside))
		return false
	}
	if s.ID != "" && s.Host == host() { // and not a copy of another's folder
		b.id = s.ID
	}
	entries := make([]override.Entry, len(s.Changes))
	for i := range s.Changes {
		k := &s.Changes[i]
		b.kept[k.Name], entries[i] = k, k.Entry
		b.after = max(b.after, k.Version)
	}
	b.Table.Apply(time.Now(), entries...)
	b.note(s.Journal...)
	return true
}

// save writes the file. mu is held.
func (b *Board) save() {
	if b.file == nil {
		return
	}
	s := saved{ID: b.id, Host: host(), Journal: b.journal}
	for _, k := range b.kept {
		s.Changes = append(s.Changes, *k)
	}
	err := b.file.Write(func(w io.Writer) error { return json.NewEncoder(w).Encode(&s) })
	if b.saved = err == nil; !b.saved {
		b.logger.Warn("the copy of the changes at run time cannot be written, so a restart may end them", zap.String("file", b.path), zap.Error(err))
	}
}

// Close gives the file up.
func (b *Board) Close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.close()
}

func (b *Board) close() {
	if b.file != nil {
		_ = b.file.Close() // nothing was written to the lock
		b.file, b.saved = nil, false
	}
}
