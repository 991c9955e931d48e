package verify

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/expiring"
	bucketkey "github.com/caddy-throttle/caddy-throttle/leakybucket/key"
)

const (
	lookupsAtOnce = 4
	lookupTimeout = 2 * time.Second
	namesTimeout  = 500 * time.Millisecond // for the names of an address, of lookupTimeout

	// One look-up for each network of this size in networkEvery, or in crawlersEvery if a
	// crawler was found there, or in silentEvery if it did not answer.
	networkIPv4   = 24
	networkIPv6   = 48
	networkEvery  = time.Minute
	crawlersEvery = 5 * time.Second
	silentEvery   = 5 * time.Minute

	// How long answers hold. A crawler is looked up again before it is forgotten.
	verifiedFor = 24 * time.Hour
	verifyAgain = 12 * time.Hour
	refutedFor  = time.Hour

	// How many answers of each kind, and how many networks, are kept. What has no room is
	// asked again. A silent network also holds up the removal of those that were asked after it.
	mostVerified = 16_384
	mostRefuted  = 4096
	mostNetworks = 16_384

	// How many of an address's names are looked up.
	mostNames = 3
)

// A Resolver looks names up, as net.Resolver does.
type Resolver interface {
	LookupAddr(ctx context.Context, addr string) ([]string, error)
	LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error)
}

// NewResolver returns a resolver that asks one server, or the system's servers if the
// address is empty.
func NewResolver(server string) Resolver {
	r := &net.Resolver{PreferGo: true}
	if server != "" {
		r.Dial = func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, server)
		}
	}
	return r
}

// Lookups find crawlers by reverse DNS that forward DNS confirms. They never keep a
// request waiting. They are safe for concurrent use.
type Lookups struct {
	mu       sync.Mutex
	running  int
	verified *expiring.Map[claim, time.Time] // when they were looked up
	refuted  *expiring.Map[claim, struct{}]
	networks *expiring.Map[netip.Prefix, struct{}] // that are left alone
}

// NewLookups returns look-ups that have no answer yet.
func NewLookups() *Lookups {
	return &Lookups{
		verified: expiring.New[claim, time.Time](mostVerified),
		refuted:  expiring.New[claim, struct{}](mostRefuted),
		networks: expiring.New[netip.Prefix, struct{}](mostNetworks),
	}
}

// A claim is to be a crawler.
type claim struct {
	addr    netip.Addr
	crawler *Crawler
	server  string // that is asked, because servers may disagree
}

// holds reports whether a claim is known to be true. If it is unknown, it is looked up
// in the background, if there is room.
func (l *Lookups) holds(c claim, resolver Resolver) bool {
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	at, verified := l.verified.Get(c, now)
	if _, refuted := l.refuted.Get(c, now); refuted || verified && now.Sub(at) < verifyAgain {
		return verified
	}
	of := bucketkey.ClientPrefix(c.addr, networkIPv4, networkIPv6)
	if _, asked := l.networks.Get(of, now); !asked && l.running < lookupsAtOnce && l.networks.Put(of, struct{}{}, now.Add(networkEvery), now) {
		l.running++
		go l.lookUp(c, of, resolver)
	}
	return verified
}

func (l *Lookups) lookUp(c claim, of netip.Prefix, resolver Resolver) {
	ctx, cancel := context.WithTimeout(context.Background(), lookupTimeout)
	defer cancel()
	holds, err := confirm(ctx, c, resolver)
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.running--
	switch {
	case err != nil: // not an answer: asked again later
		l.networks.Put(of, struct{}{}, now.Add(silentEvery), now)
	case holds:
		l.networks.Put(of, struct{}{}, now.Add(crawlersEvery), now)
		l.verified.Put(c, now, now.Add(verifiedFor), now)
	default:
		l.verified.Delete(c)
		l.refuted.Put(c, struct{}{}, now.Add(refutedFor), now)
	}
}

// confirm reports whether the address has a name of the crawler, and that name the
// address. Answers are written by strangers: any of them may be false. An error says
// that there was no answer.
func confirm(ctx context.Context, c claim, resolver Resolver) (bool, error) {
	naming, cancel := context.WithTimeout(ctx, namesTimeout)
	defer cancel()
	names, err := resolver.LookupAddr(naming, c.addr.String())
	if err != nil && len(names) == 0 {
		return false, unlessNotFound(err)
	}
	tried := 0
	for _, name := range names {
		if !c.crawler.owns(name) {
			continue
		}
		if tried++; tried > mostNames {
			break
		}
		addrs, err := resolver.LookupNetIP(ctx, "ip", name)
		if err := unlessNotFound(err); err != nil {
			return false, err
		}
		for _, addr := range addrs {
			if bucketkey.Unmap(addr) == c.addr {
				return true, nil
			}
		}
	}
	return false, nil
}

// unlessNotFound returns nil if the error says that there is no such name.
func unlessNotFound(err error) error {
	if dns := (*net.DNSError)(nil); errors.As(err, &dns) && dns.IsNotFound {
		return nil
	}
	return err
}
