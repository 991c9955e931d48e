package tests

import (
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"
)

// An operator has the inspector open.
type operator struct {
	*inspectedSite
	token string
}

func (s *inspectedSite) opens() operator {
	s.t.Helper()
	resp, err := http.Get(s.inspector)
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	page, err := io.ReadAll(resp.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	token := regexp.MustCompile(`name="token" content="(\w+)"`).FindSubmatch(page)
	if token == nil {
		s.t.Fatalf("got %d %.300s, want the page with a token", resp.StatusCode, page)
	}
	return operator{s, string(token[1])}
}

// asks makes a call as the page does.
func (o operator) asks(call, body string) (status int, answer string) {
	o.t.Helper()
	req, err := http.NewRequest(http.MethodPost, o.inspector+"?do="+call, strings.NewReader(body))
	if err != nil {
		o.t.Fatal(err)
	}
	req.Header.Set("Sec-Fetch-Site", "same-origin")
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-Throttle-Token", o.token)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		o.t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		o.t.Fatal(err)
	}
	return resp.StatusCode, string(text)
}

// TestTheInspectorWithEachStore makes every call of the page.
func TestTheInspectorWithEachStore(t *testing.T) {
	t.Parallel()
	eachKindOfStore(t, func(t *testing.T, options string) {
		s := startInspected(t, options)
		s.send("203.0.113.7", "/login", 5)
		if got := s.status("203.0.113.7", "/login"); got != http.StatusTooManyRequests {
			t.Fatalf("got %d, want a client that is out", got)
		}
		o := s.opens()
		for _, test := range []struct {
			call, body string
			want       []string // each in the answer
		}{
			{"zones", "{}", []string{`"zone":"login"`, `"down":false`, `"refused":3`}},
			{"rates", "{}", []string{`"zones":{`}},
			{"top", `{"zone": "login"}`, []string{`"most_refused":[{"key":"203.0.113.7"`}},
			{"buckets", `{"zone": "login"}`, []string{`"key":"203.0.113.7"`, `"blocked":3`, `"matched":1,"complete":true}`}},
			{"why", `{"client": "203.0.113.7"}`, []string{`"zone":"login","key":"203.0.113.7"`, `"zone":"pages"`, `"complete":true`}},
			{"shadow", `{"zone": "login", "for": "1h"}`, []string{`"until":`}},
			{"why", `{"client": "203.0.113.7"}`, []string{`"shadows":[{"kind":"shadow","zone":"login"`}},
			{"unshadow", `{"zone": "login"}`, []string{`"ended":true`}},
			{"limit", `{"zone": "pages", "key": "203.0.113.7", "limit": "7 1/h", "for": "1h"}`, []string{`"until":`}},
			{"buckets", `{"zone": "pages", "prefix": "203.0.113."}`, []string{`"by":"run_time","from":"7 1/h"`}},
			{"unlimit", `{"zone": "pages", "key": "203.0.113.7"}`, []string{`"ended":true`}},
			{"ban", `{"network": "192.0.2.0/24", "for": "1h"}`, []string{`"until":`}},
			{"overrides", "{}", []string{`"network":"192.0.2.0/24"`}},
			{"unban", `{"network": "192.0.2.0/24"}`, []string{`"ended":true`}},
			{"release", `{"client": "203.0.113.7"}`, []string{`"login/203.0.113.7"`, `"pages/203.0.113.7"`, `"complete":true`}},
			{"journal", "{}", []string{`"by":"alice","action":"release","of":"login/203.0.113.7 and 1 more"`, `"action":"ban"`}},
		} {
			status, answer := o.asks(test.call, test.body)
			if status != http.StatusOK {
				t.Errorf("%s %s: got %d and %s, want 200", test.call, test.body, status, answer)
			}
			for _, want := range test.want {
				if !strings.Contains(answer, want) {
					t.Errorf("%s %s: got\n%s\nwant it to hold %q", test.call, test.body, answer, want)
				}
			}
		}
		if got := s.status("203.0.113.7", "/login"); got != http.StatusOK {
			t.Errorf("got %d after the release, want 200", got)
		}
	})
}

// TestTheInspectorSaysThatTheStoreIsDown asks while the store does not answer.
func TestTheInspectorSaysThatTheStoreIsDown(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, store *storeServer) {
		s := startInspected(t, store.directive())
		s.waitForStore(t, store)
		o := s.opens()
		store.kill()
		eventually(t, "a page that says so", func() bool {
			s.status("203.0.113.7", "/")
			status, answer := o.asks("zones", "{}")
			return status == http.StatusOK && strings.Contains(answer, `"down":true,"down_since":`)
		})
		for call, body := range map[string]string{"why": `{"client": "203.0.113.7"}`, "buckets": `{"zone": "pages"}`} {
			status, answer := o.asks(call, body)
			if want := `"zone":"pages","key":"203.0.113.7"`; status != http.StatusOK || !strings.Contains(answer, want) {
				t.Errorf("%s: got %d and %s, want the bucket of the fallback", call, status, answer)
			}
		}
		store.run()
		eventually(t, "the store again", func() bool {
			s.status("203.0.113.7", "/")
			_, answer := o.asks("zones", "{}")
			return strings.Contains(answer, `"down":false`)
		})
	})
}
