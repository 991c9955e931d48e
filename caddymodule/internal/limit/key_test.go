package limit_test

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"unsafe"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/limit"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/servertest"
	bucketkey "github.com/caddy-throttle/caddy-throttle/leakybucket/key"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

// keyOf runs a zone with these lines and a limit, and returns the key of a
// request.
func keyOf(t *testing.T, lines string, r *http.Request) string {
	t.Helper()
	s := servertest.RunZone(t, "keyed", lines+"\nlimit 5 1/s", "vars tenant {header.X-Tenant}\nrespond {http.throttle.key}")
	defer s.Stop()
	w := s.Do(r)
	check.Need(t, w.Code, http.StatusOK, "%q", lines)
	return w.Body.String()
}

func digestOf(value string) string {
	sum := sha256.Sum256([]byte(value))
	return "@sha256:" + hex.EncodeToString(sum[:])
}

func TestAKeyNamesTheBucketThatIsCharged(t *testing.T) {
	for _, test := range []struct {
		lines string
		r     *http.Request
		want  string
	}{
		{"", servertest.Request(servertest.Someone, servertest.Site0), "203.0.113.7"},
		{"key client_ip", servertest.Request(servertest.Someone, servertest.Site0), "203.0.113.7"},
		{"key {client_ip}", servertest.Request(servertest.Someone, servertest.Site0), "203.0.113.7"},
		{"key {remote_host}", servertest.Request(servertest.Someone, servertest.Site0), "203.0.113.7"},
		{"", servertest.Request("[::ffff:203.0.113.7]:1", servertest.Site0), "203.0.113.7"},
		{"", servertest.Request("[64:ff9b::203.0.113.7]:1", servertest.Site0), "203.0.113.7"},
		{"key client_ip ipv4 16 ipv6 96", servertest.Request("[::ffff:0:203.0.113.7]:1", servertest.Site0), "203.0.0.0"},
		{"", servertest.Request("[2001:db8:1:2:3:4:5:6]:1", servertest.Site0), "2001:db8:1:2::"},
		{"", servertest.Request("[fe80::1%eth0]:1", servertest.Site0), "fe80::"},
		{"key client_ip ipv4 16", servertest.Request(servertest.Someone, servertest.Site0), "203.0.0.0"},
		{"key client_ip ipv4 16", servertest.Request("[::ffff:203.0.113.7]:1", servertest.Site0), "203.0.0.0"},
		{"key client_ip ipv6 48", servertest.Request("[2001:db8:1:2:3:4:5:6]:1", servertest.Site0), "2001:db8:1::"},
		{"key client_ip ipv6 128", servertest.Request("[2001:db8:1:2:3:4:5:6]:1", servertest.Site0), "2001:db8:1:2:3:4:5:6"},

		{"key header X-Api-Key", servertest.Request(servertest.Someone, servertest.Site0, "X-Api-Key", "k"), digestOf("k")},
		{"key header x-api-KEY", servertest.Request(servertest.Someone, servertest.Site0, "X-Api-Key", "k"), digestOf("k")},
		{"key header X-Api-Key plain", servertest.Request(servertest.Someone, servertest.Site0, "X-Api-Key", "k"), "k"},
		{"key cookie session", servertest.Request(servertest.Someone, servertest.Site0, "Cookie", "a=b; session=s"), digestOf("s")},
		{"key cookie session plain", servertest.Request(servertest.Someone, servertest.Site0, "Cookie", "a=b; session=s"), "s"},
		{"key cookie my_session plain", servertest.Request(servertest.Someone, servertest.Site0, "Cookie", `my.session= "%73%3D " `), "s="},
		{"key cookie session plain", servertest.Request(servertest.Someone, servertest.Site0, "Cookie", strings.Repeat("a=b; ", 10_000)+"session=a"), "a"},
		{"key query token", servertest.Request(servertest.Someone, servertest.Site0+"/?a=b&token=t%20u"), digestOf("t u")},
		{"key query token plain", servertest.Request(servertest.Someone, servertest.Site0+"/?a=b&token=t%20u"), "t u"},
		{"key query my_token plain", servertest.Request(servertest.Someone, servertest.Site0+"/?a=b;c&+my.token%00x=t;d"), "t"},

		{"key host", servertest.Request(servertest.Someone, servertest.Site0), "example.com"},
		{"key host", servertest.Request(servertest.Someone, "http://example.com.:80"), "example.com"},
		{"key host", servertest.Request(servertest.Someone, "http://[2001:DB8::1]:8080"), "2001:db8::1"},
		{"key host", servertest.Request(servertest.Someone, "http://[2001:DB8::1]"), "2001:db8::1"},
		{"key method", servertest.Request(servertest.Someone, servertest.Site0), "GET"},
		{"key route\nroute search /search*\nroute login /login", servertest.Request(servertest.Someone, servertest.Site0+"/search/x"), "search"},
		{"key route\nroute search /search*\nroute login /login", servertest.Request(servertest.Someone, servertest.Site0+"/LOGIN"), "login"},
		{"key route\nroute search /search*\nroute login /login", servertest.Request(servertest.Someone, servertest.Site0+"/login/x"), "other"},
		{"key text everybody", servertest.Request(servertest.Someone, servertest.Site0), "everybody"},
		{`key text "a/b%c"`, servertest.Request(servertest.Someone, servertest.Site0), "a%2Fb%25c"},
		{"key client_ip host method", servertest.Request(servertest.Someone, servertest.Site0), "203.0.113.7/example.com/GET"},

		{"key {header.X-Tenant}", servertest.Request(servertest.Someone, servertest.Site0, "X-Tenant", "acme"), "acme"},
		{"key {header.X-Tenant}-{method}", servertest.Request(servertest.Someone, servertest.Site0, "X-Tenant", "acme"), "acme/-/GET"},
		{"key x-{host}", servertest.Request(servertest.Someone, "http://Example.COM.:80"), "x-/example.com"},
		{"key {vars.tenant}", servertest.Request(servertest.Someone, servertest.Site0, "X-Tenant", "acme"), "acme"},
		{"key {header.X-Tenant}", servertest.Request(servertest.Someone, servertest.Site0, "X-Tenant", "{env.HOME}"), "{env.HOME}"},
	} {
		check.Equal(t, keyOf(t, test.lines, test.r), test.want, "%q, %v %v %v: key", test.lines, test.r.RemoteAddr, test.r.URL, test.r.Header)
	}
}

func TestTextThatClientsWriteIntoKeysLooksLikeNoOtherKey(t *testing.T) {
	long := strings.Repeat("k", 10<<10)
	for _, test := range []struct{ lines, value, want string }{
		{"plain", "@client_ip/203.0.113.9", "%40client_ip%2F203.0.113.9"},
		{"plain", "@share", "%40share"},
		{"plain", "@sha256:00", "%40sha256:00"},
		{"plain", "a@b", "a@b"},
		{"plain", "a/b", "a%2Fb"},
		{"plain", "a%2Fb", "a%252Fb"},
		{"plain", "a\x00b\n\x7f", "a%00b%0A%7F"},
		{"plain", "a\xffb", "a%FFb"},
		{"plain", "grün", "grün"},
		{"plain", strings.Repeat("k", 256), strings.Repeat("k", 256)},
		{"plain", long, digestOf(long)},
		{"", "@share", digestOf("@share")},
		{"", long, digestOf(long)},
	} {
		check.Equal(t, keyOf(t, "key header X-Api-Key "+test.lines, servertest.Request(servertest.Someone, servertest.Site0, "X-Api-Key", test.value)), test.want, "%q, header %.80q", test.lines, test.value)
	}
}

func TestAKeyWithAMissingPartFallsBackToBucketsOfItsOwn(t *testing.T) {
	const fallback = "@client_ip/203.0.113.7"
	for _, test := range []struct {
		lines string
		r     *http.Request
		want  string
	}{
		{"key header X-Api-Key", servertest.Request(servertest.Someone, servertest.Site0), fallback},
		{"key header X-Api-Key", servertest.Request(servertest.Someone, servertest.Site0, "X-Api-Key", ""), fallback},
		{"key header X-Api-Key", servertest.Request(servertest.Someone, servertest.Site0, "X-Api-Key", "a", "X-Api-Key", "b"), fallback},
		{"key header X-Api-Key", servertest.Request(servertest.Someone, servertest.Site0, "X-Api-Key", "a", "X-Api-Key", "a"), fallback},
		{"key header X-Api-Key", servertest.Request("[2001:db8:1:2:3:4:5:6]:1", servertest.Site0), "@client_ip/2001:db8:1:2::"},
		{"key cookie session", servertest.Request(servertest.Someone, servertest.Site0, "Cookie", "session="), fallback},
		{"key cookie session", servertest.Request(servertest.Someone, servertest.Site0, "Cookie", "session=a; session=b"), fallback},
		{"key cookie session", servertest.Request(servertest.Someone, servertest.Site0, "Cookie", "session=a", "Cookie", "session=b"), fallback},
		{"key cookie session", servertest.Request(servertest.Someone, servertest.Site0, "Cookie", `session=a; session="\142"`), fallback},
		{"key cookie session", servertest.Request(servertest.Someone, servertest.Site0, "Cookie", `session="\142"`), fallback},
		{"key cookie my_session", servertest.Request(servertest.Someone, servertest.Site0, "Cookie", "my[session=a; my_session=b"), fallback},
		{"key query token", servertest.Request(servertest.Someone, servertest.Site0+"/?token="), fallback},
		{"key query token", servertest.Request(servertest.Someone, servertest.Site0+"/?token=a&token=b"), fallback},
		{"key query token", servertest.Request(servertest.Someone, servertest.Site0+"/?token=a&%74oken=b"), fallback},
		{"key query token", servertest.Request(servertest.Someone, servertest.Site0+"/?token=%zz"), fallback},
		{"key query token", servertest.Request(servertest.Someone, servertest.Site0+"/?token=a&x=1;token=b"), fallback},
		{"key query my_token", servertest.Request(servertest.Someone, servertest.Site0+"/?my_token=a&my.token=b"), fallback},
		{"key {vars.tenant}", servertest.Request(servertest.Someone, servertest.Site0), fallback},
		{"key {vars.nothing}", servertest.Request(servertest.Someone, servertest.Site0), fallback},
		{"key x-{vars.nothing}", servertest.Request(servertest.Someone, servertest.Site0), fallback},
		{"key client_ip header X-Api-Key", servertest.Request(servertest.Someone, servertest.Site0), fallback},
		{"key header X-Api-Key missing share", servertest.Request(servertest.Someone, servertest.Site0), "@share"},
		{"key field log\nfield pwd", login("pwd", "x"), "@share"},
		{"key header X-Api-Key", servertest.Request("@", servertest.Site0), "@share"},
		{"", servertest.Request("@", servertest.Site0), "@share"},
		{"", servertest.Request("", servertest.Site0), "@share"},
	} {
		check.Equal(t, keyOf(t, test.lines, test.r), test.want, "%q, %v %v %.80v: key", test.lines, test.r.RemoteAddr, test.r.URL, test.r.Header)
	}
}

// Refusals are remembered by their keys, which must not keep the requests in memory that they are of.
func TestAKeyIsNoPartOfTheAddress(t *testing.T) {
	r := servertest.Request(servertest.Someone, servertest.Site0+"/k?k=k&long="+strings.Repeat("x", 1000))
	for source, cut := range map[string]string{"key query k plain": r.URL.RawQuery, "key {http.request.uri.query.k}": r.URL.RawQuery, "key {http.request.uri.path}": r.URL.Path, "key host": r.Host} {
		s := servertest.NewFuncSite(t, "throttle {\nzone keyed {\n"+source+"\nlimit 5 1/s\n}\n}\nsettle_upstream")
		s.Serve = func(_ http.ResponseWriter, r *http.Request) error {
			key := limit.VerdictsOf(r.Context()).Decisive().Key
			at, from := uintptr(unsafe.Pointer(unsafe.StringData(key))), uintptr(unsafe.Pointer(unsafe.StringData(cut)))
			check.That(t, key != "" && (at < from || at >= from+uintptr(len(cut))), "%s: the key %q lies in the address", source, key)
			return nil
		}
		s.ServeHTTP(httptest.NewRecorder(), r)
	}
}

func TestARequestWithoutAHostHasNoHostInItsKey(t *testing.T) {
	r := servertest.Request(servertest.Someone, servertest.Site0)
	r.Host, r.Proto, r.ProtoMinor = "", "HTTP/1.0", 0 // in later versions it is required
	check.Equal(t, keyOf(t, "key host", r), "@client_ip/203.0.113.7", "key")
}

func TestAMissingKeyIsTreatedAsTheZoneChooses(t *testing.T) {
	for _, test := range []struct {
		policy    string
		own, both int // how many of four requests pass, from one address and from two
	}{
		{"client_ip", 2, 4},
		{"share", 2, 2},
		{"skip", 4, 8},
		{"refuse", 0, 0},
	} {
		t.Run(test.policy, func(t *testing.T) {
			s := servertest.RunZone(t, "keyed", "key header X-Api-Key missing "+test.policy+"\nlimit 2 1/h", "respond ok")
			own := s.From("203.0.113.7:1").Statuses(4, "/")[http.StatusOK]
			both := own + s.From("203.0.113.8:1").Statuses(4, "/")[http.StatusOK]
			check.That(t, own == test.own && both == test.both, "got %v passed from one address and %v from two, want %v and %v", own, both, test.own, test.both)
			s.From("203.0.113.7:1").With("X-Api-Key", "k").Passes(2, "/")
		})
	}
}

// TestOverridesOfAString: what clients choose in one placeholder must not look like that of another.
func TestOverridesOfAString(t *testing.T) {
	s := servertest.RunZone(t, "z", "key {header.X-A}-{header.X-B}\nlimit 2 1/h\noverride gold - card 7 1/h", "respond {http.throttle.capacity}")
	for _, test := range []struct{ a, b, want string }{{"gold", "card", "7"}, {"gold-card", "x", "2"}, {"gold-", "card", "2"}, {"gold", "-card", "2"}} {
		check.Equal(t, s.From("203.0.113.7:1").With("X-A", test.a).With("X-B", test.b).Get("/").Body.String(), test.want, "%s and %s", test.a, test.b)
	}
}

const (
	formType  = "application/x-www-form-urlencoded"
	partsType = "multipart/form-data; boundary=b"
)

func TestRequestsThatMayBeAboutAnybodyShareABucket(t *testing.T) {
	for _, policy := range []string{"client_ip", "share", "skip", "refuse"} {
		servertest.InBubble(t, func(t *testing.T) {
			s := bodyCostSite(t, "key field log missing "+policy)
			s.Client = "@unclear"
			for i, unclear := range []struct{ contentType, body string }{
				{formType, "log=a&+log=b"},
				{formType, "log=a&log[]=b"},
				{formType, "%%=1&log=a;log=b"},
				{partsType, "--b\r\nContent-Disposition: form-data; name=\"log\"\r\n\r\na\r\n"},
				{"application/json", `{"log":"a","log":"b"}`},
				{"application/json", `{"log":["a"]}`},
				{"application/xml", `<login><log>a</log></login>`},
			} {
				check.Equal(t, post(s, strings.NewReader(unclear.body), len(unclear.body), "Content-Type", unclear.contentType).Code, http.StatusOK, "%.60q", unclear.body)
				s.WantLevel("settled", float64(i+1))
			}
			post(s, strings.NewReader("log=a"), 5, "Content-Type", formType)
			s.WantLevel("settled", 7)
			s.Client = string(bucketkey.DigestOf("a").Append(nil))
			s.WantLevel("settled", 1)
		})
	}
}

// A page has no form, so views of it must not close the zone.
func TestAPageWithoutAFormIsNoFormThatLacksTheField(t *testing.T) {
	for policy, want := range map[string]string{"client_ip": "@client_ip/203.0.113.7", "share": "@client_ip/203.0.113.7", "skip": ""} {
		check.Equal(t, keyOf(t, "key field log missing "+policy, servertest.Request(servertest.Someone, servertest.Site0)), want, "missing_key %s: key", policy)
	}
}

func TestTheSpellingsOfItemsCostNoLessThanTheUpstreamReads(t *testing.T) {
	many := func(name string) string { return strings.TrimSuffix(strings.Repeat(name+"=1&", 500), "&") }
	for _, field := range []struct {
		field, contentType, body string
		want                     float64
	}{
		{"rows", formType, many("+rows[]"), 500},
		{"rows", formType, many("%20rows%5B%5D"), 500},
		{"rows", formType, many("rows[]"), 500},
		{"line_items", formType, many("line.items[]"), 500},
		{"line_items", formType, many("line+items[]"), 500},
		{"rows", partsType, strings.Repeat("--b\r\nContent-Disposition: form-data; name=\"rows[]\"\r\n\r\n1\r\n", 500) + "--b--\r\n", 500},
		{"rows", "application/json", `{"rows":{` + numbered(500) + `}}`, 500},
	} {
		s := bodyCostSite(t, "cost body_items "+field.field+"\nread_body 64KiB else 900")
		check.Equal(t, post(s, strings.NewReader(field.body), len(field.body), "Content-Type", field.contentType).Code, http.StatusOK, "%.60q", field.body)
		got := s.Level("settled", false)
		check.That(t, math.Abs(got-field.want) <= 0.1, "%.60q: got a cost of %.0f, want %.0f", field.body, got, field.want)
	}
}

// numbered returns the members of a JSON object whose keys are numbers.
func numbered(n int) string {
	members := make([]string, n)
	for i := range members {
		members[i] = fmt.Sprintf(`"%d":1`, i)
	}
	return strings.Join(members, ",")
}

// A browser sends no key when it asks whether a page of another site may send one.
func TestAPreflightNeedsNoKey(t *testing.T) {
	for _, policy := range []string{"refuse", "share", "client_ip"} {
		s := servertest.RunZone(t, "keyed", "key header X-Api-Key missing "+policy+"\nlimit 1 1/d", "respond ok")
		ask := func(method string, headers ...string) int {
			r := servertest.Request(servertest.Someone, servertest.Site0, headers...)
			r.Method = method
			return s.Do(r).Code
		}
		for range 3 {
			check.Equal(t, ask("OPTIONS", "Origin", "https://example.org", "Access-Control-Request-Method", "GET"), http.StatusOK, "missing %s", policy)
		}
		ask("OPTIONS")
		for _, headers := range [][]string{nil, {"Origin", "https://example.org"}} {
			check.Equal(t, ask("OPTIONS", headers...), http.StatusTooManyRequests, "missing %s, %v, which is no preflight", policy, headers)
		}
		preflight := []string{"Origin", "https://example.org", "Access-Control-Request-Method", "GET", "X-Api-Key", "k"}
		first, second := ask("OPTIONS", preflight...), ask("OPTIONS", preflight...)
		check.That(t, first == http.StatusOK && second == http.StatusTooManyRequests, "missing %s, with a key: got %d and %d, want it charged", policy, first, second)
		s.Stop()
	}
}

// TestUnlistedValues: what nobody types is unlisted, too, and so is what may name two.
func TestUnlistedValues(t *testing.T) {
	for _, source := range []string{"query q plain", "query q", "{http.request.uri.query.q}", "query q method"} {
		s := servertest.RunZone(t, "z", "key "+source+" {\nunlisted refuse\n}\noverride gold 10 1/s\nlimit 3 1/d", "respond ok")
		for value, want := range map[string]int{"gold": http.StatusOK, "iron": http.StatusTooManyRequests, "%00": http.StatusTooManyRequests, "@odd": http.StatusTooManyRequests} {
			got := s.From(servertest.Someone).Get("/?q=" + value).Code
			check.Equal(t, got, want, "%s: %s", source, value)
		}
	}
	s := servertest.RunZone(t, "z", "key basic_user unlisted refuse\noverride gold 10 1/s\nlimit 3 1/d", "respond ok")
	for name, want := range map[string]int{"gold": http.StatusOK, "iron": http.StatusTooManyRequests, "iron\x7fx": http.StatusTooManyRequests} {
		r := servertest.Request(servertest.Someone, servertest.Site0)
		r.SetBasicAuth(name, "pw")
		check.Equal(t, s.Do(r).Code, want, "%q", name)
		check.Equal(t, s.Why(name).Refused, want != http.StatusOK, "%q: why", name)
	}
	r := servertest.Request(servertest.Someone, servertest.Site0, "Authorization", "Basic Z29sZDpwdw==", "Authorization", "Basic aXJvbjpwdw==")
	check.Equal(t, s.Do(r).Code, http.StatusTooManyRequests, "two names")
	check.That(t, s.Why("@unclear").Refused, "two names: why: got them not refused")
}

// With x&name=eve, a client who is denied would name two.
func TestWhatMayBeADeniedKeyIsDenied(t *testing.T) {
	s := servertest.RunZone(t, "z", "key basic_user\nlimit 10 1/d", "respond ok")
	two := []string{"Authorization", "Basic ZXZlOng=", "Authorization", "Basic eDp4"}
	for _, test := range []struct {
		path, body string
		refused    bool
	}{
		{"limit", `{"zone": "z", "key": "bob", "limit": "20 1/d", "for": "1h"}`, false},
		{"limit", `{"zone": "z", "key": "@client_ip/192.0.2.9", "limit": "deny", "for": "3h"}`, false}, // who names nobody
		{"limit", `{"zone": "z", "key": "@share", "limit": "deny", "for": "3h"}`, false},
		{"limit", `{"zone": "z", "key": "eve", "limit": "deny", "for": "1h"}`, true},
		{"limit", `{"zone": "z", "key": "ann", "limit": "deny", "for": "2h"}`, true},
		{"unlimit", `{"zone": "z", "key": "ann"}`, true},
		{"unlimit", `{"zone": "z", "key": "eve"}`, false},
	} {
		s.Changes("/throttle/"+test.path, test.body)
		got := s.Do(servertest.Request(servertest.Someone, servertest.Site0, two...)).Code
		check.That(t, (got == http.StatusTooManyRequests) == test.refused, "%s %s: got %d, want it refused: %v", test.path, test.body, got, test.refused)
		check.Equal(t, s.Why("@unclear").Refused, test.refused, "%s %s: why: refused", test.path, test.body)
	}
}

// Different values are different keys, whatever they contain, and no value is a
// fallback.
func FuzzKey(f *testing.F) {
	for _, seed := range []string{"", "k", "@share", "@client_ip/203.0.113.7", "a/b", "a%2Fb", "\x00\xff\n", strings.Repeat("ü", 200), "{client_ip}"} {
		f.Add(seed, seed, "203.0.113.7")
		f.Add(seed, "", "::ffff:203.0.113.7%x")
	}
	s := servertest.RunZone(f, "plain", "key header X-A {header.X-B}-{header.X-A} header X-B client_ip plain\nlimit 1000000000 1000000000/s", "respond {http.throttle.key}")
	seen := make(map[string]string) // the value of each key
	f.Fuzz(func(t *testing.T, a, b, addr string) {
		r := servertest.Request(addr+":1", servertest.Site0, "X-A", a, "X-B", b)
		w := s.Do(r)
		key, parts := w.Body.String(), strings.Count(w.Body.String(), "/")+1
		check.Assume(t, w.Code == http.StatusOK && key != "", "got %v and key %q", w.Code, key)
		check.That(t, len(key) <= 6*256+len("/-//")+3, "got a key of %d bytes", len(key))
		if strings.HasPrefix(key, "@client_ip/") || key == "@share" {
			if a != "" && b != "" && parts > 2 {
				t.Errorf("got the fallback %q for complete keys %q and %q", key, a, b)
			}
			return
		}
		check.Equal(t, parts, 6, "%q, %q: the parts in %q", a, b, key)
		who := fmt.Sprintf("%q %q", a, b)
		if other, taken := seen[key]; taken && other != who {
			t.Errorf("got key %q for %s and for %s", key, who, other)
		}
		seen[key] = who
	})
}
