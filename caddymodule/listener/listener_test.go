package listener_test

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddyserver/caddy/v2/caddyconfig"
	dto "github.com/prometheus/client_model/go"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/engine"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/servertest"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/listener"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

// dropSite is a Caddyfile whose listeners drop clients. GATE stands for options of the zone
// that blocks everywhere, GLOBAL for global options of throttle.
const dropSite = `{
	servers {
		listener_wrappers {
			throttle_blocked
			tls
		}
		packet_conn_wrappers {
			throttle_blocked
		}
		trusted_proxies static 198.51.100.0/24
		client_ip_headers X-Forwarded-For X-Shop-Client
	}
	throttle {
		GLOBAL
	}
}
http:// {
	throttle /login {
		zone gate {
			limit 1 1/d
			block 3h everywhere
			GATE
		}
	}
	throttle /other other 1000 1/s
	respond ok
}`

// newDropSite runs the site in a process whose listeners have dropped nobody yet.
func newDropSite(t *testing.T, gate string, global ...string) *servertest.Site {
	t.Helper()
	listener.Forget()
	return servertest.Start(t, servertest.Run(t, strings.NewReplacer("GATE", gate, "GLOBAL", strings.Join(global, "\n")).Replace(dropSite)))
}

// wantDropped checks whether connections from addresses are dropped.
func wantDropped(t *testing.T, want bool, addresses ...string) {
	t.Helper()
	for _, text := range addresses {
		addr := netip.MustParseAddr(text)
		tcp, udp := listener.Drops(net.TCPAddrFromAddrPort(netip.AddrPortFrom(addr, 1))), listener.Drops(net.UDPAddrFromAddrPort(netip.AddrPortFrom(addr, 1)))
		check.That(t, tcp == want && udp == want, "%s: got dropped by TCP: %v, by QUIC: %v, want %v", text, tcp, udp, want)
	}
}

// blocked has a client blocked by the gate.
func blockFor(c servertest.Client) servertest.Client {
	c.Helper()
	c.Passes(1, "/login")
	return c
}

func TestAClientThatIsOutIsDroppedOnceTheHandlerHasRefusedIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newDropSite(t, "")
		c := s.From(servertest.Someone)
		c.Answers("/login", http.StatusOK)
		wantDropped(t, false, "203.0.113.7")
		c.Answers("/login", http.StatusTooManyRequests) // begins the block
		wantDropped(t, true, "203.0.113.7", "::ffff:203.0.113.7", "64:ff9b::203.0.113.7")
		wantDropped(t, false, "203.0.113.8", "2001:db8::7")

		servertest.Sleep(time.Minute - time.Second)
		wantDropped(t, true, "203.0.113.7")
		servertest.Sleep(time.Second) // the block goes on
		wantDropped(t, false, "203.0.113.7")
		c.Answers("/other", http.StatusTooManyRequests)
		wantDropped(t, true, "203.0.113.7")
		servertest.Sleep(3*time.Hour - time.Minute - time.Second)
		c.Answers("/other", http.StatusTooManyRequests)
		wantDropped(t, true, "203.0.113.7")
		servertest.Sleep(time.Second) // now it is over
		wantDropped(t, false, "203.0.113.7")
		c.Answers("/other", http.StatusOK)
	})
}

func TestABannedClientIsDroppedOnceTheHandlerHasRefusedIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newDropSite(t, "")
		s.Changes("/throttle/ban", `{"network": "203.0.113.0/24", "for": "30m"}`)
		wantDropped(t, false, "203.0.113.7")
		s.From(servertest.Someone).Answers("/other", http.StatusTooManyRequests)
		wantDropped(t, true, "203.0.113.7")
		ban := s.Engine().Overrides().Banned(netip.MustParseAddr("203.0.113.7"), time.Now())
		check.Equal(t, ban.Hits.Load(), 3, "a request and two connections that the ban has refused: hits")
		wantDropped(t, false, "203.0.113.8") // was not seen yet
		servertest.Sleep(30 * time.Minute)
		wantDropped(t, false, "203.0.113.7")
	})
}

func TestWhatEndsABlockOrABanEndsTheDroppingAtOnce(t *testing.T) {
	const ban = `{"network": "203.0.113.0/24", "for": "1h"}`
	for _, test := range []struct {
		banned                            bool // or blocked
		name, end, body, again, againBody string
	}{
		{false, "release", "release", `{"client": "203.0.113.7"}`, "", ""},
		{false, "the panic switch", "shadow", `{"for": "1h"}`, "unshadow", `{}`},
		{false, "the zone in shadow", "shadow", `{"zone": "gate", "for": "1h"}`, "unshadow", `{"zone": "gate"}`},
		{false, "a limit of the key", "limit", `{"zone": "gate", "key": "203.0.113.7", "limit": "unlimited", "for": "1h"}`, "unlimit", `{"zone": "gate", "key": "203.0.113.7"}`},
		{false, "a limit of the zone", "limit", `{"zone": "gate", "limit": "unlimited", "for": "1h"}`, "unlimit", `{"zone": "gate"}`},
		{false, "a limit that limits", "", "", "limit", `{"zone": "gate", "limit": "x0.5", "for": "1h"}`},
		{true, "a ban and unban", "unban", `{"network": "203.0.113.0/24"}`, "ban", ban},
		{true, "a ban and the panic switch", "shadow", `{"for": "1h"}`, "unshadow", `{}`},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := newDropSite(t, "")
			if test.banned {
				s.Changes("/throttle/ban", ban)
				s.From(servertest.Someone).Answers("/other", http.StatusTooManyRequests)
			} else {
				blockFor(s.From(servertest.Someone))
			}
			wantDropped(t, true, "203.0.113.7")
			if test.end != "" {
				s.Changes("/throttle/"+test.end, test.body)
				wantDropped(t, false, "203.0.113.7")
			}
			if test.again != "" {
				s.Changes("/throttle/"+test.again, test.againBody)
				wantDropped(t, true, "203.0.113.7")
			}
		})
	}
}

func TestNobodyIsDroppedWhoMayBeAProxy(t *testing.T) {
	headers := append([]string{"X-Shop-Client"}, engine.ForwardingHeaders...)
	for _, header := range headers {
		s := newDropSite(t, "")
		blockFor(s.From(servertest.Someone).With(header, "192.0.2.1")) // trusted_proxies was forgotten
		wantDropped(t, false, "203.0.113.7")
		s.From(servertest.Someone).Answers("/login", http.StatusTooManyRequests) // a request of its own
		wantDropped(t, false, "203.0.113.7")
		s.Stop()

		s = newDropSite(t, "")
		blockFor(s.From(servertest.Someone))
		wantDropped(t, true, "203.0.113.7")
		s.Engine().Proxies.Requests.Store(engine.WatchedRequests) // warnings alone may miss some
		s.From(servertest.Someone).With(header, "192.0.2.1").Answers("/other", http.StatusTooManyRequests)
		wantDropped(t, false, "203.0.113.7")
		s.Stop()
	}
}

func TestNobodyIsDroppedBehindATrustedProxyAndNoTrustedProxy(t *testing.T) {
	s := newDropSite(t, "")
	blockFor(s.From("198.51.100.1:1").With("X-Forwarded-For", "203.0.113.7"))
	wantDropped(t, false, "203.0.113.7", "198.51.100.1")
	blockFor(s.From("198.51.100.2:1")) // which asks for itself
	wantDropped(t, false, "198.51.100.2")
	s.From(servertest.Someone).Answers("/other", http.StatusTooManyRequests) // directly
	wantDropped(t, true, "203.0.113.7")
}

func TestExemptClientsAreNeverDropped(t *testing.T) {
	ban := `{"network": "203.0.113.0/24", "for": "1h"}`
	s := newDropSite(t, "exempt client_ip 203.0.113.7", "exempt client_ip 203.0.113.8")
	s.Changes("/throttle/ban", ban)
	s.From("203.0.113.8:1").Answers("/login", http.StatusOK)
	s.From(servertest.Someone).Answers("/login", http.StatusOK)
	s.From(servertest.Someone).Answers("/other", http.StatusTooManyRequests) // there, only gate exempts it
	s.From("203.0.113.9:1").Answers("/login", http.StatusTooManyRequests)
	wantDropped(t, false, "203.0.113.7", "203.0.113.8")
	wantDropped(t, true, "203.0.113.9")
}

func TestANeighbourInTheSameNetworkMayBeExempt(t *testing.T) {
	const exempt = "exempt client_ip 2001:db8::5"
	for _, test := range []struct{ gate, global string }{{"", ""}, {"", exempt}, {exempt, ""}} {
		s := newDropSite(t, test.gate, test.global)
		blockFor(s.From("[2001:db8::6]:1"))
		wantDropped(t, true, "2001:db8::6")
		wantDropped(t, test.gate == test.global, "2001:db8::5")
		wantDropped(t, false, "2001:db8:0:1::6")
		s.Stop()
	}
}

func TestOnlyBlocksThatNameOneClientDrop(t *testing.T) {
	for _, test := range []struct{ gate, addr, neighbour string }{ // who is not dropped; "" if nobody is
		{"key client_ip ipv4 24", "203.0.113.7", ""},
		{"key client_ip ipv6 56", "2001:db8::7", ""},
		{"key client_ip ipv6 48", "2001:db8::7", ""},
		{"key client_ip unlisted share\noverride 192.0.2.1 5 1/s", "203.0.113.7", ""},
		{"key client_ip ipv6 56", "203.0.113.7", "203.0.113.8"},
		{"key client_ip ipv4 24", "2001:db8::7", "2001:db8:0:1::7"},
		{"key client_ip ipv6 128", "2001:db8::7", "2001:db8::8"},
	} {
		s := newDropSite(t, test.gate)
		blockFor(s.From(net.JoinHostPort(test.addr, "1")))
		wantDropped(t, test.neighbour != "", test.addr)
		if test.neighbour != "" {
			wantDropped(t, false, test.neighbour)
		}
		s.Stop()
	}
}

func TestShadowAndBlocksOfOneZoneDropNobody(t *testing.T) {
	s := newDropSite(t, "shadow")
	s.From(servertest.Someone).WantStatuses("/login", map[int]int{http.StatusOK: 3})
	wantDropped(t, false, "203.0.113.7")
	s.Stop()

	listener.Forget()
	s = servertest.Start(t, servertest.Run(t, strings.NewReplacer("GATE", "", "GLOBAL", "", " everywhere", "").Replace(dropSite)))
	blockFor(s.From(servertest.Someone))
	wantDropped(t, false, "203.0.113.7")
	s.Stop()

	s = newDropSite(t, "", "shadow") // a directive in shadow only counts bans
	s.Changes("/throttle/ban", `{"network": "203.0.113.0/24", "for": "1h"}`)
	s.From(servertest.Someone).Answers("/other", http.StatusOK)
	wantDropped(t, false, "203.0.113.7")
}

func TestNothingIsLearntFromEarlyData(t *testing.T) {
	s := newDropSite(t, "")
	s.Changes("/throttle/ban", `{"network": "203.0.113.0/24", "for": "1h"}`)
	r := servertest.Request(servertest.Someone, "https://example.com/other")
	r.TLS = &tls.ConnectionState{}
	w := s.Do(r)
	check.Assume(t, w.Code >= 400, "got %d, want it refused", w.Code)
	wantDropped(t, false, "203.0.113.7")
	r = servertest.Request(servertest.Someone, "https://example.com/other")
	r.TLS = &tls.ConnectionState{HandshakeComplete: true}
	s.Do(r)
	wantDropped(t, true, "203.0.113.7")
}

func TestWithoutTheWrapperNobodyIsLearnt(t *testing.T) {
	listener.Forget()
	s := servertest.Start(t, servertest.Run(t, "http:// {\nthrottle /login {\nzone gate {\nlimit 1 1/d\nblock 3h everywhere\n}\n}\nrespond ok\n}"))
	blockFor(s.From(servertest.Someone))
	check.That(t, !listener.Some(), "got somebody on the list, want nobody")
	wantDropped(t, false, "203.0.113.7")
}

func TestAReloadAsksTheHandlerOnceMore(t *testing.T) {
	before := newDropSite(t, "")
	blockFor(before.From(servertest.Someone))
	blockFor(before.From("203.0.113.8:1"))
	wantDropped(t, true, "203.0.113.7", "203.0.113.8")
	after := servertest.Start(t, servertest.Run(t, strings.NewReplacer("GATE", "", "GLOBAL", "exempt client_ip 203.0.113.8").Replace(dropSite)))
	check.OK(t, before.Module().Stop())
	before.From(servertest.Someone).Answers("/login", http.StatusTooManyRequests) // still in flight
	wantDropped(t, false, "203.0.113.7", "203.0.113.8")
	after.From(servertest.Someone).Answers("/login", http.StatusTooManyRequests) // the block survives
	after.From("203.0.113.8:1").Answers("/login", http.StatusOK)
	wantDropped(t, true, "203.0.113.7")
	wantDropped(t, false, "203.0.113.8")
	check.OK(t, after.Module().Stop())
	wantDropped(t, false, "203.0.113.7")
}

func TestAReleaseByAnotherCaddyIsNoticedWithinAMinute(t *testing.T) {
	const wrapper = "servers {\nlistener_wrappers {\nthrottle_blocked\ntls\n}\n}"
	synctest.Test(t, func(t *testing.T) {
		listener.Forget()
		s := servertest.RunSharedWith(t, wrapper, "", "zone gate {\nlimit 1 1/d\nblock 3h everywhere\n}")
		blockFor(s.From(servertest.Someone))
		servertest.TheShared.Down.Store(true)
		wantDropped(t, true, "203.0.113.7") // an outage ends no block
		servertest.TheShared.Down.Store(false)
		check.OK(t, servertest.TheShared.Reset(t.Context(), "gate", "203.0.113.7", false))
		servertest.Sleep(time.Minute)
		wantDropped(t, false, "203.0.113.7")
		s.From(servertest.Someone).Answers("/", http.StatusOK)
	})
}

func TestTheRefusalOfADroppedClientEndsItsConnection(t *testing.T) {
	s := newDropSite(t, "")
	for _, test := range []struct {
		addr, header, proto string
		major               int
		want                string
	}{
		{"203.0.113.7:1", "X-Some", "HTTP/1.1", 1, "close"},
		{"203.0.113.8:1", "X-Some", "HTTP/2.0", 2, "close"},
		{"203.0.113.9:1", "X-Some", "HTTP/3.0", 3, ""},
		{"203.0.113.10:1", "Via", "HTTP/1.1", 1, ""},
		{"10.0.0.1:1", "X-Some", "HTTP/1.1", 1, ""},
	} {
		for i := range 3 {
			r := servertest.Request(test.addr, "http://example.com/login", test.header, "x")
			r.Proto, r.ProtoMajor = test.proto, test.major
			want := test.want
			if i == 0 {
				want = "" // it passes
			}
			check.Equal(t, s.Do(r).Header().Get("Connection"), want, "%s from %s, request %d: Connection", test.proto, test.addr, i+1)
		}
	}
}

// A farConn is a connection that claims to come from an address. That takes time, as with
// the PROXY protocol.
type farConn struct {
	net.Conn
	from string
	told chan struct{}
}

func (c farConn) RemoteAddr() net.Addr {
	<-c.told
	return net.TCPAddrFromAddrPort(netip.MustParseAddrPort(c.from))
}

// droppedSoFar returns how many TCP connections were dropped.
func droppedSoFar(t *testing.T) float64 {
	t.Helper()
	var m dto.Metric
	check.OK(t, listener.DroppedTCP.Write(&m))
	return m.GetCounter().GetValue()
}

func TestAConnectionWhoseAddressIsLateHoldsUpNoOther(t *testing.T) {
	s := newDropSite(t, "")
	blockFor(s.From(servertest.Someone))
	before := droppedSoFar(t)
	conns := make(servertest.Conns, 2)
	l := new(listener.DropConnections).WrapListener(conns)
	told := make(chan struct{})
	near1, far1 := net.Pipe()
	near2, far2 := net.Pipe()
	conns <- farConn{near1, servertest.Someone, told}
	conns <- farConn{near2, "203.0.113.8:1", told}
	close(conns)
	first, err1 := l.Accept()
	second, err2 := l.Accept()
	_, err := l.Accept()
	check.Assume(t, err1 == nil && err2 == nil && errors.Is(err, net.ErrClosed), "got the errors %v, %v, %v, want two connections and the end", err1, err2, err)
	close(told)
	n, err := first.Read(make([]byte, 1))
	check.That(t, n == 0 && err == io.EOF, "got %d, %v from the connection of a dropped client, want its end", n, err)
	_, err = far1.Write([]byte("x"))
	check.That(t, err != nil, "got the connection of a dropped client open, want it closed")
	go func() { _, _ = far2.Write([]byte("x")) }()
	n, err = second.Read(make([]byte, 1))
	check.That(t, n == 1 && err == nil, "got %d, %v from another connection, want what it sent", n, err)
	check.Equal(t, droppedSoFar(t)-before, 1, "connections counted")
}

func TestAfterTLSConnectionsAreDroppedOrTheOrderIsWarnedOf(t *testing.T) {
	s := newDropSite(t, "")
	blockFor(s.From(servertest.Someone))
	core, logs := observer.New(zap.WarnLevel)
	conns := make(servertest.Conns, 3)
	l := listener.NewDropConnections(zap.New(core)).WrapListener(conns)
	near, _ := net.Pipe()
	for range 2 {
		conns <- tls.Server(farConn{near, servertest.Someone, nil}, new(tls.Config))
		conn, err := l.Accept()
		check.Assume(t, err == nil && conn != nil, "got %v, %v, want the connection of an address that is not known yet", conn, err)
	}
	got := logs.Len()
	check.That(t, got == 1 && strings.Contains(logs.All()[0].Message, "put it before tls"), "got %v, want one warning of the order", logs.All())
	near1, near2 := dialled(t)
	conns <- tls.Server(near2, new(tls.Config)) // which is local, and so passes
	conn, err := l.Accept()
	check.That(t, err == nil && conn != nil && logs.Len() == 1, "got %v, %v and %d warnings, want the connection", conn, err, logs.Len())
	near1.Close()
}

// dialled returns both ends of a TCP connection.
func dialled(t *testing.T) (client, server net.Conn) {
	t.Helper()
	l := servertest.Listen(t, "127.0.0.1:0")
	defer l.Close()
	client, err := net.Dial("tcp", l.Addr().String())
	check.OK(t, err)
	if server, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close(); server.Close() })
	return client, server
}

// A packetQueue is a socket with packets that claim to come from addresses.
type packetQueue struct {
	net.PacketConn
	packets []queued
}

type queued struct{ from, data string }

func (q *packetQueue) ReadFrom(p []byte) (int, net.Addr, error) {
	if len(q.packets) == 0 {
		return 0, nil, net.ErrClosed
	}
	next := q.packets[0]
	q.packets = q.packets[1:]
	return copy(p, next.data), net.UDPAddrFromAddrPort(netip.MustParseAddrPort(next.from)), nil
}

func TestOnlyTheFirstPacketsOfDroppedClientsAreDropped(t *testing.T) {
	s := newDropSite(t, "")
	blockFor(s.From(servertest.Someone))
	const initial, handshake, short = "\xc3\x00\x00\x00\x01initial", "\xe3\x00\x00\x00\x01handshake", "\x43short"
	want := []queued{{"203.0.113.8:1", initial}, {servertest.Someone, handshake}, {servertest.Someone, short}}
	conn := new(listener.DropPackets).WrapPacketConn(&packetQueue{packets: append([]queued{{servertest.Someone, initial}, {servertest.Someone, initial}}, want...)})
	for _, want := range want {
		p := make([]byte, 100)
		if n, from, err := conn.ReadFrom(p); err != nil || string(p[:n]) != want.data || from.String() != want.from {
			t.Errorf("got %q from %v, %v, want %q from %s", p[:n], from, err, want.data, want.from)
		}
	}
	_, _, err := conn.ReadFrom(nil)
	check.That(t, errors.Is(err, net.ErrClosed), "got %v, want the end", err)
}

// A countingConn is another plugin's packet-conn wrapper.
type countingConn struct {
	net.PacketConn
	read int
}

func (c *countingConn) Unwrap() net.PacketConn { return c.PacketConn }

func (c *countingConn) ReadFrom(p []byte) (int, net.Addr, error) {
	c.read++
	return c.PacketConn.ReadFrom(p)
}

func TestOtherPacketConnWrappersAreNotBypassed(t *testing.T) {
	udp := check.Must(net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)}))(t)
	defer udp.Close()
	other := &countingConn{PacketConn: udp}
	conn := new(listener.DropPackets).WrapPacketConn(other)
	check.Must(udp.WriteTo([]byte("a"), udp.LocalAddr()))(t)
	n, _, err := conn.ReadFrom(make([]byte, 10))
	check.That(t, n == 1 && err == nil && other.read == 1, "got %d bytes, %v and %d reads of the wrapper before, want 1 byte by one read", n, err, other.read)
}

func TestAWrapperTakesNoWord(t *testing.T) {
	for _, kind := range []string{"listener_wrappers", "packet_conn_wrappers"} {
		text := "{\nservers {\n" + kind + " {\nthrottle_blocked gate\n}\n}\n}\nhttp:// {\nrespond ok\n}\n"
		_, _, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte(text), map[string]any{"filename": "Caddyfile"})
		check.That(t, err != nil && strings.Contains(err.Error(), `unexpected "gate" after throttle_blocked: a wrapper takes no word and no block`), "%s: got %v", kind, err)
	}
}
