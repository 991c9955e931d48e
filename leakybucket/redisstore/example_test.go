package redisstore_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"log"
	"os"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/redisstore"
)

// All processes that share the server share the limit. In production, put package sharedstore
// around the store: it has a timeout, and goes on with a share of the limit in an outage.
func ExampleStore() {
	store, err := redisstore.Open("redis://127.0.0.1:6379/0", redisstore.Options{Prefix: "myapp:"})
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()

	limiter, err := leakybucket.NewLimiter(store, leakybucket.Limit{Capacity: 10, Leak: 0.5}, leakybucket.LimiterOptions{Zone: "login"})
	if err != nil {
		log.Fatal(err)
	}
	if r, _ := limiter.Take(context.Background(), "192.0.2.7", 1); !r.Fits {
		log.Printf("too many logins: come back in %v", r.RetryAfter)
	}
}

// The servers have a certificate of the company's own authority, and sentinels find the master.
func ExampleOptions() {
	authority, err := os.ReadFile("ca.pem")
	if err != nil {
		log.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(authority)
	store, err := redisstore.Open("rediss+sentinel://s1.internal,s2.internal/mymaster", redisstore.Options{
		Username: "app", Password: os.Getenv("REDIS_PASSWORD"), TLS: &tls.Config{RootCAs: roots},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()
}
