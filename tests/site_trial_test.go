package tests

import (
	"bufio"
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"maps"
	"math/big"
	"net"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// A trial is an application behind the Caddyfile that its recipe shows, over HTTPS.
// Visitors have the addresses that X-Forwarded-For gives them, as behind a proxy on
// this machine.
type trial struct {
	*caddy
	host   string // and port
	url    string
	client *http.Client
}

var fence = regexp.MustCompile("(?ms)^```caddyfile\n(.*?)^```$")

// siteAddress is what the site of a recipe begins with.
var siteAddress = regexp.MustCompile(`(?m)^(shop\.)?example\.com {`)

// startTrial runs the first Caddyfile of a page in docs/recipes. Changes are pairs of
// a text in it and of what replaces it there, such as the root.
func startTrial(t *testing.T, recipe string, changes ...string) *trial {
	t.Helper()
	page, err := os.ReadFile("../docs/recipes/" + recipe)
	if err != nil {
		t.Fatal(err)
	}
	block := fence.FindSubmatch(page)
	if block == nil {
		t.Fatalf("got no Caddyfile in %s, want one", recipe)
	}
	return runTrial(t, recipe, string(block[1]), changes...)
}

// configsUnder returns the Caddyfiles under a heading of a page in docs, which has so many.
func configsUnder(t *testing.T, page, heading string, n int) []string {
	t.Helper()
	text, err := os.ReadFile("../docs/" + page)
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(text), "\n"+heading+"\n")
	level, _, _ := strings.Cut(heading, " ")
	section, _, _ = strings.Cut(section, "\n"+level+" ")
	var configs []string
	for _, block := range fence.FindAllStringSubmatch(section, -1) {
		configs = append(configs, block[1])
	}
	if len(configs) != n {
		t.Fatalf("got %d Caddyfiles under %q in %s, want %d", len(configs), heading, page, n)
	}
	return configs
}

// runTrial runs a Caddyfile of a page, with changes.
func runTrial(t *testing.T, page, file string, changes ...string) *trial {
	t.Helper()
	host := fmt.Sprintf("localhost:%d", freePort(t))
	admin := fmt.Sprintf("127.0.0.1:%d", freePort(t))
	const own = "site.of.the.trial" // for host, which a change might find in its place
	site := siteAddress.FindString(file)
	for i, changes := 0, append([]string{
		"{\n", `{
	admin ` + admin + `
	persist_config off
	auto_https off
	grace_period 2s
	default_bind 127.0.0.1
	servers {
		trusted_proxies static 127.0.0.1/32
		trusted_proxies_strict
		protocols h1 h2
	}
`,
		site, "https://" + own + " {\n\ttls " + writeCertificate(t),
	}, changes...); i < len(changes); i += 2 {
		if !strings.Contains(file, changes[i]) {
			t.Fatalf("got no %q in the Caddyfile of %s, want one to change", changes[i], page)
		}
		file = strings.Replace(file, changes[i], changes[i+1], 1)
	}
	name := writeFile(t, "Caddyfile", strings.ReplaceAll(file, own, host))
	transport := &http.Transport{
		TLSClientConfig:     &tls.Config{InsecureSkipVerify: true}, // the certificate is the test's own
		DisableCompression:  true,
		MaxIdleConnsPerHost: 100,
	}
	running := startCaddyIn(t, admin, t.TempDir(), name)
	t.Cleanup(transport.CloseIdleConnections) // before Caddy stops, which would wait for unused ones
	return &trial{
		caddy: running,
		host:  host,
		url:   "https://" + host,
		client: &http.Client{
			Transport:     transport,
			Timeout:       2 * time.Minute,
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}
}

// shutDown stops Caddy before the test ends, so that all requests are in the log.
func (s *trial) shutDown() error {
	s.client.CloseIdleConnections()
	return s.caddy.shutDown()
}

// writeCertificate writes a certificate for localhost, and returns the files of it and
// of its key. Caddy's own authority may need seconds for one.
func writeCertificate(t *testing.T) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1),
		DNSNames:     []string{"localhost"},
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().Add(24 * time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return writeFile(t, "localhost.crt", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))) + " " +
		writeFile(t, "localhost.key", string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret})))
}

// A request is one that a script sends.
type request struct {
	address string   // of the visitor
	method  string   // GET if not given
	target  string   // path and query
	header  []string // name, value, name, value
	body    string
}

// do sends a request. Its error is one of the connection.
func (s *trial) do(c request) (answer, error) {
	req, err := http.NewRequest(c.method, s.url+c.target, strings.NewReader(c.body))
	if err != nil {
		return answer{}, err
	}
	req.Header.Set("X-Forwarded-For", c.address)
	for i := 0; i < len(c.header); i += 2 {
		req.Header.Add(c.header[i], c.header[i+1])
	}
	if c.body != "" && req.Header.Get("Content-Type") == "" {
		req.Header.Set("Content-Type", urlencoded)
	}
	resp, err := s.client.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return answer{resp.StatusCode, resp.Header, string(text)}, err
}

// must is do in a test's own goroutine.
func (s *trial) must(c request) answer {
	s.t.Helper()
	a, err := s.do(c)
	if err != nil {
		s.t.Fatalf("%s %s: %v", c.method, c.target, err)
	}
	return a
}

// raw sends bytes over a connection of their own, and returns the answer.
func (s *trial) raw(request string) answer {
	s.t.Helper()
	conn, err := tls.DialWithDialer(&net.Dialer{Timeout: startTime}, "tcp", s.host,
		&tls.Config{InsecureSkipVerify: true, ServerName: "localhost"})
	if err != nil {
		s.t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		s.t.Fatal(err)
	}
	if _, err := io.WriteString(conn, request); err != nil {
		s.t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		s.t.Fatalf("%q: %v", tail(request, 300), err)
	}
	defer resp.Body.Close()
	text, _ := io.ReadAll(resp.Body)
	return answer{resp.StatusCode, resp.Header, string(text)}
}

// attack sends n requests, so many at once, and counts the answers by status. A
// request without an answer fails the test.
func (s *trial) attack(n, atOnce int, each func(i int) request) map[int]int {
	s.t.Helper()
	statuses := make(map[int]int)
	failed := false
	var mu sync.Mutex
	var senders sync.WaitGroup
	next := make(chan int)
	for range atOnce {
		senders.Go(func() {
			for i := range next {
				a, err := s.do(each(i))
				mu.Lock()
				if err != nil && !failed {
					failed = true
					s.t.Errorf("request %d: %v", i, err)
				}
				statuses[a.status]++
				mu.Unlock()
			}
		})
	}
	for i := range n {
		next <- i
	}
	close(next)
	senders.Wait()
	return statuses
}

// network returns the address of one of many visitors in networks of their own.
func networkAddress(i int) string {
	return fmt.Sprintf("100.%d.%d.7", 64+i/256, i%256)
}

// entry is a request in Caddy's access log.
type entry struct {
	Logger  string  `json:"logger"`
	Status  int     `json:"status"`
	Seconds float64 `json:"duration"`
	Request struct {
		Client string `json:"client_ip"`
		Method string `json:"method"`
		URI    string `json:"uri"`
	} `json:"request"`
	Throttle *struct {
		zoneEntry
		Zones []zoneEntry `json:"zones"`
	} `json:"throttle"`
}

type zoneEntry struct {
	Zone     string  `json:"zone"`
	Decision string  `json:"decision"`
	Reason   string  `json:"reason"`
	Cost     float64 `json:"cost"`
	Level    float64 `json:"level"`
	Capacity float64 `json:"capacity"`
}

// entries returns the requests of an address that were answered so far, or all.
func (s *trial) entries(address string) []entry {
	s.t.Helper()
	var entries []entry
	for line := range bytes.Lines([]byte(s.output.String())) {
		var e entry
		if !bytes.Contains(line, []byte(`"http.log.access`)) || json.Unmarshal(line, &e) != nil {
			continue
		}
		if address == "" || e.Request.Client == address {
			entries = append(entries, e)
		}
	}
	return entries
}

// refusals says by which zone and why which requests of an address were refused.
func (s *trial) refusals(address string) []string {
	s.t.Helper()
	var refused []string
	for _, e := range s.entries(address) {
		if e.Throttle != nil && e.Throttle.Decision == "refused" {
			refused = append(refused, fmt.Sprintf("%s %s: %s %s", e.Throttle.Zone, e.Throttle.Reason, e.Request.Method, e.Request.URI))
		}
	}
	return refused
}

// peaks returns how full each zone's bucket of an address was at most.
func (s *trial) peaks(address string) map[string]float64 {
	s.t.Helper()
	peaks := make(map[string]float64)
	for _, e := range s.entries(address) {
		if e.Throttle == nil {
			continue
		}
		for _, z := range append(e.Throttle.Zones, e.Throttle.zoneEntry) {
			if z.Capacity > 0 {
				peaks[z.Zone] = max(peaks[z.Zone], z.Level/z.Capacity)
			}
		}
	}
	return peaks
}

// checkComfort stops Caddy, and fails the test if a request of these addresses was
// refused or a bucket of theirs was more than 60 % full.
func (s *trial) checkComfort(addresses ...string) {
	s.t.Helper()
	if err := s.shutDown(); err != nil {
		s.t.Errorf("stopping caddy: %v", err)
	}
	for _, address := range addresses {
		refused, peaks := s.refusals(address), s.peaks(address)
		s.t.Logf("%s: %d requests, %d refused, buckets at most %s full", address, len(s.entries(address)), len(refused), percents(peaks))
		if len(refused) > 0 {
			s.t.Errorf("got %d refused, want none: %q", len(refused), refused)
		}
		for zone, peak := range peaks {
			// work is charged by the seconds that PHP takes, which are more on a busy machine.
			if peak > 0.6 && (zone != "work" || long()) {
				s.t.Errorf("got zone %s at %.0f %%, want 60 %% at most", zone, 100*peak)
			}
		}
	}
}

func percents(peaks map[string]float64) string {
	var all []string
	for _, zone := range slices.Sorted(maps.Keys(peaks)) {
		all = append(all, fmt.Sprintf("%s %.0f %%", zone, 100*peaks[zone]))
	}
	return strings.Join(all, ", ")
}
