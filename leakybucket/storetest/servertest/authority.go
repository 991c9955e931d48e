package servertest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"testing"
	"time"
)

// An Authority signs certificates for 127.0.0.1.
type Authority struct {
	PEM         []byte // its own certificate
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

// NewAuthority returns an authority of a name.
func NewAuthority(tb testing.TB, name string) *Authority {
	tb.Helper()
	a := new(Authority)
	a.certificate = &x509.Certificate{Subject: pkix.Name{CommonName: name}, IsCA: true, KeyUsage: x509.KeyUsageCertSign}
	a.PEM, a.key = a.sign(tb, a.certificate)
	return a
}

// Certify returns a certificate and its key, both in PEM.
func (a *Authority) Certify(tb testing.TB) (certificate, key []byte) {
	tb.Helper()
	certificate, private := a.sign(tb, &x509.Certificate{Subject: pkix.Name{CommonName: "127.0.0.1"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}})
	der, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		tb.Fatal(err)
	}
	return certificate, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
}

// sign returns a certificate that is valid for an hour, and its key. The first one is the
// authority's own.
func (a *Authority) sign(tb testing.TB, c *x509.Certificate) (certificate []byte, key *ecdsa.PrivateKey) {
	tb.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	signer := a.key
	if signer == nil {
		signer = key
	}
	c.SerialNumber, c.BasicConstraintsValid = big.NewInt(time.Now().UnixNano()), true
	c.NotBefore, c.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	der, err := x509.CreateCertificate(rand.Reader, c, a.certificate, &key.PublicKey, signer)
	if err != nil {
		tb.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), key
}
