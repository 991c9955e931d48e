package override

import (
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/overridefile"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/perkey"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// Lines is the one owner of the overrides that the config and the override file of a
// zone give. Requests read them without a lock.
type Lines struct {
	config  perkey.TableConfig
	prepare func(*perkey.Override) error
	current atomic.Pointer[Listed]
}

// NewLines returns the overrides of a zone that has no file, or a
// [perkey.OverrideError]. prepare checks an override, and may change it.
func NewLines(config perkey.TableConfig, prepare func(*perkey.Override) error) (*Lines, error) {
	l := &Lines{config: config, prepare: prepare}
	table, err := l.table(config)
	if err != nil {
		return nil, err
	}
	l.current.Store(&Listed{config: table, empty: table.Empty(), zone: table.Lookup(nil)})
	l.config.Shared = table.Shared()
	return l, nil
}

func (l *Lines) table(config perkey.TableConfig) (*perkey.Table, error) {
	for i := range config.Overrides {
		o := &config.Overrides[i]
		parts := o.Parts
		if err := l.prepare(o); err != nil {
			return nil, &perkey.OverrideError{Override: i, Parts: parts, First: -1, Err: err}
		}
	}
	return perkey.NewTable(config)
}

// Load returns the overrides in force.
func (l *Lines) Load() *Listed { return l.current.Load() }

// Compile returns what will be in force with the lines of a file. Errors name the line.
func (l *Lines) Compile(file string, lines []overridefile.Line) (*Listed, error) {
	next := &Listed{config: l.Load().config, name: file, numbers: make([]int, len(lines))}
	config := l.config
	config.Overrides = make([]perkey.Override, len(lines))
	for i := range lines {
		config.Overrides[i], next.numbers[i] = lines[i].Override, lines[i].Number
	}
	var err error
	if next.file, err = l.table(config); err != nil {
		return nil, next.explain(err, lines)
	}
	next.empty, next.zone = next.config.Empty() && next.file.Empty(), next.config.Lookup(nil)
	return next, nil
}

// explain says which line is wrong, without its parts, which may be secrets.
func (s *Listed) explain(err error, lines []overridefile.Line) error {
	var wrong *perkey.OverrideError
	if !errors.As(err, &wrong) {
		return err
	}
	what := wrong.Err
	switch words := lines[wrong.Override].Parts; {
	case wrong.First >= 0:
		what = fmt.Errorf("%w; see line %d", what, s.numbers[wrong.First])
	case words[0] == "override" && len(words) > 1:
		what = fmt.Errorf("%w; lines of the file do not begin with override", what)
	}
	return fmt.Errorf("%w, at %s:%d", what, s.name, s.numbers[wrong.Override])
}

// Put makes overrides those in force, which come from Compile.
func (l *Lines) Put(next *Listed) { l.current.Store(next) }

// A Source says where the limit of a key comes from.
type Source int

// The sources, weakest first. What was changed at run time is stronger.
const (
	OfZone   Source = iota // no override names the key
	OfConfig               // an override in the config
	OfFile                 // a line of the override file
)

// Listed is the overrides of a zone at one time. It does not change.
type Listed struct {
	empty bool         // no override names any key
	zone  perkey.Entry // what then holds for all

	config  *perkey.Table
	file    *perkey.Table // nil if no file was read
	name    string        // of the file
	numbers []int         // of the lines of its overrides
}

// Empty reports whether there are no overrides, so that no key needs to be looked up.
func (s *Listed) Empty() bool { return s.empty }

// OfAll returns what holds for every key if there are no overrides.
func (s *Listed) OfAll() *perkey.Entry { return &s.zone }

// Lookup returns what holds for a key. Lines of the file go before the config.
func (s *Listed) Lookup(key []perkey.Part) (perkey.Entry, Source) {
	if s.empty {
		return s.zone, OfZone
	}
	if s.file != nil {
		if e := s.file.Lookup(key); e.Listed() {
			return e, OfFile
		}
	}
	e := s.config.Lookup(key)
	if e.Listed() {
		return e, OfConfig
	}
	return e, OfZone
}

// Named returns what holds for a bucket that several keys share, or for one that no
// override names.
func (s *Listed) Named(bucket string) (perkey.Entry, Source) {
	if s.file != nil {
		if e, found := s.file.Named(bucket); found {
			return e, OfFile
		}
	}
	if e, found := s.config.Named(bucket); found {
		return e, OfConfig
	}
	return s.config.Lookup(nil), OfZone
}

// Place says where the override of an entry is written, for people. It is "" if there
// is none.
func (s *Listed) Place(e perkey.Entry, by Source) string {
	switch by {
	case OfFile:
		return fmt.Sprintf("%s:%d", s.name, s.numbers[e.Override])
	case OfConfig:
		return fmt.Sprintf("override %d", e.Override+1)
	}
	return ""
}

// Limits returns every limit that a key may have, each once. The zone's own comes first.
func (s *Listed) Limits() []leakybucket.Limit {
	all := s.config.Limits()
	if s.file == nil {
		return all
	}
	seen := make(map[leakybucket.Limit]bool)
	return slices.DeleteFunc(append(all, s.file.Limits()...), func(limit leakybucket.Limit) bool {
		known := seen[limit]
		seen[limit] = true
		return known
	})
}
