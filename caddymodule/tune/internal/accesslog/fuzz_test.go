package accesslog

import (
	"encoding/json"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

// What encoding/json reads of a line, the parser reads as well.
func FuzzCaddyLine(f *testing.F) {
	f.Add(caddyLine(noon, time.Second, "192.0.2.1", "/a"))
	f.Add(`{"ts":1767268800.5,"request":{"uri":"\/\u00e9\ud83d\ude00\ud800\"\\","host":"h","method":"GET","headers":{"User-Agent":["a\nb"],"X":["1","2"],"Y":"z"}},"status":200,"size":3,"duration":0.5,"throttle":{"zone":"a","zones":[{"zone":"b"}]}}`)
	f.Add(` { "ts" : "2026-03-01T12:00:00Z" , "request" : { } , "x" : [ 1 , true , null , { "a" : [ ] } ] } `)
	f.Add(`{"ts":1,"request":{"headers":{"A":[]}}`)
	f.Add(`{"ts":1e9,"request":{"remote_ip":"64:ff9b::192.0.2.1"},"duration":"1.5s"}`)
	f.Fuzz(func(t *testing.T, line string) {
		p := parser{latest: noon}
		req := new(Request)
		v, _ := p.parse(req, line)
		for range req.Headers() {
		}
		if v == request && req.At.After(noon) {
			t.Fatalf("got arrival %v after %v", req.At, noon)
		}
		var want struct {
			Request *struct {
				Method, Host, URI, Proto *string
				Headers                  map[string][]string
			}
			Status   *int
			Throttle json.RawMessage
		}
		var names map[string]json.RawMessage
		if !utf8.ValidString(line) || json.Unmarshal([]byte(line), &want) != nil || json.Unmarshal([]byte(line), &names) != nil || !plainNames(line) {
			return
		}
		if v == unreadable && names["ts"] != nil && strings.HasPrefix(string(names["request"]), "{") {
			var number float64
			if json.Unmarshal(names["ts"], &number) == nil && number > 9e8 && number < float64(noon.Unix()) {
				t.Fatalf("got an unreadable line, which encoding/json reads")
			}
		}
		if v != request || want.Request == nil {
			return
		}
		for _, field := range []struct {
			got  string
			want *string
		}{{req.Method, want.Request.Method}, {req.Host, want.Request.Host}, {req.URI, want.Request.URI}, {req.Proto, want.Request.Proto}} {
			if field.want != nil && field.got != *field.want {
				t.Fatalf("got %q, want %q", field.got, *field.want)
			}
		}
		if want.Status != nil && *want.Status >= 0 && req.Status != *want.Status {
			t.Fatalf("got status %d, want %d", req.Status, *want.Status)
		}
		if req.Throttle != string(want.Throttle) {
			t.Fatalf("got %s, want %s", req.Throttle, want.Throttle)
		}
		got := make(map[string][]string)
		for name, value := range req.Headers() {
			got[strings.Clone(name)] = append(got[name], strings.Clone(value))
		}
		for name, values := range want.Request.Headers {
			if strings.Join(got[name], "\x00") != strings.Join(values, "\x00") {
				t.Fatalf("header %q: got %q, want %q", name, got[name], values)
			}
		}
	})
}

// plainNames reports whether a line has no name twice, which readers may take
// differently, and none in other letters, which encoding/json takes for the same.
func plainNames(line string) bool {
	lower := strings.ToLower(line)
	if strings.Contains(line, `\u`) && !strings.Contains(line, `"uri":"\/`) {
		return false
	}
	for _, name := range []string{"ts", "time", "timestamp", "@timestamp", "t", "date", "datetime", "request", "method", "host", "uri", "proto", "headers", "status", "throttle", "logger", "msg", "message"} {
		if n := strings.Count(lower, `"`+name+`"`); n > 1 || n != strings.Count(line, `"`+name+`"`) {
			return false
		}
	}
	return !strings.Contains(line, "null") && !strings.Contains(line, "ſ") && !strings.Contains(line, "K")
}

func FuzzLine(f *testing.F) {
	f.Add(combinedLine(noon, "192.0.2.1", "/a"))
	f.Add(`[01/Mar/2026:11:00:00 +0000] - 404 404 - GET https example.com "/a?b" [Client 192.0.2.7] [Length 5] [Gzip -] [Sent-to 10.0.0.2] "x" "-"`)
	f.Add(`192.0.2.7:33319 [01/Mar/2026:11:00:00.123] www~ app/srv1 9/0/7/147/723 404 5 - - ---- 1/3/3/2/0 0/0 {x|y} "GET /a?b HTTP/1.0"`)
	f.Add(`I, [2026-03-01T11:00:00.5 #123]  INFO -- : [id] method=GET path=/a?b status=404 duration=250.5 view=4.5 ip=192.0.2.7`)
	f.Add(`[id] Started GET "/a?b" for 192.0.2.1 at 2026-03-01 11:00:00 +0000`)
	f.Add(`#Fields: date time cs-method cs-uri-stem c-ip`)
	f.Add(`www.example.com:443 192.0.2.7 - a b [01/Mar/2026:12:00:00 +0000] "POST /a b HTTP/2.0" 200 1 "\"" "\x22" rt=0.5`)
	f.Add(`192.0.2.7 - - [31/Feb/2026:24:60:61 -9999] "\x16\x03" 400 - "`)
	f.Fuzz(func(t *testing.T, line string) {
		p := parser{latest: noon, formats: formats}
		req := new(Request)
		v, why := p.parse(req, line)
		switch {
		case v == unreadable && why == "":
			t.Fatal("got no reason for an unreadable line")
		case v == request && (req.Method == "" || req.URI == "" || req.Status < 0):
			t.Fatalf("got %+v", req)
		}
	})
}

// A format that somebody pastes reads no line in a wrong way.
func FuzzFields(f *testing.F) {
	f.Add(`%h %l %u %t \"%r\" %>s %b %D`, `192.0.2.7 - - [01/Mar/2026:11:00:00 +0000] "GET / HTTP/1.1" 200 1 2`)
	f.Add(`$msec|$remote_addr|$remote_user [|$request|$status`, `1772362800.5|192.0.2.7|a [b [|GET / HTTP/1.1|200`)
	f.Fuzz(func(t *testing.T, spelled, line string) {
		format, err := compile(spelled)
		if err != nil {
			return
		}
		p, req := parser{latest: noon, formats: []pattern{format}, options: Options{Fields: spelled}}, new(Request)
		if v, why := p.parse(req, line); v == unreadable && why == "" || v == request && (req.Method == "" || req.URI == "") {
			t.Fatalf("got %v, %s, %+v", v, why, req)
		}
	})
}
