package telemetry

import (
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
)

// A KeptWarning is a warning about the config, or about the site around it, as
// `caddy throttle status` shows it.
type KeptWarning struct {
	At      time.Time      `json:"at"`
	Text    string         `json:"text"`
	Details map[string]any `json:"details,omitempty"` // zone among them
}

// KeptWarnings are what a config has warned of. The log is often not where somebody
// looks at night.
type KeptWarnings struct{ logs *observer.ObservedLogs }

// mostWarnings bounds how many warnings of a config are kept, and mostAlike those with the same
// text, as of several zones, or of a matcher that goes on failing.
const mostWarnings, mostAlike = 100, 10

// KeepWarnings returns a logger whose warnings are kept, and these.
func KeepWarnings(to *zap.Logger) (*zap.Logger, *KeptWarnings) {
	k := new(KeptWarnings)
	var kept zapcore.Core
	kept, k.logs = observer.New(zap.LevelEnablerFunc(func(level zapcore.Level) bool {
		return level == zapcore.WarnLevel && k.logs.Len() < mostWarnings
	}))
	kept = zapcore.NewSamplerWithOptions(kept, 100*365*24*time.Hour, mostAlike, 0)
	return to.WithOptions(zap.WrapCore(func(core zapcore.Core) zapcore.Core { return zapcore.NewTee(core, kept) })), k
}

// List returns what was kept, in the order in which it was logged.
func (k *KeptWarnings) List() []KeptWarning {
	all := []KeptWarning{} // which JSON shows as a list even if it is empty
	for _, entry := range k.logs.All() {
		all = append(all, KeptWarning{entry.Time, entry.Message, entry.ContextMap()})
	}
	return all
}
