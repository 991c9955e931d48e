package tests

import (
	"fmt"
	"strconv"
	"testing"
)

// TestABurstIsSmoothedAsTheZoneReferenceSays: of thirty requests five pass, fifteen
// wait, and ten would have to wait too long.
func TestABurstIsSmoothedAsTheZoneReferenceSays(t *testing.T) {
	t.Parallel()
	port := freePort(t)
	startCaddy(t, config{sites: fmt.Sprintf(`
http://:%d {
	header >Verdict {http.throttle.delay}
	throttle {
		zone pages {
			limit 60 5/s
			delay 4 wait 3s
		}
	}
	respond ok
}`, port)})
	var err error
	for range stalls {
		if err = smoothed(newVisitor(t, "h1").visitAtOnce(fmt.Sprintf("http://127.0.0.1:%d/", port), 30)); err == nil {
			return
		}
		t.Logf("once more, after: %v", err)
	}
	t.Error(err)
}

// smoothed checks how long each request waited. Between the first and the last,
// less than one request leaks.
func smoothed(visits []visit) error {
	for n, visit := range visits {
		if n >= 20 {
			if visit.err != nil || visit.status != 429 {
				return fmt.Errorf("request %d: got %v, want 429", n+1, visit)
			}
			continue
		}
		want := max(0, 0.2*float64(n-4))
		delay, err := strconv.ParseFloat(visit.verdict, 64)
		if err != nil || visit.status != 200 || delay > want+1e-5 || delay < want-0.2 || visit.took.Seconds() < delay {
			return fmt.Errorf("request %d: got %v, want 200 after %v s", n+1, visit, want)
		}
	}
	return nil
}
