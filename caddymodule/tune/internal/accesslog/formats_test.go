package accesslog

import (
	"bytes"
	"fmt"
	"maps"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/caddyserver/caddy/v2/modules/logging"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

// caddyWrites returns a line as Caddy's own encoder writes it.
func caddyWrites(t *testing.T, config logging.LogEncoderConfig, logger string, end time.Time, took time.Duration) string {
	t.Helper()
	var out bytes.Buffer
	core := zapcore.NewCore(zapcore.NewJSONEncoder(config.ZapcoreEncoderConfig()), zapcore.AddSync(&out), zapcore.InfoLevel)
	r := check.Must(http.NewRequest("GET", "http://example.com/a?b=c", nil))(t)
	r.RemoteAddr, r.RequestURI = "192.0.2.7:4711", "/a?b=c"
	r.Header.Set("User-Agent", "x \"y\" \u202e\x1b[31m")
	r.Header.Set("Cookie", "secret=1")
	entry := zapcore.Entry{Level: zapcore.InfoLevel, Time: end, LoggerName: logger, Message: "handled request"}
	if err := core.Write(entry, []zap.Field{
		zap.Object("request", caddyhttp.LoggableHTTPRequest{Request: r}), zap.Int("bytes_read", 3), zap.String("user_id", "bob"),
		zap.Duration("duration", took), zap.Int("size", 10), zap.Int("status", 404),
		zap.Object("resp_headers", caddyhttp.LoggableHTTPHeader{Header: http.Header{"Server": {"Caddy"}}}),
		zap.Object("throttle", zapcore.ObjectMarshalerFunc(func(e zapcore.ObjectEncoder) error { e.AddFloat64("delay", 1.5); return nil })),
	}); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func TestEveryTimeAndDurationThatCaddyWritesIsRead(t *testing.T) {
	end, took := noon.Add(123456789*time.Nanosecond), 25*time.Millisecond
	for format, exact := range map[string]time.Duration{
		"": time.Microsecond, "unix_seconds_float": time.Microsecond, "unix_milli_float": time.Microsecond, "unix_nano": time.Microsecond, "iso8601": time.Millisecond,
		"rfc3339": time.Second, "rfc3339_nano": 1, "wall": time.Second, "wall_milli": time.Millisecond, "wall_nano": 1, "common_log": time.Second,
		time.RFC1123: time.Second, time.RFC1123Z: time.Second, time.RFC850: time.Second, time.ANSIC: time.Second, time.DateTime: time.Second,
		time.RFC822Z: time.Minute, time.UnixDate: time.Second, time.RubyDate: time.Second,
	} {
		for _, durations := range []string{"", "s", "ms", "ns", "string"} {
			line := caddyWrites(t, logging.LogEncoderConfig{TimeFormat: format, DurationFormat: durations}, "http.log.access.log0", end, took)
			r, err := Open([]string{"-"}, Options{Stdin: strings.NewReader(line), TimeField: map[bool]string{true: "duration:ns"}[durations == "ns"]})
			check.OK(t, err)
			req, err := firstOf(r)
			if err != nil {
				t.Errorf("times %q, durations %q: got %v for %s", format, durations, err, line)
				continue
			}
			check.Equal(t, req.Duration, took, "times %q, durations %q: duration", format, durations)
			off := end.Add(-took).Sub(req.At)
			check.That(t, off >= -exact && off <= exact, "times %q, durations %q: got %v, want %v", format, durations, req.At, end.Add(-took))
		}
	}
}

func TestAllThatCaddyLogsOfARequestIsRead(t *testing.T) {
	key := "time"
	line := caddyWrites(t, logging.LogEncoderConfig{TimeKey: &key}, "http.log.access.log0", noon, time.Second)
	r := check.Must(Open([]string{"-"}, Options{Stdin: strings.NewReader(line)}))(t)
	req := check.Must(firstOf(r))(t)
	got := fmt.Sprint(req.Client, req.Remote, req.Host, req.Method, req.URI, req.Status, req.Size, req.Received, maps.Collect(req.Headers())["Cookie"], req.Route(), req.Agent)
	want := fmt.Sprint("192.0.2.7", "192.0.2.7", "example.com", "GET", "/a?b=c", 404, 10, 3, Redacted, "/a", "x \"y\" \u202e\x1b[31m")
	check.Equal(t, got, want)
}

func TestOnlyTheAccessLogsOfCaddyAreRequests(t *testing.T) {
	for logger, want := range map[string]int64{
		"http.log.access": 1, "http.log.access.log0": 1, "http.log.access.example.com": 1, "http.log.error": 0, "http.log.error.log0": 0,
		"http.handlers.reverse_proxy": 0, "http.log.accessible": 0,
	} {
		text := caddyWrites(t, logging.LogEncoderConfig{}, "http.log.access", noon, 0) + caddyWrites(t, logging.LogEncoderConfig{}, logger, noon, 0)
		_, stats, err := readAll(t, Options{}, written(t, "access.log", text))
		check.That(t, err == nil && stats.Requests == 1+want && stats.Other == 1-want, "%s: got %+v and %v, want %d requests", logger, stats, err, 1+want)
	}
}

func TestAWholeRequestTimeIsInMicrosecondsUnlessTheUserSaysMore(t *testing.T) {
	line := `192.0.2.7 - - [01/Mar/2026:12:00:00 +0000] "GET /a HTTP/1.1" 200 1 "-" "x" 2`
	for field, want := range map[string]time.Duration{"": 2 * time.Microsecond, "1:s": 2 * time.Second, "1:ms": 2 * time.Millisecond} {
		got, _, err := readAll(t, Options{TimeField: field}, written(t, "access.log", line))
		check.That(t, err == nil && len(got) == 1 && got[0].duration == want, "%q: got %+v and %v, want %v", field, got, err, want)
	}
}

func TestOneLogMayHaveSeveralFormats(t *testing.T) {
	text := combinedLine(noon, "192.0.2.1", "/a") + "\n" + caddyLine(noon.Add(time.Second), 0, "192.0.2.2", "/b") + "\n\n" + combinedLine(noon.Add(2*time.Second), "192.0.2.3", "/c")
	got, stats, err := readAll(t, Options{Host: "www.example.com"}, written(t, "access.log", text))
	check.Assume(t, err == nil && len(got) == 3 && stats.Other == 1 && stats.Unreadable == 0, "got %+v, %+v and %v, want three requests", got, stats, err)
	if got[0].host != "www.example.com" || got[1].host != "example.com" {
		t.Errorf("got hosts %q and %q, want that of the options only where the line has none", got[0].host, got[1].host)
	}
}

func TestAListOfAddressesThatEndsWithACommaIsRead(t *testing.T) {
	for _, peer := range []string{"203.0.113.9,", "203.0.113.9, ", "203.0.113.9, 10.0.0.1,"} {
		r, err := Open([]string{"-"}, Options{Stdin: strings.NewReader(peer + ` [10/Jun/2025:12:00:00 +0000] "GET / HTTP/1.1" 200 5` + "\n")})
		check.OK(t, err)
		req, err := firstOf(r)
		check.That(t, err == nil && req.Client.String() == "203.0.113.9", "%q: got %+v and error %v, want a request of 203.0.113.9", peer, req, err)
	}
}

// TestUnits: none but those that are named. What is no unit alone must not be one behind a 1.
func TestUnits(t *testing.T) {
	for _, unit := range []string{"0s", "5ms", ".5s", "h", "m2s", ""} {
		_, err := Open(nil, Options{TimeField: "took:" + unit})
		check.That(t, err != nil, "%q: got no error", unit)
	}
	for _, unit := range []string{"s", "ms", "us", "ns"} {
		_, err := Open(nil, Options{TimeField: "took:" + unit})
		check.NoError(t, err)
	}
}

// TestALongListOfPeers, which a client may send as X-Forwarded-For, takes as long as it is long.
func TestALongListOfPeers(t *testing.T) {
	line := strings.Repeat("a, ", 300_000) + `203.0.113.7 - - [01/Mar/2026:12:00:00 +0000] "GET / HTTP/1.1" 200 5` + "\n"
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	got, _, err := readAll(t, Options{}, written(t, "access.log", line))
	check.That(t, err == nil && len(got) == 1 && got[0].client == "203.0.113.7", "got %d, error %v", len(got), err)
	runtime.ReadMemStats(&after)
	taken := after.TotalAlloc - before.TotalAlloc
	check.That(t, taken < 1<<30, "got %d bytes of memory taken, want it to grow with the length of the list", taken)
}
