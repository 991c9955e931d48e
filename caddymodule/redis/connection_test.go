package redis

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/golden"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/stores"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/servertest"
)

func TestNothingConnectsBeforeAConfigStarts(t *testing.T) {
	golden.ConnectsOnlyWhenItStarts(t, func(addr string) []byte {
		return config(`{"module":"redis","url":"redis://` + addr + `"}`)
	})
}

// secured is a Redis behind TLS, whose certificate can be replaced.
type secured struct {
	addr        string
	certificate atomic.Pointer[tls.Certificate]
	connections atomic.Int32 // that were secured
}

func newSecured(t *testing.T) *secured {
	t.Helper()
	server := servertest.StartRedis(t)
	s := new(secured)
	listener, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return s.certificate.Load(), nil },
	})
	check.OK(t, err)
	t.Cleanup(func() { listener.Close() })
	s.addr = listener.Addr().String()
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go s.forward(conn, server.Addr)
		}
	}()
	return s
}

func (s *secured) forward(conn net.Conn, to string) {
	defer conn.Close()
	if conn.(*tls.Conn).Handshake() != nil {
		return
	}
	s.connections.Add(1)
	server, err := net.Dial("tcp", to)
	if err != nil {
		return
	}
	defer server.Close()
	go func() { _, _ = io.Copy(server, conn); server.Close() }()
	_, _ = io.Copy(conn, server)
}

// renew gives the server a certificate, and returns it as tls_ca wants it.
func (s *secured) renew(t *testing.T) []byte {
	t.Helper()
	key := check.Must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
	}
	der := check.Must(x509.CreateCertificate(rand.Reader, template, template, key.Public(), key))(t)
	s.certificate.Store(&tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key})
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

func TestAReplacedCertificateAuthorityConnectsAnewAndAnUnchangedOneDoesNot(t *testing.T) {
	server, file := newSecured(t), filepath.Join(t.TempDir(), "ca.pem")
	trust := func(pem []byte) {
		t.Helper()
		check.OK(t, os.WriteFile(file, pem, 0o600))
	}
	plans := 0
	reload := func() {
		t.Helper()
		plans++ // Caddy does nothing if nothing has changed
		text := fmt.Sprintf(`{"apps":{"throttle":{"store":{"module":"redis","url":"rediss://%s","tls_ca":%q},"plan":{"p":"%d 1/s"}}}}`, server.addr, file, plans)
		check.OK(t, golden.Load(t, []byte(text), ""))
	}
	up := func() error {
		ctx := caddy.ActiveContext()
		families, err := ctx.GetMetricsRegistry().Gather()
		for _, family := range families {
			if family.GetName() == "caddy_throttle_breaker_open" && family.Metric[0].GetGauge().GetValue() == 0 {
				return nil
			}
		}
		return fmt.Errorf("the store is not up: %w", err)
	}
	connects := func(before int32) {
		t.Helper()
		servertest.Eventually(t, "a new connection", func() error {
			if got := server.connections.Load(); got <= before {
				return fmt.Errorf("got %d connections, want more", got)
			}
			return nil
		})
		servertest.Eventually(t, "the store is up", up)
	}
	joined := func() *stores.SharedStore { // by a config that is loaded now
		t.Helper()
		r := &Redis{URL: "rediss://" + server.addr, TLSCA: file}
		check.OK(t, r.Provision(caddy.Context{}))
		t.Cleanup(func() { check.OK(t, r.Cleanup()) })
		return r.SharedStore()
	}
	first := server.renew(t)
	trust(first)
	reload()
	connects(0)
	store := joined()
	check.That(t, joined() == store, "got another store by an unchanged file")

	second := server.renew(t) // which the connections of before do not trust
	trust(bytes.Join([][]byte{first, second}, nil))
	before := server.connections.Load()
	reload()
	connects(before)
	check.That(t, joined() != store, "got the store of before by a replaced file")
}
