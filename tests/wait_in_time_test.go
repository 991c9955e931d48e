package tests

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// TestAThousandWaitingRequestsAreServedInTime measures within Caddy how much
// later than intended each is served. With TEST_LONG=1 it runs alone, and the
// figure is asserted.
func TestAThousandWaitingRequestsAreServedInTime(t *testing.T) {
	const most = 10 * time.Millisecond
	alone := long()
	if !alone {
		t.Parallel()
	}
	port, file := freePort(t), filepath.Join(t.TempDir(), "access.log")
	startCaddy(t, config{sites: fmt.Sprintf(`
http://:%d {
	log {
		output file %s
	}
	throttle {
		zone timed {
			key query key
			limit 10 2/s
			delay
		}
	}
	respond ok
}`, port, file)})
	v := newVisitor(t, "h2")
	url := fmt.Sprintf("http://127.0.0.1:%d/?key=", port)
	v.get(t, url+"nobody")
	var p99 time.Duration
	for n := range stalls {
		late := v.waitAThousandTimes(t, fmt.Sprintf("%s%d-", url, n), file)
		p99 = late[len(late)*99/100]
		t.Logf("%d waited: earliest %v, median %v, 99th percentile %v, latest %v after what was intended",
			len(late), late[0], late[len(late)/2], p99, late[len(late)-1])
		if late[0] < 0 {
			t.Errorf("got one that was served %v too early, want none", -late[0])
		}
		if !alone || p99 <= most {
			return
		}
	}
	t.Errorf("got a 99th percentile of %v, want at most %v", p99, most)
}

// waitAThousandTimes lets ten requests of each of a hundred keys wait. It returns
// how much longer than intended they waited, the best first.
func (v *visitor) waitAThousandTimes(t *testing.T, url, log string) (late []time.Duration) {
	t.Helper()
	const keys, perKey = 100, 10
	before := strings.Count(eventualLog(t, log, 1), "\n")
	var all sync.WaitGroup
	for n := range keys * perKey {
		all.Go(func() {
			if a, err := v.try("GET", url+strconv.Itoa(n%keys)); err != nil || a.status != 200 {
				t.Errorf("got %d, %v, want 200", a.status, err)
			}
		})
		if n%10 == 0 {
			time.Sleep(5 * time.Millisecond)
		}
	}
	all.Wait()
	lines := strings.SplitAfter(eventualLog(t, log, before+keys*perKey), "\n")
	for _, line := range lines[before : before+keys*perKey] {
		var said struct {
			Duration float64
			Throttle struct{ Delay float64 }
		}
		if err := json.Unmarshal([]byte(line), &said); err != nil {
			t.Fatalf("parsing %s: %v", line, err)
		}
		if said.Throttle.Delay > 0 {
			late = append(late, time.Duration((said.Duration-said.Throttle.Delay)*float64(time.Second)))
		}
	}
	slices.Sort(late)
	if len(late) == 0 || long() && len(late) < keys*(perKey-1)*9/10 {
		t.Fatalf("got %d that waited of %d, want most of them", len(late), keys*perKey)
	}
	return late
}

// eventualLog returns a log once it has so many lines.
func eventualLog(t *testing.T, file string, lines int) (text string) {
	t.Helper()
	eventually(t, fmt.Sprintf("%d lines in the log", lines), func() bool {
		data, _ := os.ReadFile(file)
		text = string(data)
		return strings.Count(text, "\n") >= lines
	})
	return text
}

// TestAClientThatOpens250StreamsGetsWhatItMay, and holds nothing once its
// connection is gone.
func TestAClientThatOpens250StreamsGetsWhatItMay(t *testing.T) {
	t.Parallel()
	const streams, capacity, leak, slots = 250, 50, 25, 5
	upstream := startUpstream(t, func(http.ResponseWriter, *http.Request) { time.Sleep(10 * time.Millisecond) })
	port := freePort(t)
	c := startCaddy(t, config{sites: fmt.Sprintf(`
http://:%d {
	throttle {
		zone streams {
			exempt {
				path /free
			}
			limit %d %d/s
			delay
		}
	}
	in_flight slots %d client_ip {
		exempt path /free
		wait 20s
		queue 1000
	}
	respond /free ok
	reverse_proxy %s
}`, port, capacity, leak, slots, upstream.address)})
	base := fmt.Sprintf("http://127.0.0.1:%d", port)
	v := newVisitor(t, "h2")
	transport := v.Transport.(*http.Transport)
	dial, connections := transport.DialContext, make(chan net.Conn, 10)
	transport.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		connections <- conn
		return conn, err
	}
	v.get(t, base+"/free")

	began := time.Now()
	answers := make(chan answer, streams)
	for range streams {
		v.ask(base+"/charged", answers)
	}
	statuses := make(map[int]int)
	for range streams {
		statuses[(<-answers).status]++
	}
	took := time.Since(began)
	if most := capacity + leak*took.Seconds(); statuses[200] < capacity || float64(statuses[200]) > most || statuses[200]+statuses[429] != streams {
		t.Errorf("got %v by status in %v, want from %d to %v of 200, and the rest 429", statuses, took, capacity, most)
	}
	if _, most := upstream.serving(); most > slots || most == 0 {
		t.Errorf("got %d at the upstream at once, want some, and at most %d", most, slots)
	}
	if got := v.dials.Load(); got != 1 {
		t.Errorf("got %d connections, want 1", got)
	}

	for range streams {
		v.ask(base+"/charged", answers)
	}
	eventually(t, "some to wait", func() bool { return c.waiting(t, "streams") >= 10 })
	(<-connections).Close()
	for _, zone := range []string{"streams", "slots"} {
		eventually(t, "nobody in the zone "+zone, func() bool { return c.waiting(t, zone) == 0 && c.served(t, zone) == 0 })
	}
	for range streams {
		<-answers
	}
	other := newVisitor(t, "h2")
	if a := other.get(t, base+"/charged"); a.status != 200 {
		t.Errorf("another client: got %d, want 200", a.status)
	}
}
