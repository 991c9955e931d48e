package redisstore

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/redis/rueidis"
)

const (
	// A server that does not answer within this is not waited for. The callers
	// have given up long before; it is how soon a connection is tried anew, and
	// so how soon a server that was hung is asked again.
	dialTimeout = 500 * time.Millisecond
	silence     = time.Second // of a connection on which an answer is due

	// How long after a failure to connect the next attempt is made, and after a
	// connection was given up because its server is no master.
	retryDelay = 100 * time.Millisecond
)

// A link is what leads to the servers. It connects in the background, and again
// until it is closed.
type link struct {
	target  target
	secrets []string // that no error must show
	option  rueidis.ClientOption

	tried  chan struct{} // closed once the first attempt to connect has ended
	closed chan struct{}

	mu     sync.RWMutex
	client rueidis.Client // nil while there is none
	err    error          // why there is none
	since  time.Time      // when there was one last
}

func newLink(o *Options) (*link, error) {
	t, err := parseURL(o.URL)
	if err != nil {
		return nil, err
	}
	if o.Username != "" {
		t.username = o.Username
	}
	if o.Password != "" {
		t.password = o.Password
	}
	if o.Database != 0 {
		t.database = o.Database
	}
	switch {
	case t.database < 0 || t.mode == cluster && t.database != 0:
		return nil, fmt.Errorf("invalid database %d: want 0 or more, and 0 in a cluster", t.database)
	case t.username != "" && t.password == "":
		return nil, fmt.Errorf("got a user %q without a password: want both, or none", t.username)
	case o.TLS != nil && !t.tls:
		return nil, fmt.Errorf("got a TLS config for %s: want a URL that begins with rediss", t)
	}
	l := &link{
		target: t, option: t.clientOption(o), err: errors.New("not connected yet"),
		tried: make(chan struct{}), closed: make(chan struct{}),
	}
	for _, secret := range []string{t.password, o.SentinelPassword} {
		if secret != "" {
			l.secrets = append(l.secrets, secret)
		}
	}
	go l.connect(func() { close(l.tried) })
	return l, nil
}

// clientOption returns how rueidis is told to behave: it must not repeat what
// may have been executed, nor cache, and it is told what a hung server is.
func (t *target) clientOption(o *Options) rueidis.ClientOption {
	dialer := net.Dialer{Timeout: dialTimeout, KeepAlive: silence / 2} // the latter is also when it pings
	option := rueidis.ClientOption{
		InitAddress: t.addresses,
		Username:    t.username, Password: t.password, SelectDB: t.database,
		Dialer: dialer, DialCtxFn: t.dial, ConnWriteTimeout: silence,
		DisableRetry: true, DisableCache: true,
		PipelineMultiplex:  -1, // one connection, shared by all
		ReadBufferEachConn: 64 << 10, WriteBufferEachConn: 64 << 10,
		ForceSingleClient: t.mode == standalone,
		ClusterOption:     rueidis.ClusterOption{ShardsRefreshInterval: 5 * time.Second, MaxMovedRedirections: 5},
	}
	if t.tls {
		option.TLSConfig = o.TLS.Clone()
		if option.TLSConfig == nil {
			option.TLSConfig = &tls.Config{MinVersion: tls.VersionTLS12}
		}
	}
	if t.mode == sentinel {
		option.Sentinel = rueidis.SentinelOption{
			Dialer: dialer, TLSConfig: option.TLSConfig, MasterSet: t.master,
			Username: o.SentinelUsername, Password: o.SentinelPassword,
			TopologyRefreshInterval: silence, // one missed event must not bind us to a demoted master
		}
	}
	return option
}

// dial makes a connection that cannot bring rueidis down.
func (t *target) dial(ctx context.Context, address string, dialer *net.Dialer, config *tls.Config) (net.Conn, error) {
	var conn net.Conn
	var err error
	if config == nil {
		conn, err = dialer.DialContext(ctx, t.network, address)
	} else {
		conn, err = (&tls.Dialer{NetDialer: dialer, Config: config}).DialContext(ctx, t.network, address)
	}
	if err != nil {
		return nil, err
	}
	return &guard{Conn: conn, pushes: t.mode == sentinel}, nil
}

// String names the servers.
func (t target) String() string {
	where := strings.Join(t.addresses, ",")
	switch t.mode {
	case sentinel:
		return fmt.Sprintf("redis master %s by sentinels at %s", t.master, where)
	case cluster:
		return "redis cluster at " + where
	}
	return "redis at " + where
}

// connect tries until there is a client, or the link is closed.
func (l *link) connect(tried func()) {
	for {
		client, err := rueidis.NewClient(l.option)
		if err != nil && client != nil {
			client.Close()
		}
		done := l.connected(client, err)
		tried()
		if done {
			return
		}
		tried = func() {}
		select {
		case <-l.closed:
		case <-time.After(retryDelay):
		}
	}
}

// connected takes in the outcome of an attempt, and reports whether it was the
// last.
func (l *link) connected(client rueidis.Client, err error) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case <-l.closed:
		if err == nil {
			client.Close()
		}
		return true
	default:
	}
	if err != nil {
		l.err = fmt.Errorf("connecting: %w", err)
		return false
	}
	l.client, l.since = client, time.Now()
	return true
}

// ready returns why nothing can be asked now. It waits for the first attempt to
// connect, so that what is asked right after New need not fail, and for no other:
// an error at once leaves a caller all of its time for something else.
func (l *link) ready(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	select {
	case <-l.tried:
	default:
		select {
		case <-l.tried:
		case <-ctx.Done():
			return fmt.Errorf("connecting: %w", ctx.Err())
		}
	}
	_, err := l.get()
	return err
}

func (l *link) get() (rueidis.Client, error) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if l.client == nil {
		return nil, l.err
	}
	return l.client, nil
}

// run runs the script of a lane once. A server that does not know it has not
// executed it, and is given all of it.
func (l *link) run(lane lane, keys, args []string) (string, error) {
	client, err := l.get()
	if err != nil {
		return "", err
	}
	ctx := context.Background()
	n := int64(len(keys))
	answer := client.Do(ctx, client.B().Evalsha().Sha1(lane.script.digest).Numkeys(n).Key(keys...).Arg(args...).Build())
	if e, ok := rueidis.IsRedisErr(answer.Error()); ok && e.IsNoScript() {
		answer = client.Do(ctx, client.B().Eval().Script(lane.script.text).Numkeys(n).Key(keys...).Arg(args...).Build())
	}
	text, err := answer.ToString()
	if err == nil {
		return text, nil
	}
	return "", l.failed(client, err)
}

// failed returns the error of a call, and gives a connection up whose server has
// become a replica: another may stand behind the same name by now.
func (l *link) failed(client rueidis.Client, err error) error {
	e, answered := rueidis.IsRedisErr(err)
	switch {
	case !answered && rueidis.IsParseErr(err):
		return errGarbage
	case !answered || l.target.mode != standalone || !strings.HasPrefix(e.Error(), "READONLY"):
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.client == client && time.Since(l.since) > retryDelay {
		l.client, l.err = nil, err
		client.Close()
		go l.connect(func() {})
	}
	return err
}

// do calls f with the client, and waits for no longer than ctx.
func (l *link) do(ctx context.Context, f func(rueidis.Client) error) error {
	if err := l.ready(ctx); err != nil {
		return err
	}
	client, err := l.get()
	if err != nil {
		return err
	}
	done := make(chan error, 1)
	go func() { done <- f(client) }()
	select {
	case err := <-done:
		if err != nil {
			err = l.failed(client, err)
		}
		return err
	case <-ctx.Done():
		return fmt.Errorf("waiting for redis: %w", ctx.Err())
	}
}

func (l *link) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case <-l.closed:
		return
	default:
	}
	close(l.closed)
	if l.client != nil {
		l.client.Close()
	}
	l.client, l.err = nil, errClosed
}
