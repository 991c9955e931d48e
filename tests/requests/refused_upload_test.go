package requests

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/servertest"
	"github.com/caddy-throttle/caddy-throttle/tests/internal/system"
)

// Uploads of one kind are sent at once, and again if the machine was so busy that a client
// did not read within the half second for which a connection stays after the answer.
const (
	uploadsAtOnce = 4
	uploadRounds  = 5
)

// An upload is how one body is sent over HTTP/1.
type upload struct {
	address string // host:port
	tls     bool
	version string // of HTTP
	path    string
	headers string
	size    int
	chunked bool
	late    bool // the client reads no answer before it has sent everything
	stalls  bool // it sends half of the body
}

func (u upload) String() string {
	if u.chunked {
		return fmt.Sprintf("%d kB, chunked", u.size/1000)
	}
	return fmt.Sprintf("%d kB", u.size/1000)
}

// send sends the body and returns the status, or why there is none.
func (u upload) send() (int, error) {
	conn, err := net.DialTimeout("tcp", u.address, system.StartTime)
	if err != nil {
		return 0, err
	}
	_ = conn.SetDeadline(time.Now().Add(3 * system.StartTime))
	if u.tls {
		conn = tls.Client(conn, &tls.Config{InsecureSkipVerify: true, ServerName: "localhost"}) // the certificate is caddy's own
	}
	sent := make(chan struct{})
	defer func() {
		conn.Close()
		<-sent
	}()
	go func() {
		defer close(sent)
		u.write(conn) // may fail: nobody wants it
	}()
	if u.late {
		<-sent
	}
	reader := bufio.NewReader(conn)
	resp, err := http.ReadResponse(reader, nil)
	for err == nil && resp.StatusCode == http.StatusContinue {
		resp, err = http.ReadResponse(reader, nil)
	}
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode, err
}

func (u upload) write(to io.Writer) {
	framing := fmt.Sprintf("Content-Length: %d", u.size)
	if u.chunked {
		framing = "Transfer-Encoding: chunked"
	}
	_, err := fmt.Fprintf(to, "POST %s HTTP/%s\r\nHost: localhost\r\n%s%s\r\n\r\n", u.path, u.version, u.headers, framing)
	const piece = 50_000
	block := strings.Repeat("x", piece)
	if u.chunked {
		block = fmt.Sprintf("%x\r\n%s\r\n", piece, block)
	}
	least := 0
	if u.stalls {
		least = u.size / 2
	}
	for left := u.size; left > least && err == nil; left -= piece {
		_, err = io.WriteString(to, block)
	}
	if u.chunked && err == nil {
		_, _ = io.WriteString(to, "0\r\n\r\n")
	}
}

// answered sends uploads at once, and returns how many got a status.
func (u upload) answered(t *testing.T, want int) int {
	var all sync.WaitGroup
	var n atomic.Int64
	for range uploadsAtOnce {
		all.Go(func() {
			if status, err := u.send(); status == want && err == nil {
				n.Add(1)
			} else {
				t.Logf("%s%s, %v: got %d, %v", u.address, u.path, u, status, err)
			}
		})
	}
	all.Wait()
	return int(n.Load())
}

// likeRespond checks that uploads get a status wherever they get one from `respond`, and all of
// them if the client reads while it sends.
func (u upload) likeRespond(t *testing.T, want int, plain upload) {
	t.Helper()
	var ours, theirs int
	for range uploadRounds {
		if ours = u.answered(t, want); ours == uploadsAtOnce {
			return
		}
		if theirs = plain.answered(t, want); u.late && ours >= theirs {
			return
		}
	}
	t.Errorf("%v: got %d of %d answered by throttle, and %d by respond", u, ours, uploadsAtOnce, theirs)
}

// uploadSizes are in bytes. What the kernel keeps of a connection is between the last two.
var uploadSizes = []int{50_000, 300_000, 1_000_000, 40_000_000}

// forSizes runs a test for bodies of each size, with a length and in chunks.
func forSizes(t *testing.T, u upload, sizes []int, f func(t *testing.T, u upload)) {
	for _, size := range sizes {
		for _, chunked := range []bool{false, true} {
			u := u // the tests run once the loops are done
			u.size, u.chunked = size, chunked
			if u.chunked && u.version == "1.0" {
				continue
			}
			t.Run(u.String(), func(t *testing.T) {
				t.Parallel()
				f(t, u)
			})
		}
	}
}

// refusingSites refuse everything but the first request: by throttle, and by respond.
const refusingSites = `
http://:%[1]d, https://localhost:%[2]d {
	throttle {
		zone limit {
			key text all
			match not path /slots /hold /large
			limit 1 1/d
		}
	}
	@slots path /slots /hold
	in_flight @slots slots 1 {
		buffer off
		refusal {
			status 503
		}
	}
	in_flight /large large 5 {
		buffer 64KiB
	}
	reverse_proxy %[5]s
}
http://:%[3]d, https://localhost:%[4]d {
	@slots path */slots
	@large path */large
	respond @slots busy 503
	respond @large long 413
	respond slowly 429
}`

// uploadRefusals are what refuses there.
var uploadRefusals = []struct {
	path  string
	want  int
	sizes []int
}{
	{"", http.StatusTooManyRequests, uploadSizes},
	{"slots", http.StatusServiceUnavailable, uploadSizes[1:3]},
	{"large", http.StatusRequestEntityTooLarge, uploadSizes[1:3]},
}

// A refusingCaddy runs refusingSites.
type refusingCaddy struct{ ours, oursTLS, plain, plainTLS int } // ports

func startRefusing(t *testing.T) refusingCaddy {
	t.Helper()
	c := refusingCaddy{servertest.FreePort(t), servertest.FreePort(t), servertest.FreePort(t), servertest.FreePort(t)}
	release := make(chan struct{})
	up := system.StartUpstream(t, func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/hold" {
			<-release
		}
	})
	system.StartCaddy(t, system.Config{Sites: fmt.Sprintf(refusingSites, c.ours, c.oursTLS, c.plain, c.plainTLS, up.Address), Protocols: "h1 h2 h2c h3"})
	v, site := system.NewVisitor(t, "h1"), fmt.Sprint("http://localhost:", c.ours)
	v.Get(t, site)
	v.Timeout = 0 // it holds the slot until the test ends
	var held sync.WaitGroup
	held.Go(func() { _, _ = v.Try("GET", site+"/hold") })
	t.Cleanup(held.Wait)
	t.Cleanup(func() { close(release) })
	system.Eventually(t, "the slot taken", func() bool { now, _ := up.Serving(); return now > 0 })
	return c
}

// TestRefusedUpload: whoever is refused while uploading gets the answer, as from respond.
func TestRefusedUpload(t *testing.T) {
	t.Parallel()
	c := startRefusing(t)
	for name, u := range map[string]upload{
		"1.0":          {version: "1.0"},
		"1.0, late":    {version: "1.0", late: true},
		"1.1":          {version: "1.1"},
		"1.1, late":    {version: "1.1", late: true},
		"1.1, closed":  {version: "1.1", headers: "Connection: close\r\n"},
		"1.1, expects": {version: "1.1", headers: "Expect: 100-continue\r\n"},
		"TLS":          {version: "1.1", tls: true},
	} {
		for _, refusal := range uploadRefusals {
			t.Run(fmt.Sprint(name, " ", refusal.want), func(t *testing.T) {
				u.path = "/" + refusal.path
				forSizes(t, u, refusal.sizes, func(t *testing.T, u upload) {
					plain := u
					u.address, plain.address = fmt.Sprint("localhost:", c.ours), fmt.Sprint("localhost:", c.plain)
					if u.tls {
						u.address, plain.address = fmt.Sprint("localhost:", c.oursTLS), fmt.Sprint("localhost:", c.plainTLS)
					}
					u.likeRespond(t, refusal.want, plain)
				})
			})
		}
	}
	for name, visitor := range map[string]func() *system.Visitor{
		"h2": func() *system.Visitor { return system.NewVisitor(t, "h2") },
		"h3": func() *system.Visitor { return system.NewQUICVisitor(t, nil) },
	} {
		t.Run(name, func(t *testing.T) {
			forSizes(t, upload{}, uploadSizes, func(t *testing.T, u upload) {
				v := visitor()
				for range uploadsAtOnce {
					req, _ := http.NewRequest("POST", fmt.Sprint("https://localhost:", c.oursTLS), io.LimitReader(zeros{}, int64(u.size)))
					if !u.chunked {
						req.ContentLength = int64(u.size)
					}
					a, err := v.Fetch(req)
					check.That(t, err == nil && a.Status == http.StatusTooManyRequests, "got %d, %v, want 429", a.Status, err)
				}
			})
		})
	}
}

// zeros are a body without an end.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// uploadProxies starts proxies in front of two sites, the second of which is at plain/.
func uploadProxies(t *testing.T, ours, plain int) map[string]upload {
	t.Helper()
	nginx := system.StartNginx(t, fmt.Sprintf(`
	client_max_body_size 0;
	upstream ours {
		server 127.0.0.1:%d;
		keepalive 16;
	}
	upstream plain {
		server 127.0.0.1:%d;
		keepalive 16;
	}`, ours, plain), fmt.Sprintf(`
	location / {
		proxy_pass http://127.0.0.1:%[1]d/;
	}
	location /plain/ {
		proxy_pass http://127.0.0.1:%[2]d/;
	}
	location /keepalive/ {
		proxy_pass http://ours/;
		proxy_http_version 1.1;
		proxy_set_header Connection "";
	}
	location /keepalive/plain/ {
		proxy_pass http://plain/;
		proxy_http_version 1.1;
		proxy_set_header Connection "";
	}
	location /streamed/ {
		proxy_pass http://ours/;
		proxy_http_version 1.1;
		proxy_set_header Connection "";
		proxy_request_buffering off;
	}
	location /streamed/plain/ {
		proxy_pass http://plain/;
		proxy_http_version 1.1;
		proxy_set_header Connection "";
		proxy_request_buffering off;
	}`, ours, plain))
	haproxy := servertest.FreePort(t)
	system.StartHAProxy(t, haproxy, fmt.Sprintf(`
defaults
	mode http
	timeout connect 5s
	timeout client 60s
	timeout server 60s
frontend front
	bind 127.0.0.1:%d
	use_backend plain if { path_beg /plain }
	default_backend ours
backend ours
	server ours 127.0.0.1:%d
backend plain
	server plain 127.0.0.1:%d
`, haproxy, ours, plain))
	front := servertest.FreePort(t)
	system.StartCaddy(t, system.Config{Sites: fmt.Sprintf("http://:%d {\n reverse_proxy /plain/* 127.0.0.1:%d\n reverse_proxy 127.0.0.1:%d\n}", front, plain, ours)})
	through := func(port int, path string) upload {
		return upload{version: "1.1", address: fmt.Sprint("localhost:", port), path: path}
	}
	return map[string]upload{
		"nginx":             through(nginx, "/"),
		"nginx, keepalive":  through(nginx, "/keepalive/"),
		"nginx, unbuffered": through(nginx, "/streamed/"),
		"HAProxy":           through(haproxy, "/"),
		"Caddy":             through(front, "/"),
	}
}

// TestRefusedUploadThroughProxy: a proxy in front hands the answer on.
func TestRefusedUploadThroughProxy(t *testing.T) {
	t.Parallel()
	c := startRefusing(t)
	for name, u := range uploadProxies(t, c.ours, c.plain) {
		for _, refusal := range uploadRefusals {
			t.Run(fmt.Sprint(name, " ", refusal.want), func(t *testing.T) {
				forSizes(t, u, refusal.sizes, func(t *testing.T, u upload) {
					plain := u
					u.path += refusal.path
					plain.path += "plain/" + refusal.path
					u.likeRespond(t, refusal.want, plain)
				})
			})
		}
	}
}

// TestStalledUpload: whoever stops sending is answered by 408, also through a proxy that hands on
// what comes. One that receives the body itself has no answer of ours, and Caddy hands an answer on
// once its own timeout of a minute is over.
func TestStalledUpload(t *testing.T) {
	t.Parallel()
	ours := servertest.FreePort(t)
	system.StartCaddy(t, system.Config{Servers: "timeouts {\nread_body_idle 1s\n}", Sites: fmt.Sprintf("http://:%d {\nin_flight uploads 100\nrespond ok\n}", ours)})
	proxies := uploadProxies(t, ours, ours)
	for _, name := range []string{"nginx", "nginx, keepalive", "Caddy"} {
		delete(proxies, name)
	}
	proxies["direct"] = upload{version: "1.1", address: fmt.Sprint("localhost:", ours), path: "/"}
	for name, u := range proxies {
		t.Run(name, func(t *testing.T) {
			u.size, u.stalls = 1_000_000, true
			status, err := u.send()
			check.That(t, status == http.StatusRequestTimeout && err == nil, "got %d, %v, want 408", status, err)
		})
	}
}

// TestRefusedUploadsTakeNoUpstreamDown: nginx takes a server out of a group for ten seconds after
// one failure, and then nobody is served.
func TestRefusedUploadsTakeNoUpstreamDown(t *testing.T) {
	t.Parallel()
	ports := []int{servertest.FreePort(t), servertest.FreePort(t)}
	for _, port := range ports {
		system.StartCaddy(t, system.Config{Servers: "trusted_proxies static 127.0.0.1/32", Sites: fmt.Sprintf("http://:%d {\n throttle site 3 1/d\n respond ok\n}", port)})
	}
	nginx := fmt.Sprint("http://127.0.0.1:", system.StartNginx(t, fmt.Sprintf(`
	client_max_body_size 0;
	upstream group {
		server 127.0.0.1:%d;
		server 127.0.0.1:%d;
		keepalive 16;
	}`, ports[0], ports[1]), `
	location / {
		proxy_pass http://group;
		proxy_http_version 1.1;
		proxy_set_header Connection "";
		proxy_set_header X-Forwarded-For $remote_addr;
	}`))
	const uploads = 16
	greedy, refused := system.NewVisitor(t, "h1"), 0
	for range 2*3 + uploads {
		req := check.Must(http.NewRequest("POST", nginx, io.LimitReader(zeros{}, 1_000_000)))(t)
		req.ContentLength = 1_000_000
		if a, err := greedy.Fetch(req); err != nil {
			t.Fatal(err)
		} else if a.Status == http.StatusTooManyRequests {
			refused++
		}
	}
	check.Equal(t, refused, uploads, "uploads answered 429")
	for range 20 {
		check.Equal(t, system.NewVisitor(t, "h1").Get(t, nginx).Status, http.StatusOK, "for somebody else")
	}
}
