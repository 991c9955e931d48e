package caddymodule

import (
	"cmp"
	"errors"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"
	"golang.org/x/time/rate"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/config"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/decision"
	clientpass "github.com/caddy-throttle/caddy-throttle/caddymodule/internal/pass"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/sharedstore"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// patientClient is about how long most clients wait for an answer.
const patientClient = 30 * time.Second

// A runningZone is a zone of one config as it runs: the rule that requests meet, with its
// counters and logs. What all configs of its name share is in the liveZone.
type runningZone struct {
	*decision.Rule
	*zoneCounts
	definition string
	live       *liveZone

	overrideFile   *overrideFile // nil if it has none
	handlers       []*throttler  // that charge it
	everywhere     bool          // its blocks hold in all handlers
	inventable     bool
	common         bool // all clients share one bucket
	readsHeaders   bool // to find the key
	warnedKey      bool
	warnedStatic   atomic.Bool
	warnedFailure  atomic.Int64 // when, in seconds since 1970
	warnedInsecure atomic.Bool

	policy   sharedstore.Policy // the fallback, if the shared store does not answer
	logLimit *rate.Limiter      // of refusals in the access log; nil if there is none
}

// newRunningZone returns the zone of a rule that was compiled and loaded. It joins the
// queues and slots that other configs share.
func newRunningZone(a *App, definition *config.Zone, rule *decision.Rule, text string) (*runningZone, error) {
	full := definition.WithDefaults()
	z := &runningZone{
		Rule: rule, definition: text,
		inventable: config.Inventable(definition.Key.Given()) && full.Key.Unlisted == "",
		common:     definition.Limit != "" && rule.Match == nil && !rule.Key.HasAddress() && !config.Inventable(definition.Key.Given()), readsHeaders: config.ReadsHeaders(definition.Key.Given()),
		overrideFile: a.engine.overrideFiles.named(definition.OverrideFile),
	}
	if a.Shadow && rule.Shadow == 0 {
		rule.Shadow = decision.ShadowGlobal
	}
	z.policy, _ = sharedstore.ParsePolicy(cmp.Or(definition.OnStoreError, a.OnStoreError)) // both have been checked
	z.logLimit, _ = config.ParseLogRefused(full.Refusal.Log)                               // which has been checked
	a.engine.limitsLog = a.engine.limitsLog || z.logLimit != nil
	for _, cost := range definition.Constants(rule) {
		rule.Dearest = max(rule.Dearest, cost)
	}
	var err error
	if z.live, err = joinZone(rule.Name); err != nil {
		return nil, err
	}
	z.zoneCounts = newZoneCounts(rule, &z.live.liveCounts, countOptions{
		logger: a.engine.warner.With(zap.String("zone", rule.Name)), shared: a.engine.shared != nil, denies: z.policy == sharedstore.Deny,
		listed: z.overrideFile != nil, group: func() string { return z.group(a.engine.overrides.Load()) }, wanted: a.engine.subscribed, events: a.engine.events,
	})
	rule.Enforced, rule.Simulated, rule.Reporter = &z.live.enforced, &z.live.simulated, z
	if rule.Settle != nil {
		rule.Settle.Meter = &z.live.meter
	}
	return z, nil
}

// warn logs warnings about settings that probably do not work as meant.
func (z *runningZone) warn(definition *config.Zone) {
	for _, source := range definition.Key.Given() {
		if source.Source == "header" && strings.ContainsAny(source.Name, "_.") {
			z.logger.Warn("Caddy drops headers with _ or . in their names unless they are listed in expected_underscore_headers or expected_dot_headers of the server: this key may always be missing",
				zap.String("header", source.Name))
		}
	}
	if z.Block != nil && z.Settle != nil && !z.Settle.After {
		z.logger.Warn("zone blocks clients for what their requests reserve, before the response says what they cost: add after to settle")
	}
	if wait := config.LongestWait(z.Rule); wait > patientClient && z.Share == nil { // share has a warning of its own
		warning := "requests may wait longer than most clients do: give delay a wait, or the limit a smaller capacity or a faster leak"
		if z.MaxWait > 0 {
			warning = "requests may wait longer than most clients do: set a shorter wait"
		}
		z.logger.Warn(warning, zap.Float64("longest_wait_seconds", wait.Seconds()))
	}
	if z.Share != nil {
		z.warnShare(definition)
		z.warnRanks()
	}
	z.warnOversize()
}

// warnOversize logs a warning if the capacity of an override is too small. It names the
// smallest.
func (z *runningZone) warnOversize() {
	if z.Bucketless() {
		return
	}
	least := slices.MinFunc(z.Key.Overrides.Load().Limits(), func(a, b leakybucket.Limit) int { return cmp.Compare(a.Capacity, b.Capacity) })
	if least.Oversize(z.Dearest) {
		z.logger.Warn("the capacity of an override is less than some requests cost, so its clients can never make them",
			zap.Float64("capacity", least.Capacity), zap.Float64("cost", z.Dearest))
	}
}

// warnShare logs warnings about a zone with share.
func (z *runningZone) warnShare(definition *config.Zone) {
	if z.MaxWait > config.LongestShareWait {
		z.logger.Warn("requests may wait for their turn longer than people do, who then come again while the upstream works for nobody: set its wait to 8s or less",
			zap.Float64("wait_seconds", z.MaxWait.Seconds()))
	}
	if config.Inventable(definition.InFlight.Share) {
		z.logger.Warn("clients take turns by values that they choose, so a client can get a new turn with every request: want share client_ip")
	}
}

// fail counts a request for which a matcher of the zone has failed, and warns of it at most
// once a minute. It returns the matcher's error if the zone is enforced: then the request
// fails, as Caddy has it.
func (z *runningZone) fail(p *decision.Plan, err error) error {
	enforced := p.Fail(z.Rule)
	matcher := "exempt in the global options"
	var failed *decision.MatcherError
	if errors.As(err, &failed) {
		matcher, err = failed.Option, failed.Err
	}
	if last, now := z.warnedFailure.Load(), time.Now().Unix(); now-last >= 60 && z.warnedFailure.CompareAndSwap(last, now) {
		warning := "a matcher of the zone fails, so requests would if it were enforced"
		if enforced {
			warning = "a matcher of the zone fails, and requests with it"
		}
		z.logger.Warn(warning, zap.String("matcher", matcher), zap.Error(err))
	}
	if enforced {
		return err
	}
	return nil
}

// warnStatic logs, once, that exempt static_files took a request of the upstream for
// a file.
func (z *runningZone) warnStatic(r *http.Request) {
	if !z.warnedStatic.Swap(true) {
		asked := r
		if original, ok := r.Context().Value(caddyhttp.OriginalRequestCtxKey).(http.Request); ok {
			asked = &original // later handlers may have rewritten it
		}
		z.logger.Warn("the upstream answered a request that exempt static_files took for a file; it is charged afterwards: serve files before the upstream is asked",
			zap.String("uri", asked.RequestURI))
	}
}

// passOf returns what issues the passes of a zone, or nil if the zone sends none.
func passOf(rule *decision.Rule) *clientpass.Zone {
	if rule.Ranks == nil {
		return nil
	}
	return rule.Ranks.Pass
}

// warnRanks logs warnings about ranks that do not hold what they promise.
func (z *runningZone) warnRanks() {
	for _, rank := range z.Ranks.Weak {
		z.logger.Warn("clients choose their path, query, headers and cookies, so any client can take this rank: add a matcher that they cannot forge, such as client_ip or verified_crawler, or use rank member issued or told",
			zap.String("rank", rank))
	}
	if z.Ranks.Pass != nil && z.Shadow != 0 {
		z.logger.Info("a zone in shadow sends no passes, so how many clients would have returned is unknown: those who would be refused count as if all came for the first time")
	}
}

// stripTold removes headers from a request by which only the upstream may name users.
func (h *throttler) stripTold(r *http.Request) {
	for _, name := range h.told {
		delete(r.Header, name)
	}
}

// addTold notes the headers in which the upstream names users to a zone.
func (h *throttler) addTold(z *runningZone) {
	pass := passOf(z.Rule)
	if pass == nil {
		return
	}
	for _, told := range pass.Told {
		if !slices.Contains(h.told, told.Header) {
			h.told = append(h.told, told.Header)
		}
	}
}
