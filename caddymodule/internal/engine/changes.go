package engine

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

func init() {
	Collectors = append(Collectors, collector{collectChanges, []*prometheus.Desc{
		prometheus.NewDesc("caddy_throttle_changes",
			"Bans, limits and shadow switches at run time that hold.", []string{"kind"}, nil),
		prometheus.NewDesc("caddy_throttle_shadow_by_hand",
			"Whether the zone is in shadow by a switch at run time (1) or not (0).", []string{"zone"}, nil),
	}})
}

func collectChanges(of []*prometheus.Desc, to metricsChannel) {
	e, release := RunningApp()
	if e == nil {
		return
	}
	defer release()
	now, set := time.Now(), e.Overrides()
	held := e.Control.Overrides.List(now)
	to.gauge(of[0], float64(len(held.Bans)), "ban")
	to.gauge(of[0], float64(len(held.Limits)), "limit")
	to.gauge(of[0], float64(len(held.Shadows)), "shadow")
	for name := range e.Zones {
		to.gauge(of[1], toGauge(set.Shadow(name, now)), name)
	}
}
