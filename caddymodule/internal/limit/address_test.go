package limit

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

// rewritten returns a request for one address that was rewritten to another.
func rewritten(sent, now string) *http.Request {
	r := httptest.NewRequest(http.MethodGet, sent, nil)
	r = caddyhttp.PrepareRequest(r, caddy.NewReplacer(), httptest.NewRecorder(), nil)
	to := httptest.NewRequest(http.MethodGet, now, nil)
	r.URL, r.RequestURI = to.URL, to.RequestURI
	return r
}

func TestHowManyAddressesARequestHas(t *testing.T) {
	for _, test := range []struct {
		sent, now string
		want      int
	}{
		{"/x", "/x", 1},
		{"/x?a=1", "/x?a=1", 1},
		{"/x?a=1", "/x?a=2", 2},
		{"/webhook/x", "/index.php", 1},
		{"/webhook/x?a=1", "/index.php?a=1&q=x", 1},
		{"/foo", "/index.html", 1},
		{"/blog/foo", "/blog/index.php", 1},
		{"/administrator/", "/administrator/index.php", 2},
		{"/administrator", "/administrator/index.php", 2},
		{"/webhook/administrator/index.php", "/administrator/index.php", 2},
		{"/site1/index.php", "/index.php", 2},
		{"/site1/INDEX.PHP", "/index.php", 2},
		{"/index.php/foo", "/index.php", 2},
		{"/foo", "/app/public/index.php", 2},
		{"/", "/index.php", 2},
		{"/login", "/wp-login.php", 2},
		{"/site1/wp-login.php", "/wp-login.php", 2},
		{"/site1//wp-login.php", "/wp-login.php", 2},
		{"/x/../y?a=%41&b=%zz", "/x/../y?a=%41&b=%zz", 4},
		{"//x/login", "/index.php", 2},
		{"/x?a=%41&b=", "/x?a=%41&b=", 1},
		{"/assets/x", "/search", 2},
		{"/blog", "/blogs/index.php", 2},
		{"/foo", "/index.php5", 2},
		{"/a%2Fb", "/a/b", 2},
	} {
		s := NewSubject(rewritten(test.sent, test.now))
		s.lookUpAddresses()
		check.Equal(t, max(len(s.all), 1), test.want, "%s -> %s: addresses", test.sent, test.now)
	}
	s := NewSubject(httptest.NewRequest(http.MethodGet, "/x", nil))
	s.lookUpAddresses()
	check.Equal(t, len(s.all), 0, "a request without an original one: addresses beside its own")
}

// askedWith notes with which addresses a matcher is asked.
func askedWith(ask func(*Subject, func() (bool, error)) (bool, error), r *http.Request, holds ...string) (got []string, result bool) {
	s := NewSubject(r)
	result, _ = ask(&s, func() (bool, error) {
		got = append(got, r.URL.Path+" "+r.RequestURI)
		for _, path := range holds {
			if path == r.URL.Path {
				return true, nil
			}
		}
		return false, nil
	})
	return got, result
}

func TestARuleIsAskedWithTheAddressAsSentFirst(t *testing.T) {
	for _, test := range []struct {
		name      string
		ask       func(*Subject, func() (bool, error)) (bool, error)
		sent, now string
		holds     []string
		asked     int
		want      bool
	}{
		{"either, as sent", (*Subject).anyAddress, "/a", "/b", []string{"/a"}, 1, true},
		{"either, as rewritten", (*Subject).anyAddress, "/a", "/b", []string{"/b"}, 2, true},
		{"either, none", (*Subject).anyAddress, "/a", "/b", nil, 2, false},
		{"both", (*Subject).everyAddress, "/a", "/b", []string{"/a", "/b"}, 2, true},
		{"both, as sent only", (*Subject).everyAddress, "/a", "/b", []string{"/a"}, 2, false},
		{"both, as rewritten only", (*Subject).everyAddress, "/a", "/b", []string{"/b"}, 1, false},
		{"either of a front controller", (*Subject).anyAddress, "/a", "/index.php", []string{"/index.php"}, 1, false},
		{"both of a front controller", (*Subject).everyAddress, "/a", "/index.php", []string{"/a"}, 1, true},
		{"either of one address", (*Subject).anyAddress, "/a", "/a", []string{"/a"}, 1, true},
		{"both of one address", (*Subject).everyAddress, "/a", "/a", []string{"/a"}, 1, true},
	} {
		r := rewritten(test.sent, test.now)
		got, result := askedWith(test.ask, r, test.holds...)
		if len(got) != test.asked || got[0] != test.sent+" "+test.sent || result != test.want {
			t.Errorf("%s: got %v after asking %q, want %v after %d", test.name, result, got, test.want, test.asked)
		}
		check.That(t, r.URL.Path == test.now && r.RequestURI == test.now, "%s: got %s %s afterwards, want what was there", test.name, r.URL.Path, r.RequestURI)
	}
}

func TestAnErrorEndsTheQuestion(t *testing.T) {
	fails := errors.New("no")
	for name, ask := range map[string]func(*Subject, func() (bool, error)) (bool, error){"either": (*Subject).anyAddress, "both": (*Subject).everyAddress} {
		s, n := NewSubject(rewritten("/a", "/b")), 0
		_, err := ask(&s, func() (bool, error) { n++; return false, fails })
		check.That(t, err == fails && n == 1, "%s: got %v after %d questions, want the error after one", name, err, n)
	}
}

func TestAPanicPutsTheAddressBack(t *testing.T) {
	r := rewritten("/a", "/b")
	func() {
		defer func() { _ = recover() }()
		s := NewSubject(r)
		_, _ = s.anyAddress(func() (bool, error) { panic("a matcher") })
	}()
	check.That(t, r.URL.Path == "/b" && r.RequestURI == "/b", "got %s %s, want what was there", r.URL.Path, r.RequestURI)
}
