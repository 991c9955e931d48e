package engine

import (
	"context"
	"time"

	"go.uber.org/zap"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/override"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/overridefile"
)

// An overrideFile is a file with overrides, and the zones of one config that have it.
type overrideFile struct {
	overridefile.File
	zones   []*override.Lines
	logger  *zap.Logger
	changed func(*overrideFile) // is called when the file has been put into force again
}

func newOverrideFile(path string, logger *zap.Logger, changed func(*overrideFile)) *overrideFile {
	f := &overrideFile{logger: logger, changed: changed}
	f.Path, f.Use = path, f.use
	return f
}

// add reads the file for one more zone.
func (f *overrideFile) add(zone *override.Lines) error {
	f.zones = append(f.zones, zone)
	return f.Load()
}

// use puts the lines of the file into force, in all zones or in none.
func (f *overrideFile) use(lines []overridefile.Line) error {
	all := make([]*override.Listed, len(f.zones))
	for i, z := range f.zones {
		var err error
		if all[i], err = z.Compile(f.Path, lines); err != nil {
			return err
		}
	}
	for i, z := range f.zones {
		z.Put(all[i])
	}
	return nil
}

// watchEvery is how often files are looked at. Caddy looks at its Caddyfile as often with
// --watch. Looking needs no descriptors, and sees changes of all file systems.
const watchEvery = time.Second

func (f *overrideFile) watch(ctx context.Context) {
	ticker := time.NewTicker(watchEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		f.Refresh()
	}
}

// Refresh reads the file if it has changed, and logs what became of that.
func (f *overrideFile) Refresh() {
	news, s := f.Look()
	switch {
	case !news:
	case s.Problem != "":
		f.logger.Error("override_file is wrong; the overrides that were read before stay in force",
			zap.String("file", f.Path), zap.Time("read", s.Read), zap.String("error", s.Problem))
	default:
		f.logger.Info("override_file is in force", zap.String("file", f.Path), zap.Int("overrides", s.Overrides))
		f.changed(f)
	}
}
