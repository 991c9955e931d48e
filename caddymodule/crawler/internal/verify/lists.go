package verify

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const (
	fetchTimeout = 30 * time.Second
	maxRedirects = 5

	// A list is fetched about once a day. If it cannot be, it is tried again after retryFirst,
	// and then after twice as long each time, up to retryLast.
	every      = 24 * time.Hour
	retryFirst = 5 * time.Minute
	retryLast  = 6 * time.Hour
)

// Lists keep published lists of addresses up to date while they are in use. The zero
// value is ready. It is safe for concurrent use.
type Lists struct {
	// Transport fetches lists. If nil, http.DefaultTransport does.
	Transport http.RoundTripper

	mu    sync.RWMutex
	lists map[string]*list // by URL
}

// A Warn is told about lists that cannot be used.
type Warn func(source string, err error)

// A list is kept up to date by one goroutine.
type list struct {
	source    string
	transport http.RoundTripper
	warn      atomic.Pointer[Warn] // of the last user
	users     int                  // guarded by the lock of the Lists
	stop      context.CancelFunc
	networks  atomic.Pointer[table]
}

// Use keeps lists up to date until the function that it returns is called.
func (l *Lists) Use(sources []string, warn Warn) (release func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.lists == nil {
		l.lists = make(map[string]*list)
	}
	for _, source := range sources {
		s := l.lists[source]
		if s == nil {
			s = &list{source: source, transport: l.Transport}
			s.networks.Store(new(table)) // empty until it is fetched
			s.warn.Store(&warn)
			l.lists[source] = s
			var ctx context.Context
			ctx, s.stop = context.WithCancel(context.Background())
			go s.run(ctx)
		}
		s.warn.Store(&warn)
		s.users++
	}
	return sync.OnceFunc(func() { l.release(sources) })
}

// release ends the goroutines of lists that nobody uses any more.
func (l *Lists) release(sources []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, source := range sources {
		s := l.lists[source]
		if s.users--; s.users == 0 {
			delete(l.lists, source)
			s.stop()
		}
	}
}

// contain reports whether one of some lists is in use and has an address, as far as they
// are known.
func (l *Lists) contain(sources []string, addr netip.Addr) bool {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return slices.ContainsFunc(sources, func(source string) bool {
		s := l.lists[source]
		return s != nil && s.networks.Load().contains(addr)
	})
}

// run keeps the list up to date until ctx is done.
func (s *list) run(ctx context.Context) {
	for retry := retryFirst; ; {
		networks, err := s.fetch(ctx)
		wait := every
		if err == nil {
			s.networks.Store(newTable(networks))
			retry = retryFirst
		} else if ctx.Err() == nil {
			(*s.warn.Load())(s.source, err)
			wait, retry = retry, min(2*retry, retryLast)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait/2 + rand.N(wait)):
		}
	}
}

// fetch gets the list over https.
func (s *list) fetch(ctx context.Context) ([]netip.Prefix, error) {
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, s.source, nil)
	if err != nil {
		return nil, err
	}
	r.Header.Set("User-Agent", "caddy-throttle")
	r.Header.Set("Accept", "application/json, text/plain")
	answer, err := (&http.Client{Transport: s.transport, CheckRedirect: follow}).Do(r)
	if err != nil {
		return nil, err
	}
	defer func() { _ = answer.Body.Close() }()
	if answer.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("fetching it: got status %d, want 200", answer.StatusCode)
	}
	data, err := io.ReadAll(io.LimitReader(answer.Body, maxList+1))
	if err != nil {
		return nil, fmt.Errorf("fetching it: %w", err)
	}
	return parse(data)
}

// follow refuses redirects to plain http and to other hosts: no operator may send Caddy to
// a service of the inner network.
func follow(r *http.Request, via []*http.Request) error {
	switch {
	case r.URL.Scheme != "https":
		return errors.New("it is redirected to plain http")
	case r.URL.Host != via[0].URL.Host:
		return fmt.Errorf("it is redirected to another host: if that is the operator's, name the list %s", r.URL)
	case len(via) > maxRedirects:
		return errors.New("it is redirected too often")
	}
	return nil
}
