package servertest

import (
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
)

// A Client sends requests from one address.
type Client struct {
	*Site
	Addr   string
	Header http.Header
}

func (s *Site) From(addr string) Client { return Client{Site: s, Addr: addr, Header: http.Header{}} }

// With returns a client that sends one more header.
func (c Client) With(name, value string) Client {
	c.Header = c.Header.Clone()
	c.Header.Add(name, value)
	return c
}

// Get sends a GET request. The path may have a host before it.
func (c Client) Get(target string) *httptest.ResponseRecorder { return c.Send(http.MethodGet, target) }

func (c Client) Send(method, target string) *httptest.ResponseRecorder {
	c.Helper()
	if strings.HasPrefix(target, "/") {
		target = "http://example.com" + target
	}
	r := httptest.NewRequest(method, target, nil)
	r.RemoteAddr = c.Addr
	r.Header = c.Header.Clone()
	return c.Do(r)
}

// Passes checks that the next n requests pass and the one after is refused.
func (c Client) Passes(n int, target string) {
	c.Helper()
	for i := range n {
		if w := c.Get(target); w.Code != http.StatusOK {
			c.Fatalf("request %d of %d to %s: got %v, want it to pass", i+1, n, target, w.Code)
		}
	}
	if w := c.Get(target); w.Code != http.StatusTooManyRequests {
		c.Fatalf("request %d to %s: got %v, want it refused", n+1, target, w.Code)
	}
}

// Statuses asks n times, and returns how often it got each status.
func (c Client) Statuses(n int, target string) map[int]int {
	c.Helper()
	got := make(map[int]int)
	for range n {
		got[c.Get(target).Code]++
	}
	return got
}

// WantStatuses asks as often as there are statuses, and checks them.
func (c Client) WantStatuses(target string, want map[int]int) {
	c.Helper()
	n := 0
	for _, times := range want {
		n += times
	}
	if got := c.Statuses(n, target); !maps.Equal(got, want) {
		c.Errorf("%d requests: got %v, want %v", n, got, want)
	}
}

// Network returns a client of the n-th network.
func (s *Site) Network(n int) Client { return s.From(fmt.Sprintf("198.%d.%d.7:1000", 18+n/250, n%250)) }

// Request returns a GET request with the headers given by name and value.
func Request(addr, target string, headers ...string) *http.Request {
	r := httptest.NewRequest(http.MethodGet, target, nil)
	r.RemoteAddr = addr
	for i := 0; i < len(headers); i += 2 {
		r.Header[headers[i]] = append(r.Header[headers[i]], headers[i+1])
	}
	return r
}

func (s *Site) Do(r *http.Request) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	s.Server.ServeHTTP(w, r)
	return w
}

// Answers checks the status of a request.
func (c Client) Answers(target string, want int) {
	c.Helper()
	if got := c.Get(target).Code; got != want {
		c.Fatalf("%s from %s: got %d, want %d", target, c.Addr, got, want)
	}
}
