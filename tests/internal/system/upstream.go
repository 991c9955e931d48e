package system

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
)

// Upstream is a server behind Caddy that counts its requests.
type Upstream struct {
	Address string
	mu      sync.Mutex
	seen    int
	now     int // how many it is serving
	most    int // how many it has served at the same time
}

// StartUpstream starts a server that calls handle, or answers "ok" if handle is
// nil.
func StartUpstream(t *testing.T, handle http.HandlerFunc) *Upstream {
	t.Helper()
	u := new(Upstream)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		u.mu.Lock()
		u.seen++
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

// Seen returns how many requests have come.
func (u *Upstream) Seen() int {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.seen
}

// Serving returns how many requests it is serving now, and how many it served at
// once at most.
func (u *Upstream) Serving() (now, most int) {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.now, u.most
}
