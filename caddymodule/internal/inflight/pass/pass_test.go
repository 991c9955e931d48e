package pass

import (
	"context"
	"crypto/tls"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/cookie"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/inflight/fairqueue"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/signer"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

var now = time.Date(2026, 6, 1, 12, 0, 0, 0, time.UTC)

// A storage holds one file.
type storage struct{ value []byte }

func (s *storage) Load(context.Context, string) ([]byte, error) {
	if s.value == nil {
		return nil, fs.ErrNotExist
	}
	return s.value, nil
}

func (s *storage) Store(_ context.Context, _ string, value []byte) error {
	s.value = value
	return nil
}

func (*storage) Lock(context.Context, string) error   { return nil }
func (*storage) Unlock(context.Context, string) error { return nil }

// node returns the zone php of a node that shares storage.
func node(t testing.TB, s *storage) *Issuer {
	t.Helper()
	keys := new(signer.Ring)
	check.OK(t, keys.Maintain(t.Context(), s))
	return &Issuer{
		Name: "php", Keys: keys, Issued: []string{"wordpress_logged_in_*"}, Told: []Told{{Header: "X-User", Session: "*session"}},
		Memory: NewMemory(), Insecure: func() {},
	}
}

const host = "example.com"

// clientOf is who sends a request, as a value whose methods can be called at once.
func clientOf(z *Issuer, r *http.Request, host string, now time.Time) *Client {
	c := z.Client(r, host, now)
	return &c
}

// request is one over HTTPS with these Cookie headers.
func request(cookies ...string) *http.Request {
	r := httptest.NewRequest("GET", "https://example.com/", nil)
	r.TLS = new(tls.ConnectionState)
	if len(cookies) > 0 {
		r.Header["Cookie"] = cookies
	}
	return r
}

// given returns the cookies of a browser that got a response, as a Cookie header.
func given(header http.Header) string {
	var pairs []string
	for _, line := range header["Set-Cookie"] {
		pair, _, _ := strings.Cut(line, ";")
		pairs = append(pairs, pair)
	}
	return strings.Join(pairs, "; ")
}

func always(ID) bool { return true }

// refused returns the cookie of a client that is refused, and comes back at now+after.
func refused(t testing.TB, z *Issuer, at time.Time, after time.Duration, cookies ...string) string {
	t.Helper()
	c, header := z.Client(request(cookies...), host, at), make(http.Header)
	event := c.Refused(header, at, after, netip.Addr{})
	check.Assume(t, event != None, "got no pass")
	return given(header)
}

// loggedIn returns the cookies of a client whom the upstream has logged in.
func loggedIn(t testing.TB, z *Issuer, at time.Time, line string) string {
	t.Helper()
	c, header := z.Client(request(), host, at), http.Header{"Set-Cookie": {line}}
	check.Need(t, c.Answered(302, header, at, always), Joined, "want a member")
	return given(header)
}

const wordpress = "wordpress_logged_in_0f=anna%7C1%7Ctoken%7Cmac; path=/; HttpOnly"

func TestAPassIsGoodFromItsTimeOnForADay(t *testing.T) {
	z := node(t, new(storage))
	pass := refused(t, z, now, 7*time.Second)
	for _, test := range []struct {
		name string
		at   time.Time
		want State
	}{
		{"at once", now, Early},
		{"a moment early", now.Add(7*time.Second - 1), Early},
		{"in time", now.Add(7 * time.Second), Valid},
		{"hours later", now.Add(23 * time.Hour), Valid},
		{"in its last second", now.Add(Lifetime - time.Second), Valid},
		{"after a day", now.Add(Lifetime), Expired},
		{"after a year", now.Add(300 * 24 * time.Hour), Expired},
	} {
		c := z.Client(request(pass), host, test.at)
		rank := fairqueue.First
		if test.want == Valid {
			rank = fairqueue.Returned
		}
		if c.State != test.want || c.Rank() != rank || (c.Key() != "") != (test.want == Valid) {
			t.Errorf("%s: got %v, %v, key %q, want %v, %v", test.name, c.State, c.Rank(), c.Key(), test.want, rank)
		}
	}
	member := z.Client(request(loggedIn(t, z, now, wordpress)), host, now.Add(Lifetime))
	check.That(t, member.Rank() == fairqueue.First && member.Key() == "", "a member after a day: got %v and key %q", member.Rank(), member.Key())
}

func TestAFurtherRefusalMovesTheTimeAndNothingElse(t *testing.T) {
	z := node(t, new(storage))
	pass, at := refused(t, z, now, 5*time.Second), now
	first := z.Client(request(pass), host, at.Add(time.Hour))
	for try := range 5 {
		at = at.Add(5 * time.Second)
		before := z.Client(request(pass), host, at)
		check.Equal(t, before.Tries(at), try+1, "tries")
		header := make(http.Header)
		check.Equal(t, before.Refused(header, at, 5*time.Second, netip.Addr{}), Moved, "want moved")
		pass = given(header)
		after := z.Client(request(pass), host, at)
		check.Equal(t, after.State, Early, "want it early again")
		check.That(t, after.pass.ID == first.pass.ID && after.pass.Issued.Equal(first.pass.Issued), "got another ID or issue")
	}
	late := z.Client(request(pass), host, at.Add(5*time.Second+Forgotten+time.Second))
	check.Equal(t, late.Tries(at.Add(5*time.Second+Forgotten+time.Second)), 0, "tries long after")
	old := z.Client(request(pass), host, now.Add(Lifetime-3*time.Second))
	header := make(http.Header)
	check.Equal(t, old.Refused(header, now.Add(Lifetime-3*time.Second), 5*time.Second, netip.Addr{}), Issued, "for a pass that ends before its time, want another one")
	again := z.Client(request(given(header)), host, now.Add(Lifetime+time.Hour))
	check.That(t, again.pass.ID != first.pass.ID, "got the ID of a pass that is over")
}

func TestAPassIsACookieThatScriptsOtherHostsAndPlainHTTPNeverSee(t *testing.T) {
	z := node(t, new(storage))
	c, header := z.Client(request(), host, now), make(http.Header)
	c.Refused(header, now, 5*time.Second, netip.Addr{})
	line := header.Get("Set-Cookie")
	for _, want := range []string{"__Host-throttle-pass-php=", "; Path=/", "; Max-Age=86400", "; HttpOnly", "; Secure", "; SameSite=Lax"} {
		check.Contains(t, line, want)
	}
	check.That(t, !strings.Contains(line, "Domain") && len(line) <= 250, "got %s, want no domain, and a short cookie", line)
	plain := request(refused(t, z, now, 0))
	plain.TLS = nil
	p := z.Client(plain, host, now.Add(time.Minute))
	header = http.Header{"Set-Cookie": {wordpress}, "Cache-Control": {"private"}}
	warned := false
	z.Insecure = func() { warned = true }
	check.That(t, p.Rank() == fairqueue.First && p.Refused(header, now, 0, netip.Addr{}) == None && p.Answered(200, header, now, always) == None, "got a pass read or sent over plain HTTP")
	check.That(t, warned && len(header["Set-Cookie"]) == 1, "got warned %v and %d cookies, want a warning and the upstream's alone", warned, len(header["Set-Cookie"]))
}

func TestAPassThatIsNotOursGivesNoRank(t *testing.T) {
	shared := new(storage)
	z, other := node(t, shared), node(t, shared)
	other.Name = "shop"
	stranger := node(t, new(storage))
	at := now.Add(time.Minute)
	pass := refused(t, z, now, 5*time.Second)
	name, token, _ := strings.Cut(pass, "=")
	renamed := strings.Replace(refused(t, other, now, 0), "shop", "php", 1)
	old := z.Client(request(pass), host, at)
	check.Need(t, old.Rank(), fairqueue.Returned, "the pass itself refused")
	tests := map[string][]string{
		"of another zone":           {renamed},
		"of another installation":   {refused(t, stranger, now, 0)},
		"twice":                     {pass + "; " + pass},
		"twice, in two headers":     {pass, pass},
		"beside a forged one":       {pass + "; " + name + "=x"},
		"empty":                     {name + "="},
		"without a value":           {name},
		"of 10 KB":                  {name + "=" + strings.Repeat("A", 10<<10)},
		"10 KB before it":           {name + "=" + strings.Repeat("A", 10<<10) + token},
		"in quotes":                 {name + `="` + token + `"`},
		"with padding":              {pass + "="},
		"another name":              {"x" + pass},
		"another name, with a dash": {"x-" + pass},
		"a name that goes on":       {name + "x=" + token},
		"in another letter":         {"__host" + pass[6:]},
	}
	for i := range token {
		tests["cut off at "+string(rune('0'+i%10))+token[:i]] = []string{name + "=" + token[:i]}
		changed := []byte(token)
		changed[i] ^= 1
		tests["changed to "+string(changed)] = []string{name + "=" + string(changed)}
	}
	for test, cookies := range tests {
		c := z.Client(request(cookies...), host, at)
		check.That(t, c.Rank() == fairqueue.First && c.Key() == "", "%s: got %v and key %q, want the rank of those who come first", test, c.Rank(), c.Key())
	}
	check.Equal(t, clientOf(z, request(tests["twice"]...), host, at).State, Invalid)
	check.Equal(t, clientOf(z, request(tests["another name"]...), host, at).State, Absent)
	check.Equal(t, clientOf(z, request(pass), "www.example.com", at).Rank(), fairqueue.First, "a pass accepted on another host")
	if c := z.Client(request(pass), "", at); c.Rank() != fairqueue.First || c.Refused(make(http.Header), at, 0, netip.Addr{}) != None {
		t.Error("got a pass without a host")
	}
	for _, another := range []string{ // such as a site of the same domain may set
		"a=b " + name + "=x", "a=b\t" + name + "=x", "a=" + cookie.OwnPrefix + name + "=x", "a=; b=c " + name + "=", "a " + name + "=x",
	} {
		for _, cookies := range [][]string{{another + "; " + pass}, {pass + "; " + another}, {another, pass}} {
			c := z.Client(request(cookies...), host, at)
			check.That(t, c.Rank() == fairqueue.Returned, "got the pass lost beside the cookie %q in %q", another, cookies)
		}
	}
	for _, cookies := range []string{" " + pass, "a=b;" + pass, "a=b;\t" + pass, ";" + pass + ";", "a=b ; " + pass + " ;c=d"} {
		c := z.Client(request(cookies), host, at)
		check.That(t, c.Rank() == fairqueue.Returned, "got the pass lost in %q", cookies)
	}
	noise := strings.Repeat("a=b; ", 2000) + pass + strings.Repeat("; c=d", 2000)
	check.Equal(t, clientOf(z, request(noise), host, at).Rank(), fairqueue.Returned, "the pass lost among 20 KB of cookies")
}

func TestClocksThatDifferNeverGiveABetterRank(t *testing.T) {
	shared := new(storage)
	z := node(t, shared)
	pass := refused(t, z, now, 7*time.Second)
	for _, behind := range []time.Duration{time.Second, time.Minute, 10 * time.Minute, 50 * time.Minute} {
		c := z.Client(request(pass), host, now.Add(-behind))
		check.That(t, c.State == Early && c.Rank() == fairqueue.First, "a clock %v behind: got %v, %v, want it early", behind, c.State, c.Rank())
		header := make(http.Header)
		check.Equal(t, c.Refused(header, now.Add(-behind), 7*time.Second, netip.Addr{}), Moved, "a clock %v behind, want the pass moved", behind)
	}
	check.Equal(t, clientOf(z, request(pass), host, now.Add(10*time.Minute)).Rank(), fairqueue.Returned, "a clock ahead")
	member := loggedIn(t, z, now, wordpress)
	for behind, want := range map[time.Duration]fairqueue.Rank{119 * time.Second: fairqueue.Member, 2 * time.Minute: fairqueue.Returned, time.Hour: fairqueue.Returned} {
		c := z.Client(request(member), host, now.Add(-behind))
		check.That(t, c.Rank() == want && c.Key() != "", "a member on a clock %v behind: got %v and key %q, want %v", behind, c.Rank(), c.Key(), want)
	}
}

func TestRetryAfterIsShortForThreeTriesAndDoublesThen(t *testing.T) {
	for tries, want := range []struct{ least, most time.Duration }{
		{5 * time.Second, 10 * time.Second},
		{5 * time.Second, 10 * time.Second},
		{5 * time.Second, 10 * time.Second},
		{10 * time.Second, 20 * time.Second},
		{20 * time.Second, 40 * time.Second},
		{40 * time.Second, 60 * time.Second},
		{60 * time.Second, 60 * time.Second},
		{60 * time.Second, 60 * time.Second},
	} {
		least, most := RetryAfter(tries, 0), RetryAfter(tries, .9999)
		check.That(t, least == want.least && most == want.most, "after %d tries: got %v to %v, want %v to %v", tries, least, most, want.least, want.most)
	}
	check.Equal(t, RetryAfter(mostTries, .5), longestWait)
}

func TestOneWhomTheUpstreamLogsInIsAMember(t *testing.T) {
	z := node(t, new(storage))
	cookies := loggedIn(t, z, now, wordpress)
	c := z.Client(request(cookies), host, now)
	check.Assume(t, c.Rank() == fairqueue.Member && c.Key() != "", "got %v, want a member", c.Rank())
	_, pass, _ := strings.Cut(cookies, "; ")
	for name, cookies := range map[string]string{
		"without the upstream's cookie": pass,
		"with another value":            pass + "; wordpress_logged_in_0f=anna%7C2%7Ctoken%7Cmac",
		"with another name":             pass + "; wordpress_logged_in_1f=anna%7C1%7Ctoken%7Cmac",
		"behind too many cookies":       pass + strings.Repeat("; a=b", mostCookies) + "; wordpress_logged_in_0f=anna%7C1%7Ctoken%7Cmac",
	} {
		c := z.Client(request(cookies), host, now)
		check.That(t, c.Rank() == fairqueue.Returned && c.State == Unbound, "%s: got %v, want it to be only returned", name, c.Rank())
	}
	// Those who log in 2,000 times are one.
	again := loggedIn(t, z, now.Add(time.Minute), "wordpress_logged_in_0f=anna%7C9%7Cnew%7Cother; path=/")
	check.Equal(t, clientOf(z, request(again), host, now.Add(time.Minute)).Key(), c.Key(), "another key for the same account")
	bert := loggedIn(t, z, now, "wordpress_logged_in_0f=bert%7C1%7Ctoken%7Cmac; path=/")
	d := z.Client(request(bert), host, now)
	check.That(t, d.Key() != c.Key(), "got the key of another account")
	z.Issued, z.Told = nil, nil
	check.Equal(t, clientOf(z, request(cookies), host, now).Rank(), fairqueue.Returned, "in a zone that has no members any more, want returned")
}

func TestOnlyALogInOrTheUpstreamsWordMakesAMember(t *testing.T) {
	z := node(t, new(storage))
	for _, test := range []struct {
		name   string
		status int
		header http.Header
		sent   string
		want   Event
	}{
		{"a login", 302, http.Header{"Set-Cookie": {wordpress}}, "", Joined},
		{"one that forbids caches", 302, http.Header{"Set-Cookie": {wordpress}, "Cache-Control": {"no-cache, must-revalidate, max-age=0"}}, "", Joined},
		{"no cookie", 200, http.Header{}, "", None},
		{"another cookie", 200, http.Header{"Set-Cookie": {"wordpress_test_cookie=1"}}, "", None},
		{"a failed login", 403, http.Header{"Set-Cookie": {wordpress}}, "", None},
		{"a deletion", 302, http.Header{"Set-Cookie": {"wordpress_logged_in_0f=%20; Max-Age=0"}}, "", None},
		{"set, then deleted", 302, http.Header{"Set-Cookie": {wordpress, "wordpress_logged_in_0f=; Max-Age=0"}}, "", None},
		{"early hints", 103, http.Header{"Set-Cookie": {wordpress}}, "", None},
		{"a tunnel", 101, http.Header{"Set-Cookie": {wordpress}, "X-User": {"1"}}, "a=b", None},
		{"not modified", 304, http.Header{"Set-Cookie": {wordpress}, "X-User": {"1"}}, "a=b", None},
		{"a public login", 200, http.Header{"Set-Cookie": {wordpress}, "Cache-Control": {"public, max-age=60"}}, "", None},
		{"a cached login", 200, http.Header{"Set-Cookie": {wordpress}, "Age": {"0"}}, "", None},
		{"named", 200, http.Header{"X-User": {"1"}}, "session=abc", Joined},
		{"named in an error", 500, http.Header{"X-User": {"1"}}, "session=abc", Joined},
		{"named twice", 200, http.Header{"X-User": {"1", "2"}}, "session=abc", None},
		{"named twice in one line", 200, http.Header{"X-User": {"1, 2"}}, "session=abc", None},
		{"named with nothing", 200, http.Header{"X-User": {" "}}, "session=abc", None},
		{"a long name", 200, http.Header{"X-User": {strings.Repeat("1", mostTold+1)}}, "session=abc", None},
		{"named without a cookie", 200, http.Header{"X-User": {"1"}}, "", None},
		{"named beside a pass alone", 200, http.Header{"X-User": {"1"}}, CookieName("php") + "=x", None},
		{"public", 200, http.Header{"X-User": {"1"}, "Cache-Control": {"public"}}, "session=abc", None},
		{"private for a while", 200, http.Header{"X-User": {"1"}, "Cache-Control": {"max-age=60, private"}}, "session=abc", Joined},
	} {
		c := z.Client(request(test.sent), host, now)
		before := len(test.header["Set-Cookie"])
		got := c.Answered(test.status, test.header, now, always)
		check.That(t, got == test.want && (len(test.header["Set-Cookie"]) > before) == (got != None), "%s: got %v and the cookies %q, want %v", test.name, got, test.header["Set-Cookie"], test.want)
		if got == Joined && test.header.Get("Cache-Control") == "" {
			t.Errorf("%s: got a response with a pass that caches may keep", test.name)
		}
	}
}

func TestAReplacedSessionRenewsThePass(t *testing.T) {
	z, cookies := node(t, new(storage)), ""
	for i, want := range []Event{Joined, Renewed} {
		c, header := z.Client(request(cookies), host, now), http.Header{"X-User": {"7"}, "Set-Cookie": {fmt.Sprintf("_redmine_session=%d; path=/; HttpOnly", i)}}
		check.Equal(t, c.Answered(200, header, now, always), want, "session %d", i)
		cookies = given(header)
	}
	c := z.Client(request(cookies), host, now)
	check.Equal(t, c.Rank(), fairqueue.Member, "want a member by the new session")
	check.Equal(t, c.Answered(200, http.Header{"Set-Cookie": {"_redmine_session=3; HttpOnly"}}, now, always), None, "a session that is replaced, not deleted")
}

// Browsers send cookies of statistics and consent, too, which outlast a log-out, and
// upstreams set others beside the session.
func TestTheSessionIsToldFromOtherCookies(t *testing.T) {
	long := strings.Repeat("s", 340)
	junk := "_ga=GA1.1.123456789.1700000000; consent=" + strings.Repeat("x", 900)
	for name, site := range map[string]struct{ pattern, other, session string }{
		"Laravel":   {"laravel_session", "XSRF-TOKEN=" + long, "laravel_session=" + long},
		"Rails":     {"_*_session", "theme=dark", "_app_session=" + long},
		"MediaWiki": {"*_session", "wikiUserName=A_user_with_a_name_of_more_than_32_letters", "wiki_session=0123456789abcdef"},
	} {
		z := node(t, new(storage))
		z.Told[0].Session = site.pattern
		answer := func(sent string, lines ...string) (Event, string) {
			c, header := z.Client(request(sent), host, now), http.Header{"X-User": {"7"}, "Set-Cookie": slices.Clone(lines)}
			event := c.Answered(200, header, now, always)
			return event, given(http.Header{"Set-Cookie": header["Set-Cookie"][len(lines):]})
		}
		rank := func(cookies string) fairqueue.Rank {
			c := z.Client(request(cookies), host, now)
			return c.Rank()
		}
		event, _ := answer(junk + "; " + site.other)
		check.Equal(t, event, None, "%s: without the session", name)
		event, _ = answer(junk+"; "+site.session, site.session+"; Max-Age=0")
		check.Equal(t, event, None, "%s: while the session is deleted", name)
		for where, lines := range map[string][]string{
			"in the request":  nil,
			"in the response": {site.other + "x; path=/; HttpOnly", site.session + "; path=/"},
		} {
			sent := junk + "; " + site.other
			if lines == nil {
				sent += "; " + site.session
			}
			event, pass := answer(sent, lines...)
			check.That(t, event == Joined && rank(pass+"; "+site.session) == fairqueue.Member, "%s: got %v, want a member by the session %s", name, event, where)
			check.That(t, rank(pass+"; "+junk+"; "+site.other) == fairqueue.Returned, "%s: got a member without the session %s", name, where)
			event, _ = answer(pass + "; " + junk + "; " + site.session)
			check.Equal(t, event, None, "%s: want the young pass kept", name)
		}
	}
}

func TestBeyondTheLimitOfANetworkALogInOnlyReturns(t *testing.T) {
	z := node(t, new(storage))
	c, header := z.Client(request(), host, now), http.Header{"Set-Cookie": {wordpress}}
	check.Need(t, c.Answered(302, header, now, func(ID) bool { return false }), Limited, "want limited")
	cookies := given(header)
	check.Equal(t, clientOf(z, request(cookies), host, now).Rank(), fairqueue.Returned, "want returned")
	member := loggedIn(t, z, now, wordpress)
	m := z.Client(request(member), host, now)
	asked := false
	got := m.Answered(302, http.Header{"Set-Cookie": {"wordpress_logged_in_0f=anna%7C2%7Cx%7Cy"}}, now, func(ID) bool { asked = true; return false })
	check.That(t, got == Renewed && !asked, "got %v, asked %v, want a member renewed without asking", got, asked)
	for _, test := range []struct {
		name, cookies string
		after         time.Duration
		want          Event
	}{
		{"limited a moment ago", cookies, 0, None},
		{"limited an hour ago", cookies, time.Hour, Joined},
		{"a member", member, 0, None},
		{"a member for an hour", member, time.Hour, Renewed},
		{"a member who was refused", member, time.Minute, Renewed},
	} {
		at := now.Add(test.after)
		if test.after == time.Minute {
			moved(t, z, at, time.Minute, office, member)
		}
		c := z.Client(request(test.cookies), host, at)
		check.Equal(t, c.Answered(200, http.Header{"Set-Cookie": {wordpress}}, at, always), test.want, "%s", test.name)
	}
}

func TestAMemberWhoseLogInCookieChangesStaysTheSameMember(t *testing.T) {
	z := node(t, new(storage))
	z.Issued = []string{"auth"}
	cookies, at := loggedIn(t, z, now, "auth=v1|0; HttpOnly"), now
	key := func() string { c := z.Client(request(cookies), host, at); return c.Key() }
	first := key()
	for i := range 30 {
		at = at.Add(time.Minute)
		c, header := z.Client(request(cookies), host, at), http.Header{"Set-Cookie": {fmt.Sprintf("auth=v1|%d; HttpOnly", i+1)}}
		check.Need(t, c.Answered(200, header, at, func(ID) bool { return false }), Renewed, "change %d, want the pass renewed without asking for room", i+1)
		cookies = given(header)
	}
	if c := z.Client(request(cookies), host, at); c.Rank() != fairqueue.Member || key() != first {
		t.Errorf("got %v by the key %s, want a member by %s", c.Rank(), key(), first)
	}
	// Another login is another member.
	_, pass, _ := strings.Cut(cookies, "; ")
	c := z.Client(request(pass), host, at)
	check.Equal(t, c.Answered(200, http.Header{"Set-Cookie": {"auth=v1|other; HttpOnly"}}, at, always), Joined, "for a login without the old cookie, want another member")
}

func TestWithoutAKeyNoPassIsSent(t *testing.T) {
	z := &Issuer{Name: "php", Keys: new(signer.Ring), Issued: []string{"sid"}}
	c, header := z.Client(request("__Host-throttle-pass-php="+strings.Repeat("A", signer.TokenSize(saysSize))), host, now), make(http.Header)
	check.That(t, c.Rank() == fairqueue.First && c.Refused(header, now, 0, netip.Addr{}) == None && len(header) == 0, "got %v and %v", c.Rank(), header)
}

func FuzzClient(f *testing.F) {
	z := node(f, new(storage))
	pass := refused(f, z, now, 5*time.Second)
	member := loggedIn(f, z, now, wordpress)
	f.Add(pass, "", int64(0))
	f.Add(member, "a=b", int64(5))
	f.Add("__Host-throttle-pass-php=", ";;__Host-throttle-pass-php", int64(-5))
	f.Fuzz(func(t *testing.T, a, b string, seconds int64) {
		at := now.Add(time.Duration(seconds%(1<<30)) * time.Second)
		r := request(a, b)
		c := z.Client(r, host, at)
		// Nothing but what was signed gives a rank.
		if ours := strings.Contains(a+b, pass) || strings.Contains(a+b, strings.Split(member, "; ")[1]); c.Rank() != fairqueue.First && !ours {
			t.Errorf("got %v from %q and %q", c.Rank(), a, b)
		}
		if c.State == Valid && at.Before(now.Add(-Skew)) || c.State == Valid && !at.Before(now.Add(Lifetime)) {
			t.Errorf("got it valid at %v", at)
		}
		header := http.Header{"Set-Cookie": {a, b}, "X-User": {b}, "Cache-Control": {a}}
		if c.Answered(200, header, at, always) == Joined {
			last := header["Set-Cookie"][len(header["Set-Cookie"])-1]
			got := z.Client(request(given(http.Header{"Set-Cookie": {last}})), host, at)
			check.That(t, got.Rank() != fairqueue.Member, "got a member without the upstream's cookie")
		}
		moved := make(http.Header)
		check.That(t, c.Refused(moved, at, 5*time.Second, netip.Addr{}) != None, "got no pass")
		for set := range cookie.SetBy(moved["Set-Cookie"], at) {
			check.Equal(t, clientOf(z, request(set.Name+"="+set.Value), host, at).Rank(), fairqueue.First, "at once after a refusal")
		}
	})
}

var office = netip.MustParseAddr("203.0.113.7")

// moved returns the cookie of a client whose pass a refusal has moved.
func moved(t *testing.T, z *Issuer, at time.Time, after time.Duration, addr netip.Addr, cookies string) string {
	t.Helper()
	c, header := z.Client(request(cookies), host, at), make(http.Header)
	check.Need(t, c.Refused(header, at, after, addr), Moved, "want the pass moved")
	return given(header)
}

func TestAnOlderCopyOfAMovedPassIsEarlyToo(t *testing.T) {
	shared := new(storage)
	z := node(t, shared)
	first := refused(t, z, now, 5*time.Second)
	at := now.Add(10 * time.Second)
	newer := moved(t, z, at, 7*time.Second, office, first)
	for _, test := range []struct {
		name  string
		pass  string
		after time.Duration
		want  State
		tries int
	}{
		{"the older copy at once", first, 0, Early, 2},
		{"the older copy a moment before its time", first, 7*time.Second - 1, Early, 2},
		{"the older copy in time", first, 7 * time.Second, Valid, 2},
		{"the newer one at once", newer, 0, Early, 2},
		{"the newer one in time", newer, 7 * time.Second, Valid, 2},
		{"the older copy when it is forgotten", first, 7*time.Second + Forgotten, Valid, 1},
	} {
		c := z.Client(request(test.pass), host, at.Add(test.after))
		// It has no tries any more when the pass itself is long valid.
		tries := test.tries
		if test.after > Forgotten {
			tries = 0
		}
		got := c.Tries(at.Add(test.after))
		check.That(t, c.State == test.want && got == tries, "%s: got %v with %d tries, want %v with %d", test.name, c.State, got, test.want, tries)
	}
	// Whoever keeps the first copy waits longer each time, as others do.
	for range 3 {
		moved(t, z, at, 7*time.Second, office, first)
	}
	c := z.Client(request(first), host, at)
	check.That(t, c.Tries(at) == 2+3, "got %d tries, want 5", c.Tries(at))
	// A shorter wait, told to a request that came at the same time, changes nothing.
	moved(t, z, at, time.Second, office, first)
	check.Equal(t, clientOf(z, request(first), host, at.Add(5*time.Second)).State, Early, "want the latest time to hold")
	elsewhere := moved(t, node(t, shared), at, time.Minute, office, first)
	check.Equal(t, clientOf(z, request(elsewhere), host, at.Add(30*time.Second)).State, Early, "a copy that another node has moved later")
}

func TestAFirstRefusalIsNotRemembered(t *testing.T) {
	z := node(t, new(storage))
	for _, cookie := range []string{"", "__Host-throttle-pass-php=made-up"} {
		pass := refused(t, z, now, 5*time.Second, cookie)
		_, found := z.Memory.moved.Get(clientOf(z, request(pass), host, now).pass.ID, now)
		check.That(t, !found, "%q: got it remembered", cookie)
	}
}

func TestRefusedImagesMoveAValidPassOnceAndNoMembers(t *testing.T) {
	z := node(t, new(storage))
	pass := refused(t, z, now, 5*time.Second)
	at := now.Add(time.Minute)
	for i, want := range []Event{Moved, None, None} {
		c := z.Client(request(pass), host, at)
		check.Equal(t, c.RefusedApart(at, 5*time.Second, office), want, "image %d", i+1)
	}
	c := z.Client(request(pass), host, at)
	check.That(t, c.State == Early && c.Tries(at) == 1, "got %v with %d tries, want it early, and no further try", c.State, c.Tries(at))
	check.Equal(t, clientOf(z, request(pass), host, at.Add(5*time.Second)).State, Valid, "in time")
	member := z.Client(request(loggedIn(t, z, at, wordpress)), host, at)
	check.Equal(t, member.RefusedApart(at, 5*time.Second, office), None, "for a member, want nothing moved")
}

func TestANetworkHasAHundredthOfTheMemory(t *testing.T) {
	z := node(t, new(storage))
	victim := refused(t, z, now, 5*time.Second)
	at := now.Add(time.Minute)
	moved(t, z, at, 5*time.Second, netip.MustParseAddr("198.51.100.1"), victim)
	for i := range movedOfNetwork + 500 {
		p := Pass{ID: ID{1, byte(i), byte(i >> 8)}, NotBefore: at.Add(time.Minute), Tries: 9}
		z.Memory.move(&p, netip.AddrFrom4([4]byte{203, 0, 113, byte(i)}), at)
	}
	remembered := func(network byte) (n int) {
		for i := range mostMoved {
			if _, found := z.Memory.moved.Get(ID{network, byte(i), byte(i >> 8), byte(i >> 16)}, at); found {
				n++
			}
		}
		return n
	}
	check.Equal(t, remembered(1), 1000, "passes of a network")
	check.Equal(t, clientOf(z, request(victim), host, at).State, Early, "for a pass of another network, want it remembered")
	for i := range mostMoved {
		p := Pass{ID: ID{2, byte(i), byte(i >> 8), byte(i >> 16)}, NotBefore: at.Add(time.Minute), Tries: 9}
		z.Memory.move(&p, netip.AddrFrom4([4]byte{10, byte(i >> 7), byte(i), 1}), at)
	}
	check.Equal(t, remembered(2), 100_000-1001, "passes of the others")
}
