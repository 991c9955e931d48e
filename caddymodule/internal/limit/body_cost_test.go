package limit_test

import (
	"bytes"
	"fmt"
	"io"
	"math"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/servertest"
	bucketkey "github.com/caddy-throttle/caddy-throttle/leakybucket/key"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

// bodyCostSite is the site of one zone. Its upstream answers with the body that
// it gets.
func bodyCostSite(t testing.TB, options string) *servertest.FuncSite {
	t.Helper()
	s := servertest.NewFuncZone(t, options)
	s.Serve = func(w http.ResponseWriter, r *http.Request) error {
		_, err := io.Copy(w, r.Body)
		return err
	}
	return s
}

// post sends a body, with or without its length, and headers given as name and
// value.
func post(s *servertest.FuncSite, body io.Reader, length int, headers ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest("POST", "http://example.com/", body)
	r.ContentLength = int64(length)
	for i := 0; i < len(headers); i += 2 {
		r.Header.Add(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	s.ServeHTTP(w, r)
	return w
}

// bodyCostForm returns a multipart form with n fields.
func bodyCostForm(n int, name, value string) (body, contentType string) {
	var buffer bytes.Buffer
	form := multipart.NewWriter(&buffer)
	for range n {
		form.WriteField(name, value)
	}
	form.Close()
	return buffer.String(), form.FormDataContentType()
}

// bodyCostRows returns JSON with n rows, padded with white space to size.
func bodyCostRows(n, size int) string {
	rows := "[" + strings.TrimSuffix(strings.Repeat("1,", n), ",") + "]"
	return rows + strings.Repeat(" ", max(0, size-len(rows)))
}

// How a body is read is form's.
func TestABodyCostsWhatItAsksForAndIsHandedOn(t *testing.T) {
	const unread, kib64 = 500, 64 << 10
	items, bytes1K := "cost body_items rows\nread_body 64KiB else 500", "cost body_bytes 1KiB\nread_body 64KiB else 500"
	whole := "cost body_items\nread_body 64KiB else 500"
	const json, form = "application/json", "application/x-www-form-urlencoded"
	thousand, multi := bodyCostForm(300, "rows", "v")
	for _, test := range []struct {
		about, options, contentType, body string
		want                              float64
	}{
		{"an array", items, json, `{"rows":[1,2,3]}`, 3},
		{"an empty array", items, json, `{"rows":[]}`, 1},
		{"no body", items, json, "", 1},
		{"XML", items, "text/xml", "<rows><row/></rows>", unread},
		{"nested too deeply, and whole", whole, json, strings.Repeat("[", 20000) + strings.Repeat("]", 20000), unread},
		{"a form", items, form, "rows=1&rows=2&x=3", 2},
		{"a form of many parts", items, multi, thousand, 300},
		{"all of 64 KiB", whole, json, bodyCostRows(7, kib64), 7},
		{"a byte more than 64 KiB", whole, json, bodyCostRows(7, kib64+1), unread},
		{"a megabyte", whole, json, bodyCostRows(7, 1<<20), unread},
		{"less than read_body", "cost body_items\nread_body 1KiB else 500", json, bodyCostRows(7, 1<<10), 7},
		{"more than read_body", "cost body_items\nread_body 1KiB else 500", json, bodyCostRows(7, 1<<10+1), unread},
		{"bytes", bytes1K, "", strings.Repeat("x", 2560), 2.5},
		{"no bytes", bytes1K, "", "", 0},
		{"64 KiB of bytes", bytes1K, "", strings.Repeat("x", kib64), 64},
	} {
		for _, length := range []int{len(test.body), -1} {
			t.Run(fmt.Sprintf("%s, length %d", test.about, length), func(t *testing.T) {
				s := bodyCostSite(t, test.options)
				w := post(s, strings.NewReader(test.body), length, "Content-Type", test.contentType)
				got := w.Body.String()
				check.That(t, w.Code == http.StatusOK && got == test.body, "got %v and %d bytes at the upstream, want all %d", w.Code, len(got), len(test.body))
				s.WantLevel("settled", test.want)
			})
		}
	}
}

func TestABodyThatCannotBeReadIsNeverFree(t *testing.T) {
	for _, test := range []struct {
		about, options string
		length         int
		headers        []string
		want           float64
	}{
		{"compressed", "", 9, []string{"Content-Encoding", "gzip"}, 1000},
		{"compressed, and it has a cost", "read_body 64KiB else 30", 9, []string{"Content-Encoding", "br"}, 30},
		{"compressed twice", "read_body 64KiB else 30", 9, []string{"Content-Encoding", "identity, gzip"}, 30},
		{"an override that holds less", "override 192.0.2.1 10 1/d", 9, []string{"Content-Encoding", "gzip"}, 10},
		{"an override that holds less than that", "read_body 64KiB else 30\noverride 192.0.2.1 10 1/d", 9, []string{"Content-Encoding", "gzip"}, 10},
		{"longer than read_body", "read_body 8B else 30", 9, nil, 30},
		{"not compressed", "", 9, []string{"Content-Encoding", "identity"}, 4},
	} {
		t.Run(test.about, func(t *testing.T) {
			s := bodyCostSite(t, "cost body_items\n"+test.options)
			w := post(s, strings.NewReader("[1,2,3,4]"), test.length, test.headers...)
			check.Equal(t, w.Body.String(), "[1,2,3,4]", "at the upstream, want all of it")
			s.WantLevel("settled", test.want)
		})
	}
}

// bodyCostWatched is a body that counts how much of it was read.
type bodyCostWatched struct {
	io.Reader
	read int
}

func (w *bodyCostWatched) Read(p []byte) (int, error) {
	n, err := w.Reader.Read(p)
	w.read += n
	return n, err
}

func TestARefusedClientUploadsNothing(t *testing.T) {
	const full = `zone full {
		limit 5 1/d
		cost %s
	}
`
	for _, test := range []struct {
		about, zones string
		admitted     int // of how many the first body is read
	}{
		{"another zone refuses", fmt.Sprintf(full, "5") + "zone items {\nlimit 100 1/d\ncost body_items\n}", 1},
		{"another zone refuses, keyed by form", fmt.Sprintf(full, "5") + "zone account {\nkey field user\nlimit 100 1/d\n}", 1},
		{"denied", "zone denied {\nlimit 100 1/d\ncost body_items\noverride 192.0.2.1 deny\n}", 0},
		{"no key", "zone keyed {\nkey header X-Api-Key missing refuse\nlimit 100 1/d\ncost body_items\nread_body 64KiB else 10\n}", 0},
	} {
		t.Run(test.about, func(t *testing.T) {
			s := servertest.NewFuncSite(t, "throttle {\n"+test.zones+"\n}\nsettle_upstream")
			s.Serve = servertest.Says(200)
			for i := range 3 {
				body := &bodyCostWatched{Reader: strings.NewReader("[1,2,3,4,5]")}
				w := post(s, body, 11)
				want, read := http.StatusTooManyRequests, 0
				if i < test.admitted {
					want, read = http.StatusOK, 11
				}
				check.That(t, w.Code == want && body.read == read, "request %d: got %v with %d bytes read, want %v with %d", i+1, w.Code, body.read, want, read)
			}
		})
	}
}

func TestTheQuestionBeforeTheBodyPoursNothing(t *testing.T) {
	s := bodyCostSite(t, "cost body_items\nshadow")
	w := post(s, strings.NewReader("[1,2,3]"), 7)
	check.That(t, w.Body.String() == "[1,2,3]", "got %q at the upstream, want all of it", w.Body)
	got := s.Level("settled", true)
	check.That(t, math.Abs(got-3) <= 0.01, "got level %v in shadow, want 3", got)
	s.WantLevel("settled", 0)

	s = bodyCostSite(t, "cost body_items")
	w = post(s, strings.NewReader(bodyCostRows(1001, 0)), -1)
	check.That(t, w.Code == http.StatusTooManyRequests && w.Header().Get("Retry-After") == "", "more than ever fits: got %v with %v, want 429 without Retry-After", w.Code, w.Header())
	s.WantLevel("settled", 0)
	post(s, strings.NewReader("[]"), 2)
	s.WantLevel("settled", 1)
}

// TestEachZoneLooksNoFurtherThanItsMaxBody, even if another zone reads further.
func TestEachZoneLooksNoFurtherThanItsMaxBody(t *testing.T) {
	s := servertest.NewFuncSite(t, `throttle {
		zone narrow {
			limit 1000 1/d
			cost body_items
			read_body 8B else 30
		}
		zone wide {
			limit 1000 1/d
			cost body_items
		}
	}
	settle_upstream`)
	s.Serve = servertest.Says(200)
	post(s, strings.NewReader("[1,2,3,4,5]"), 11)
	s.WantLevel("narrow", 30)
	s.WantLevel("wide", 5)
}

// How a body is read is form's.
func TestAFormFieldNamesTheBucket(t *testing.T) {
	const form = "application/x-www-form-urlencoded"
	multi, multiType := bodyCostForm(1, "log", " Admin ")
	long := "log=admin&pad=" + strings.Repeat("x", 64<<10)
	admin := string(bucketkey.DigestOf("admin").Append(nil))
	const unclear = "@unclear"
	for _, test := range []struct{ about, contentType, body, want string }{
		{"a field", form, "log=admin&pwd=x", admin},
		{"spelled otherwise", form, "pwd=x&log=+ADMIN%20", admin},
		{"a form of parts", multiType, multi, admin},
		{"given twice", form, "log=other&log=admin", unclear},
		{"missing", form, "pwd=x", ""},
		{"a long one", form, long, admin},
	} {
		for _, length := range []int{len(test.body), -1} {
			s := bodyCostSite(t, "key field log")
			w := post(s, strings.NewReader(test.body), length, "Content-Type", test.contentType)
			if got := w.Body.String(); w.Code != http.StatusOK || got != test.body {
				t.Errorf("%s: got %v and %d bytes at the upstream, want all %d", test.about, w.Code, len(got), len(test.body))
			}
			n, _ := s.Store.Sum()
			check.That(t, n == 0, "%s: got %d charges corrected, want none", test.about, n)
			if s.Client = test.want; test.want != "" {
				s.WantLevel("settled", 1)
			} else if got := s.Store.Buckets()["settled"]; got > 0 {
				t.Errorf("%s: got %d buckets, want none", test.about, got)
			}
		}
	}
}

// stream is a request whose body is one half of a conversation.
func stream(method string, major int, headers ...string) *http.Request {
	reader, writer := io.Pipe()
	r := httptest.NewRequest(method, "http://example.com/", reader)
	r.ProtoMajor, r.ContentLength, r.RemoteAddr = major, -1, servertest.Office+":1"
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	if major == 3 {
		r.Proto = "websocket" // as quic-go has it
	}
	go func() {
		<-time.After(time.Hour)
		writer.Close()
	}()
	return r
}

// Whoever talks first waits for the other.
func TestAConversationIsNotKeptWaitingForItsBody(t *testing.T) {
	for _, test := range []struct {
		name string
		r    func() *http.Request
	}{
		{"a WebSocket over HTTP/2", func() *http.Request { return stream(http.MethodConnect, 2, ":protocol", "websocket") }},
		{"a WebSocket over HTTP/3", func() *http.Request { return stream(http.MethodConnect, 3, ":protocol", "websocket") }},
	} {
		for _, options := range []string{"", "shadow", "delay 50"} {
			servertest.InBubble(t, func(t *testing.T) {
				s := servertest.NewWaitZone(t, "limit 100 1/d\ncost body_items\nread_body 64KiB else 7\n"+options, time.Second)
				v := s.Come(test.r())
				servertest.Sleep(time.Minute)
				check.That(t, v.Code == http.StatusOK && v.Reached && v.Waited == 0, "%s, %s: got %v, at the upstream %v after %v, want it at once", test.name, options, v.Code, v.Reached, v.Waited)
				got := s.Fullness("waits", servertest.Office, 100, 1./86400, options == "shadow")
				check.That(t, got >= 0.99 && got <= 1, "%s, %s: got level %v, want 1", test.name, options, got)
				servertest.WantEmpty(t, "waits")
				servertest.Sleep(2 * time.Hour)
			})
		}
	}
}

// A zone that must wait for the body counts a request once.
func TestARequestWithoutItsKeyIsCountedOnce(t *testing.T) {
	s := bodyCostSite(t, "key header X-Key missing client_ip\ncost body_items\nread_body 64KiB else 50")
	post(s, strings.NewReader("[1,2]"), 5)
	facts := s.Engine().Zones["settled"].Counts.Facts()
	check.That(t, facts.Keyless == 1 && facts.Asked == 1, "got %+v, want one request, without a key", facts)
}

// The matchers of a zone with fields are asked only about requests that could carry one.
func TestAMatcherThatFailsFailsOnlyWhatMayCarryAField(t *testing.T) {
	s := servertest.RunZone(t, "login", "field log\nmatch expression `int({header.X-N}) > 0`\nlimit 1 1/h", "respond ok")
	c := s.From(servertest.Someone)
	c.Answers("/", http.StatusOK)
	c.Answers("/?", http.StatusOK)
	c.Answers("/?a=b", http.StatusInternalServerError)
	c.With("X-N", "1").Answers("/?a=b", http.StatusOK)
}
