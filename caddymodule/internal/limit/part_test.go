package limit

import (
	"encoding/base64"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"

	"github.com/caddy-throttle/caddy-throttle/internal/peertest"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/testseed"
)

func read(headers ...string) (user string, unclear bool) {
	r := &http.Request{Method: "GET", Header: http.Header{"Authorization": headers}}
	parts, _ := KeySource{Source: "basic_user"}.compile(nil, false)
	return parts[0].read(&Subject{Request: r}), unclearUser(r)
}

func TestABasicUserIsTheNameBeforeTheColon(t *testing.T) {
	for header, want := range map[string]string{
		"Basic YWRtaW46cHc=": "admin", "basic YWRtaW46cHc=": "admin", "BASIC YWRtaW46cHc=": "admin", "Basic QURNSU46OjpwOg==": "admin",
		"Basic YWRtaW46": "admin", "Basic OnB3": "", "Bearer YWRtaW46cHc=": "", "Negotiate YWRtaW46cHc=": "", "": "",
		"Basic YWRtAGluOnB3": oddName, "Basic w6FkbWluOnB3": "ádmin", "Basic IEFkbWluIDpwdw==": "admin",
	} {
		got, unclear := read(header)
		check.That(t, got == want && !unclear, "%q: got %q, unclear %v, want %q", header, got, unclear, want)
	}
	for _, header := range []string{
		"Basic   YWRtaW46cHc", "Basic\tYWRtaW46cHc=", "Basic YWRtaW46cHc", "Basic !YWRt aW46cHc=", "Basic YWRtaW46cHc=, x", "Basic YTpiOg=OnB3",
		"Basic YWRtaW4=OnB3", "Basic YWRt\u00e9aW46cA", "Basic YWRtaW4=", "Basic", "Basic ", "Basic =", "Basic Y", "BasicYWRtaW46cHc=",
	} {
		got, unclear := read(header)
		check.That(t, got == "" && unclear, "%q: got %q, unclear %v, want it unclear", header, got, unclear)
	}
}

func TestABasicUserThatIsGivenTwiceIsUnclear(t *testing.T) {
	for _, headers := range [][]string{{"Basic YWRtaW46cHc=", "Basic YWRtaW46cHc="}, {"Bearer x", "Basic YWRtaW46cHc="}} {
		got, unclear := read(headers...)
		check.That(t, got == "" && unclear, "%q: got %q, unclear %v, want it unclear", headers, got, unclear)
	}
	got, unclear := read()
	check.That(t, got == "" && !unclear, "without a header: got %q, unclear %v, want neither", got, unclear)
}

// A name that PHP or Ruby reads is the key, or unclear.
func TestABasicUserIsTheOneThatPHPAndRubyReadOrUnclear(t *testing.T) {
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
		got, unclear := read(header)
		for who, name := range map[string]string{"PHP": php(header), "Ruby": ruby(header)} {
			if name = foldPlain(name); name != "" && name != got && !unclear {
				t.Fatalf("seed %d: %q: got %q, and %s reads %q", seed, header, got, who, name)
			}
		}
	}
}

// phpUser starts PHP's own server.
func phpUser(t *testing.T) func(header string) string {
	t.Helper()
	url := peertest.PHPServer(t, "testdata/basic.php")
	return func(header string) string {
		t.Helper()
		r := check.Must(http.NewRequest("GET", url, nil))(t)
		r.Header.Set("Authorization", header)
		resp := check.Must(http.DefaultClient.Do(r))(t)
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
	text := check.Must(io.ReadAll(base64.NewDecoder(base64.StdEncoding, r)))(t)
	return string(text)
}
