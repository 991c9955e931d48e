package verify

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

// A names is a resolver with answers of its own.
type names struct {
	mu    sync.Mutex
	ptr   map[string][]string // by address
	addrs map[string]string   // by name
	slow  time.Duration
	fails bool
	dead  func(addr string) bool // its reverse DNS never answers
	asked []string
	most  int // at once
	now   int
}

func (n *names) ask(ctx context.Context, what string) error {
	n.mu.Lock()
	n.asked = append(n.asked, what)
	n.now++
	n.most = max(n.most, n.now)
	slow, fails := n.slow, n.fails
	if n.dead != nil && n.dead(what) {
		slow = time.Hour
	}
	n.mu.Unlock()
	defer func() {
		n.mu.Lock()
		n.now--
		n.mu.Unlock()
	}()
	if slow > 0 { // two timers that are due at once fail the race detector: see go.dev/issue/78156
		select {
		case <-time.After(slow):
		case <-ctx.Done():
			return &net.DNSError{Err: "timeout", IsTimeout: true}
		}
	}
	if fails {
		return &net.DNSError{Err: "server misbehaving", IsTemporary: true}
	}
	return nil
}

func (n *names) LookupAddr(ctx context.Context, addr string) ([]string, error) {
	if err := n.ask(ctx, addr); err != nil {
		return nil, err
	}
	if n.ptr[addr] == nil {
		return nil, &net.DNSError{Err: "no such host", IsNotFound: true}
	}
	return n.ptr[addr], nil
}

func (n *names) LookupNetIP(ctx context.Context, _, host string) ([]netip.Addr, error) {
	if err := n.ask(ctx, host); err != nil {
		return nil, err
	}
	if n.addrs[host] == "" {
		return nil, &net.DNSError{Err: "no such host", IsNotFound: true}
	}
	return []netip.Addr{netip.MustParseAddr("203.0.113.99"), netip.MustParseAddr(n.addrs[host])}, nil
}

func (n *names) count() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.asked)
}

// lookUps returns a set of crawlers that asks the resolver.
func lookUps(n Resolver, crawlers ...string) (*Set, *Lookups) {
	var known []*Crawler
	for _, name := range crawlers {
		known = append(known, Find(name))
	}
	l := NewLookups()
	s := NewSet(new(Lists), l, known, "")
	s.resolver = n
	return s, l
}

const (
	google    = "Mozilla/5.0 (compatible; Googlebot/2.1; +http://www.google.com/bot.html)"
	amazon    = "Mozilla/5.0 (KHTML, like Gecko; compatible; Amazonbot/0.1) Chrome/1"
	adsGoogle = "AdsBot-Google (+http://www.google.com/adsbot.html)"
)

func TestANameCountsOnlyIfItsAddressesConfirmIt(t *testing.T) {
	for _, test := range []struct {
		name, agent string
		ptr         []string
		addrs       map[string]string
		want        bool
	}{
		{"confirmed", google, []string{"crawl-192-0-2-1.googlebot.com."}, map[string]string{"crawl-192-0-2-1.googlebot.com.": "192.0.2.1"}, true},
		{"in capitals", google, []string{"Crawl.GoogleBot.COM."}, map[string]string{"Crawl.GoogleBot.COM.": "192.0.2.1"}, true},
		{"mapped", google, []string{"crawl.googlebot.com."}, map[string]string{"crawl.googlebot.com.": "::ffff:192.0.2.1"}, true},
		{"the second name", google, []string{"other.example.", "crawl.googlebot.com."}, map[string]string{"crawl.googlebot.com.": "192.0.2.1"}, true},
		{"another address", google, []string{"crawl-192-0-2-1.googlebot.com."}, map[string]string{"crawl-192-0-2-1.googlebot.com.": "192.0.2.2"}, false},
		{"no address", google, []string{"crawl-192-0-2-1.googlebot.com."}, nil, false},
		{"no name", google, nil, nil, false},
		{"a name that ends alike", google, []string{"crawl.notgooglebot.com."}, map[string]string{"crawl.notgooglebot.com.": "192.0.2.1"}, false},
		{"a name that begins alike", google, []string{"crawl.googlebot.com.example."}, map[string]string{"crawl.googlebot.com.example.": "192.0.2.1"}, false},
		{"the domain itself", google, []string{"googlebot.com."}, map[string]string{"googlebot.com.": "192.0.2.1"}, false},
		{"another crawler's name", amazon, []string{"crawl.googlebot.com."}, map[string]string{"crawl.googlebot.com.": "192.0.2.1"}, false},
		{"special", adsGoogle, []string{"rate-limited-proxy-192-0-2-1.google.com."}, map[string]string{"rate-limited-proxy-192-0-2-1.google.com.": "192.0.2.1"}, true},
		{"a fetcher that users trigger", adsGoogle, []string{"google-proxy-192-0-2-1.google.com."}, map[string]string{"google-proxy-192-0-2-1.google.com.": "192.0.2.1"}, false},
		{"the fourth of its names", google, []string{"a.googlebot.com.", "b.googlebot.com.", "c.googlebot.com.", "d.googlebot.com."}, map[string]string{"d.googlebot.com.": "192.0.2.1"}, false},
		{"hostile names", google, []string{"", ".", "..googlebot.com.", strings.Repeat("a.", 2000), "\x00.googlebot.com"}, nil, false},
	} {
		synctest.Test(t, func(t *testing.T) {
			n := &names{ptr: map[string][]string{"192.0.2.1": test.ptr}, addrs: test.addrs}
			s, _ := lookUps(n, "googlebot", "google-special", "amazonbot")
			addr := netip.MustParseAddr("192.0.2.1")
			check.That(t, !s.Verified(addr, test.agent), "%s: the first visit is verified", test.name)
			synctest.Wait()
			check.Equal(t, s.Verified(addr, test.agent), test.want, "%s", test.name)
		})
	}
}

func TestDNSIsAskedOnlyForUserAgentsThatClaimACrawler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := new(names)
		s, _ := lookUps(n, "googlebot", "amazonbot", "gptbot")
		ask := func(agent string) {
			s.Verified(netip.MustParseAddr("192.0.2.1"), agent)
			synctest.Wait()
		}
		for _, agent := range []string{"", "Mozilla/5.0 Firefox/140.0", "Mozilla/5.0 (compatible; bingbot/2.0)", "GPTBot/1.2", strings.Repeat(" ", mostAgent) + google} {
			ask(agent)
		}
		check.That(t, n.count() == 0, "DNS was asked about %q, want none", n.asked)
		ask(google)
		check.That(t, n.count() != 0, "DNS was not asked about a claim")
	})
}

func TestAnswersAreKeptAndAskedForAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const name = "crawl.googlebot.com."
		n := &names{ptr: map[string][]string{"192.0.2.1": {name}}, addrs: map[string]string{name: "192.0.2.1"}}
		s, _ := lookUps(n, "googlebot")
		ask := func(addr string) bool {
			verified := s.Verified(netip.MustParseAddr(addr), google)
			synctest.Wait()
			return verified
		}
		step := func(wait time.Duration, addr string, verified bool, asked int) {
			t.Helper()
			time.Sleep(wait)
			before := n.count()
			check.Equal(t, ask(addr), verified, "%s", addr)
			check.Equal(t, n.count()-before, asked, "%s: questions to DNS", addr)
		}
		step(0, "192.0.2.1", false, 2)
		step(0, "192.0.2.1", true, 0)
		step(11*time.Hour, "192.0.2.1", true, 0)
		step(2*time.Hour, "192.0.2.1", true, 2) // looked up before it is forgotten
		step(11*time.Hour, "192.0.2.1", true, 0)

		n.fails = true
		step(2*time.Hour, "192.0.2.1", true, 1)
		step(0, "192.0.2.1", true, 0)
		step(silentEvery, "192.0.2.1", true, 1) // and still verified
		step(12*time.Hour, "192.0.2.1", false, 1)
		n.fails = false
		step(silentEvery, "192.0.2.1", false, 2)
		step(0, "192.0.2.1", true, 0)

		n.addrs = nil // the operator gives the address back
		step(13*time.Hour, "192.0.2.1", true, 2)
		step(0, "192.0.2.1", false, 0)

		step(0, "198.51.100.1", false, 1)
		step(59*time.Minute, "198.51.100.1", false, 0)
		step(2*time.Minute, "198.51.100.1", false, 1)
	})
}

func TestFewLookUpsRunAtOnceAndOneForANetworkAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &names{slow: time.Hour}
		s, _ := lookUps(n, "googlebot")
		for i := range 100 {
			s.Verified(netip.AddrFrom4([4]byte{192, 0, byte(i), 1}), google)
		}
		synctest.Wait()
		check.Equal(t, n.count(), lookupsAtOnce, "look-ups")
		time.Sleep(lookupTimeout + time.Millisecond) // each ends by its timeout
		n.slow = 0
		for i := range 100 {
			s.Verified(netip.AddrFrom4([4]byte{198, 51, 100, byte(i)}), google)
			s.Verified(netip.MustParseAddr(fmt.Sprintf("2001:db8:1:%x::1", i)), google)
			synctest.Wait()
		}
		check.Equal(t, n.count()-lookupsAtOnce, 2, "look-ups for a /24 and a /48, want one each")
		time.Sleep(networkEvery)
		s.Verified(netip.MustParseAddr("198.51.100.77"), google)
		synctest.Wait()
		got := n.count() - lookupsAtOnce
		check.That(t, got == 3, "got %d look-ups a minute later, want one more", got-2)
		check.That(t, n.most <= lookupsAtOnce, "%d look-ups ran at once, want at most %d", n.most, lookupsAtOnce)
	})
}

// A flood of claims from 256 networks whose reverse DNS never answers, 50 a second for two
// minutes, beside a true crawler that comes once a second.
func TestDeadNetworksStarveNoCrawler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		crawler := netip.MustParseAddr("198.51.100.1")
		n := &names{
			ptr:   map[string][]string{crawler.String(): {"b.googlebot.com."}},
			addrs: map[string]string{"b.googlebot.com.": crawler.String()},
			dead:  func(addr string) bool { return strings.HasPrefix(addr, "60.") },
		}
		s, _ := lookUps(n, "googlebot")
		random, began, verified := rand.New(rand.NewPCG(1, 2)), time.Now(), false
		for claims := 0; time.Since(began) < 2*time.Minute; claims++ {
			s.Verified(netip.AddrFrom4([4]byte{60, 0, byte(random.IntN(256)), byte(claims)}), google)
			if claims%50 == 0 {
				verified = s.Verified(crawler, google)
			}
			time.Sleep(20 * time.Millisecond)
		}
		asked := n.count()
		check.That(t, verified && asked <= 256+2, "got the crawler verified: %v, and %d questions, want it verified, and one about each network", verified, asked)
	})
}

func TestAFloodOfClaimsForgetsNoCrawler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const name = "crawl.googlebot.com."
		n := &names{ptr: map[string][]string{"192.0.2.1": {name}}, addrs: map[string]string{name: "192.0.2.1"}}
		s, _ := lookUps(n, "googlebot")
		s.Verified(netip.MustParseAddr("192.0.2.1"), google)
		synctest.Wait()
		for i := range mostNetworks + 500 {
			if i%mostNetworks == 0 {
				time.Sleep(networkEvery)
			}
			s.Verified(netip.AddrFrom4([4]byte{60, byte(i >> 8), byte(i), 1}), google)
			synctest.Wait()
		}
		check.That(t, s.Verified(netip.MustParseAddr("192.0.2.1"), google), "a flood of false claims has made a crawler unknown")
	})
}

func TestAListThatUsersFetchersShareNeedsAClaim(t *testing.T) {
	s, _ := lookUps(new(names), "claudebot", "duckduckbot", "gptbot")
	for name, of := range map[string]string{"gptbot": "198.51.100.0/24", "claudebot": "192.0.2.0/24", "duckduckbot": "192.0.2.9/32"} {
		s.lists.know(Find(name).Lists[0], networks(of))
	}
	for _, test := range []struct {
		addr, agent string
		want        bool
	}{
		{"192.0.2.1", "Mozilla/5.0 (compatible; ClaudeBot/1.0; +claudebot@anthropic.com)", true},
		{"192.0.2.1", "Mozilla/5.0 (compatible; Claude-User/1.0; +Claude-User@anthropic.com)", false},
		{"192.0.2.1", "", false},
		{"203.0.113.1", "ClaudeBot/1.0", false},
		{"192.0.2.9", "DuckDuckBot/1.1; (+http://duckduckgo.com/duckduckbot.html)", true},
		{"192.0.2.9", "DuckAssistBot/1.2; (+http://duckduckgo.com/duckassistbot.html)", false},
		{"192.0.2.8", "DuckDuckBot/1.1", false},
		{"198.51.100.1", "", true},
		{"::ffff:198.51.100.1", "", true},
		{"64:ff9b::198.51.100.1", "", true},
	} {
		check.Equal(t, s.Verified(netip.MustParseAddr(test.addr), test.agent), test.want, "%s as %q", test.addr, test.agent)
	}
	check.That(t, !s.Verified(netip.Addr{}, google), "no address is verified")
}

func TestEveryKnownCrawlerCanBeVerified(t *testing.T) {
	lists := 0
	for _, c := range Known {
		lists += len(c.Lists)
		check.That(t, len(c.Lists)+len(c.Domains) != 0 && len(c.Agents) != 0 && c.Name == strings.ToLower(c.Name), "%+v lacks something", c)
		for _, list := range c.Lists {
			check.That(t, strings.HasPrefix(list, "https://"), "%s: %s is no https URL", c.Name, list)
		}
		check.That(t, !slices.ContainsFunc(c.Agents, func(agent string) bool { return strings.Contains(agent, "-user") }), "%s is a fetcher that users trigger", c.Name)
	}
	check.Equal(t, lists, 11, "lists of addresses: of a new one, add a row to list_test.go if its shape is new")
}

// nameServer runs a DNS server, and returns its address.
func nameServer(t testing.TB, answer dns.HandlerFunc) string {
	t.Helper()
	packets := check.Must(net.ListenPacket("udp", "127.0.0.1:0"))(t)
	server := &dns.Server{PacketConn: packets, Handler: answer}
	go server.ActivateAndServe()
	t.Cleanup(func() { server.Shutdown() })
	return packets.LocalAddr().String()
}

func TestHostileAnswersOfARealServerProveNothing(t *testing.T) {
	reply := func(w dns.ResponseWriter, r *dns.Msg, records ...string) {
		answer := new(dns.Msg).SetReply(r)
		for _, text := range records {
			record, err := dns.NewRR(text)
			if err != nil {
				t.Error(err)
				return
			}
			answer.Answer = append(answer.Answer, record)
		}
		w.WriteMsg(answer)
	}
	for _, test := range []struct {
		name   string
		answer dns.HandlerFunc
		want   bool
	}{
		{"a crawler", func(w dns.ResponseWriter, r *dns.Msg) {
			if q := r.Question[0]; q.Qtype == dns.TypePTR {
				reply(w, r, q.Name+" PTR crawl-192-0-2-1.googlebot.com.")
			} else if q.Qtype == dns.TypeA {
				reply(w, r, q.Name+" A 192.0.2.1")
			} else {
				reply(w, r)
			}
		}, true},
		{"a name that is not confirmed", func(w dns.ResponseWriter, r *dns.Msg) {
			if q := r.Question[0]; q.Qtype == dns.TypePTR {
				reply(w, r, q.Name+" PTR crawl-192-0-2-1.googlebot.com.")
			} else {
				reply(w, r, q.Name+" A 66.249.66.1")
			}
		}, false},
		{"hundreds of names", func(w dns.ResponseWriter, r *dns.Msg) {
			q, records := r.Question[0], []string(nil)
			for i := range 300 {
				records = append(records, fmt.Sprintf("%s PTR n%d.googlebot.com.", q.Name, i))
			}
			if q.Qtype == dns.TypePTR {
				reply(w, r, records...)
			} else {
				reply(w, r)
			}
		}, false},
		{"garbage", func(w dns.ResponseWriter, r *dns.Msg) {
			w.Write(append(binary.BigEndian.AppendUint16(nil, r.Id), []byte("\x84\x00\x00\x01\xff\xff\xc0\x0c\xc0\x0c")...))
		}, false},
		{"nothing at all", func(dns.ResponseWriter, *dns.Msg) {}, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), lookupTimeout)
			defer cancel()
			if test.want { // which must not depend on how fast this machine is
				ctx = t.Context()
			}
			got, err := confirm(ctx, claim{addr: netip.MustParseAddr("192.0.2.1"), crawler: Find("googlebot")}, NewResolver(nameServer(t, test.answer)))
			if got != test.want || test.want && err != nil {
				t.Errorf("got %v and %v, want %v", got, err, test.want)
			}
		})
	}
}
