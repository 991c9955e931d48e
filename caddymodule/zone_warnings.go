package caddymodule

import (
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/config"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/engine"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/settlement"
)

// patientClient is about how long most clients wait for an answer.
const patientClient = 30 * time.Second

// warnOf logs warnings about settings that probably do not work as meant.
func warnOf(z *engine.Zone, definition *config.Zone, doubts []string) {
	for _, source := range definition.Key.Given() {
		name := source.Header()
		switch {
		case strings.ContainsAny(name, "_."):
			z.Counts.Logger.Warn("Caddy drops headers with _ or . in their names unless they are listed in expected_underscore_headers or expected_dot_headers of the server: this key may always be missing",
				zap.String("header", name))
		case engine.NamesClient(name):
			z.WarnedKey = true // a zone keyed by client_ip would limit the proxy
			z.Counts.Logger.Warn("clients can send this header, too, and choose their key by it: use client_ip, and name the proxy in trusted_proxies and its header in client_ip_headers",
				zap.String("header", name))
		}
	}
	if slices.ContainsFunc(definition.Cost, func(c config.Cost) bool { return config.SentByClient(c.Value) }) {
		z.Counts.Logger.Warn("clients choose what their requests cost, since they send the value: compute the cost from something else")
	}
	if z.Settle != nil && z.Settle.Source == settlement.Status && !slices.ContainsFunc(z.Settle.Ranges, func(r settlement.StatusRange) bool { return r.First < 300 || r.Last > 399 }) {
		z.Counts.Logger.Warn("settle status charges redirects only, by which most applications answer a log-in that succeeded: name the status of one that failed")
	}
	if z.Block != nil && z.Settle != nil && !z.Settle.After {
		z.Counts.Logger.Warn("zone blocks clients for what their requests reserve, before the response says what they cost: add after to settle")
	}
	if wait := config.LongestWait(z.Rule); wait > patientClient && z.Share == nil { // share has a warning of its own
		warning := "requests may wait longer than most clients do: give delay a wait, or the limit a smaller capacity or a faster leak"
		if z.MaxWait > 0 {
			warning = "requests may wait longer than most clients do: set a shorter wait"
		}
		z.Counts.Logger.Warn(warning, zap.Float64("longest_wait_seconds", wait.Seconds()))
	}
	if z.Share != nil {
		warnShare(z, definition)
		if z.Ranks.Pass != nil && z.Shadow != 0 {
			z.Counts.Logger.Info("a zone in shadow sends no passes, so how many clients would have returned is unknown: those who would be refused count as if all came for the first time")
		}
	}
	if z.SlotsOnly() && len(z.Match) == 0 && z.Share == nil && z.MaxWait == 0 && !z.Key.HasAddress() && !config.ClientChosen(definition.Key.Given()) {
		z.Counts.Logger.Warn("all clients share the slots of the zone, and a request that finds none is refused at once: add wait to in_flight, or client_ip to its key")
	}
	z.WarnOversize()
	for _, doubt := range doubts {
		z.Counts.Logger.Warn(doubt)
	}
}

// warnShare logs warnings about a zone with share.
func warnShare(z *engine.Zone, definition *config.Zone) {
	if z.MaxWait > config.LongestShareWait {
		z.Counts.Logger.Warn("requests may wait for their turn longer than people do, who then come again while the upstream works for nobody: set its wait to 8s or less",
			zap.Float64("wait_seconds", z.MaxWait.Seconds()))
	}
	if config.ClientChosen(definition.InFlight.Share) {
		z.Counts.Logger.Warn("clients take turns by values that they choose, so a client can get a new turn with every request: want share client_ip")
	}
}
