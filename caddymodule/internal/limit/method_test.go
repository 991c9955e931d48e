package limit_test

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/fcgi"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/limit"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/servertest"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

// asFastCGISends are methods, and what Caddy's FastCGI client sends for them.
var asFastCGISends = map[string]string{
	"GET": "GET", "HEAD": "HEAD", "OPTIONS": "OPTIONS", "POST": "POST", "PUT": "PUT", "DELETE": "DELETE", "TRACE": "TRACE",
	"post": "POST", "Post": "POST", "pOST": "POST", "get": "POST", "Get": "POST", "gEt": "POST",
	"head": "HEAD", "options": "OPTIONS", "put": "PUT", "Patch": "PATCH", "MKCOL": "MKCOL", "x-1": "X-1",
	"po\u017ft": "POST", // HTTP/2 lets a long s pass
}

// newFastCGI starts a FastCGI server that answers with the method it was sent.
func newFastCGI(t *testing.T) (address string) {
	t.Helper()
	listener := check.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
	t.Cleanup(func() { listener.Close() })
	go fcgi.Serve(listener, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Method", r.Method)
	}))
	return listener.Addr().String()
}

func TestAZoneJudgesAMethodByWhatFastCGISends(t *testing.T) {
	s := servertest.Run(t, fmt.Sprintf(`http:// {
		throttle {
			zone methods {
				key method text x {method}{http.request.orig_method}
				limit 1000 1/d
			}
		}
		header >X-Key {http.throttle.key}
		reverse_proxy %s {
			transport fastcgi
		}
	}`, newFastCGI(t)))
	for method, want := range asFastCGISends {
		r := httptest.NewRequest("GET", servertest.Site0, nil)
		r.Method = method
		w := s.Do(r)
		check.Equal(t, w.Header().Get("X-Method"), want, "%s, status %d: the method at the upstream", method, w.Code)
		check.Equal(t, w.Header().Get("X-Key"), strings.Join([]string{want, "x", want, want}, "/"), "%s: the key", method)
	}
}

func TestEverySpellingOfAMethodIsCharged(t *testing.T) {
	for _, lines := range []string{
		"match {\npath /wp-login.php*\nmethod POST\n}",
		"match @login",
		"match not method GET HEAD",
		"exempt method GET HEAD",
		"cost 1 {\nmethod POST\n}\ncost 0",
		"key text x method\noverride x GET unlimited\noverride x HEAD unlimited",
		"cost @login 1\ncost 0",
		"throttle @login login 5 5/d",
		"throttle @others login 5 5/d",
	} {
		directive := "throttle {\nzone login {\n" + lines + "\nlimit 5 5/d\n}\n}"
		if strings.HasPrefix(lines, "throttle") {
			directive = lines
		}
		s := servertest.Run(t, `http:// {
			@login {
				path /wp-login.php*
				method POST
			}
			@others not method GET HEAD
			`+directive+`
			respond "{method} {http.request.orig_method}"
		}`)
		c := s.From(servertest.Someone)
		for range 20 {
			check.Need(t, c.Get("/wp-login.php").Code, http.StatusOK, "%q: GET, want it to pass", lines)
		}
		for i, method := range []string{"POST", "post", "Post", "get", "gET", "poSt", "POST", "Get"} {
			want := http.StatusOK
			if i >= 5 {
				want = http.StatusTooManyRequests
			}
			w := c.Send(method, "/wp-login.php")
			check.Equal(t, w.Code, want, "%q, request %d, %s", lines, i+1, method)
			if w.Code == http.StatusOK && w.Body.String() != method+" "+method {
				t.Errorf("%q: got %s behind throttle, want %s as it was sent", lines, w.Body, method)
			}
		}
		s.Stop()
	}
}

// inTurn sends a request of each method, and wants the status beside it.
func inTurn(c servertest.Client, target string, steps ...string) {
	c.Helper()
	for i, step := range steps {
		method, _, _ := strings.Cut(step, " ")
		check.Equal(c, fmt.Sprint(method, " ", c.Send(method, target).Code), step, "request %d", i+1)
	}
}

func TestGlobalExemptionsJudgeTheMethodThatFastCGISends(t *testing.T) {
	s := servertest.Run(t, `{
		throttle {
			exempt method OPTIONS GET
			zone banned {
				limit 1 1/d
				block 1h everywhere
			}
		}
	}
	http:// {
		route {
			@out throttle_blocked
			respond @out out 403
			throttle banned
			respond ok
		}
	}`)
	c := s.From(servertest.Someone)
	inTurn(c, "/", "GET 200", "OPTIONS 200", "options 200", "get 200", "get 429", "get 403", "post 403", "options 200", "GET 200")
}

func TestStaticFilesAreExemptForExactlyGETAndHEAD(t *testing.T) {
	root := t.TempDir()
	check.OK(t, os.WriteFile(filepath.Join(root, "style.css"), nil, 0o600))
	s := servertest.Run(t, `http:// {
		root * `+root+`
		throttle site 1 1/d {
			exempt static_files
		}
		respond ok
	}`)
	c := s.From(servertest.Someone)
	inTurn(c, "/style.css", "GET 200", "HEAD 200", "head 200", "head 429", "get 429", "Head 429", "OPTIONS 429", "HEAD 200", "GET 200")
}

func TestAMethodOutsideOfTheMatcherIsAnErrorInJSONToo(t *testing.T) {
	for _, zone := range []limit.Zone{
		{MatchRaw: matchers(`{"expression":"method('POST')"}`)},
		{ExemptRaw: matchers(`{"not":[{"vars":{"{http.request.method}":["GET"]}}]}`)},
		{Cost: []limit.Cost{{MatchRaw: matchers(`{"expression":{"expr":"{http.request.orig_method} == 'POST'"}}`), Value: "2"}}},
	} {
		zone.Name, zone.LimitRaw = "login", "5 1/s"
		err := zone.Compile(nil)
		check.That(t, err != nil && strings.Contains(err.Error(), "want the matcher method"), "%+v: got %v, want an error that points to the matcher", zone, err)
	}
}

// matchers returns one set of matchers, as it is written in JSON.
func matchers(set string) caddyhttp.RawMatcherSets {
	var one caddy.ModuleMap
	if err := json.Unmarshal([]byte(set), &one); err != nil {
		panic(err)
	}
	return caddyhttp.RawMatcherSets{one}
}
