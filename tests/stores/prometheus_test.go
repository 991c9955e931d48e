package stores

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/servertest"
	"github.com/caddy-throttle/caddy-throttle/tests/internal/system"
)

// everyMetric is a site whose zones have all metrics.
const everyMetric = `
http://:%d {
	in_flight /slots slots 1 client_ip {
		wait 1s
	}
	in_flight /swarm swarm 2 {
		wait 1s
		share
	}
	throttle /queue {
		zone queue {
			limit 5 5/s
			delay
		}
	}
	throttle {
		zone pages {
			limit 5 5/s
			block 1s
			settle header X-Cost
		}
		zone tried {
			limit 2 1/s
			shadow server_timing
		}
	}
	respond ok
}`

func TestDashboardAndAlertsAskForWhatCaddyTells(t *testing.T) {
	t.Parallel()
	binary := system.Need(t, "prometheus")
	redis := servertest.StartRedis(t)
	store := redisServer(t, redis)
	port := servertest.FreePort(t)
	c := system.StartCaddy(t, system.Config{Throttle: store.directive(), Servers: "listener_wrappers {\n\tthrottle_blocked\n}", Sites: fmt.Sprintf(everyMetric, port)})
	waitForStore(c, t, store)

	// The delay keeps this client from taking all of the machine.
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for ctx.Err() == nil {
			for _, path := range []string{"/", "/queue", "/slots", "/swarm"} {
				if resp, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d%s", port, path)); err == nil {
					resp.Body.Close()
				}
			}
		}
	}()
	defer func() {
		stop()
		<-ended
	}()

	inMemory := servertest.FreePort(t)
	remembers := system.StartCaddy(t, system.Config{Sites: fmt.Sprintf("http://:%d {\n\tthrottle pages 5 5/h\n}", inMemory)}) // with a snapshot, and a bucket
	if resp, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d/", inMemory)); err == nil {
		resp.Body.Close()
	}
	p := startPrometheus(t, binary, c.Admin, remembers.Admin)
	left := dashboardQueries(t)
	check.That(t, len(left) >= 25, "got %d queries, want more", len(left))
	for deadline := time.Now().Add(2 * system.StartTime); len(left) > 0; {
		maps.DeleteFunc(left, func(_, query string) bool { return slices.ContainsFunc(p.query(t, query), isNumber) })
		check.Assume(t, !time.Now().After(deadline), "got no answer to %v", slices.Sorted(maps.Keys(left)))
		time.Sleep(100 * time.Millisecond) // until more was scraped
	}

	rules := p.rules(t)
	check.That(t, len(rules) >= 6, "got %d alerts, want more", len(rules))
	for name, query := range rules {
		p.query(t, query)
		for _, metric := range regexp.MustCompile(`caddy_throttle_\w+`).FindAllString(query, -1) {
			check.That(t, len(p.query(t, metric)) != 0, "alert %s: got no %s, want some", name, metric)
		}
	}
	redis.Kill()
	system.Eventually(t, "an alert that the store is down", func() bool { return len(p.query(t, rules["ThrottleStoreDown"])) == 1 })
}

func TestAlertsFireInTroubleOnly(t *testing.T) {
	t.Parallel()
	promtool := system.Need(t, "promtool")
	dir := t.TempDir()
	for _, file := range []string{"../docs/alerts.yml", "testdata/prometheus/alerts_test.yml"} {
		text := check.Must(os.ReadFile(file))(t)
		text = []byte(strings.ReplaceAll(string(text), "SHARE_REFUSED", strings.ReplaceAll(dashboardQueries(t)["panel Share refused A"], "10s", "5m")))
		check.OK(t, os.WriteFile(filepath.Join(dir, filepath.Base(file)), text, 0o644))
	}
	for _, args := range [][]string{{"check", "rules", "alerts.yml"}, {"test", "rules", "alerts_test.yml"}} {
		cmd := exec.Command(promtool, args...)
		cmd.Dir = dir
		out, err := cmd.CombinedOutput()
		check.That(t, err == nil, "promtool %v: %v\n%s", args, err, out)
	}
}

// A dashboardPanel is a panel, or a row with panels.
type dashboardPanel struct {
	Title   string
	Targets []struct{ RefID, Expr string }
	Panels  []dashboardPanel
}

// dashboardQueries returns the queries of the Grafana dashboard, by panel, with its
// variables filled in as Grafana does.
func dashboardQueries(t *testing.T) map[string]string {
	t.Helper()
	text := system.Page(t, "docs/grafana-dashboard.json")
	var dashboard struct {
		Panels     []dashboardPanel
		Templating struct {
			List []struct{ Name, Query string }
		}
	}
	check.OK(t, json.Unmarshal([]byte(text), &dashboard))
	fill := strings.NewReplacer("$__rate_interval", "10s", "$instance", ".*", "$zone", ".*")
	queries := make(map[string]string)
	panels := dashboard.Panels
	for _, row := range dashboard.Panels {
		panels = append(panels, row.Panels...) // of a collapsed row
	}
	for _, panel := range panels {
		for _, target := range panel.Targets {
			queries["panel "+panel.Title+" "+target.RefID] = fill.Replace(target.Expr)
		}
	}
	for _, variable := range dashboard.Templating.List {
		if found := regexp.MustCompile(`^label_values\((\w+), (\w+)\)$`).FindStringSubmatch(variable.Query); found != nil {
			queries["variable "+variable.Name] = fmt.Sprintf(`count by (%s) (%s{%[1]s!=""})`, found[2], found[1])
		}
	}
	return queries
}

// promServer is a Prometheus that scrapes Caddys every second.
type promServer struct {
	url string
}

func startPrometheus(t *testing.T, binary string, targets ...string) *promServer {
	t.Helper()
	alerts, err := filepath.Abs("../docs/alerts.yml")
	check.OK(t, err)
	file := system.WriteFile(t, "prometheus.yml", fmt.Sprintf(`
global:
  scrape_interval: 1s
  evaluation_interval: 1s
rule_files: [%q]
scrape_configs:
  - job_name: caddy
    static_configs:
      - targets: [%s]
`, alerts, strings.Join(targets, ", ")))
	address := fmt.Sprintf("127.0.0.1:%d", servertest.FreePort(t))
	p, err := system.StartProcess(exec.Command(binary, "--config.file", file, "--storage.tsdb.path", t.TempDir(), "--web.listen-address", address, "--log.level", "warn"))
	check.OK(t, err, "starting prometheus")
	t.Cleanup(func() {
		check.NoError(t, p.Stop(), "stopping prometheus")
	})
	running := &promServer{"http://" + address}
	err = p.WaitUntil(func() bool {
		resp, err := http.Get(running.url + "/-/ready")
		if err != nil {
			return false
		}
		resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	})
	check.Assume(t, err == nil, "waiting for prometheus: %v\n%s", err, system.Tail(p.Output.String(), 2000))
	return running
}

// ask asks Prometheus's API.
func (p *promServer) ask(t *testing.T, path string, values url.Values, answer any) {
	t.Helper()
	resp := check.Must(http.Get(p.url + path + "?" + values.Encode()))(t)
	defer resp.Body.Close()
	got := struct {
		Status, Error string
		Data          any
	}{Data: answer}
	check.OK(t, json.NewDecoder(resp.Body).Decode(&got))
	check.Assume(t, got.Status == "success", "%v: got %s, want an answer", values, got.Error)
}

// query returns the values of a query.
func (p *promServer) query(t *testing.T, query string) (values []string) {
	t.Helper()
	var answer struct {
		Result []struct{ Value [2]any }
	}
	p.ask(t, "/api/v1/query", url.Values{"query": {query}}, &answer)
	for _, series := range answer.Result {
		values = append(values, fmt.Sprint(series.Value[1]))
	}
	return values
}

// isNumber reports whether a value is one that a panel shows.
func isNumber(value string) bool { return value != "NaN" && !strings.HasSuffix(value, "Inf") }

// rules returns the queries of all alerts, by name.
func (p *promServer) rules(t *testing.T) map[string]string {
	t.Helper()
	var answer struct {
		Groups []struct {
			Rules []struct{ Name, Query string }
		}
	}
	p.ask(t, "/api/v1/rules", nil, &answer)
	queries := make(map[string]string)
	for _, group := range answer.Groups {
		for _, rule := range group.Rules {
			queries[rule.Name] = rule.Query
		}
	}
	return queries
}
