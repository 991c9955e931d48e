package decision

import (
	"encoding/base64"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/fold"
	"github.com/caddy-throttle/caddy-throttle/internal/peertest"
	"github.com/caddy-throttle/caddy-throttle/internal/testseed"
)

func TestABasicUserIsTheNameBeforeTheColon(t *testing.T) {
	for header, want := range map[string]string{
		"Basic YWRtaW46cHc=": "admin", "basic YWRtaW46cHc=": "admin", "BASIC   YWRtaW46cHc": "admin", "Basic\tYWRtaW46cHc=": "admin",
		"Basic !YWRt aW46cHc=": "admin", "Basic YWRtaW46cHc=, x": "admin", "Basic QURNSU46OjpwOg==": "ADMIN",
		"Basic YWRtaW46": "admin", "Basic YWRtaW4=OjpwOg==": "", "Basic OnB3": "", "Basic YWRtaW4=": "", "Basic": "", "Basic ": "", "Basic =": "", "Basic Y": "",
		"Bearer YWRtaW46cHc=": "", "BasicYWRtaW46cHc=": "", "Negotiate YWRtaW46cHc=": "", "": "",
		"Basic YTpiOg=OnB3":      "a",
		"Basic YWRtaW4=OnB3":     "",          // PHP reads on behind the padding
		"Basic YWRtAGluOnB3":     "adm\x00in", // PHP finds no colon before the NUL
		"Basic w6FkbWluOnB3":     "ádmin",
		"Basic YWRt\u00e9aW46cA": "admin",
	} {
		if got := basicUser(header); got != want {
			t.Errorf("%q: got %q, want %q", header, got, want)
		}
	}
}

func TestABasicUserThatIsGivenTwiceIsMissing(t *testing.T) {
	read := BasicUser(fold.Plain)
	for _, test := range []struct {
		headers []string
		want    string
	}{
		{nil, ""}, {[]string{"Basic IEFkbWluIDpwdw=="}, "admin"}, {[]string{"Basic YWRtaW46cHc=", "Basic YWRtaW46cHc="}, ""},
	} {
		r := &http.Request{Method: "GET", Header: http.Header{"Authorization": test.headers}}
		if got := read(&Subject{Request: r}); got != test.want {
			t.Errorf("%q: got %q, want %q", test.headers, got, test.want)
		}
	}
}

// The user that both PHP and Ruby read, or the only one that is read, is the key.
func TestABasicUserIsTheOneThatPHPAndRubyRead(t *testing.T) {
	php, ruby := phpUser(t), rubyUser(t)
	seed := testseed.Of(t)
	rng := rand.New(rand.NewPCG(seed, 0))
	pieces := []string{"YWRtaW46", "YWRt", "aW46", "aW4=", "OnB3", "cHc=", "=", "==", "Y", "W", "Rt", ":", "!", " ", "\t", "-", "_", ",", "\u00e9", "AAAA", "Og", "+/+/"}
	for range 3000 {
		header := []string{"Basic ", "basic ", "BASIC\t", "Basic  ", "Basic"}[rng.IntN(5)]
		for range rng.IntN(6) {
			header += pieces[rng.IntN(len(pieces))]
		}
		header = strings.TrimRight(header, " \t") // as servers do
		byPHP, byRuby, got := php(header), ruby(header), basicUser(header)
		want := byPHP
		switch {
		case byPHP == "":
			want = byRuby
		case byRuby != "" && byRuby != byPHP:
			want = ""
		}
		if got != want {
			t.Fatalf("seed %d: %q: got %q, want %q: PHP reads %q and Ruby %q", seed, header, got, want, byPHP, byRuby)
		}
	}
}

// phpUser starts PHP's own server.
func phpUser(t *testing.T) func(header string) string {
	t.Helper()
	url := peertest.PHPServer(t, "testdata/basic.php")
	return func(header string) string {
		t.Helper()
		r, err := http.NewRequest("GET", url, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", header)
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		return decoded(t, resp.Body)
	}
}

// rubyUser starts Ruby.
func rubyUser(t *testing.T) func(header string) string {
	t.Helper()
	ruby := peertest.Ruby(t, "testdata/basic.rb")
	return func(header string) string {
		t.Helper()
		return decoded(t, strings.NewReader(strings.TrimSpace(ruby.Ask(t, base64.StdEncoding.EncodeToString([]byte(header))))))
	}
}

func decoded(t *testing.T, r io.Reader) string {
	t.Helper()
	text, err := io.ReadAll(base64.NewDecoder(base64.StdEncoding, r))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
