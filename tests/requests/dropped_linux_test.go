package requests

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/servertest"
	"github.com/caddy-throttle/caddy-throttle/tests/internal/system"
	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"
)

// The addresses of a network of its own: of Caddy, an attacker, a visitor, a CDN that is
// missing in trusted_proxies, and a banned client.
const (
	serverAddress  = "203.0.113.1"
	attacker       = "203.0.113.7"
	harmless       = "203.0.113.8"
	forgottenCDN   = "203.0.113.9"
	bannedClient   = "203.0.113.10"
	attackerOfIPv6 = "2001:db8::7"
)

// dropServers are the options of a server that drops clients that are out.
const dropServers = `listener_wrappers {
			throttle_blocked
			tls
		}
		packet_conn_wrappers {
			throttle_blocked
		}`

const dropSites = `
https://localhost:%d {
	bind %s
	tls internal
	throttle /login {
		zone gate {
			limit 1 1/d
			block 1h everywhere
		}
	}
	throttle /other other 100000 1000/s
	respond %q
}`

// newQUICVisitorFrom returns a visitor that speaks HTTP/3 from an address. Each has a
// connection of its own.
func newQUICVisitorFrom(t *testing.T, address string, patience time.Duration) *system.Visitor {
	t.Helper()
	conn := check.Must(net.ListenUDP("udp", &net.UDPAddr{IP: net.ParseIP(address)}))(t)
	socket := &quic.Transport{Conn: conn}
	transport := &http3.Transport{
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true, ServerName: "localhost"}, // the certificates are caddy's own
		Dial: func(ctx context.Context, target string, tlsConfig *tls.Config, config *quic.Config) (*quic.Conn, error) {
			addr, err := net.ResolveUDPAddr("udp", target)
			if err != nil {
				return nil, err
			}
			return socket.Dial(ctx, addr, tlsConfig, config)
		},
	}
	t.Cleanup(func() { transport.Close(); socket.Close(); conn.Close() })
	return &system.Visitor{Client: &http.Client{Transport: transport, Timeout: patience}, Protocol: "h3", Address: address}
}

// A dropTest is a Caddy that drops clients that are out.
type dropTest struct {
	*testing.T
	*system.Caddy
	port int
}

// visitor returns a client from an address, with a connection of its own.
func (d *dropTest) visitor(address, protocol string, patience time.Duration) *system.Visitor {
	d.Helper()
	if protocol == "h3" {
		return newQUICVisitorFrom(d.T, address, patience)
	}
	v := system.NewVisitorFrom(d.T, protocol, address)
	v.Transport.(*http.Transport).TLSClientConfig.ServerName = "localhost"
	v.Timeout = patience
	return v
}

// over sends a request of a visitor to the site.
func (d *dropTest) over(v *system.Visitor, path string, headers ...string) (system.Answer, error) {
	d.Helper()
	req, err := http.NewRequest(http.MethodGet, d.url(v.Address, path), nil)
	check.OK(d.T, err)
	req.Host = "localhost"
	for i := 0; i < len(headers); i += 2 {
		req.Header.Add(headers[i], headers[i+1])
	}
	return v.Fetch(req)
}

// ask sends a request over a new connection.
func (d *dropTest) ask(address, protocol, path string, headers ...string) (system.Answer, error) {
	d.Helper()
	v := d.visitor(address, protocol, system.StartTime)
	defer v.CloseIdleConnections()
	return d.over(v, path, headers...)
}

func (d *dropTest) url(from, path string) string {
	host := serverAddress
	if strings.Contains(from, ":") {
		host = "2001:db8::1"
	}
	return "https://" + net.JoinHostPort(host, strconv.Itoa(d.port)) + path
}

// wants checks the status of a request over a new connection.
func (d *dropTest) wants(status int, address, protocol, path string, headers ...string) system.Answer {
	d.Helper()
	a, err := d.ask(address, protocol, path, headers...)
	check.Assume(d.T, err == nil, "%s from %s over %s: got %v, want %d", path, address, protocol, err, status)
	check.Need(d.T, a.Status, status, "%s from %s over %s", path, address, protocol)
	return a
}

// wantsClosed checks that Caddy closes a TCP connection before the client has sent
// anything, and so before TLS.
func (d *dropTest) wantsClosed(address string) {
	d.Helper()
	dropped := func() float64 { return d.Metric(d.T, "caddy_throttle_dropped_connections_total", `transport="tcp"`) }
	before := dropped()
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(address)}, Timeout: system.StartTime}
	closed := func() {
		conn, err := dialer.Dial("tcp", strings.TrimPrefix(d.url(address, ""), "https://"))
		if err != nil {
			return
		}
		defer conn.Close()
		check.OK(d.T, conn.SetReadDeadline(time.Now().Add(system.StartTime)))
		_, err = conn.Read(make([]byte, 1))
		if late, ok := err.(net.Error); err == nil || ok && late.Timeout() {
			d.Fatalf("from %s: got an open connection, want it closed before TLS", address)
		}
	}
	system.Eventually(d.T, "a connection counted as dropped", func() bool { // a reload may lose one uncounted
		closed()
		return dropped() > before
	})
}

// wantsSilence checks that Caddy drops the packets that open a QUIC connection.
func (d *dropTest) wantsSilence(address string) {
	d.Helper()
	dropped := func() float64 { return d.Metric(d.T, "caddy_throttle_dropped_connections_total", `transport="quic"`) }
	before := dropped()
	system.Eventually(d.T, "a packet counted as dropped", func() bool {
		a, err := d.over(d.visitor(address, "h3", 1500*time.Millisecond), "/other")
		check.Assume(d.T, err != nil, "from %s: got %d over QUIC, want silence", address, a.Status)
		return dropped() > before
	})
}

func TestClientsThatAreOutAreDroppedBeforeTLSAndQUIC(t *testing.T) {
	t.Parallel()
	if !inNamespace(t, serverAddress, attacker, harmless, forgottenCDN, bannedClient, "2001:db8::1/64", attackerOfIPv6+"/64") {
		return
	}
	d := &dropTest{T: t, port: servertest.FreePort(t)}
	setup := func(says string) system.Config {
		return system.Config{Protocols: "h1 h2 h3", Servers: dropServers, Sites: fmt.Sprintf(dropSites, d.port, serverAddress+" [2001:db8::1]", says)}
	}
	d.Caddy = system.StartCaddy(t, setup("one"))
	system.Eventually(t, "a certificate", func() bool {
		_, err := d.ask(harmless, "h1", "/ready")
		return err == nil
	})

	// The CDN is blocked by address like anybody else, and answered nevertheless.
	for _, protocol := range []string{"h1", "h2", "h3"} {
		for range 3 {
			if a, err := d.ask(forgottenCDN, protocol, "/login", "X-Forwarded-For", "192.0.2.1"); err != nil || a.Status != 200 && a.Status != 429 {
				t.Fatalf("the CDN over %s: got %d, %v, want an answer", protocol, a.Status, err)
			}
			d.wants(429, forgottenCDN, protocol, "/login")
		}
	}

	for _, address := range []string{attacker, attackerOfIPv6} {
		old := d.visitor(address, "h1", system.StartTime)
		if a, err := d.over(old, "/login"); err != nil || a.Status != 200 {
			t.Fatalf("from %s: got %d, %v, want 200", address, a.Status, err)
		}
		d.wants(429, address, "h2", "/login")
		d.wantsClosed(address)
		d.wantsSilence(address)
		// A connection from before is answered, and then closed.
		a, err := d.over(old, "/other")
		check.That(t, err == nil && a.Status == 429 && old.Dials.Load() == 1, "over the old connection: got %d, %v after %d dials, want 429", a.Status, err, old.Dials.Load())
		a, err = d.over(old, "/other")
		check.That(t, err != nil, "after that: got %d, want the new connection closed", a.Status)
	}
	d.wants(200, harmless, "h1", "/other")
	d.wants(200, harmless, "h3", "/other")
	d.wants(429, forgottenCDN, "h3", "/login")

	// A reload makes a new handler, and keeps the socket of HTTP/3 with its old wrapper.
	d.Reload(setup("two"))
	system.Eventually(t, "the answer of the new config", func() bool {
		a, err := d.ask(attacker, "h3", "/other")
		return err == nil && a.Status == 429
	})
	d.wantsClosed(attacker)
	d.wantsSilence(attacker)
	check.Equal(t, d.wants(200, harmless, "h3", "/").Body, "two", "want the answer of the new config")

	// The night's commands.
	d.Throttle("shadow", "--all", "--for", "1h")
	d.wants(200, attacker, "h1", "/login")
	d.wants(200, attacker, "h3", "/login")
	d.Throttle("unshadow", "--all")
	d.wantsClosed(attacker)
	d.Throttle("release", attacker)
	d.wants(200, attacker, "h3", "/other")
	d.wants(200, attacker, "h1", "/login")

	d.wants(200, bannedClient, "h1", "/other")
	d.Throttle("ban", bannedClient, "--for", "1h")
	d.wants(429, bannedClient, "h3", "/other")
	d.wantsClosed(bannedClient)
	d.wantsSilence(bannedClient)
	d.Throttle("unban", bannedClient)
	d.wants(200, bannedClient, "h1", "/other")
	d.wants(200, bannedClient, "h3", "/other")
}

// inNamespace reports whether the test runs in a network of its own, where addresses of the
// Internet can be had. If not, it runs the test once more there, in a process of its own,
// which may need to be root. Then it returns false, and the caller must return.
func inNamespace(t *testing.T, addresses ...string) bool {
	t.Helper()
	const inside = "THROTTLE_TESTS_NAMESPACE"
	ip, err := exec.LookPath("ip")
	if err != nil {
		t.Skip("SKIPPED: there is no command ip, of the package iproute2")
	}
	if os.Getenv(inside) == "1" {
		commands := [][]string{{"link", "set", "lo", "up"}}
		for _, address := range addresses {
			commands = append(commands, []string{"addr", "add", address, "dev", "lo"})
		}
		for _, command := range commands {
			out, err := exec.Command(ip, command...).CombinedOutput()
			check.Assume(t, err == nil, "ip %q: %v\n%s", command, err, out)
		}
		return true
	}
	cmd := exec.Command(os.Args[0], "-test.run", "^"+t.Name()+"$", "-test.v", "-test.timeout", "10m")
	cmd.Env = append(os.Environ(), inside+"=1", system.BuiltBinary+"="+system.CaddyBinary)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGTERM}
	if os.Geteuid() != 0 {
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}}
	}
	out, err := cmd.CombinedOutput()
	var ended *exec.ExitError
	switch {
	case err != nil && !errors.As(err, &ended):
		t.Skipf("SKIPPED: the system gives no network namespace: %v", err)
	case err != nil:
		t.Errorf("got %v in the namespace, want it to pass\n%s", err, out)
	case !strings.Contains(string(out), "--- PASS: "+t.Name()):
		t.Errorf("got no pass in the namespace, want one\n%s", out)
	default:
		t.Logf("in the namespace:\n%s", out)
	}
	return false
}
