package requests

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unicode/utf16"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/servertest"
	"github.com/caddy-throttle/caddy-throttle/tests/internal/chromium"
	"github.com/caddy-throttle/caddy-throttle/tests/internal/system"
)

// A wiki is an application with the habits of DokuWiki, and with some of others: it takes
// passwords at any address, by any method, in the query, in forms and in JSON and XML of any type.
// Each query and form is one table, in which a form wins. The password of everybody is "right".
type wiki struct {
	*system.Upstream
	guesses, logIns atomic.Int64
	hold            chan struct{} // if not nil, answers wait until it is closed
}

func startWiki(t *testing.T) *wiki {
	w := new(wiki)
	w.Upstream = system.StartUpstream(t, w.serve)
	return w
}

var inXML = regexp.MustCompile(`<(u|p)>([^<]*)<`)

// fields returns what the request carries, as PHP's $_REQUEST with request_order GP, or an API.
func (*wiki) fields(r *http.Request) map[string]string {
	fields := make(map[string]string)
	take := func(values url.Values) {
		for name := range values {
			fields[name] = values.Get(name)
		}
	}
	take(r.URL.Query())
	body, _ := io.ReadAll(r.Body)
	if r.Header.Get("Content-Encoding") == "gzip" { // as Apache may pass it on
		if plain, err := gzip.NewReader(bytes.NewReader(body)); err == nil {
			body, _ = io.ReadAll(plain)
		}
	}
	if utf16Body, is := bytes.CutPrefix(body, []byte{0xfe, 0xff}); is {
		units := make([]uint16, len(utf16Body)/2)
		for i := range units {
			units[i] = uint16(utf16Body[2*i])<<8 | uint16(utf16Body[2*i+1])
		}
		body = []byte(string(utf16.Decode(units)))
	}
	switch kind := r.Header.Get("Content-Type"); {
	case bytes.HasPrefix(body, []byte("{")):
		_ = json.Unmarshal(body, &fields)
	case bytes.HasPrefix(body, []byte("<")):
		for _, found := range inXML.FindAllSubmatch(body, -1) {
			fields[string(found[1])] = string(found[2])
		}
	case strings.HasPrefix(kind, "multipart/") && r.Header.Get("Connection") == "":
		r.Method, r.Body = "POST", io.NopCloser(bytes.NewReader(body))
		if r.ParseMultipartForm(1<<20) == nil {
			take(url.Values(r.MultipartForm.Value))
		}
	default:
		values, _ := url.ParseQuery(string(body))
		take(values)
	}
	return fields
}

func (w *wiki) serve(rw http.ResponseWriter, r *http.Request) {
	fields, header := w.fields(r), rw.Header()
	header.Add("Set-Cookie", "wiki_visit=1; Path=/")
	if fields["do"] == "register" { // as WooCommerce, whatever becomes of the login beside it
		header.Add("Set-Cookie", "wiki_member=new; Path=/")
	}
	if fields["p"] == "" {
		return
	}
	if w.hold != nil {
		<-w.hold
	}
	status := http.StatusForbidden
	switch {
	case fields["p"] == "right":
		w.logIns.Add(1)
		header.Add("Set-Cookie", "wiki_member="+url.QueryEscape(fields["u"])+"; Path=/")
		header.Set("Location", "/dashboard")
		status = http.StatusFound
	case r.Referer() != "": // as Laravel does
		w.guesses.Add(1)
		header.Set("Location", r.Referer())
		status = http.StatusFound
	case fields["do"] == "redirect":
		w.guesses.Add(1)
		header.Set("Location", "/")
		status = http.StatusFound
	default:
		w.guesses.Add(1)
		if fields["do"] != "register" {
			header.Add("Set-Cookie", "wiki_member=deleted; Max-Age=0; Path=/")
		}
	}
	rw.WriteHeader(status)
}

// A guard is a wiki behind a zone by address and one by account.
type guard struct {
	*system.Caddy
	t         *testing.T
	wiki      *wiki
	url       string
	who       *system.Visitor
	inspector string
	where     atomic.Int64 // numbers fresh addresses
}

// Of one address, and at one account from all addresses.
const guessesByAddress, guessesByAccount = 5, 10

// startGuard starts both. Options replace those of each zone.
func startGuard(t *testing.T, user, refund string) *guard {
	t.Helper()
	g, port, inspector := &guard{t: t, wiki: startWiki(t)}, servertest.FreePort(t), servertest.FreePort(t)
	g.inspector = fmt.Sprintf("http://127.0.0.1:%d/", inspector)
	g.url, g.who = fmt.Sprintf("http://127.0.0.1:%d", port), system.NewVisitor(t, "h1")
	g.Caddy = system.StartCaddy(t, system.Config{Servers: "trusted_proxies static 127.0.0.0/8\ntrusted_proxies_strict", Sites: fmt.Sprintf(`
http://:%d {
	throttle {
		zone login {
			field p
			limit %d 1/h
			%s
		}
		zone account {
			field p
			key field %s
			limit %d 1/h
			%[3]s
			trust_devices wiki_member
		}
	}
	reverse_proxy %[6]s
}
http://127.0.0.1:%[7]d {
	throttle_inspector {
		open
	}
}`, port, guessesByAddress, refund, user, guessesByAccount, g.wiki.Address, inspector)})
	return g
}

// A way makes a request with a user and a password.
type way func(url, user, password string) *http.Request

// send knocks at a door, from an address.
func (g *guard) send(through way, address, user, password string) (status int) {
	req := through(g.url, user, password)
	req.Header.Set("X-Forwarded-For", address)
	a, err := g.who.Fetch(req)
	check.NoError(g.t, err, "%s %s", req.Method, req.URL)
	return a.Status
}

// guess sends wrong passwords through the doors in turn, some at once, and returns how many
// were tried. Each is sent from the address of its number.
func (g *guard) guess(n int, user string, address func(int) string, doors ...way) int {
	g.t.Helper()
	before := g.wiki.guesses.Load()
	var all sync.WaitGroup
	for worker := range 10 {
		all.Go(func() {
			for i := worker; i < n; i += 10 {
				if got := g.send(doors[i%len(doors)], address(i), user, fmt.Sprint("wrong", i)); got != 429 && got != 403 && got != 302 {
					g.t.Errorf("guess %d: got %d, want 429, 403 or 302", i, got)
				}
			}
		})
	}
	all.Wait()
	return int(g.wiki.guesses.Load() - before)
}

// empty empties the buckets of all accounts.
func (g *guard) empty() { g.Throttle("release", "--zone", "account", "--all") }

// fresh returns an address that nobody had.
func (g *guard) fresh() string {
	n := g.where.Add(1)
	return fmt.Sprintf("203.0.%d.%d", n/250, n%250+1)
}

func (g *guard) oneAddress() func(int) string {
	address := g.fresh()
	return func(int) string { return address }
}

func (g *guard) manyAddresses(n int) func(int) string {
	all := make([]string, n)
	for i := range all {
		all[i] = g.fresh()
	}
	return func(i int) string { return all[i%n] }
}

// by returns a door: a method and a target, and a body of a type, in which %u and %p are the
// user and the password.
func by(method, target, kind, body string, headers ...string) way {
	return func(address, user, password string) *http.Request {
		fill := strings.NewReplacer("%u", url.QueryEscape(user), "%p", url.QueryEscape(password))
		req, _ := http.NewRequest(method, address+fill.Replace(target), strings.NewReader(fill.Replace(body)))
		if kind != "" {
			req.Header.Set("Content-Type", kind)
		}
		for i := 0; i < len(headers); i += 2 {
			req.Header.Set(headers[i], headers[i+1])
		}
		return req
	}
}

// encoded sends the body of a door in another encoding.
func encoded(through way, headers string, encode func([]byte) []byte) way {
	return func(address, user, password string) *http.Request {
		req := through(address, user, password)
		body, _ := io.ReadAll(req.Body)
		body = encode(body)
		req.Body, req.ContentLength, req.GetBody = io.NopCloser(bytes.NewReader(body)), int64(len(body)), nil
		if name, value, found := strings.Cut(headers, ": "); found {
			req.Header.Set(name, value)
		}
		return req
	}
}

func zipped(plain []byte) []byte {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, _ = w.Write(plain)
	_ = w.Close()
	return b.Bytes()
}

func inUTF16(plain []byte) []byte {
	wide := []byte{0xfe, 0xff}
	for _, unit := range utf16.Encode([]rune(string(plain))) {
		wide = append(wide, byte(unit>>8), byte(unit))
	}
	return wide
}

// chunked sends the body in chunks, with a trailer.
func chunked(through way) way {
	return func(address, user, password string) *http.Request {
		req := through(address, user, password)
		req.ContentLength, req.GetBody = -1, nil
		req.Trailer = http.Header{"X-Password": {password}}
		return req
	}
}

func inParts(address, user, password string) *http.Request {
	var b bytes.Buffer
	w := multipart.NewWriter(&b)
	_ = w.WriteField("u", user)
	_ = w.WriteField("p", password)
	_ = w.Close()
	req, _ := http.NewRequest("POST", address+"/doku.php?do=login", &b)
	req.Header.Set("Content-Type", w.FormDataContentType())
	return req
}

// The doors of the wiki. Through those that are clear, the zones know the account.
var (
	form  = by("POST", "/doku.php?do=login", system.Urlencoded, "u=%u&p=%p&sectok=")
	doors = map[string]way{
		"form":               form,
		"form_of_a_page":     by("POST", "/doku.php?id=page1", system.Urlencoded, "do=login&u=%u&p=%p"),
		"form_without_type":  by("POST", "/", "", "u=%u&p=%p"),
		"form_to_a_feed":     by("POST", "/feed.php", system.Urlencoded, "u=%u&p=%p"),
		"padded_form":        by("POST", "/", system.Urlencoded, "text="+strings.Repeat("x", 200_000)+"&u=%u&p=%p"),
		"query":              by("GET", "/doku.php?id=page1&u=%u&p=%p", "", ""),
		"user_in_query":      by("POST", "/doku.php?u=%u", system.Urlencoded, "p=%p"),
		"password_in_query":  by("POST", "/doku.php?p=%p", system.Urlencoded, "u=%u"),
		"put":                by("PUT", "/", system.Urlencoded, "u=%u&p=%p"),
		"get_with_body":      by("GET", "/", system.Urlencoded, "u=%u&p=%p"),
		"options_with_body":  by("OPTIONS", "/", system.Urlencoded, "u=%u&p=%p"),
		"other_method":       by("POST", "/", system.Urlencoded, "_method=get&u=%u&p=%p"),
		"method_of_a_header": by("POST", "/", system.Urlencoded, "u=%u&p=%p", "X-HTTP-Method-Override", "GET"),
		"expects":            by("POST", "/", system.Urlencoded, "u=%u&p=%p", "Expect", "100-continue"),
		"chunks":             chunked(form),
		"multipart":          inParts,
		"json":               by("POST", "/api", "application/json", `{"u":"%u","p":"%p"}`),
		"json_as_text":       by("POST", "/api", "text/plain", `{"u":"%u","p":"%p"}`),
		"json_as_form":       by("POST", "/api", system.Urlencoded, `{"u":"%u","p":"%p"}`),
	}
	// Through the others, all accounts share the bucket of what is not clear.
	unclear = map[string]way{
		"xml":                 by("POST", "/users.xml", "application/xml", "<user><u>%u</u><p>%p</p></user>"),
		"decoy_in_query":      by("POST", "/?u=other", system.Urlencoded, "u=%u&p=%p"),
		"decoy_in_body":       by("POST", "/?u=%u&p=%p", system.Urlencoded, "u=other"),
		"twice":               by("POST", "/", system.Urlencoded, "u=other&u=%u&p=%p&p=%p"),
		"gzip":                encoded(form, "Content-Encoding: gzip", zipped),
		"utf16":               encoded(by("POST", "/api", "application/json", `{"u":"%u","p":"%p"}`), "", inUTF16),
		"utf16_as_text":       encoded(by("POST", "/api", "text/plain; charset=utf-16", `{"u":"%u","p":"%p"}`), "", inUTF16),
		"type_of_one_hop":     by("POST", "/", "multipart/form-data; boundary=x", "--x\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\n&u=%u&p=%p&b=\r\n--x--\r\n", "Connection", "Content-Type"),
		"json_with_duplicate": by("POST", "/api", "application/json", `{"u":"other","u":"%u","p":"%p"}`),
	}
)

func values(of map[string]way) (all []way) {
	for _, through := range of {
		all = append(all, through)
	}
	return all
}

// TestGuessesThroughAnyDoor: 300 from one address, and 300 from 100 addresses at one account.
func TestGuessesThroughAnyDoor(t *testing.T) {
	t.Parallel()
	g := startGuard(t, "u", "refund cookie wiki_member")
	for i, group := range []map[string]way{doors, unclear} {
		for name, through := range group {
			req := through("http://127.0.0.1", "alice", "wrong")
			got := g.wiki.fields(req)
			check.Assume(t, got["p"] == "wrong", "%s: the wiki sees %q, want a password", name, got)
			if i == 1 {
				g.empty()
			}
			n := g.guess(7, "user-of-"+name, g.oneAddress(), through)
			check.That(t, n <= guessesByAddress && n != 0, "%s: got %d of 7 guesses of an address tried, want 1 to %d", name, n, guessesByAddress)
		}
	}
	g.empty()
	one := g.guess(300, "alice", g.oneAddress(), append(values(doors), values(unclear)...)...)
	g.empty()
	many := g.guess(300, "bob", g.manyAddresses(100), values(doors)...)
	unclearMany := g.guess(300, "bob", g.manyAddresses(100), values(unclear)...)
	t.Logf("of 300 guesses each were tried: %d from one address; from 100 addresses at one account %d, and %d of which the account is not clear", one, many, unclearMany)
	if one > guessesByAddress || many > guessesByAccount || unclearMany > guessesByAccount || one*many*unclearMany == 0 {
		t.Errorf("want at most %d, %d and %d, and some", guessesByAddress, guessesByAccount, guessesByAccount)
	}
	check.Equal(t, g.send(form, g.fresh(), "carol", "right"), 302, "for another account")
	for range 30 { // edits carry no password, nor do cookies, which PHP with request_order GP does not read
		check.Need(t, g.send(by("POST", "/doku.php?id=page1", system.Urlencoded, "do=preview&wikitext=p%3Dx&sectok=1", "Cookie", "u=alice; p=wrong"), "203.0.0.1", "", ""), 200, "for a preview")
	}
}

// TestGuessesAtOnce: of 80 that come together, no more than fit are tried, although none is
// answered yet.
func TestGuessesAtOnce(t *testing.T) {
	t.Parallel()
	g := startGuard(t, "u", "refund cookie wiki_member")
	g.wiki.hold = make(chan struct{})
	address, statuses := g.fresh(), make(chan int, 80)
	for i := range 80 {
		go func() { statuses <- g.send(form, address, fmt.Sprint("user", i), "wrong") }()
	}
	next := func() int {
		select {
		case status := <-statuses:
			return status
		case <-time.After(system.StartTime):
			return 0
		}
	}
	for i := range 80 - guessesByAddress {
		if got := next(); got != 429 {
			t.Errorf("answer %d: got %d while %d guesses wait, want 429", i, got, guessesByAddress)
			break
		}
	}
	close(g.wiki.hold)
	for range guessesByAddress {
		check.Equal(t, next(), 403, "for a guess that fit")
	}
}

// TestWrongRefundLines: one that is too narrow hurts who logs in, and one that is too wide opens
// tenfold.
func TestWrongRefundLines(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		about, user, refund string
		through             way
		narrow              bool
	}{
		{"other_cookie", "u", "refund cookie other_site_*", form, true},
		{"other_status", "u", "refund status 303", form, true},
		{"other_location", "u", "refund header Location */account*", form, true},
		{"other_user", "login", "refund cookie other_site_*", form, true},
		{"status_of_failures", "u", "refund status 302", by("POST", "/?do=redirect", system.Urlencoded, "u=%u&p=%p"), false},
		{"cookie_of_all", "u", "refund cookie wiki_visit", form, false},
		{"registration", "u", "refund cookie wiki_member", by("POST", "/?do=register", system.Urlencoded, "u=%u&p=%p"), false},
		{"location_of_clients", "u", "refund header Location */dashboard*", by("POST", "/", system.Urlencoded, "u=%u&p=%p", "Referer", "http://127.0.0.1/dashboard"), false},
	} {
		t.Run(test.about, func(t *testing.T) {
			t.Parallel()
			g := startGuard(t, test.user, test.refund)
			address := g.oneAddress()
			one := g.guess(300, "alice", address, test.through)
			g.empty()
			many := g.guess(300, "alice", g.manyAddresses(100), test.through)
			refused, other := 0, g.fresh()
			for range 20 {
				if g.send(form, other, "carol", "right") == 429 {
					refused++
				}
			}
			t.Logf("of 300 guesses %d and %d were tried, and of 20 right logins %d were refused", one, many, refused)
			least, most, times := 1, 1, "as many"
			if !test.narrow {
				least, most, times = 2, 10, "ten times as many"
			}
			if one > most*guessesByAddress || many > most*guessesByAccount || one < least*guessesByAddress-1 {
				t.Errorf("got %d and %d tried, want at most %s as with the right line", one, many, times)
			}
			check.That(t, test.narrow == (refused > 0), "got %d of 20 right logins refused, want some: %v", refused, test.narrow)
		})
	}
}

// TestStatusShowsWhatWasKept, and why names the account's zone to whom only an address is told.
func TestStatusShowsWhatWasKept(t *testing.T) {
	t.Parallel()
	g := startGuard(t, "u", "refund cookie wiki_member")
	status := g.Throttle("status")
	for _, want := range []string{"login: kept 0 of 0.", "account: kept 0 of 0; gave 0 device cookies."} {
		check.Contains(t, status, want)
	}
	for i := range guessesByAccount {
		g.send(form, g.fresh(), "alice", fmt.Sprint("wrong", i))
	}
	for range 3 {
		check.Need(t, g.send(form, "198.51.100.7", "carol", "right"), 302, "for the right password")
	}
	req := form(g.url, "alice", "right")
	req.Header.Set("X-Forwarded-For", "198.51.100.7")
	req.Header.Set("Accept", "application/json")
	refused, err := g.who.Fetch(req)
	if err != nil || refused.Status != 429 || !strings.Contains(refused.Body, "Too many failed logins.") {
		t.Fatalf("got %d %s, %v, want a refusal that says why", refused.Status, refused.Body, err)
	}
	var problem struct {
		Code string `json:"support_code"`
	}
	err = json.Unmarshal([]byte(refused.Body), &problem)
	check.Assume(t, err == nil && problem.Code != "", "got %s, %v, want a support code", refused.Body, err)

	status = g.Throttle("status")
	for _, want := range []string{"login: kept 10 of 13: 302 x 3, 403 x 10.", "account: kept 10 of 13: 302 x 3, 403 x 10; gave 0 device cookies."} {
		check.Contains(t, status, want)
	}

	why := g.Throttle("why", "198.51.100.7")
	for _, want := range []string{problem.Code, "  account  ", "No zone refuses a request of cost 1 now."} {
		check.Contains(t, why, want)
	}
	why = g.Throttle("why", "198.51.100.7", "--zone", "login")
	check.That(t, !strings.Contains(why, problem.Code), "got %s, want no refusal of another zone", why)
	check.Contains(t, g.Throttle("why", problem.Code), "refused: capacity", "want the account's bucket")

	t.Run("inspector", func(t *testing.T) {
		b := chromium.NewTab(t, chromium.StartBrowser(t), "en", "light", 1024, 800)
		b.Open(g.inspector)
		b.When("what was kept", `document.querySelector('[data-zone=account] .met')?.innerText.endsWith('kept 10 of 13 (302 x 3, 403 x 10), gave 0 device cookies.')`)
		b.Set("#why-form [name=client]", "198.51.100.7")
		b.Run(`document.querySelector("#why-form").requestSubmit()`)
		b.When("the refusal", fmt.Sprintf(`/^account refused .* to it at [0-9:]+: capacity, %s\. No zone refuses it now\.$/.test(document.querySelector('#why-said').innerText)`, problem.Code))
	})
}
