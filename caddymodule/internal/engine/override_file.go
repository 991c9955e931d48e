package engine

import (
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/override"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/overridefile"
)

// An overrideFile is a file with overrides, and the zones of one config that have it.
type overrideFile struct {
	overridefile.File
	zones []*override.Lines
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

// overrideFiles are those of one config.
type overrideFiles struct {
	Files []*overrideFile
	Stop  chan struct{} // nil unless the files are watched
}

// add reads a file for one more zone, and returns it.
func (o *overrideFiles) add(path string, zone *override.Lines) (*overrideFile, error) {
	i := slices.IndexFunc(o.Files, func(f *overrideFile) bool { return f.Path == path })
	if i < 0 {
		f := new(overrideFile)
		f.Path, f.Use = path, f.use
		i, o.Files = len(o.Files), append(o.Files, f)
	}
	f := o.Files[i]
	f.zones = append(f.zones, zone)
	return f, f.Load()
}

// watchEvery is how often files are looked at. Caddy looks at its Caddyfile as often with
// --watch. Looking needs no descriptors, and sees changes of all file systems.
const watchEvery = time.Second

// start watches the files until end. changed is called with one that has been put into
// force again.
func (o *overrideFiles) start(logger *zap.Logger, changed func(*overrideFile)) {
	if len(o.Files) == 0 {
		return
	}
	o.Stop = make(chan struct{})
	for _, f := range o.Files {
		go f.watch(o.Stop, logger, changed) // each for itself, as one may hang
	}
}

func (o *overrideFiles) End() {
	if o.Stop != nil {
		close(o.Stop)
		o.Stop = nil
	}
}

func (f *overrideFile) watch(stop <-chan struct{}, logger *zap.Logger, changed func(*overrideFile)) {
	ticker := time.NewTicker(watchEvery)
	defer ticker.Stop()
	for {
		select {
		case <-stop:
			return
		case <-ticker.C:
		}
		f.Refresh(logger, changed)
	}
}

// Refresh reads the file if it has changed, and logs what became of that.
func (f *overrideFile) Refresh(logger *zap.Logger, changed func(*overrideFile)) {
	news, s := f.Look()
	switch {
	case !news:
	case s.Problem != "":
		logger.Error("override_file is wrong; the overrides that were read before stay in force",
			zap.String("file", f.Path), zap.Time("read", s.Read), zap.String("error", s.Problem))
	default:
		logger.Info("override_file is in force", zap.String("file", f.Path), zap.Int("overrides", s.Overrides))
		changed(f)
	}
}
