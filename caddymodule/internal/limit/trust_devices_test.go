package limit_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddyserver/certmagic"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/servertest"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/signer"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/memstore"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

// withKey returns the folder of a storage with a key. Locks of storage are kept by goroutines that outlive a test.
func withKey(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	check.OK(t, new(signer.Ring).Maintain(t.Context(), &certmagic.FileStorage{Path: dir}))
	return dir
}

// byAccount is a zone by account with a limit and some more options. A right login costs 0.1,
// so limits have room for some beside whole guesses.
func byAccount(limit, options string) string {
	return `zone account {
		key field log missing share
		limit ` + limit + `
		refund cookie wordpress_logged_in_*
		trust_devices wordpress_logged_in_* 30d
` + options + `
	}`
}

// A browser keeps cookies.
type browser struct {
	*servertest.Site
	addr    string
	proto   int
	from    string // what Sec-Fetch-Site says; "" is not sent
	cookies map[string]string
}

func newBrowser(s *servertest.Site, addr string) *browser {
	return &browser{Site: s, addr: addr, proto: 1, cookies: make(map[string]string)}
}

// on returns the browser with the same cookies, on another site.
func (b *browser) on(s *servertest.Site) *browser {
	return &browser{Site: s, addr: b.addr, proto: b.proto, cookies: b.cookies}
}

const deviceCookie = "__Host-throttle-device-account"

// login sends the form of a login.
func (b *browser) login(account, password string) *httptest.ResponseRecorder {
	return b.post("https://example.com/wp-login.php", url.Values{"log": {account}, "pwd": {password}})
}

func (b *browser) post(target string, form url.Values) *httptest.ResponseRecorder {
	b.Helper()
	r := httptest.NewRequest("POST", target, strings.NewReader(form.Encode()))
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	r.RemoteAddr, r.ProtoMajor = b.addr, b.proto
	if b.from != "" {
		r.Header.Set("Sec-Fetch-Site", b.from)
	}
	if strings.HasPrefix(target, "https:///") {
		r.Host = ""
	}
	for name, value := range b.cookies {
		r.AddCookie(&http.Cookie{Name: name, Value: value})
	}
	w := b.Do(r)
	for _, cookie := range w.Result().Cookies() {
		if strings.HasPrefix(cookie.Name, "__Host-") {
			b.cookies[cookie.Name] = cookie.Value
		}
	}
	return w
}

// wants checks the status of a login.
func (b *browser) wants(status int, account, password string) {
	b.Helper()
	check.Equal(b, b.login(account, password).Code, status, "account %s, password %s", account, password)
}

// guesses makes wrong guesses, and returns how many the upstream has heard of.
func (b *browser) guesses(n int, account string) (heard int) {
	b.Helper()
	for range n {
		if b.login(account, "wrong").Code != http.StatusTooManyRequests {
			heard++
		}
	}
	return heard
}

func TestTheOwnerGetsInWhileTheAccountIsAttacked(t *testing.T) {
	for _, proto := range []int{1, 2} {
		t.Run(fmt.Sprint("HTTP/", proto), func(t *testing.T) {
			dir := withKey(t)
			synctest.Test(t, func(t *testing.T) {
				s := servertest.NewLoginSite(t, dir, `zone login {
					limit 5 5/h
					refund cookie wordpress_logged_in_*
				}`+"\n"+byAccount("10 10/h", ""))
				owner, elsewhere := newBrowser(s, "192.0.2.1:1"), newBrowser(s, "192.0.2.2:1")
				owner.proto, elsewhere.proto = proto, proto
				owner.wants(http.StatusFound, "owner", "right")

				one := newBrowser(s, "198.51.100.1:1")
				if heard := one.guesses(500, "owner"); heard > 6 {
					t.Errorf("500 guesses from one address: %d got through, want at most 6", heard)
				}
				heard := 0
				for i := range 500 {
					b := newBrowser(s, fmt.Sprintf("203.0.113.%d:1", i%200))
					heard += b.guesses(1, "owner")
					if i%50 == 0 {
						owner.wants(http.StatusFound, "owner", "right")
					}
					<-time.After(50 * time.Millisecond)
				}
				check.That(t, heard <= 12, "500 guesses from 200 addresses: %d got through, want at most 12", heard)
				elsewhere.wants(http.StatusTooManyRequests, "owner", "right")
				owner.wants(http.StatusFound, "owner", "right")
				owner.wants(http.StatusOK, "owner", "mistyped")
				owner.wants(http.StatusFound, "owner", "right")
				<-time.After(10 * time.Minute)
				elsewhere.wants(http.StatusFound, "owner", "right")
			})
		})
	}
}

func TestADeviceIsChargedInThePlaceOfItsAccount(t *testing.T) {
	dir := withKey(t)
	synctest.Test(t, func(t *testing.T) {
		s := servertest.NewLoginSite(t, dir, `zone login {
			limit 100 1/h
		}`+"\n"+byAccount("3.5 1/h", ""))
		device := newBrowser(s, "192.0.2.1:1")
		device.wants(http.StatusFound, "owner", "right")
		check.Equal(t, device.guesses(20, "owner"), 3, "guesses of a device through")
		newBrowser(s, "192.0.2.2:1").wants(http.StatusFound, "owner", "right")
		// The other zone has charged the four, once each.
		check.Equal(t, device.guesses(200, "another"), 3, "another account: guesses through")
		left := 0
		for i := range 200 {
			if device.login(fmt.Sprint("account", i), "right").Code == http.StatusFound {
				left++
			}
		}
		check.Equal(t, left, 93, "more requests of the address through, want what is left of 100 after 7")
	})
}

// The page of another site can open a guess with the visitor's cookies, and a login to the attacker's account
// without them, whose answer would replace them.
func TestPagesOfOtherSitesNeitherSpendNorReplaceADevice(t *testing.T) {
	s := servertest.NewLoginSite(t, t.TempDir(), byAccount("3.5 1/h", ""))
	owner := newBrowser(s, "192.0.2.1:1")
	owner.from = "same-origin"
	owner.wants(http.StatusFound, "owner", "right")
	lured := newBrowser(s, "192.0.2.1:1")
	lured.from = "cross-site"
	lured.wants(http.StatusFound, "attacker", "right")
	check.That(t, len(lured.cookies) == 0, "a login that another site has sent: got %v, want no device cookie", lured.cookies)
	lured.cookies[deviceCookie] = owner.cookies[deviceCookie]
	check.Equal(t, lured.guesses(20, "owner"), 3, "guesses that another site has sent through, by the bucket of the account")
	owner.wants(http.StatusFound, "owner", "right")
}

// A client that may register a name that shares the owner's bucket earns no place among the owner's devices.
func TestADeviceIsForTheNameThatWasTyped(t *testing.T) {
	for fold, alike := range map[string]string{"": "OWNER", "fold wordpress": "ow.ner", "fold email": "Owner"} {
		zone := strings.Replace(byAccount("3.5 1/h", ""), "key field log", "key field log "+fold, 1)
		s := servertest.NewLoginSite(t, t.TempDir(), zone)
		owner, another := newBrowser(s, "192.0.2.1:1"), newBrowser(s, "198.51.100.1:1")
		owner.wants(http.StatusFound, "owner", "right")
		another.wants(http.StatusFound, alike, "right")
		check.Equal(t, another.guesses(20, "owner"), 3, "%s: guesses through, by the bucket of the account", alike)
		another.wants(http.StatusFound, alike, "right")
		owner.wants(http.StatusFound, " owner ", "right")
		s.Stop()
	}
}

// Also where the key has several names.
func TestADeviceIsForAllNamesThatWereTyped(t *testing.T) {
	for _, trusts := range []string{"refund status 302\ntrust_devices wordpress_test_cookie", "refund cookie wordpress_logged_in_*\ntrust_devices wordpress_logged_in_*"} {
		s := servertest.NewLoginSite(t, t.TempDir(), "zone account {\nkey field log field site\nlimit 3.5 1/h\n"+trusts+"\n}")
		another := newBrowser(s, "198.51.100.1:1")
		login := func(account, password string) int {
			return another.post("https://example.com/wp-login.php", url.Values{"log": {account}, "site": {"a"}, "pwd": {password}}).Code
		}
		for i, want := range []int{http.StatusFound, http.StatusOK, http.StatusOK, http.StatusOK, http.StatusTooManyRequests, http.StatusFound} {
			got := login([]string{"OWNER", "owner"}[min(i%5, 1)], []string{"right", "wrong"}[min(i%5, 1)])
			check.Equal(t, got, want, "%s: login %d", trusts, i)
		}
		s.Stop()
	}
}

func TestADeviceIsForTheUserOfBasicThatWasTyped(t *testing.T) {
	s := servertest.NewFuncSite(t, `throttle {
		zone account {
			key basic_user missing share
			limit 3.5 1/h
			refund cookie sid
			trust_devices sid
		}
	}
	settle_upstream`)
	s.Serve = func(w http.ResponseWriter, r *http.Request) error {
		if _, password, _ := r.BasicAuth(); password == "right" {
			w.Header().Set("Set-Cookie", "sid=1")
		}
		return nil
	}
	visit := func(user, password, device string) (status int, earned string) {
		r := httptest.NewRequest("GET", "https://example.com/", nil)
		r.SetBasicAuth(user, password)
		r.Header.Set("Cookie", device)
		w := httptest.NewRecorder()
		s.ServeHTTP(w, r)
		for _, cookie := range w.Result().Cookies() {
			if cookie.Name == deviceCookie {
				earned = cookie.Name + "=" + cookie.Value
			}
		}
		return w.Code, earned
	}
	_, device := visit("OWNER", "right", "")
	check.Need(t, device != "", true, "a device cookie")
	for range 4 {
		_, _ = visit("owner", "wrong", "")
	}
	status, _ := visit("owner", "wrong", device)
	check.Equal(t, status, http.StatusTooManyRequests, "a guess with a device of another name")
	status, _ = visit("OWNER", "wrong", device)
	check.Equal(t, status, http.StatusOK, "one with a device of this name")
}

func TestCopiesOfADeviceShareOneBucket(t *testing.T) {
	s := servertest.NewLoginSite(t, t.TempDir(), byAccount("3.5 1/h", ""))
	device := newBrowser(s, "192.0.2.1:1")
	device.wants(http.StatusFound, "owner", "right")
	stolen := newBrowser(s, "198.51.100.1:1")
	stolen.cookies = map[string]string{deviceCookie: device.cookies[deviceCookie]}
	check.Equal(t, stolen.guesses(20, "owner"), 3, "guesses through with a copied cookie")
	device.wants(http.StatusTooManyRequests, "owner", "right")
	newBrowser(s, "192.0.2.2:1").wants(http.StatusFound, "owner", "right")
	check.Equal(t, stolen.guesses(20, "admin"), 3, "guesses at another account through with a cookie that is not for it")
}

func TestOnlyASuccessEarnsTrust(t *testing.T) {
	s := servertest.NewLoginSite(t, t.TempDir(), byAccount("3.5 1/h", ""))
	const site = "https://example.com/wp-login.php"
	form := func(account, password string) url.Values { return url.Values{"log": {account}, "pwd": {password}} }
	for _, test := range []struct {
		name, target string
		form         url.Values
		want         bool
	}{
		{"a success", site, form("a", "right"), true},
		{"a success without a redirect", site, form("b", "implicit"), true},
		{"a login by e-mail", site, url.Values{"log": {"a@example.com"}, "user": {"a"}, "pwd": {"right"}}, false},
		{"a registration beside it", site, url.Values{"log": {"victim"}, "user": {"new"}, "pwd": {"right"}}, false},
		{"one whose name in base64 is the victim's", site, url.Values{"log": {"victim"}, "user": {"dmljdGlt"}, "pwd": {"right"}}, false},
		{"other letters of one name", site, url.Values{"log": {" E "}, "user": {"e"}, "pwd": {"right"}}, true},
		{"a wrong guess", site, form("c", "wrong"), false},
		{"a wrong guess with reauth=1", site + "?reauth=1", form("d", "wrong"), false},
		{"an error route", site, form("f", "broken"), false},
		{"plain HTTP", "http://example.com/wp-login.php", form("g", "right"), false},
		{"no account", site, url.Values{"pwd": {"right"}}, false},
		{"an empty account", site, form("", "right"), false},
		{"an array of accounts", site, url.Values{"log": {"a"}, "log[]": {"b"}, "pwd": {"right"}}, false},
		{"no host", "https:///wp-login.php", form("h", "right"), false},
	} {
		b := newBrowser(s, "192.0.2.1:1")
		w := b.post(test.target, test.form)
		_, got := b.cookies[deviceCookie]
		check.That(t, got == test.want, "%s: got a device cookie: %v, want %v; the headers are %v", test.name, got, test.want, w.Header())
		check.Slices(t, w.Header()["Ratelimit"], nil, "%s: rate-limit headers, want none of accounts", test.name)
	}
	check.Equal(t, len(s.Logs.Lines(t, "a login succeeded over plain HTTP")), 1, "warnings of plain HTTP")
	refused := newBrowser(s, "192.0.2.1:1")
	refused.guesses(10, "x")
	refused.wants(http.StatusTooManyRequests, "x", "right")
	check.That(t, len(refused.cookies) == 0, "a refused request: got a device cookie")
}

// Whoever earns devices without end, as by a refund that is too wide, has ten buckets.
func TestDevicesHaveTenBucketsInAll(t *testing.T) {
	s := servertest.NewLoginSite(t, t.TempDir(), byAccount("3.5 1/d", ""))
	var devices []*browser
	for range 25 {
		b := newBrowser(s, "192.0.2.1:1")
		b.wants(http.StatusFound, "owner", "right")
		devices = append(devices, b)
	}
	heard := 0
	for _, b := range devices {
		heard += b.guesses(5, "owner")
	}
	check.That(t, heard > 3 && heard <= 30, "got %d guesses of 25 devices through, want 3 for each of ten buckets", heard)
}

// A site may renew the cookie of whoever is logged in. The renewal says nothing about
// the account whose password a request guesses, so refund must tell the two apart.
func TestTrustNeedsARefundAndTheCookie(t *testing.T) {
	for _, test := range []struct {
		name, refund, carried, query, password string
		want                                   bool
	}{
		{"a login", "refund status 302", "", "", "right", true},
		{"a login with a cookie from before", "refund status 302", "wordpress_logged_in_0f", "", "right", true},
		{"a wrong guess whose cookie is renewed", "refund status 302", "wordpress_logged_in_0f", "?renews", "wrong", false},
		{"one whose cookie is cleared", "refund cookie wordpress_logged_in_*", "", "?reauth=1", "wrong", false},
		{"a refund without the cookie", "refund status 200", "", "", "wrong", false},
		{"one line of two", "refund cookie other\nrefund status 302", "", "", "right", true},
		{"a login that the refund does not match", "refund header Location */home*", "", "", "right", false},
	} {
		s := servertest.NewLoginSite(t, t.TempDir(), `zone account {
			key field log missing share
			limit 10 1/h
			trust_devices wordpress_logged_in_*
			`+test.refund+`
		}`)
		b := newBrowser(s, "192.0.2.1:1")
		if test.carried != "" {
			b.cookies[test.carried] = "other%7C1"
		}
		w := b.post("https://example.com/wp-login.php"+test.query, url.Values{"log": {"owner"}, "pwd": {test.password}})
		check.Equal(t, b.cookies[deviceCookie] != "", test.want, "%s: trust; the headers are %v", test.name, w.Header())
		s.Stop()
	}
}

// A site may have two login forms, as MyBB has. Who logs in by one, and names somebody else in the other, earns no device.
func TestTwoNamesEarnNoDevice(t *testing.T) {
	for _, test := range []struct {
		log, quick []string
		want       int // devices
	}{
		{[]string{"owner"}, nil, 1},
		{[]string{"owner"}, []string{"owner"}, 2},
		{[]string{"owner"}, []string{"victim"}, 0},
		{[]string{"x", "owner"}, []string{"victim"}, 0}, // of which PHP takes the last
	} {
		for _, between := range []string{"", "}\nthrottle {\n"} {
			for n, trusts := range []string{"", "trust_devices wordpress_test_cookie\n"} { // in the zone log
				zone := "zone %[1]s {\nkey field %[1]s missing skip\nlimit 10 1/h\nrefund status 302\n%[2]s}\n"
				s := servertest.NewLoginSite(t, t.TempDir(), fmt.Sprintf(zone, "log", trusts)+between+fmt.Sprintf(zone, "quick", "trust_devices wordpress_test_cookie\n"))
				b := newBrowser(s, "192.0.2.1:1")
				b.post("https://example.com/wp-login.php", url.Values{"log": test.log, "quick": test.quick, "pwd": {"right"}})
				check.Equal(t, len(b.cookies), max(0, test.want-1+n), "%v, two handlers %v, %d zones that trust: devices", test, between != "", n+1)
				s.Stop()
			}
		}
	}
}

// Nor who logs in by HTTP Basic, and names somebody else in a form, unless the cookie says who has logged in: a
// password of the server may come before that of the site.
func TestANameOfHTTPBasicAndAnotherEarnNoDevice(t *testing.T) {
	zone := "zone basic {\nkey basic_user missing skip\nlimit 10 1/h\n}\nzone account {\nkey field log\nlimit 10 1/h\nrefund status 302\ntrust_devices %s\n}\n"
	for cookie, wants := range map[string]map[string]bool{
		"wordpress_test_cookie": {"owner": true, "eve": false},
		"wordpress_logged_in_*": {"owner": true, "eve": true},
	} {
		s := servertest.NewLoginSite(t, t.TempDir(), fmt.Sprintf(zone, cookie))
		for user, want := range wants {
			r := httptest.NewRequest("POST", "https://example.com/wp-login.php", strings.NewReader("log=owner&pwd=right"))
			r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
			r.SetBasicAuth(user, "x")
			got := s.Do(r).Header()["Set-Cookie"]
			check.Equal(t, strings.Contains(strings.Join(got, ""), deviceCookie), want, "%s, %s: a device in %q", cookie, user, got)
		}
		s.Stop()
	}
}

// The cookie of somebody else, who is logged in or registers by the same request, refunds no guess.
func TestACookieOfAnotherRefundsNothing(t *testing.T) {
	for _, from := range []string{"", "cross-site"} {
		for _, accounts := range [][]string{{"victim"}, {"victim", "other"}} {
			s := servertest.NewLoginSite(t, t.TempDir(), byAccount("3.5 1/d", ""))
			b := newBrowser(s, "192.0.2.1:1")
			b.from = from
			heard := 0
			for range 9 {
				w := b.post("https://example.com/my-account/", url.Values{"log": accounts, "user": {"new"}, "pwd": {"right"}})
				if w.Code == http.StatusFound {
					heard++
				}
			}
			check.Equal(t, heard, 3, "guesses at %q from %q that got through", accounts, from)
			s.Stop()
		}
	}
}

func TestABlockedAccountDoesNotBlockItsDevices(t *testing.T) {
	dir := withKey(t)
	servertest.InBubble(t, func(t *testing.T) {
		s := servertest.NewLoginSite(t, dir, byAccount("3.5 3/h", "block 1d"))
		device, attacker := newBrowser(s, "192.0.2.1:1"), newBrowser(s, "198.51.100.1:1")
		device.wants(http.StatusFound, "owner", "right")
		attacker.guesses(10, "owner")
		<-time.After(2 * time.Hour) // the block is longer than the bucket is full
		newBrowser(s, "192.0.2.2:1").wants(http.StatusTooManyRequests, "owner", "right")
		device.wants(http.StatusFound, "owner", "right")
		check.Equal(t, device.guesses(10, "owner"), 3, "guesses of the device through, want its own 3, since the account is blocked")
		<-time.After(22*time.Hour + time.Minute)
		newBrowser(s, "192.0.2.2:1").wants(http.StatusFound, "owner", "right")
		device.wants(http.StatusTooManyRequests, "owner", "right") // its own block began two hours later
		<-time.After(2 * time.Hour)
		device.wants(http.StatusFound, "owner", "right")
	})
}

func TestDevicesOfAnAccountHaveItsLimit(t *testing.T) {
	s := servertest.NewLoginSite(t, t.TempDir(), byAccount("3.5 1/h", "override vip 5.5 1/h\noverride nobody deny\noverride free unlimited"))
	vip := newBrowser(s, "192.0.2.1:1")
	vip.wants(http.StatusFound, "vip", "right")
	check.Equal(t, vip.guesses(20, "vip"), 5, "guesses through")
	vip.wants(http.StatusTooManyRequests, "nobody", "right")
	check.Equal(t, vip.guesses(20, "free"), 20, "an unlimited account: through, want all")
}

func TestShadowMakesDevicesKnown(t *testing.T) {
	dir := withKey(t)
	synctest.Test(t, func(t *testing.T) {
		s := servertest.NewLoginSite(t, dir, byAccount("3.5 1/h", "shadow"))
		device := newBrowser(s, "192.0.2.1:1")
		check.Equal(t, newBrowser(s, "198.51.100.1:1").guesses(10, "owner"), 10, "in shadow: guesses through, want all")
		device.wants(http.StatusFound, "owner", "right")
		check.Assume(t, device.cookies[deviceCookie] != "", "in shadow: got no device cookie")
		check.Equal(t, device.guesses(10, "owner"), 10, "in shadow: guesses of a device through, want all")
		enforced := servertest.NewLoginSite(t, dir, byAccount("3.5 1/h", ""))
		check.Equal(t, newBrowser(enforced, "198.51.100.1:1").guesses(10, "owner"), 3, "enforced: guesses through")
		device.on(enforced).wants(http.StatusFound, "owner", "right")
	})
}

func TestNodesThatShareStorageTrustEachOthersDevices(t *testing.T) {
	dir := t.TempDir()
	a, b := servertest.NewLoginSite(t, dir, byAccount("3.5 1/h", "")), servertest.NewLoginSite(t, dir, byAccount("3.5 1/h", ""))
	stranger := servertest.NewLoginSiteWith(t, dir, "signing_key "+strings.Repeat("k", 32), byAccount("3.5 1/h", ""))
	device := newBrowser(a, "192.0.2.1:1")
	device.wants(http.StatusFound, "owner", "right")
	newBrowser(a, "198.51.100.1:1").guesses(10, "owner")
	device.on(b).wants(http.StatusFound, "owner", "right")
	device.on(a).wants(http.StatusFound, "owner", "right")
	device.on(stranger).wants(http.StatusTooManyRequests, "owner", "right")
}

func TestAReloadKeepsTheKeysAlthoughStorageFails(t *testing.T) {
	dir := t.TempDir()
	first := servertest.NewLoginSite(t, dir, byAccount("3.5 1/h", ""))
	device := newBrowser(first, "192.0.2.1:1")
	device.wants(http.StatusFound, "owner", "right")
	file := filepath.Join(dir, "throttle", "signing_key")
	check.OK(t, os.WriteFile(file, []byte(`{"id":`), 0o600))
	second := servertest.NewLoginSite(t, dir, byAccount("3.5 1/h", ""))
	newBrowser(second, "198.51.100.1:1").guesses(10, "owner")
	device.on(second).wants(http.StatusFound, "owner", "right")
	check.Equal(t, len(second.Logs.Lines(t, "reading the signing keys")), 1, "log lines about storage")
	text, err := os.ReadFile(file)
	check.That(t, err == nil && string(text) == `{"id":`, "got %q and %v in storage, want it left alone", text, err)
}

func TestASiteWhoseStorageFailsServesAndTrustsNobody(t *testing.T) {
	dir := t.TempDir()
	check.OK(t, os.WriteFile(filepath.Join(dir, "throttle"), nil, 0o600))
	s := servertest.NewLoginSite(t, dir, byAccount("3.5 1/h", ""))
	b := newBrowser(s, "192.0.2.1:1")
	b.wants(http.StatusFound, "owner", "right")
	check.That(t, len(b.cookies) == 0, "got %v, want no device cookie without keys", b.cookies)
	check.Equal(t, b.guesses(10, "owner"), 3, "guesses through")
}

func TestDevicesAreTrustedInAnOutageOfTheSharedStore(t *testing.T) {
	dir := withKey(t)
	synctest.Test(t, func(t *testing.T) {
		servertest.TheShared = &servertest.SharedStore{Store: memstore.New(memstore.Options{})}
		s := servertest.NewLoginSiteWith(t, dir, "store test_shared", byAccount("3.5 1/h", "block 1d"))
		t.Cleanup(func() { <-time.After(time.Second) })
		device, attacker := newBrowser(s, "192.0.2.1:1"), newBrowser(s, "198.51.100.1:1")
		device.wants(http.StatusFound, "owner", "right")
		attacker.guesses(10, "owner")
		device.wants(http.StatusFound, "owner", "right")
		servertest.TheShared.Down.Store(true)
		for range 20 {
			attacker.guesses(1, "owner")
			device.wants(http.StatusFound, "owner", "right")
		}
		newBrowser(s, "192.0.2.2:1").wants(http.StatusTooManyRequests, "owner", "right")
		other := newBrowser(s, "192.0.2.3:1")
		check.That(t, other.login("another", "right").Code == http.StatusFound && len(other.cookies) != 0, "got no device cookie in the outage")
		servertest.TheShared.Down.Store(false)
		<-time.After(time.Minute)
		device.wants(http.StatusFound, "owner", "right")
	})
}

func TestABlockedDeviceIsRefusedWithoutAsking(t *testing.T) {
	dir := withKey(t)
	synctest.Test(t, func(t *testing.T) {
		servertest.TheShared = &servertest.SharedStore{Store: memstore.New(memstore.Options{})}
		s := servertest.NewLoginSiteWith(t, dir, "store test_shared", byAccount("3.5 1/h", "block 1d"))
		t.Cleanup(func() { <-time.After(time.Second) })
		device := newBrowser(s, "192.0.2.1:1")
		device.wants(http.StatusFound, "owner", "right")
		check.Equal(t, device.guesses(4, "owner"), 3, "guesses through")
		takes := servertest.TheShared.Takes.Load()
		device.wants(http.StatusTooManyRequests, "owner", "right")
		check.Equal(t, servertest.TheShared.Takes.Load(), takes, "takes, want none about a block that is known")
		newBrowser(s, "192.0.2.2:1").wants(http.StatusFound, "owner", "right")
	})
}

func TestADeviceHasAQueueOfItsOwn(t *testing.T) {
	dir := withKey(t)
	synctest.Test(t, func(t *testing.T) {
		s := servertest.NewLoginSite(t, dir, `zone account {
			key field log
			limit 10 1/m
			delay
			refund cookie wordpress_logged_in_*
			trust_devices wordpress_logged_in_*
		}`)
		s.Engine().Exiting = nil
		device, attacker := newBrowser(s, "192.0.2.1:1"), newBrowser(s, "198.51.100.1:1")
		device.wants(http.StatusFound, "owner", "right")
		for range 9 {
			go attacker.login("owner", "wrong")
		}
		synctest.Wait()
		began := time.Now()
		device.wants(http.StatusFound, "owner", "right")
		check.Equal(t, time.Since(began), 0, "the time that the device is held behind the attacker's requests, want none")
		<-time.After(10 * time.Minute)
	})
}

func TestThrottleBlockedLetsDevicesOfABlockedAccountPass(t *testing.T) {
	s := servertest.Run(t, `{
		order login_upstream last
		storage file_system `+t.TempDir()+`
	}
	http:// {
		@blocked throttle_blocked
		abort @blocked
		@login path /login
		throttle @login {
			zone account {
				key header X-User
				limit 1 1/h
				refund cookie wordpress_logged_in_*
				block 1d
				trust_devices wordpress_logged_in_*
			}
		}
		@page path /page
		respond @page page
		login_upstream
	}`)
	servertest.Start(t, s)
	cookies := ""
	send := func(target, body string, cookies string) (w *httptest.ResponseRecorder, aborted bool) {
		r := httptest.NewRequest("POST", "https://example.com"+target, strings.NewReader(body))
		r.Header = http.Header{"X-User": {"owner"}, "Content-Type": {"application/x-www-form-urlencoded"}}
		if cookies != "" {
			r.Header.Set("Cookie", cookies)
		}
		defer func() { aborted = recover() != nil }()
		return s.Do(r), false
	}
	w, _ := send("/login", "pwd=right", "")
	for _, cookie := range w.Result().Cookies() {
		if cookie.Name == deviceCookie {
			cookies = cookie.Name + "=" + cookie.Value
		}
	}
	for range 3 {
		send("/login", "pwd=wrong", "")
	}
	_, aborted := send("/page", "", "")
	check.That(t, aborted, "a request to the blocked account: got it answered, want it aborted")
	w, aborted = send("/page", "", cookies)
	check.That(t, !aborted && w.Body.String() == "page", "a request of its device: got it aborted, want it answered")
	for range 3 {
		send("/login", "pwd=wrong", cookies)
	}
	_, aborted = send("/page", "", cookies)
	check.That(t, aborted, "a request of the device when it is blocked, too: got it answered, want it aborted")
}
