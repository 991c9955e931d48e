package crawler

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync"
	"time"
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
	// silentFor, then twice as long each time, up to silentMost.
	networkIPv4   = 24
	networkIPv6   = 48
	networkEvery  = time.Minute
	crawlersEvery = 5 * time.Second
	silentFor     = 2 * time.Minute
	silentMost    = 30 * time.Minute

	// How long answers hold. A crawler is looked up again before it is forgotten.
	verifiedFor = 24 * time.Hour
	verifyAgain = 12 * time.Hour
	refutedFor  = time.Hour

	// How many answers of each kind, and how many networks, are kept.
	mostAnswers  = 4096
	mostNetworks = 4096

	// sweepEvery is how often all networks are looked at while they are too many. A flood
	// of claims must not do so for each request.
	sweepEvery = time.Second

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
// request waiting. The zero value does nothing until it is started. It is safe for
// concurrent use.
type Lookups struct {
	mu       sync.Mutex
	users    int
	ctx      context.Context
	stop     context.CancelFunc
	running  int
	foreign  int // look-ups of networks in which no crawler was found
	ended    sync.WaitGroup
	verified map[claim]time.Time // when it was
	refuted  map[claim]time.Time
	crawlers map[netip.Prefix]time.Time // networks with one: when one of their addresses was last looked up
	networks map[netip.Prefix]network   // the others
	swept    time.Time                  // when old networks were last looked for
}

// A network is one in which no crawler was found.
type network struct {
	asked  time.Time     // when one of its addresses was last looked up
	silent time.Duration // how long it is left alone, because it did not answer; 0 if it did
}

// A claim is to be a crawler.
type claim struct {
	addr    netip.Addr
	crawler *Crawler
	server  string // that is asked, because servers may disagree
}

// Start allows look-ups until the function that it returns is called.
func (l *Lookups) Start() (stop func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.users++; l.users == 1 {
		l.ctx, l.stop = context.WithCancel(context.Background())
	}
	return sync.OnceFunc(func() {
		l.mu.Lock()
		last := false
		if l.users--; l.users == 0 {
			l.stop()
			last = true
		}
		l.mu.Unlock()
		if last {
			l.ended.Wait()
		}
	})
}

// holds reports whether a claim is known to be true. If it is unknown, it is looked up
// in the background, if there is room.
func (l *Lookups) holds(c claim, resolver Resolver) bool {
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	at, verified := l.verified[c]
	if age := now.Sub(at); verified && age < verifyAgain {
		return true
	} else if verified && age >= verifiedFor {
		delete(l.verified, c)
		verified = false
	}
	if at, refuted := l.refuted[c]; refuted {
		if now.Sub(at) < refutedFor {
			return verified
		}
		delete(l.refuted, c)
	}
	bits := networkIPv6
	if c.addr.Is4() {
		bits = networkIPv4
	}
	of, err := c.addr.WithZone("").Prefix(bits)
	if err != nil || l.users == 0 || l.running >= lookupsAtOnce {
		return verified
	}
	if foreign, may := l.mayLookUp(of, now); may {
		l.running++
		if foreign {
			l.foreign++
		}
		l.ended.Add(1)
		go l.lookUp(l.ctx, c, of, foreign, resolver)
	}
	return verified
}

// mayLookUp reports whether an address of a network may be looked up now, and counts it. A
// network is foreign if no crawler was found in it.
func (l *Lookups) mayLookUp(of netip.Prefix, now time.Time) (foreign, may bool) {
	if at, found := l.crawlers[of]; found {
		if now.Sub(at) < crawlersEvery {
			return false, false
		}
		l.crawlers[of] = now
		return false, true
	}
	known, found := l.networks[of]
	if l.foreign >= foreignAtOnce || found && now.Sub(known.asked) < max(networkEvery, known.silent) {
		return true, false
	}
	if !found && len(l.networks) >= mostNetworks {
		if now.Sub(l.swept) < sweepEvery {
			return true, false
		}
		l.swept = now
		for other, network := range l.networks {
			if now.Sub(network.asked) >= networkEvery {
				delete(l.networks, other)
			}
		}
		if len(l.networks) >= mostNetworks {
			return true, false
		}
	}
	if l.networks == nil {
		l.networks = make(map[netip.Prefix]network)
	}
	l.networks[of] = network{asked: now, silent: known.silent}
	return true, true
}

func (l *Lookups) lookUp(ctx context.Context, c claim, of netip.Prefix, foreign bool, resolver Resolver) {
	defer l.ended.Done()
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	answer, err := confirm(ctx, c, resolver)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.running--
	if foreign {
		l.foreign--
		known := l.networks[of]
		known.silent = min(max(silentFor, 2*known.silent), silentMost)
		if err == nil {
			known.silent = 0
		}
		l.networks[of] = known
	}
	switch {
	case err != nil: // not an answer: asked again later
	case answer:
		delete(l.refuted, c)
		remember(&l.verified, c)
		delete(l.networks, of)
		remember(&l.crawlers, of)
	default:
		delete(l.verified, c)
		remember(&l.refuted, c)
	}
}

// remember keeps an answer, if necessary instead of another one.
func remember[K comparable](answers *map[K]time.Time, c K) {
	if *answers == nil {
		*answers = make(map[K]time.Time)
	}
	if _, known := (*answers)[c]; !known && len(*answers) >= mostAnswers {
		for other := range *answers {
			delete(*answers, other)
			break
		}
	}
	(*answers)[c] = time.Now()
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
			if addr.Unmap() == c.addr {
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
