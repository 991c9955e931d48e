package tests

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// TestARefusalCostsHardlyMoreThanRespond compares adjacent slices of time, so
// that a busy machine slows both.
func TestARefusalCostsHardlyMoreThanRespond(t *testing.T) {
	if os.Getenv("TEST_LONG") != "1" {
		t.Skip("SKIPPED: measures for a minute; set TEST_LONG=1")
	}
	refused, plain := freePort(t), freePort(t)
	startCaddy(t, config{sites: fmt.Sprintf(`
http://:%d {
	throttle closed client_ip 1 1/d
	respond "ok"
}
http://:%d {
	respond "ok"
}`, refused, plain)})
	urls := [2]string{fmt.Sprintf("http://127.0.0.1:%d/", refused), fmt.Sprintf("http://127.0.0.1:%d/", plain)}
	newVisitorFrom(t, "h1", "127.0.0.1").pourUntilRefused(t, urls[0])

	const pairs = 21
	var ratios []float64
	for n := range pairs {
		var rate [2]float64
		for _, which := range [2]int{n % 2, 1 - n%2} {
			rate[which] = throughput(t, urls[which])
		}
		ratios = append(ratios, rate[0]/rate[1])
		t.Logf("refused %.0f/s, respond %.0f/s, ratio %.3f", rate[0], rate[1], rate[0]/rate[1])
	}
	slices.Sort(ratios)
	if median := ratios[pairs/2]; median < 0.9 {
		t.Errorf("got a median of %.3f of the throughput of respond, want at least 0.9", median)
	}
}

const slice = time.Second

var wrkRate = regexp.MustCompile(`Requests/sec:\s+([0-9.]+)`)

// throughput returns requests per second over one slice. It uses wrk if that is
// installed, which leaves more of the machine to Caddy than a client in Go.
func throughput(t *testing.T, url string) float64 {
	t.Helper()
	if wrk, err := exec.LookPath("wrk"); err == nil {
		out, err := exec.Command(wrk, "--threads", "1", "--connections", "32", "--duration", slice.String(), url).CombinedOutput()
		found := wrkRate.FindSubmatch(out)
		if err != nil || found == nil {
			t.Fatalf("running wrk: %v\n%s", err, out)
		}
		rate, err := strconv.ParseFloat(string(found[1]), 64)
		if err != nil {
			t.Fatal(err)
		}
		return rate
	}

	v := newVisitorFrom(t, "h1", "127.0.0.1")
	ctx, stop := context.WithTimeout(t.Context(), slice)
	defer stop()
	var answers atomic.Int64
	var clients sync.WaitGroup
	began := time.Now()
	for range 32 {
		clients.Go(func() {
			for ctx.Err() == nil {
				if _, err := v.try("GET", url); err == nil {
					answers.Add(1)
				}
			}
		})
	}
	clients.Wait()
	return float64(answers.Load()) / time.Since(began).Seconds()
}
