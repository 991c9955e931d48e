package redisstore

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/redis/rueidis"
)

const (
	// A server that does not answer within this is given up, and asked again
	// over a new connection. It is as long as requests wait for the first connection.
	dialTimeout = 2 * time.Second

	// silence is how long a connection is quiet before rueidis pings, times two, and how
	// often sentinels are asked for the master.
	silence = time.Second

	// retryDelay is the pause between two attempts to connect. A connection is
	// kept at least as long before it is replaced because its server is no
	// master.
	retryDelay = 100 * time.Millisecond
)

// A connection leads to the servers of a URL. Once started it connects in the
// background, and tries again until it succeeds or is closed.
type connection struct {
	target  target
	foreign bool     // somebody else has made the client, and closes it
	secrets []string // that no error may show
	option  rueidis.ClientOption

	begin sync.Once

	ending context.Context // ends with close
	end    context.CancelFunc
	trying context.Context // ends with the first attempt, or with close
	tried  context.CancelFunc

	mu     sync.RWMutex
	client rueidis.Client // nil while there is none
	err    error          // why there is none
	since  time.Time      // when the client connected
}

// connectionOf returns the connection of a client that somebody else has made.
func connectionOf(client rueidis.Client) *connection {
	c := &connection{client: client, foreign: true}
	switch client.Mode() {
	case rueidis.ClientModeCluster:
		c.target.mode = cluster
	case rueidis.ClientModeSentinel:
		c.target.mode = sentinel // which looks for the master itself
	}
	for address := range client.Nodes() {
		c.target.addresses = append(c.target.addresses, address)
	}
	slices.Sort(c.target.addresses)
	c.ending, c.end = context.WithCancel(context.Background())
	c.trying, c.tried = context.WithCancel(c.ending)
	c.begin.Do(c.tried)
	return c
}

func newConnection(url string, o *Options) (*connection, error) {
	t, err := o.target(url)
	if err != nil {
		return nil, err
	}
	c := &connection{
		target: t, option: t.clientOption(o), err: errors.New("not connected yet"),
	}
	c.ending, c.end = context.WithCancel(context.Background())
	c.trying, c.tried = context.WithCancel(c.ending)
	for _, secret := range []string{t.password, o.SentinelPassword} {
		if secret != "" {
			c.secrets = append(c.secrets, secret)
		}
	}
	return c, nil
}

// clientOption returns the options for rueidis. It must neither cache nor repeat
// a call that may have been executed.
func (t *target) clientOption(o *Options) rueidis.ClientOption {
	dialer := net.Dialer{Timeout: dialTimeout, KeepAlive: silence / 2} // rueidis pings as often
	option := rueidis.ClientOption{
		InitAddress: t.addresses,
		Username:    t.username, Password: t.password, SelectDB: t.database,
		Dialer: dialer, DialCtxFn: t.dial, ConnWriteTimeout: dialTimeout, // for the first replies, too
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
			TopologyRefreshInterval: silence, // a missed event must not tie us to a demoted master
		}
	}
	return option
}

// dial makes a guarded connection.
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

// connect tries until there is a client or the connection is closed.
func (c *connection) connect() {
	for c.ending.Err() == nil {
		client, err := rueidis.NewClient(c.option)
		used := c.connected(client, err)
		c.tried()
		if used {
			return
		}
		if client != nil {
			client.Close()
		}
		select {
		case <-c.ending.Done():
		case <-time.After(retryDelay):
		}
	}
}

// connected takes in the outcome of an attempt and reports whether its client is used.
func (c *connection) connected(client rueidis.Client, err error) (used bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.ending.Err() != nil:
		return false
	case err != nil:
		c.err = fmt.Errorf("connecting: %w", err)
		return false
	}
	c.client, c.since = client, time.Now()
	return true
}

// ready starts the connection if necessary, and returns the client to ask, or why
// there is none. It waits for the first attempt to connect, so that calls made right
// after [Open] need not fail. It waits for no later attempt: failing at once
// leaves callers the time to decide without the store.
func (c *connection) ready(ctx context.Context) (rueidis.Client, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	c.begin.Do(func() { go c.connect() })
	select {
	case <-c.trying.Done():
	case <-ctx.Done():
		return nil, fmt.Errorf("connecting: %w", ctx.Err())
	}
	return c.get()
}

func (c *connection) get() (rueidis.Client, error) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if c.client == nil {
		return nil, c.err
	}
	return c.client, nil
}

// run runs a script once.
func (c *connection) run(script *rueidis.Lua, keys, args []string) (string, error) {
	client, err := c.get()
	if err != nil {
		return "", err
	}
	text, err := script.Exec(context.Background(), client, keys, args).ToString() // callers share the call; ConnWriteTimeout ends it
	if err != nil {
		return "", c.failed(client, err)
	}
	return text, nil
}

// failed returns the error of a call. If the server has become a replica, its
// connection is replaced: the same address may lead to another server by now.
func (c *connection) failed(client rueidis.Client, err error) error {
	e, answered := rueidis.IsRedisErr(err)
	switch {
	case !answered && rueidis.IsParseErr(err):
		return errGarbage
	case !answered || c.foreign || c.target.mode != standalone || !isOf(e, "READONLY"):
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.client == client && time.Since(c.since) > retryDelay {
		c.client, c.err = nil, err
		go client.Close() // takes a second if the server is silent
		go c.connect()
	}
	return err
}

// ask calls f with the client and returns its results, or an error when ctx
// ends first.
func ask[T any](ctx context.Context, c *connection, f func(rueidis.Client) (T, error)) (T, error) {
	type answer struct {
		value T
		err   error
	}
	var none T
	client, err := c.ready(ctx)
	if err != nil {
		return none, err
	}
	answers := make(chan answer, 1)
	go func() {
		value, err := f(client)
		answers <- answer{value, err}
	}()
	select {
	case a := <-answers:
		if a.err != nil {
			return none, c.failed(client, a.err)
		}
		return a.value, nil
	case <-ctx.Done():
		return none, fmt.Errorf("waiting for redis: %w", ctx.Err())
	}
}

// close ends the connection for good.
func (c *connection) close() {
	c.mu.Lock()
	c.end()
	client := c.client
	c.client, c.err = nil, errClosed
	c.mu.Unlock()
	if client != nil && !c.foreign {
		client.Close()
	}
}
