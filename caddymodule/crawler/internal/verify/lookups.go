package verify

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync"
	"time"

	bucketkey "github.com/caddy-throttle/caddy-throttle/leakybucket/key"
)

const (
	lookupsAtOnce = 4
	lookupTimeout = 2 * time.Second
	namesTimeout  = 500 * time.Millisecond // for the names of an address, of lookupTimeout

	// How many look-ups networks in which no crawler was found share. The others are kept
	// for those in which one was, so that false claims cannot keep it out.
	foreignAtOnce = lookupsAtOnce / 2

	// One look-up for each network of this size in networkEvery, or in crawlersEvery if a
	// crawler was found there. A network that does not answer is left alone for
	// silentFor, then twice as long each time, up to silentMost. That it was silent is
	// forgotten after twice that time.
	networkIPv4   = 24
	networkIPv6   = 48
	networkEvery  = time.Minute
	crawlersEvery = 5 * time.Second
	silentFor     = 2 * time.Minute
	silentMost    = 30 * time.Minute

	// How long answers hold. A crawler is looked up again before it is forgotten. Its
	// network is known for longer.
	verifiedFor = 24 * time.Hour
	verifyAgain = 12 * time.Hour
	refutedFor  = time.Hour
	crawlersFor = 2 * verifiedFor

	// How many answers of each kind, and how many networks, are kept. What has no room is
	// asked again.
	mostVerified = 16_384
	mostRefuted  = 4096
	mostNetworks = 4096

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
	foreign  int                      // look-ups of networks in which no crawler was found
	verified memory[claim, time.Time] // when the claim was found to hold
	refuted  memory[claim, struct{}]
	networks memory[netip.Prefix, network]
}

// NewLookups returns look-ups that have no answer yet.
func NewLookups() *Lookups {
	return &Lookups{
		verified: newMemory[claim, time.Time](mostVerified), refuted: newMemory[claim, struct{}](mostRefuted),
		networks: newMemory[netip.Prefix, network](mostNetworks),
	}
}

// A network is one of which an address was looked up.
type network struct {
	next    time.Time     // when another one may be
	silent  time.Duration // how long it is left alone, because it did not answer; 0 if it did
	crawler bool          // one was found in it
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
	at, found := l.verified.get(c, now)
	if found && now.Sub(at) < verifyAgain {
		return true
	}
	if _, refuted := l.refuted.get(c, now); refuted {
		return false
	}
	bits := networkIPv6
	if c.addr.Is4() {
		bits = networkIPv4
	}
	of, err := c.addr.WithZone("").Prefix(bits)
	if err != nil || l.running >= lookupsAtOnce {
		return found
	}
	n, _ := l.networks.get(of, now)
	if now.Before(n.next) || !n.crawler && l.foreign >= foreignAtOnce {
		return found
	}
	if l.keep(of, n, now) {
		l.running++
		if !n.crawler {
			l.foreign++
		}
		go l.lookUp(c, of, n, now, resolver)
	}
	return found
}

// keep keeps what is known of a network that was asked, unless too many others are known.
func (l *Lookups) keep(of netip.Prefix, n network, asked time.Time) (room bool) {
	every, lasts := max(networkEvery, n.silent), max(networkEvery, 2*n.silent)
	if n.crawler {
		every, lasts = crawlersEvery, crawlersFor
	}
	n.next = asked.Add(every)
	return l.networks.put(of, n, asked.Add(lasts), asked)
}

func (l *Lookups) lookUp(c claim, of netip.Prefix, n network, asked time.Time, resolver Resolver) {
	ctx, cancel := context.WithTimeout(context.Background(), lookupTimeout)
	defer cancel()
	holds, err := confirm(ctx, c, resolver)
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.running--
	if !n.crawler {
		l.foreign--
	}
	switch {
	case holds:
		asked, n = now, network{crawler: true}
	case err != nil: // not an answer: asked again later
		n.silent = min(max(silentFor, 2*n.silent), silentMost)
	default:
		n.silent = 0
	}
	l.keep(of, n, asked)
	switch {
	case err != nil:
	case holds:
		l.verified.put(c, now, now.Add(verifiedFor), now)
	default:
		delete(l.verified.entries, c)
		l.refuted.put(c, struct{}{}, now.Add(refutedFor), now)
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
