package system

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

	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/servertest"
)

// SectionCode returns the first code of a language between a heading of a page in docs and
// the next heading.
func SectionCode(t *testing.T, page, heading, language string) string {
	t.Helper()
	text := Page(t, "docs/"+page)
	_, section, _ := strings.Cut("\n"+text, "\n"+heading+"\n")
	if next := regexp.MustCompile("(?m)^##+ ").FindStringIndex(section); next != nil {
		section = section[:next[0]]
	}
	found := Code(section, language)
	if len(found) == 0 {
		t.Fatalf("got no %s below %q in %s, want some", language, heading, page)
	}
	return found[0]
}

// StartSection runs the first Caddyfile below a heading, as StartTrial runs that of a
// recipe.
func StartSection(t *testing.T, page, heading string, changes ...string) *Trial {
	t.Helper()
	file := SectionCode(t, page, heading, "caddyfile")
	if !strings.HasPrefix(file, "{") {
		file = "{\n}\n" + file
	}
	return RunTrial(t, page, file, changes...)
}

// A Trial is an application behind the Caddyfile that its recipe shows, over HTTPS.
// Visitors have the addresses that X-Forwarded-For gives them, as behind a proxy on
// this machine.
type Trial struct {
	*Caddy
	Host   string // and port
	URL    string
	Client *http.Client
}

// Page returns the text of a page, such as docs/recipes/rails.md.
func Page(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile("../" + name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// Code returns all code of a language in a text.
func Code(text, language string) (all []string) {
	for _, found := range regexp.MustCompile("(?ms)^```"+language+"\n(.*?)^```$").FindAllStringSubmatch(text, -1) {
		all = append(all, found[1])
	}
	return all
}

// siteAddress is what the site of a recipe begins with.
var siteAddress = regexp.MustCompile(`(?m)^(shop\.)?example\.com {`)

// StartTrial runs the first Caddyfile of a page in docs/recipes. Changes are pairs of
// a text in it and of what replaces it there, such as the root.
func StartTrial(t *testing.T, recipe string, changes ...string) *Trial {
	t.Helper()
	blocks := Code(Page(t, "docs/recipes/"+recipe), "caddyfile")
	if len(blocks) == 0 {
		t.Fatalf("got no Caddyfile in %s, want one", recipe)
	}
	return RunTrial(t, recipe, blocks[0], changes...)
}

// ConfigsUnder returns the Caddyfiles under a heading of a page in docs, which has so many.
func ConfigsUnder(t *testing.T, page, heading string, n int) []string {
	t.Helper()
	text := Page(t, "docs/"+page)
	_, section, _ := strings.Cut(text, "\n"+heading+"\n")
	level, _, _ := strings.Cut(heading, " ")
	section, _, _ = strings.Cut(section, "\n"+level+" ")
	configs := Code(section, "caddyfile")
	if len(configs) != n {
		t.Fatalf("got %d Caddyfiles under %q in %s, want %d", len(configs), heading, page, n)
	}
	return configs
}

// RunTrial runs a Caddyfile of a page, with changes.
func RunTrial(t *testing.T, page, file string, changes ...string) *Trial {
	t.Helper()
	host := fmt.Sprintf("localhost:%d", servertest.FreePort(t))
	admin := fmt.Sprintf("127.0.0.1:%d", servertest.FreePort(t))
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
		site, "https://" + own + " {\n\ttls " + WriteCertificate(t),
	}, changes...); i < len(changes); i += 2 {
		if !strings.Contains(file, changes[i]) {
			t.Fatalf("got no %q in the Caddyfile of %s, want one to change", changes[i], page)
		}
		file = strings.Replace(file, changes[i], changes[i+1], 1)
	}
	name := WriteFile(t, "Caddyfile", strings.ReplaceAll(file, own, host))
	transport := &http.Transport{
		TLSClientConfig:     &tls.Config{InsecureSkipVerify: true}, // the certificate is the test's own
		DisableCompression:  true,
		MaxIdleConnsPerHost: 100,
	}
	running := StartCaddyIn(t, admin, t.TempDir(), name)
	t.Cleanup(transport.CloseIdleConnections) // before Caddy stops, which would wait for unused ones
	return &Trial{
		Caddy: running,
		Host:  host,
		URL:   "https://" + host,
		Client: &http.Client{
			Transport:     transport,
			Timeout:       2 * time.Minute,
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}
}

// ShutDown stops Caddy before the test ends, so that all requests are in the log.
func (s *Trial) ShutDown() error {
	s.Client.CloseIdleConnections()
	return s.Caddy.ShutDown()
}

// WriteCertificate writes a certificate for localhost, and returns the files of it and
// of its key. Caddy's own authority may need seconds for one.
func WriteCertificate(t *testing.T) string {
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
	return WriteFile(t, "localhost.crt", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))) + " " +
		WriteFile(t, "localhost.key", string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret})))
}

// A Request is one that a script sends.
type Request struct {
	Address string   // of the visitor
	Method  string   // GET if not given
	Target  string   // path and query
	Header  []string // name, value, name, value
	Body    string
}

// Do sends a request. Its error is one of the connection.
func (s *Trial) Do(c Request) (Answer, error) {
	req, err := http.NewRequest(c.Method, s.URL+c.Target, strings.NewReader(c.Body))
	if err != nil {
		return Answer{}, err
	}
	req.Header.Set("X-Forwarded-For", c.Address)
	addHeaders(req, c.Header)
	if c.Body != "" && req.Header.Get("Content-Type") == "" {
		req.Header.Set("Content-Type", Urlencoded)
	}
	return fetch(s.Client, req)
}

// Must is Do in a test's own goroutine.
func (s *Trial) Must(c Request) Answer {
	s.T.Helper()
	a, err := s.Do(c)
	if err != nil {
		s.T.Fatalf("%s %s: %v", c.Method, c.Target, err)
	}
	return a
}

// Raw sends bytes over a connection of their own, and returns the answer.
func (s *Trial) Raw(request string) Answer {
	s.T.Helper()
	conn, err := tls.DialWithDialer(&net.Dialer{Timeout: StartTime}, "tcp", s.Host,
		&tls.Config{InsecureSkipVerify: true, ServerName: "localhost"})
	if err != nil {
		s.T.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		s.T.Fatal(err)
	}
	if _, err := io.WriteString(conn, request); err != nil {
		s.T.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		s.T.Fatalf("%q: %v", Tail(request, 300), err)
	}
	defer resp.Body.Close()
	text, _ := io.ReadAll(resp.Body)
	return Answer{resp.StatusCode, resp.Header, string(text)}
}

// Attack sends n requests, so many at once, and counts the answers by status. A
// request without an answer fails the test.
func (s *Trial) Attack(n, atOnce int, each func(i int) Request) map[int]int {
	s.T.Helper()
	statuses := make(map[int]int)
	failed := false
	var mu sync.Mutex
	var senders sync.WaitGroup
	next := make(chan int)
	for range atOnce {
		senders.Go(func() {
			for i := range next {
				a, err := s.Do(each(i))
				mu.Lock()
				if err != nil && !failed {
					failed = true
					s.T.Errorf("request %d: %v", i, err)
				}
				statuses[a.Status]++
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

// NetworkAddress returns the address of one of many visitors in networks of their own.
func NetworkAddress(i int) string {
	return fmt.Sprintf("100.%d.%d.7", 64+i/256, i%256)
}

// entry is a request in Caddy's access log.
type entry struct {
	Request struct {
		Client string `json:"client_ip"`
		Method string `json:"method"`
		URI    string `json:"uri"`
	} `json:"request"`
	Throttle *struct {
		ZoneEntry
		Zones []ZoneEntry `json:"zones"`
	} `json:"throttle"`
}

type ZoneEntry struct {
	Zone     string  `json:"zone"`
	Decision string  `json:"decision"`
	Reason   string  `json:"reason"`
	Cost     float64 `json:"cost"`
	Level    float64 `json:"level"`
	Capacity float64 `json:"capacity"`
}

// Entries returns the requests of an address that were answered so far, or all.
func (s *Trial) Entries(address string) []entry {
	s.T.Helper()
	var entries []entry
	for line := range bytes.Lines([]byte(s.Output.String())) {
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

// Refusals says by which zone and why which requests of an address were refused.
func (s *Trial) Refusals(address string) []string {
	s.T.Helper()
	var refused []string
	for _, e := range s.Entries(address) {
		if e.Throttle != nil && e.Throttle.Decision == "refused" {
			refused = append(refused, fmt.Sprintf("%s %s: %s %s", e.Throttle.Zone, e.Throttle.Reason, e.Request.Method, e.Request.URI))
		}
	}
	return refused
}

// Peaks returns how full each zone's bucket of an address was at most.
func (s *Trial) Peaks(address string) map[string]float64 {
	s.T.Helper()
	peaks := make(map[string]float64)
	for _, e := range s.Entries(address) {
		if e.Throttle == nil {
			continue
		}
		for _, z := range append(e.Throttle.Zones, e.Throttle.ZoneEntry) {
			if z.Capacity > 0 {
				peaks[z.Zone] = max(peaks[z.Zone], z.Level/z.Capacity)
			}
		}
	}
	return peaks
}

// CheckComfort stops Caddy, and fails the test if a request of these addresses was
// refused or a bucket of theirs was more than 60 % full.
func (s *Trial) CheckComfort(addresses ...string) {
	s.T.Helper()
	if err := s.ShutDown(); err != nil {
		s.T.Errorf("stopping caddy: %v", err)
	}
	for _, address := range addresses {
		refused, peaks := s.Refusals(address), s.Peaks(address)
		s.T.Logf("%s: %d requests, %d refused, buckets at most %s full", address, len(s.Entries(address)), len(refused), Percents(peaks))
		if len(refused) > 0 {
			s.T.Errorf("got %d refused, want none: %q", len(refused), refused)
		}
		for zone, peak := range peaks {
			// work is charged by the seconds that PHP takes, which are more on a busy machine.
			if peak > 0.6 && (zone != "work" || Long()) {
				s.T.Errorf("got zone %s at %.0f %%, want 60 %% at most", zone, 100*peak)
			}
		}
	}
}

// Percents says how full buckets were.
func Percents(peaks map[string]float64) string {
	var all []string
	for _, zone := range slices.Sorted(maps.Keys(peaks)) {
		all = append(all, fmt.Sprintf("%s %.0f %%", zone, 100*peaks[zone]))
	}
	return strings.Join(all, ", ")
}
