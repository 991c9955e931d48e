// Package advise reads the status of an application server, and says how many requests
// it can work on at once.
package advise

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
)

// A Status is what an application server says of itself.
type Status struct {
	Server  string `json:"server"` // php-fpm or puma
	Pool    string `json:"pool,omitempty"`
	Manager string `json:"manager,omitempty"` // static, dynamic or ondemand; of php-fpm
	Workers int    `json:"workers"`           // processes of php-fpm, threads of Puma
	Busy    int    `json:"busy"`              // of these
	MaxBusy int    `json:"max_busy"`          // since the start; of php-fpm
	Queue   int    `json:"queue"`             // connections that wait for a worker
	MaxWait int    `json:"max_queue"`         // the most that ever did; of php-fpm
	Reached int    `json:"max_children_reached"`

	// QueueHidden says that the queue is not known: php-fpm on a Unix socket cannot see
	// it, and reports 0.
	QueueHidden bool `json:"queue_hidden"`
}

// An Advice is what the status means for in_flight.
type Advice struct {
	// InFlight is the number of requests that the server works on at once.
	InFlight int `json:"in_flight"`

	// AtLeast says that the server may start more workers than it has shown.
	AtLeast bool `json:"at_least"`

	// TooHigh says that requests queue in the server, where no order holds. What lets
	// requests in lets in too many.
	TooHigh bool `json:"too_high"`

	// Reasons say how the advice came about, and what to change.
	Reasons []string `json:"reasons"`
}

// mostWorkers bounds what a status may claim.
const mostWorkers = 1_000_000

// For returns the advice. caddys is the number of Caddys before the server.
func For(s Status, caddys int) Advice {
	a := Advice{InFlight: s.Workers}
	say := func(format string, args ...any) { a.Reasons = append(a.Reasons, fmt.Sprintf(format, args...)) }
	switch {
	case s.Server == "puma":
		say("Puma has %d threads in all its workers", s.Workers)
	case s.Manager == "static":
		say("pm.max_children is %d, because pm is static and so many processes run", s.Workers)
	case s.Reached > 0:
		a.InFlight = max(s.Workers, s.MaxBusy)
		say("pm.max_children is %d: pm is %s, and that number was reached %s", a.InFlight, s.Manager, times(s.Reached))
	default:
		a.InFlight, a.AtLeast = max(s.Workers, s.MaxBusy), true
		say("pm is %s, and has never reached pm.max_children: look that number up in the pool's file, and use it; with pm = static, all processes run from the start", s.Manager)
	}
	if caddys > 1 {
		whole := a.InFlight
		a.InFlight = max(1, whole/caddys)
		say("each of %d Caddys gets its share of %d", caddys, whole)
	}
	if s.Queue > 0 {
		a.TooHigh = true
		say("%s for a worker right now: whatever lets requests in lets in too many, so in_flight is too high, or missing, or other requests reach the server beside it", waits(s.Queue))
	} else if s.QueueHidden {
		say("php-fpm cannot see how many requests wait for a worker on a Unix socket, so that this cannot be told; let it listen on 127.0.0.1:9000 to find out")
	} else if s.MaxWait > 0 {
		say("nothing waits for a worker now, but %d did at the worst moment since the server started: look again under load", s.MaxWait)
	}
	return a
}

func times(n int) string {
	if n == 1 {
		return "once"
	}
	return fmt.Sprintf("%d times", n)
}

func waits(n int) string {
	if n == 1 {
		return "a request waits"
	}
	return fmt.Sprintf("%d requests wait", n)
}

// Parse reads php-fpm's status page, short or full, as JSON or as plain text, or the
// stats of Puma's control server.
func Parse(page []byte) (Status, error) {
	page = bytes.TrimSpace(page)
	if len(page) == 0 {
		return Status{}, errors.New("it is empty")
	}
	if page[0] != '{' {
		return parseText(string(page))
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(page, &fields); err != nil {
		return Status{}, fmt.Errorf("reading its JSON: %w", err)
	}
	switch {
	case fields["process manager"] != nil:
		return fpm(func(name string) string { return strings.Trim(string(fields[name]), `"`) })
	case fields["worker_status"] != nil, fields["max_threads"] != nil:
		return puma(page)
	case fields["error"] != nil:
		return Status{}, fmt.Errorf("it says %.100q", strings.Trim(string(fields["error"]), `"`))
	}
	return Status{}, errUnknown
}

var errUnknown = errors.New("it is neither the status page of php-fpm nor the stats of Puma's control server: want the URL of pm.status_path, or that of the control server, ending in /stats?token=<token>")

// parseText reads php-fpm's plain page. In a full one, processes follow.
func parseText(page string) (Status, error) {
	fields := make(map[string]string)
	for line := range strings.Lines(page) {
		if strings.HasPrefix(line, "****") {
			break
		}
		if name, value, is := strings.Cut(line, ":"); is {
			fields[strings.TrimSpace(name)] = strings.TrimSpace(value)
		}
	}
	if fields["process manager"] == "" {
		return Status{}, errUnknown
	}
	return fpm(func(name string) string { return fields[name] })
}

func fpm(field func(name string) string) (s Status, err error) {
	s = Status{Server: "php-fpm", Pool: field("pool"), Manager: field("process manager")}
	length := 0 // of the backlog
	for name, to := range map[string]*int{
		"total processes": &s.Workers, "active processes": &s.Busy, "max active processes": &s.MaxBusy,
		"listen queue": &s.Queue, "listen queue len": &length, "max listen queue": &s.MaxWait, "max children reached": &s.Reached,
	} {
		n, err := strconv.Atoi(field(name))
		if err != nil || n < 0 || n > mostWorkers {
			return Status{}, fmt.Errorf("its %s is %.20q: want a number", name, field(name))
		}
		*to = n
	}
	s.QueueHidden = length == 0 && s.Queue == 0
	if s.Workers == 0 && s.MaxBusy == 0 {
		return Status{}, errors.New("it shows no process")
	}
	return s, nil
}

// A pumaStats is what one process of Puma says of its threads.
type pumaStats struct {
	Backlog    float64 `json:"backlog"`
	Capacity   float64 `json:"pool_capacity"`
	MaxThreads float64 `json:"max_threads"`
}

func puma(page []byte) (Status, error) {
	var stats struct {
		pumaStats
		Workers []struct {
			Last pumaStats `json:"last_status"`
		} `json:"worker_status"`
	}
	if err := json.Unmarshal(page, &stats); err != nil {
		return Status{}, fmt.Errorf("reading its JSON: %w", err)
	}
	all := []pumaStats{stats.pumaStats}
	if stats.Workers != nil {
		all = nil
		for _, worker := range stats.Workers {
			all = append(all, worker.Last)
		}
	}
	s := Status{Server: "puma"}
	for _, p := range all {
		for _, n := range []float64{p.Backlog, p.Capacity, p.MaxThreads} {
			if n < 0 || n > mostWorkers || n != math.Trunc(n) {
				return Status{}, fmt.Errorf("it has %v where the number of threads or requests should be", n)
			}
		}
		s.Workers += int(p.MaxThreads)
		s.Busy += max(0, int(p.MaxThreads-p.Capacity))
		s.Queue += int(p.Backlog)
	}
	if s.Workers == 0 {
		return Status{}, errors.New("it shows no thread yet: its workers may still be starting, so ask again")
	}
	return s, nil
}
