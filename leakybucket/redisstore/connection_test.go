package redisstore

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/store"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/servertest"
)

func TestTLSAndUnixSockets(t *testing.T) {
	dir, authority, pool := t.TempDir(), servertest.NewAuthority(t, "test"), x509.NewCertPool()
	pool.AppendCertsFromPEM(authority.PEM)
	cert, key, socket := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem"), filepath.Join(dir, "r.sock")
	certPEM, keyPEM := authority.Certify(t)
	check.OK(t, errors.Join(os.WriteFile(cert, certPEM, 0o600), os.WriteFile(key, keyPEM, 0o600)))
	probe := servertest.PrepareRedis(t) // for a port that is free
	servertest.StartRedis(t, "--unixsocket", socket, "--tls-port", fmt.Sprint(probe.Port),
		"--tls-cert-file", cert, "--tls-key-file", key, "--tls-ca-cert-file", cert, "--tls-auth-clients", "no")
	mustTake(t, open(t, "unix://"+socket, Options{}), charge("k", frozen, 1))
	mustTake(t, open(t, "rediss://"+probe.Addr, Options{TLS: &tls.Config{RootCAs: pool}}), charge("k", frozen, 1))
	got := levelOf(t, open(t, "unix://"+socket, Options{}), charge("k", frozen, 1))
	check.That(t, got >= 2-leaked, "level by both ways: got %v, want 2", got)
	_, err := takeWithin(open(t, "rediss://"+probe.Addr, Options{}), charge("k", frozen, 1), patience)
	check.That(t, err != nil && strings.Contains(err.Error(), "certificate"), "certificate that nobody has signed: got %v, want an error", err)
}

// A caller's deadline also holds while the first connection is made.
func TestNoCallerWaitsForAConnectionBeyondItsDeadline(t *testing.T) {
	server := servertest.StartRedis(t)
	server.Pause()
	defer server.Resume()
	for _, url := range []string{"redis://" + server.Addr, "redis+sentinel://" + server.Addr + "/m", "redis+cluster://" + server.Addr} {
		s := open(t, url, Options{})
		ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
		asked := time.Now()
		for what, err := range map[string]error{
			"list": listError(ctx, s), "reset": s.Reset(ctx, "zone", "k", false),
		} {
			check.That(t, err != nil, "%s: %s of a server that is stopped: got no error", url, what)
		}
		took := time.Since(asked)
		check.That(t, took <= 500*time.Millisecond+heart.Lost(asked), "%s: got errors after %v with a deadline of 50 ms", url, took)
		cancel()
	}
}

// A store is also made when a config is only checked, and must not connect then.
func TestNewDialsNothing(t *testing.T) {
	listener := check.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer listener.Close()
	addr := listener.Addr().String()
	before := runtime.NumGoroutine()
	var stores []*Store
	for _, url := range []string{"redis://" + addr, "redis+sentinel://" + addr + "/m", "redis+cluster://" + addr} {
		stores = append(stores, open(t, url, Options{}))
	}
	servertest.Eventually(t, "there are no more goroutines than before New", func() error {
		if n := runtime.NumGoroutine(); n > before {
			return fmt.Errorf("got %d, want %d", n, before)
		}
		return nil
	})
	_ = listener.(*net.TCPListener).SetDeadline(time.Now().Add(100 * time.Millisecond))
	if conn, err := listener.Accept(); err == nil {
		t.Errorf("New: got a connection from %v, want none", conn.RemoteAddr())
	}
	for _, s := range stores {
		go func() { _, _ = take(s, charge("k", frozen, 1)) }()
		_ = listener.(*net.TCPListener).SetDeadline(time.Now().Add(patience))
		conn, err := listener.Accept()
		check.OK(t, err, "first call of %s: got no connection", s)
		_ = conn.Close()
		s.Close()
	}
}

func listError(ctx context.Context, s *Store) error {
	_, _, err := s.List(ctx, store.Filter{Zone: "zone"}, "")
	return err
}

type sentinelClient struct{ rueidis.Client }

func (sentinelClient) Mode() rueidis.ClientMode { return rueidis.ClientModeSentinel }

// TestAGivenClient: the store uses it, and leaves it open.
func TestAGivenClient(t *testing.T) {
	server := servertest.StartRedis(t)
	client := check.Must(rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{server.Addr}, ForceSingleClient: true, DisableCache: true}))(t)
	defer client.Close()
	if s, err := New(client, Options{Password: "secret"}); err == nil || s != nil {
		t.Errorf("a password beside a client: got %v, %v, want nil and an error", s, err)
	}
	s := check.Must(New(client, Options{Prefix: "p:"}))(t)
	mustTake(t, s, charge("k", frozen, 1))
	check.Equal(t, s.String(), "redis at "+server.Addr, "the store")
	check.Equal(t, connectionOf(sentinelClient{client}).target.String(), "redis by sentinels, first at "+server.Addr, "a client of sentinels")
	s.Close()
	_, err := take(s, charge("k", frozen, 1))
	check.That(t, errors.Is(err, errClosed), "a take after Close: got %v, want %v", err, errClosed)
	check.NoError(t, client.Do(t.Context(), client.B().Ping().Build()).Error(), "the client after the store was closed")
}
