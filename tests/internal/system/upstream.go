package system

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"
)

// Upstream is a server behind Caddy that records by their ids which requests came
// through, and when.
type Upstream struct {
	Address string
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

// StartUpstream starts a server that calls handle, or answers "ok" if handle is
// nil. The query parameter id identifies requests.
func StartUpstream(t *testing.T, handle http.HandlerFunc) *Upstream {
	t.Helper()
	u := new(Upstream)
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
	u.Address = strings.TrimPrefix(server.URL, "http://")
	return u
}

func (u *Upstream) Sightings() []sighting {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.seen[:len(u.seen):len(u.seen)]
}

// Serving returns how many requests it is serving now, and how many it served at
// once at most.
func (u *Upstream) Serving() (now, most int) {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.now, u.most
}
