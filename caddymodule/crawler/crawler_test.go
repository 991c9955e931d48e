package crawler_test

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/miekg/dns"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/crawler"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/servertest"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

const amazonAgent = "Mozilla/5.0 (KHTML, like Gecko; compatible; Amazonbot/0.1; +https://developer.amazon.com/support/amazonbot)"

// crawlerNames runs a DNS server that knows the crawler 203.0.113.77 and a liar,
// 198.51.100.77. It counts the questions.
func crawlerNames(t *testing.T) (address string, asked *atomic.Int64) {
	t.Helper()
	packets := check.Must(net.ListenPacket("udp", "127.0.0.1:0"))(t)
	asked = new(atomic.Int64)
	server := &dns.Server{PacketConn: packets, Handler: dns.HandlerFunc(func(w dns.ResponseWriter, r *dns.Msg) {
		asked.Add(1)
		answer := new(dns.Msg).SetReply(r)
		record := map[string]string{
			"77.113.0.203.in-addr.arpa. PTR":         "203-0-113-77.crawl.amazonbot.amazon.",
			"203-0-113-77.crawl.amazonbot.amazon. A": "203.0.113.77",
			"77.100.51.198.in-addr.arpa. PTR":        "203-0-113-77.crawl.amazonbot.amazon.",
		}[r.Question[0].Name+" "+dns.TypeToString[r.Question[0].Qtype]]
		if record != "" {
			if rr, err := dns.NewRR(r.Question[0].Name + " " + dns.TypeToString[r.Question[0].Qtype] + " " + record); err == nil {
				answer.Answer = append(answer.Answer, rr)
			}
		}
		_ = w.WriteMsg(answer)
	})}
	go server.ActivateAndServe()
	t.Cleanup(func() { server.Shutdown() })
	return packets.LocalAddr().String(), asked
}

// asBot sends a request to a server in this process, from an address and as a bot. It has
// a connection of its own, and sends it again if a reload has closed that unread.
func asBot(t *testing.T, site, from, agent string) string {
	t.Helper()
	r, err := http.NewRequest(http.MethodGet, "http://127.0.0.1"+site, nil)
	check.OK(t, err)
	r.Header.Set("X-Forwarded-For", from)
	r.Header.Set("User-Agent", agent)
	r.Close = true
	response, err := http.DefaultClient.Do(r)
	for n := 0; err != nil && n < 3; n++ {
		response, err = http.DefaultClient.Do(r)
	}
	check.OK(t, err)
	defer response.Body.Close()
	return response.Header.Get("X-Crawler") + fmt.Sprint(response.StatusCode)
}

// becomes waits until a request is answered in a way.
func becomes(t *testing.T, want string, ask func() string) {
	t.Helper()
	got := ""
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if got = ask(); got == want {
			return
		}
	}
	t.Fatalf("got %q for 30 seconds, want %q", got, want)
}

const crawlerSite = `{
	servers {
		trusted_proxies static 127.0.0.0/8
	}
	throttle {
		exempt {
			verified_crawler FILE
		}
	}
}
http://ADDRESS {
	@crawler verified_crawler amazonbot FILE {
		resolver RESOLVER
	}
	header @crawler X-Crawler crawler
	throttle {
		zone pages {
			limit 1 1/d
			exempt @crawler
		}
	}
	respond ok
}`

func TestACrawlerIsVerifiedByItsNameAfterItsFirstVisitAndByAListAtOnce(t *testing.T) {
	resolver, asked := crawlerNames(t)
	operator := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "192.0.2.0/28") }))
	defer operator.Close()
	crawler.Lists.Transport = operator.Client().Transport
	defer func() { crawler.Lists.Transport = nil }()
	addr := servertest.FreeAddress(t)
	config := strings.NewReplacer("ADDRESS", addr, "RESOLVER", resolver, "FILE", operator.URL).Replace(crawlerSite)
	servertest.MustLoad(t, config)
	becomes(t, "crawler200", func() string { return asBot(t, addr, "192.0.2.9", "curl/8") })
	for range 3 {
		check.Equal(t, asBot(t, addr, "192.0.2.9", "curl/8"), "crawler200", "from a listed address, want it exempt")
	}
	check.Equal(t, asBot(t, addr, "203.0.113.77", "curl/8"), "200", "before the claim, want it to fill the bucket")
	// The zone asks after header has: it may know by then.
	if got := asBot(t, addr, "203.0.113.77", amazonAgent); strings.HasPrefix(got, "crawler") {
		t.Errorf("the first visit: got %q, want it unverified", got)
	}
	becomes(t, "crawler200", func() string { return asBot(t, addr, "203.0.113.77", amazonAgent) })
	check.Equal(t, asBot(t, addr, "203.0.113.77", "curl/8"), "429", "without a claim, want it refused")
	before := asked.Load()
	for range 3 {
		got := asBot(t, addr, "198.51.100.77", amazonAgent)
		check.That(t, !strings.HasPrefix(got, "crawler"), "from an address with a false name: got %q", got)
		becomes(t, "429", func() string { return asBot(t, addr, "198.51.100.77", amazonAgent) })
	}
	check.Equal(t, asBot(t, addr, "198.51.100.8", "Mozilla/5.0 Firefox/140.0"), "200", "a person")
	becomes(t, "true", func() string { return fmt.Sprint(asked.Load() >= before+2) })

	check.OK(t, servertest.Load(t, strings.Replace(config, "limit 1 ", "limit 2 ", 1))) // a reload forgets nothing
	check.Equal(t, asBot(t, addr, "203.0.113.77", amazonAgent), "crawler200", "after a reload, want it verified")
	check.Equal(t, asBot(t, addr, "192.0.2.9", "curl/8"), "crawler200", "after a reload, from a listed address, want it verified")
}

func TestValidatingAConfigAsksNobodyAboutCrawlers(t *testing.T) {
	resolver, asked := crawlerNames(t)
	operator := servertest.Listen(t, "127.0.0.1:0")
	defer operator.Close()
	var fetched atomic.Int64
	go func() {
		for {
			conn, err := operator.Accept()
			if err != nil {
				return
			}
			fetched.Add(1)
			_ = conn.Close()
		}
	}()
	config := strings.NewReplacer("ADDRESS", servertest.FreeAddress(t), "RESOLVER", resolver, "FILE", "https://"+operator.Addr().String()+"/bots.json").Replace(crawlerSite)
	t.Setenv("XDG_DATA_HOME", t.TempDir())
	var validated caddy.Config
	check.OK(t, json.Unmarshal(servertest.Adapt(t, config), &validated))
	validated.Logging = servertest.NewMemoryLog(t).Logging()
	check.OK(t, caddy.Validate(&validated))
	check.Equal(t, fetched.Load(), 0, "how often a config that was not started fetched the list")
	servertest.MustLoad(t, config)
	becomes(t, "true", func() string { return fmt.Sprint(fetched.Load() > 0) })
	check.Equal(t, fetched.Load(), 1, "how often the config that was started fetched the list")
	check.Equal(t, asked.Load(), 0, "how often DNS was asked without a request")
}
