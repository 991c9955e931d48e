package advise

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"
)

const (
	fpmJSON = `{"pool":"www","process manager":"static","start time":1795325187,"start since":24,"accepted conn":3,"listen queue":0,"max listen queue":0,"listen queue len":511,"idle processes":4,"active processes":1,"total processes":5,"max active processes":2,"max children reached":0,"slow requests":0}`
	fpmText = `pool:                 www
process manager:      dynamic
start time:           22/Nov/2026:05:13:06 +0000
start since:          24
accepted conn:        913
listen queue:         7
max listen queue:     31
listen queue len:     511
idle processes:       0
active processes:     10
total processes:      10
max active processes: 10
max children reached: 3
slow requests:        0

************************
pid:                  81
state:                Running
total processes:      99
`
	pumaCluster = `{"started_at":"2026-11-22T05:13:06Z","workers":2,"phase":0,"booted_workers":2,"old_workers":0,"worker_status":[{"started_at":"2026-11-22T05:13:06Z","pid":11,"index":0,"phase":0,"booted":true,"last_checkin":"2026-11-22T05:13:16Z","last_status":{"backlog":0,"running":5,"pool_capacity":4,"max_threads":5,"requests_count":8}},{"pid":12,"index":1,"last_status":{"backlog":2,"running":5,"pool_capacity":0,"max_threads":5}}],"versions":{"puma":"6.0.2"}}`
	pumaSingle  = `{"started_at":"2026-11-22T05:13:06Z","backlog":0,"running":5,"pool_capacity":3,"max_threads":5,"requests_count":0}`
)

func TestTheStatusOfEachServerIsRead(t *testing.T) {
	for _, test := range []struct {
		name, page, want string
		caddys, inFlight int
		atLeast, tooHigh bool
	}{
		{"php-fpm, static", fpmJSON, "{php-fpm www static 5 1 2 0 0 0 false}", 1, 5, false, false},
		{"php-fpm in full", strings.Replace(fpmJSON, "}", `,"processes":[{"pid":1,"state":"Idle","total processes":9}]}`, 1), "{php-fpm www static 5 1 2 0 0 0 false}", 1, 5, false, false},
		{"php-fpm on a socket", strings.Replace(fpmJSON, `"listen queue len":511`, `"listen queue len":0`, 1), "{php-fpm www static 5 1 2 0 0 0 true}", 1, 5, false, false},
		{"for two Caddys", fpmJSON, "{php-fpm www static 5 1 2 0 0 0 false}", 2, 2, false, false},
		{"for ten Caddys", fpmJSON, "{php-fpm www static 5 1 2 0 0 0 false}", 10, 1, false, false},
		{"php-fpm as text, full, with a queue", fpmText, "{php-fpm www dynamic 10 10 10 7 31 3 false}", 1, 10, false, true},
		{"dynamic, never full", strings.ReplaceAll(fpmText, "max children reached: 3", "max children reached: 0"), "{php-fpm www dynamic 10 10 10 7 31 0 false}", 1, 10, true, true},
		{"Puma with workers", pumaCluster, "{puma   10 6 0 2 0 0 false}", 1, 10, false, true},
		{"Puma without", pumaSingle, "{puma   5 2 0 0 0 0 false}", 1, 5, false, false},
	} {
		status, err := Parse([]byte(test.page))
		if got := fmt.Sprint(status); err != nil || got != test.want {
			t.Errorf("%s: got %v and %v, want %v", test.name, got, err, test.want)
		}
		a := For(status, test.caddys)
		if a.InFlight != test.inFlight || a.AtLeast != test.atLeast || a.TooHigh != test.tooHigh || len(a.Reasons) == 0 {
			t.Errorf("%s: got %+v, want %d, at least %v, too high %v", test.name, a, test.inFlight, test.atLeast, test.tooHigh)
		}
	}
}

func TestOtherPagesAreNoStatus(t *testing.T) {
	for _, test := range []struct{ page, want string }{
		{"", "it is empty"},
		{"<!DOCTYPE html><title>Welcome: a site</title>", "neither the status page of php-fpm"},
		{"File not found.", "neither the status page"},
		{`{"hello":1}`, "neither the status page"},
		{`{"error":"invalid auth token"}`, "invalid auth token"},
		{`{"process manager":"static"`, "reading its JSON"},
		{`{"process manager":"static"}`, "want a number"},
		{strings.Replace(fpmJSON, `"total processes":5`, `"total processes":-5`, 1), "want a number"},
		{strings.Replace(fpmJSON, `"total processes":5`, `"total processes":1e99`, 1), "want a number"},
		{`{"workers":2,"worker_status":[]}`, "shows no thread yet"},
		{`{"workers":2,"worker_status":[{"last_status":{}}]}`, "shows no thread yet"},
		{`{"max_threads":1e30}`, "where the number of threads"},
		{`{"max_threads":"5"}`, "reading its JSON"},
	} {
		if status, err := Parse([]byte(test.page)); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: got %+v and %v, want an error with %q", test.page, status, err, test.want)
		}
	}
}

func FuzzAStatusNeverAdvisesNonsense(f *testing.F) {
	for _, page := range []string{fpmJSON, fpmText, pumaCluster, pumaSingle, "{", "a: 1"} {
		f.Add([]byte(page))
	}
	f.Fuzz(func(t *testing.T, page []byte) {
		status, err := Parse(page)
		if err != nil {
			return
		}
		if a := For(status, 3); a.InFlight < 1 || status.Queue < 0 || status.Busy < 0 {
			t.Errorf("%q: got %+v of %+v", page, a, status)
		}
	})
}

func FuzzAnAnswerOfFastCGI(f *testing.F) {
	var whole bytes.Buffer
	record(&whole, stdout, []byte("Status: 200 OK\r\nContent-Type: text/plain\r\n\r\nhello"))
	record(&whole, endRequest, make([]byte, 8))
	f.Add(whole.Bytes())
	f.Add(whole.Bytes()[:20])
	f.Add([]byte("HTTP/1.1 400 Bad Request\r\n\r\n"))
	if answer, err := readAnswer(bytes.NewReader(whole.Bytes())); err != nil {
		f.Fatal(err)
	} else if text, err := body(answer); err != nil || string(text) != "hello" {
		f.Fatalf("got %q and %v, want hello", text, err)
	}
	f.Fuzz(func(_ *testing.T, stream []byte) {
		if answer, err := readAnswer(bytes.NewReader(stream)); err == nil {
			_, _ = body(answer)
		}
	})
}

// TestAServerThatKeepsSilentIsSaidInOneLine: one that speaks HTTP waits for more.
func TestAServerThatKeepsSilentIsSaidInOneLine(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0") // its kernel accepts
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = silent.Close() }()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err = FastCGI(ctx, "tcp", silent.Addr().String(), "/status")
	if !errors.Is(err, context.DeadlineExceeded) || strings.Contains(err.Error(), "\n") {
		t.Errorf("got error %v, want one line about the deadline", err)
	}
}
