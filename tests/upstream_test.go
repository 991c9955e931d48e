package tests

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"
)

// upstream is a server behind Caddy that remembers which requests came through,
// and when, by their ids.
type upstream struct {
	address string
	mu      sync.Mutex
	seen    []sighting
	now     int // how many it is serving
	most    int // how many it has served at the same time
}

type sighting struct {
	id  string
	at  time.Time
	req http.Header
}

// startUpstream serves what handle does, or "ok" if that is nil. The query
// parameter id tells requests apart.
func startUpstream(t *testing.T, handle http.HandlerFunc) *upstream {
	t.Helper()
	u := new(upstream)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		u.mu.Lock()
		u.seen = append(u.seen, sighting{r.URL.Query().Get("id"), time.Now(), r.Header})
		u.now++
		u.most = max(u.most, u.now)
		u.mu.Unlock()
		defer func() {
			u.mu.Lock()
			defer u.mu.Unlock()
			u.now--
		}()
		if handle != nil {
			handle(w, r)
		}
	}))
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	u.address = strings.TrimPrefix(server.URL, "http://")
	return u
}

func (u *upstream) sightings() []sighting {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.seen[:len(u.seen):len(u.seen)]
}

// serving is how many requests are there now, and how many were at the same
// time at most.
func (u *upstream) serving() (now, most int) {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.now, u.most
}
