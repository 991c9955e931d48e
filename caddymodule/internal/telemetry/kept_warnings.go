package telemetry

import (
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// A KeptWarning is a warning about the config, or about the site around it, as
// `caddy throttle status` shows it.
type KeptWarning struct {
	At      time.Time      `json:"at"`
	Text    string         `json:"text"`
	Details map[string]any `json:"details,omitempty"` // zone among them
}

// KeptWarnings keeps what a config has warned of. The log is often not where somebody
// looks at night.
type KeptWarnings struct {
	mu  sync.Mutex
	all []KeptWarning
}

// mostWarnings bounds how many warnings of a config are kept. Each is logged once, or
// once for each zone.
const mostWarnings = 100

// Logger returns a logger whose warnings are kept.
func (k *KeptWarnings) Logger(to *zap.Logger) *zap.Logger {
	return to.WithOptions(zap.WrapCore(func(core zapcore.Core) zapcore.Core {
		return zapcore.NewTee(core, &warningCore{kept: k})
	}))
}

func (k *KeptWarnings) List() []KeptWarning {
	k.mu.Lock()
	defer k.mu.Unlock()
	return append([]KeptWarning{}, k.all...)
}

// A warningCore is where a logger's warnings are kept.
type warningCore struct {
	kept   *KeptWarnings
	fields []zapcore.Field
}

// Enabled implements zapcore.Core.
func (c *warningCore) Enabled(level zapcore.Level) bool { return level == zapcore.WarnLevel }

// With implements zapcore.Core.
func (c *warningCore) With(fields []zapcore.Field) zapcore.Core {
	return &warningCore{c.kept, slices.Concat(c.fields, fields)}
}

// Check implements zapcore.Core.
func (c *warningCore) Check(entry zapcore.Entry, checked *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.Enabled(entry.Level) {
		return checked.AddCore(entry, c)
	}
	return checked
}

// Write implements zapcore.Core.
func (c *warningCore) Write(entry zapcore.Entry, fields []zapcore.Field) error {
	details := zapcore.NewMapObjectEncoder()
	for _, field := range slices.Concat(c.fields, fields) {
		field.AddTo(details)
	}
	c.kept.mu.Lock()
	defer c.kept.mu.Unlock()
	if len(c.kept.all) < mostWarnings {
		c.kept.all = append(c.kept.all, KeptWarning{entry.Time, entry.Message, details.Fields})
	}
	return nil
}

// Sync implements zapcore.Core.
func (c *warningCore) Sync() error { return nil }
