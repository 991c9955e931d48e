package tests

import (
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"
)

// TestAnOpenInspectorCostsLittle measures the processor time of a Caddy with 100,000 buckets
// in a zone that somebody looks at.
func TestAnOpenInspectorCostsLittle(t *testing.T) {
	if !long() {
		t.Skip("it measures for a minute: set TEST_LONG=1")
	}
	s := startInspected(t, "")
	var senders sync.WaitGroup
	for n := range 8 {
		senders.Go(func() {
			client := &http.Client{Transport: new(http.Transport)}
			for i := n; i < 100_000; i += 8 {
				req, _ := http.NewRequest("GET", fmt.Sprintf("%s/api?who=user%06d", s.url, i), nil)
				req.Header.Set("X-Forwarded-For", fmt.Sprintf("10.%d.%d.%d", i>>16, i>>8&255, i&255))
				resp, err := client.Do(req)
				if err != nil {
					t.Error(err)
					return
				}
				resp.Body.Close()
			}
		})
	}
	senders.Wait()
	b := s.inspect(startBrowser(t), s.inspector, "light", desktop, "accounts")
	b.run(`document.querySelector("#buckets").scrollIntoView()`)
	b.when("the buckets", `document.querySelector("#buckets-said").innerText.includes("of 100,000")`)
	const measured = 40 * time.Second
	before := processorTime(t, s.cmd.Process.Pid)
	time.Sleep(measured)
	spent := processorTime(t, s.cmd.Process.Pid) - before
	b.run(`document.querySelector("#pause").click()`)
	before = processorTime(t, s.cmd.Process.Pid)
	time.Sleep(measured / 2)
	idle := 2 * (processorTime(t, s.cmd.Process.Pid) - before)
	share := float64(spent-idle) / float64(measured)
	t.Logf("an open page costs %.1f%% of a core; without it, Caddy takes %.1f%%", 100*share, 100*float64(idle)/float64(measured))
	if share > 0.03 {
		t.Errorf("an open page costs %.1f%% of a core, want at most 3%%", 100*share)
	}
}
