package engine

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/override"
)

func init() {
	Collectors = append(Collectors, collector{collectChanges, []*prometheus.Desc{
		prometheus.NewDesc("caddy_throttle_changes",
			"Bans, limits and shadow switches at run time that hold.", []string{"kind"}, nil),
		prometheus.NewDesc("caddy_throttle_shadow_by_hand",
			"Whether the zone is in shadow by a switch at run time (1) or not (0).", []string{"zone"}, nil),
		prometheus.NewDesc("caddy_throttle_nodes",
			"Caddys with the same signing key that the shared store has seen in the last minute.", nil, nil),
		prometheus.NewDesc("caddy_throttle_changes_untold",
			"Changes at run time that the shared store does not have yet.", nil, nil),
	}})
}

func collectChanges(of []*prometheus.Desc, to metricsChannel) {
	e, release := RunningApp()
	if e == nil {
		return
	}
	defer release()
	now, set, held := time.Now(), e.Overrides(), make(map[override.Kind]float64)
	for _, one := range e.Control.Changes.Table.List(now) {
		held[one.Kind]++
	}
	for _, kind := range []override.Kind{override.OfBan, override.OfLimit, override.OfShadow} {
		to.gauge(of[0], held[kind], string(kind))
	}
	for name := range e.Zones {
		to.gauge(of[1], toGauge(set.Shadow(name, now)), name)
	}
	if state := e.Control.Changes.State(); state.Shared {
		to.gauge(of[2], float64(1+len(state.Nodes)))
		to.gauge(of[3], float64(state.Untold))
	}
}
