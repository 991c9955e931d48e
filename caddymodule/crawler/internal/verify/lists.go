package verify

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const (
	fetchTimeout   = 30 * time.Second
	storageTimeout = 30 * time.Second
	maxRedirects   = 5

	// every is how old a copy gets before the list is fetched again, give or take spread.
	every  = 24 * time.Hour
	spread = 4 * time.Hour

	// A list that cannot be fetched is tried again after retryFirst, and then after twice
	// as long each time, up to retryLast.
	retryFirst = 5 * time.Minute
	retryLast  = 6 * time.Hour
)

// Storage is the part of certmagic.Storage that keeps copies of lists.
type Storage interface {
	Load(ctx context.Context, key string) ([]byte, error)
	Store(ctx context.Context, key string, value []byte) error
}

// Lists keep published lists of addresses up to date while they are in use. The zero
// value is ready. It is safe for concurrent use.
type Lists struct {
	// Transport fetches lists. If nil, http.DefaultTransport does.
	Transport http.RoundTripper

	mu    sync.RWMutex
	lists map[string]*list // by URL
}

// A Config is one that uses lists.
type Config struct {
	Storage Storage
	Warn    func(source string, err error) // told about lists that cannot be used
}

// A list is kept up to date by one goroutine.
type list struct {
	source    string
	transport http.RoundTripper
	config    atomic.Pointer[Config] // of the last user
	users     int                    // guarded by the lock of the Lists
	stop      context.CancelFunc
	tried     chan struct{} // closed when the last good copy has been looked for

	networks atomic.Pointer[table]
	fetched  time.Time // of the networks
}

// Use keeps lists up to date until the function that it returns is called. It waits until the
// last good copy of each has been read, but no longer than patience.
func (l *Lists) Use(sources []string, config *Config, patience time.Duration) (release func()) {
	var used []*list
	l.mu.Lock()
	if l.lists == nil {
		l.lists = make(map[string]*list)
	}
	for _, source := range sources {
		s := l.lists[source]
		if s == nil {
			var ctx context.Context
			s = &list{source: source, transport: l.Transport, tried: make(chan struct{})}
			ctx, s.stop = context.WithCancel(context.Background())
			l.lists[source] = s
			s.config.Store(config)
			go s.run(ctx)
		}
		s.config.Store(config)
		s.users++
		used = append(used, s)
	}
	l.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for _, s := range used {
		select {
		case <-s.tried:
		case <-ctx.Done():
		}
	}
	return sync.OnceFunc(func() { l.release(used) })
}

// release ends the goroutines of lists that nobody uses any more.
func (l *Lists) release(used []*list) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range used {
		if s.users--; s.users == 0 {
			delete(l.lists, s.source)
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
	if err := s.restore(ctx); err != nil {
		s.warn(ctx, err)
	}
	close(s.tried)
	retry, wait := retryFirst, s.due()
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
		if err := s.refresh(ctx); err != nil {
			s.warn(ctx, err)
			wait, retry = retry/2+rand.N(retry), min(2*retry, retryLast)
			continue
		}
		retry, wait = retryFirst, s.due()
	}
}

// due returns how long the networks are good yet.
func (s *list) due() time.Duration {
	if s.fetched.IsZero() {
		return 0
	}
	return time.Until(s.fetched.Add(every - spread + rand.N(2*spread)))
}

func (s *list) warn(ctx context.Context, err error) {
	if ctx.Err() == nil {
		s.config.Load().Warn(s.source, err)
	}
}

// A copied list is how storage keeps one.
type copied struct {
	URL      string         `json:"url"` // for people
	Fetched  time.Time      `json:"fetched"`
	Prefixes []netip.Prefix `json:"prefixes"`
}

// storageKey returns where the last good copy of a list is in storage.
func storageKey(source string) string {
	digest := sha256.Sum256([]byte(source))
	return "throttle/crawlers/" + hex.EncodeToString(digest[:8]) + ".json"
}

// restore takes the copy in storage, unless the list has a later one.
func (s *list) restore(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, storageTimeout)
	defer cancel()
	key := storageKey(s.source)
	raw, err := s.config.Load().Storage.Load(ctx, key)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("reading %s from storage: %w", key, err)
	}
	var kept copied
	if err := json.Unmarshal(raw, &kept); err != nil {
		return fmt.Errorf("reading %s from storage: %w", key, err)
	}
	if err := checkAll(kept.Prefixes); err != nil {
		return fmt.Errorf("the copy %s in storage is not used: %w", key, err)
	}
	if now := time.Now(); kept.Fetched.After(now) { // by a clock that is ahead
		kept.Fetched = now
	}
	if kept.Fetched.After(s.fetched) {
		s.fetched = kept.Fetched
		s.networks.Store(newTable(kept.Prefixes))
	}
	return nil
}

// refresh fetches the list, unless another node has put a copy of today in storage.
func (s *list) refresh(ctx context.Context) error {
	if !s.fetched.IsZero() {
		if err := s.restore(ctx); err == nil && time.Since(s.fetched) < every-spread {
			return nil
		}
	}
	networks, err := s.fetch(ctx)
	if err != nil {
		return err
	}
	s.fetched = time.Now()
	s.networks.Store(newTable(networks))
	s.store(ctx, networks)
	return nil
}

// store keeps a copy. A list without a copy is in use all the same.
func (s *list) store(ctx context.Context, networks []netip.Prefix) {
	ctx, cancel := context.WithTimeout(ctx, storageTimeout)
	defer cancel()
	raw, err := json.Marshal(copied{s.source, s.fetched.UTC().Truncate(time.Second), networks})
	if err == nil {
		err = s.config.Load().Storage.Store(ctx, storageKey(s.source), raw)
	}
	if err != nil {
		s.warn(ctx, fmt.Errorf("keeping a copy in storage: %w", err))
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
