package inspector_test

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddyserver/caddy/v2/caddyconfig"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/inspector"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/admin/wire"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/golden"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/override"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/servertest"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/telemetry"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

// The password of alice and bob is secret.
const inspectorUsers = `basic_auth {
	alice $2a$04$eDXNeXgikNveTaV.vPS.O.TUci7Sw7.RQIR0Pj.98bmWXb56MWbSW
	bob $2a$04$eDXNeXgikNveTaV.vPS.O.TUci7Sw7.RQIR0Pj.98bmWXb56MWbSW
}`

// inspectedZones has zones in a site, and the inspector in another one.
func inspectedZones(inspector string) string {
	return `{
	throttle {
		zone pages {
			limit 2 1/h
		}
	}
}
http://shop.example {
	throttle pages
	respond ok
}
` + inspector
}

func withInspector(options string) string {
	return inspectedZones("http://throttle.example {\n" + inspectorUsers + "\nthrottle_inspector {\n" + options + "\n}\n}\n")
}

// An operator is a user who has the page open.
type operator struct {
	*servertest.Site
	user  string
	token string
}

// visits opens the page, which must be shown.
func newOperator(s *servertest.Site, user string) operator {
	s.Helper()
	s.Admin(http.MethodGet, "/throttle/zones", "", nil) // the app has started
	v := operator{Site: s, user: user}
	w := s.Do(v.request(http.MethodGet, "", ""))
	found := regexp.MustCompile(`name="token" content="([0-9a-f]{64})"`).FindStringSubmatch(w.Body.String())
	check.Assume(s, w.Code == http.StatusOK && found != nil, "got %d %.300s, want the page with a token", w.Code, w.Body)
	v.token = found[1]
	return v
}

func (v operator) request(method, query, body string) *http.Request {
	r := httptest.NewRequest(method, "http://throttle.example/"+query, strings.NewReader(body))
	r.RemoteAddr = "198.51.100.9:1"
	if v.user != "" {
		r.SetBasicAuth(v.user, "secret")
	}
	r.Header.Set("Sec-Fetch-Site", "same-origin")
	r.Header.Set("Origin", "http://throttle.example")
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("X-Throttle-Token", v.token)
	return r
}

// asks makes a call as the page does, but for what change does to the request.
func (v operator) asks(call, body string, change ...func(*http.Request)) (int, string) {
	v.Helper()
	r := v.request(http.MethodPost, "?do="+call, body)
	for _, f := range change {
		f(r)
	}
	w := v.Do(r)
	return w.Code, w.Body.String()
}

const banned = `{"network": "203.0.113.0/24", "for": "2h", "replace": true}`

// bans reports how many bans hold.
func bans(s *servertest.Site) int {
	s.Helper()
	var held []wire.Override
	s.Admin(http.MethodGet, "/throttle/overrides", "", &held)
	return len(slices.DeleteFunc(held, func(o wire.Override) bool { return o.Kind != "ban" }))
}

func TestTheInspectorRefusesForgedRequests(t *testing.T) {
	s := servertest.Run(t, withInspector("allow_changes"))
	alice, bob := newOperator(s, "alice"), newOperator(s, "bob")
	header := func(name string, values ...string) func(*http.Request) {
		return func(r *http.Request) { r.Header[name] = values }
	}
	origin := func(from string) func(*http.Request) { // of a browser that sends no Sec-Fetch-Site
		return func(r *http.Request) { r.Header.Del("Sec-Fetch-Site"); r.Header.Set("Origin", from) }
	}
	method := func(name string) func(*http.Request) { return func(r *http.Request) { r.Method = name } }
	for name, test := range map[string]struct {
		forge func(*http.Request)
		want  int
	}{
		"another site":            {header("Sec-Fetch-Site", "cross-site"), 403},
		"a sister site":           {header("Sec-Fetch-Site", "same-site"), 403},
		"a foreign origin":        {origin("http://evil.example"), 403},
		"an origin like ours":     {origin("http://throttle.example.evil.example"), 403},
		"another port":            {origin("http://throttle.example:8080"), 403},
		"a null origin":           {origin("null"), 403},
		"no token":                {header("X-Throttle-Token"), 403},
		"a wrong token":           {header("X-Throttle-Token", strings.Repeat("0", 64)), 403},
		"the token of bob":        {header("X-Throttle-Token", bob.token), 403},
		"a form":                  {header("Content-Type", "application/x-www-form-urlencoded"), 415},
		"plain text":              {header("Content-Type", "text/plain"), 415},
		"no type":                 {header("Content-Type"), 415},
		"a rebinding host":        {func(r *http.Request) { r.Host = "evil.example"; r.Header["Origin"] = []string{"http://evil.example"} }, 0},
		"GET":                     {method("GET"), 405},
		"HEAD":                    {method("HEAD"), 405},
		"PUT":                     {method("PUT"), 405},
		"DELETE":                  {method("DELETE"), 405},
		"OPTIONS":                 {method("OPTIONS"), 405},
		"a method of its own":     {method("post"), 405},
		"no user":                 {header("Authorization"), 401},
		"a wrong password":        {header("Authorization", "Basic YWxpY2U6d3Jvbmc="), 401},
		"two calls":               {func(r *http.Request) { r.URL.RawQuery = "do=zones&do=ban" }, 404},
		"no call":                 {func(r *http.Request) { r.URL.RawQuery = "" }, 404},
		"a call with a path":      {func(r *http.Request) { r.URL.RawQuery = "do=../ban" }, 404},
		"a whole path":            {func(r *http.Request) { r.URL.RawQuery = "do=/throttle/ban" }, 404},
		"a call of the admin API": {func(r *http.Request) { r.URL.RawQuery = "do=revoke" }, 404},
		"another call of Caddy":   {func(r *http.Request) { r.URL.RawQuery = "do=../load" }, 404},
		"a call in capitals":      {func(r *http.Request) { r.URL.RawQuery = "do=BAN" }, 404},
		"a call with a zero byte": {func(r *http.Request) { r.URL.RawQuery = "do=ban%00" }, 404},
		"a call encoded twice":    {func(r *http.Request) { r.URL.RawQuery = "do=%2562an" }, 404},
	} {
		status, body := alice.asks("ban", banned, test.forge)
		if status != test.want && test.want != 0 || test.want == 0 && status == 200 && strings.Contains(body, "network") {
			t.Errorf("%s: got %d %s, want %d", name, status, body, test.want)
		}
		check.Need(t, bans(s), 0, "%s: bans", name)
	}
	for name, accepted := range map[string]func(*http.Request){
		"as it is":      func(*http.Request) {},
		"without site":  header("Sec-Fetch-Site"),
		"only the site": header("Origin"),
		"behind a path": func(r *http.Request) { r.URL.Path = "/../%2e%2e//ban" },
	} {
		status, body := alice.asks("ban", banned, accepted)
		check.That(t, status == http.StatusOK, "%s: got %d %s, want 200", name, status, body)
	}
}

func TestTheInspectorWantsAUser(t *testing.T) {
	s := servertest.Run(t, inspectedZones("http://throttle.example {\nthrottle_inspector {\nallow_changes\n}\n}\n"))
	v := operator{Site: s, user: "alice", token: inspector.TokenOf("")}
	for _, test := range []struct {
		r    *http.Request
		want string
	}{
		{v.request("GET", "", ""), `{"error":"nobody is logged in`},
		{v.request("HEAD", "", ""), ""},
		{v.request("POST", "?do=zones", "{}"), `{"error":"nobody is logged in: put basic_auth before throttle_inspector, or write open into its block"}`},
		{v.request("POST", "?do=ban", banned), `{"error":"nobody is logged in`},
	} {
		test.r.Header.Set("Remote-User", "alice")
		test.r.Header.Set("X-Token-User-Id", "alice")
		test.r.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{{Subject: pkix.Name{CommonName: "alice"}}}} // which nobody has verified
		w := s.Do(test.r)
		if w.Code != http.StatusForbidden || !strings.Contains(w.Body.String(), test.want) || strings.Contains(w.Body.String(), "token") {
			t.Errorf("%s: got %d %s, want 403 and %q", test.r.Method, w.Code, w.Body, test.want)
		}
	}
	check.Equal(t, bans(s), 0, "bans")
}

func TestTheInspectorTakesAVerifiedClientCertificate(t *testing.T) {
	s := servertest.Run(t, inspectedZones("http://throttle.example {\nthrottle_inspector {\nallow_changes\n}\n}\n"))
	s.Admin(http.MethodGet, "/throttle/zones", "", nil)
	v := operator{Site: s, token: inspector.TokenOf("carol")}
	status, body := v.asks("ban", banned, func(r *http.Request) {
		r.TLS = &tls.ConnectionState{VerifiedChains: [][]*x509.Certificate{{{Subject: pkix.Name{CommonName: "carol"}}}}}
	})
	check.That(t, status == http.StatusOK && strings.Contains(body, `"by":"carol"`), "got %d %s, want a ban by carol", status, body)
}

func TestAnOpenInspectorShowsEverybody(t *testing.T) {
	s := servertest.Run(t, inspectedZones("http://throttle.example {\nthrottle_inspector {\nopen\n}\n}\n"))
	v := newOperator(s, "")
	status, body := v.asks("zones", "{}")
	check.That(t, status == http.StatusOK, "got %d %s, want 200", status, body)
	s.Stop()
	err := servertest.Provision(t, map[string]string{"http": servertest.WithHandlers(`{"handler":"throttle_inspector","open":true,"allow_changes":true}`)})
	check.That(t, err != nil && strings.Contains(err.Error(), "open and allow_changes exclude each other"), "changes by everybody: got %v, want an error", err)
}

// In Caddy's order, whatever the order of the lines, basic_auth asks before the page does.
func TestBasicAuthAsksBeforeTheInspector(t *testing.T) {
	s := servertest.Run(t, inspectedZones("http://throttle.example {\nthrottle_inspector\n"+inspectorUsers+"\n}\n"))
	for user, want := range map[string]int{"": http.StatusUnauthorized, "mallory": http.StatusUnauthorized, "alice": http.StatusOK} {
		check.Equal(t, s.Do(operator{Site: s, user: user}.request("GET", "", "")).Code, want, "user %q", user)
	}
}

func TestTheInspectorChangesNothingUnlessItMay(t *testing.T) {
	for _, options := range []string{"", "open"} {
		s := servertest.Run(t, withInspector(options))
		v := newOperator(s, "alice")
		page := s.Do(v.request("GET", "", "")).Body.String()
		if !strings.Contains(page, `data-writable="false"`) || strings.Contains(page, "can make changes") || strings.Contains(page, `id="ban"`) || !strings.Contains(page, "You can only look") {
			t.Errorf("%q: got a page that offers changes", options)
		}
		for _, call := range []string{"ban", "unban", "limit", "unlimit", "release", "shadow", "unshadow"} {
			status, body := v.asks(call, banned)
			check.That(t, status == http.StatusForbidden && strings.Contains(body, "allow_changes"), "%q: %s: got %d %s, want 403 and allow_changes", options, call, status, body)
		}
		status, body := v.asks("zones", "{}")
		check.That(t, status == http.StatusOK, "%q: zones: got %d %s, want 200", options, status, body)
		s.Stop()
	}
}

func TestTheInspectorMayChangeThings(t *testing.T) {
	for _, config := range []string{
		withInspector("allow_changes"),
		strings.Replace(withInspector("allow_changes"), "{\n", "{\nadmin localhost:2020\n", 1),
		strings.Replace(withInspector("allow_changes"), "{\n", "{\nadmin unix//run/caddy.sock\n", 1),
		strings.Replace(withInspector("allow_changes"), "{\n", "{\nadmin off\n", 1),
	} {
		s := servertest.Run(t, config)
		status, body := newOperator(s, "alice").asks("ban", banned)
		check.That(t, status == http.StatusOK && bans(s) == 1, "%s\ngot %d %s, want a ban", config, status, body)
		s.Stop()
	}
}

func TestZonesAndKeysOfTheInspectorAreNoPaths(t *testing.T) {
	s := servertest.Run(t, withInspector("allow_changes"))
	v := newOperator(s, "alice")
	for _, zone := range []string{"", "/", "..", "../pages", "pages/", "%70ages", "pages%00", "pages\x00", "PAGES", "<script>", "~pages", "pages/203.0.113.7"} {
		of, _ := json.Marshal(zone)
		for call, body := range map[string]string{
			"limit":   fmt.Sprintf(`{"zone": %s, "limit": "x2", "for": "1h"}`, of),
			"buckets": fmt.Sprintf(`{"zone": %s}`, of),
			"why":     fmt.Sprintf(`{"zone": %s, "client": "x"}`, of),
			"release": fmt.Sprintf(`{"zone": %s, "client": "x"}`, of),
		} {
			want := http.StatusNotFound
			if zone == "" && (call == "why" || call == "release") {
				want = http.StatusOK // all zones
			}
			status, answer := v.asks(call, body)
			check.That(t, status == want, "%s in zone %q: got %d %s, want %d", call, zone, status, answer, want)
		}
	}
	s.From(servertest.Someone).Get("http://shop.example/")
	for _, key := range []string{"/", "..", "../203.0.113.7", "203.0.113.7/..", "%3203.0.113.7", "203.0.113.7%00", "*", "198.51.100.0/24", " 203.0.113.7"} {
		of, _ := json.Marshal(key)
		if status, answer := v.asks("release", fmt.Sprintf(`{"client": %s}`, of)); !strings.Contains(answer, `"freed":[]`) && status != http.StatusBadRequest {
			t.Errorf("release of %q: got %d %s, want nothing freed", key, status, answer)
		}
	}
	status, answer := v.asks("release", `{"client": ""}`)
	check.That(t, status == http.StatusBadRequest, "release of nobody: got %d %s, want 400", status, answer)
	status, answer = v.asks("release", `{"client": "203.0.113.7"}`)
	check.That(t, strings.Contains(answer, `"freed":["pages/203.0.113.7"]`), "got %d %s, want one bucket freed", status, answer)
}

func TestTheJournalNamesTheUserOfTheInspector(t *testing.T) {
	s := servertest.Run(t, strings.Replace(withInspector("allow_changes"), "\tbob ", "\t\"admin API\" ", 1))
	newOperator(s, "alice").asks("ban", banned)
	newOperator(s, "admin API").asks("unban", `{"network": "203.0.113.0/24"}`)
	s.Changes("/throttle/shadow", `{"for": "1h"}`)
	_, answer := newOperator(s, "alice").asks("journal", "{}")
	var journal []override.Change
	check.OK(t, json.Unmarshal([]byte(answer), &journal))
	var told []string
	for _, c := range journal {
		told = append(told, c.Via+": "+c.By+" "+c.Action+" "+c.Of)
	}
	want := "[admin API:  shadow all zones and bans inspector: admin API unban 203.0.113.0/24 inspector: alice ban 203.0.113.0/24]"
	check.That(t, fmt.Sprint(told) == want, "got %v, want %s", told, want)
	if lines := s.Logs.Lines(t, "changed at run time"); len(lines) != 3 ||
		lines[0]["by"] != "alice" || lines[1]["by"] != "admin API" || lines[1]["via"] != "inspector" || lines[2]["by"] != "" || lines[2]["via"] != "admin API" {
		t.Errorf("got the log %v, want two users of the inspector, and the admin API", lines)
	}
}

// A service authenticates, and names the user in its answer.
func TestTheInspectorTrustsForwardAuthAndNoHeaderOfTheClient(t *testing.T) {
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.Header.Get("Cookie") {
		case "session=carol":
			w.Header().Set("Remote-User", "carol")
		case "session=nameless":
		default:
			w.WriteHeader(http.StatusUnauthorized)
		}
	}))
	defer service.Close()
	forward := "forward_auth " + service.Listener.Addr().String() + " {\nuri /verify\n}\n"
	for _, test := range []struct {
		options, auth, cookie string
		want                  int
	}{
		{"allow_changes\nuser_header Remote-User", forward, "session=carol", 200},
		{"allow_changes\nuser_header remote-user", forward, "session=carol", 200},
		{"allow_changes\nuser_header Remote-User", forward, "session=nameless", 403},
		{"allow_changes\nuser_header Remote-User", forward, "", 401},
		{"allow_changes", forward, "session=carol", 403},
		{"allow_changes\nuser_header Remote-User", "", "session=carol", 403},
	} {
		s := servertest.Run(t, inspectedZones("http://throttle.example {\n"+test.auth+"throttle_inspector {\n"+test.options+"\n}\n}\n"))
		s.Admin(http.MethodGet, "/throttle/zones", "", nil)
		v := operator{Site: s, token: inspector.TokenOf("carol")}
		claim := func(r *http.Request) {
			r.Header.Set("Cookie", test.cookie)
			r.Header.Set("Remote-User", "mallory")
		}
		status, body := v.asks("ban", banned, claim)
		check.That(t, status == test.want, "%s, with %q: got %d %s, want %d", test.options, test.cookie, status, body, test.want)
		s.Stop()
	}
}

func TestThePageOfTheInspectorIsGuarded(t *testing.T) {
	s := servertest.Run(t, withInspector("allow_changes"))
	v := newOperator(s, "alice")
	nonces := make(map[string]bool)
	for range 3 {
		w := s.Do(v.request("GET", "", ""))
		policy := w.Header().Get("Content-Security-Policy")
		nonce := regexp.MustCompile(`script-src 'nonce-([A-Z2-7]{26})'; style-src 'nonce-([A-Z2-7]{26})'`).FindStringSubmatch(policy)
		check.Assume(t, nonce != nil && nonce[1] == nonce[2] && !nonces[nonce[1]], "got the policy %s, want a nonce of its own", policy)
		nonces[nonce[1]] = true
		for _, want := range []string{"default-src 'none'", "frame-ancestors 'none'", "base-uri 'none'", "form-action 'none'", "connect-src 'self'"} {
			check.Contains(t, policy, want, "the policy")
		}
		check.That(t, !strings.Contains(policy, "unsafe") && !strings.Contains(policy, "http"), "got the policy %s, want nothing unsafe and no other host", policy)
		page := w.Body.String()
		n := strings.Count(page, `nonce="`+nonce[1]+`"`)
		check.That(t, n == 2 && strings.Count(page, "<script") == 1 && strings.Count(page, "<style") == 1, "got %d nonces, want one script and one style with them", n)
		for _, never := range []string{"innerHTML =", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "http://", "https://", ` style="`, "onclick="} {
			at := strings.Index(strings.ReplaceAll(page, "http://www.w3.org/2000/svg", ""), never)
			check.That(t, at < 0, "got %q in the page, want none", never)
		}
	}
	for _, r := range []*http.Request{v.request("GET", "", ""), v.request("POST", "?do=zones", "{}"), v.request("POST", "?do=none", "{}"), v.request("PUT", "", "")} {
		w := s.Do(r)
		for name, want := range map[string]string{
			"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", "X-Frame-Options": "DENY", "Referrer-Policy": "same-origin",
			"Cross-Origin-Resource-Policy": "same-origin",
		} {
			check.Equal(t, w.Header().Get(name), want, "%s: %s", r.Method, name)
		}
		check.That(t, strings.Contains(w.Header().Get("Content-Security-Policy"), "default-src 'none'"), "%s: got no policy", r.Method)
	}
}

func TestAUserWithAHostileNameIsOnlyText(t *testing.T) {
	const name = `</script><img src=x onerror=alert(1)>"'`
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Remote-User", name) }))
	defer service.Close()
	s := servertest.Run(t, inspectedZones("http://throttle.example {\nforward_auth "+service.Listener.Addr().String()+" {\nuri /verify\n}\nthrottle_inspector {\nuser_header Remote-User\n}\n}\n"))
	w := s.Do(operator{Site: s}.request("GET", "", ""))
	page := w.Body.String()
	check.That(t, w.Code == 200 && !strings.Contains(page, "<img") && strings.Contains(page, "&lt;/script&gt;&lt;img"), "got %d, want the page with the name as text", w.Code)
}

func TestTheInspectorNeedsNoZone(t *testing.T) {
	s := servertest.Run(t, "http://throttle.example {\n"+inspectorUsers+"\nthrottle_inspector\n}\n")
	status, body := newOperator(s, "alice").asks("zones", "{}")
	check.That(t, status == 200 && strings.Contains(body, `"zones":[]`), "got %d %s, want no zones", status, body)
}

func TestTheInspectorStandsBehindAuthenticationAndBeforeHandle(t *testing.T) {
	s := servertest.Run(t, inspectedZones("http://throttle.example {\nhandle {\nrespond site\n}\nthrottle_inspector /inspector\nthrottle pages\n"+
		strings.Replace(inspectorUsers, "{", "/inspector {", 1)+"\n}\n"))
	v := operator{Site: s, user: "alice"}
	for path, want := range map[string]string{"inspector": "Skip to the status", "other": "site"} {
		r := v.request("GET", path, "")
		check.Contains(t, s.Do(r).Body.String(), want, "/%s", path)
	}
	// throttle comes first, so it charges the inspector's requests, too.
	check.Equal(t, s.Do(v.request("GET", "inspector", "")).Code, http.StatusTooManyRequests, "the third request")
}

func TestTheAdminAPIGivesRatesToPlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := servertest.Run(t, servertest.ThreeZones)
		s.Admin(http.MethodGet, "/throttle/zones", "", nil)
		synctest.Wait() // the first sample
		s.From(servertest.Someone).Passes(2, "/pages")
		<-time.After(3*telemetry.SampleEvery + telemetry.SampleEvery/2)
		var got wire.Rates
		s.Admin(http.MethodGet, "/throttle/rates", "", &got)
		p := got.Zones["pages"]
		check.That(t, len(p) == 3 && p[0].Admitted == .2 && p[0].Refused == .1 && len(got.Zones) == 1, "got %+v, want two admitted and one refused in the first 10 s, for pages alone", got.Zones)
		<-time.After(30 * time.Hour) // what is kept is bounded
		s.From(servertest.Someone).Passes(2, "/pages")
		<-time.After(2 * telemetry.SampleEvery)
		s.Admin(http.MethodGet, "/throttle/rates", "", &got)
		p = got.Zones["pages"]
		check.That(t, len(p) == 60 && p[58].Refused+p[58].Admitted != 0 && p[59].At.Sub(p[0].At) == 590*time.Second, "got %d points, %+v, want 60 up to now", len(p), p)
	})
}

// The first configuration of docs/inspector.md lets nobody guess for long, and users
// who have logged in look for as long as they like.
func TestTheDocumentedInspectorLimitsGuessingAlone(t *testing.T) {
	page := check.Must(os.ReadFile("../../docs/inspector.md"))(t)
	config := regexp.MustCompile("(?s)```caddyfile\n(.*?)```").FindStringSubmatch(string(page))[1]
	config = regexp.MustCompile(`alice \S+`).ReplaceAllString(config, "alice $$2a$$04$$eDXNeXgikNveTaV.vPS.O.TUci7Sw7.RQIR0Pj.98bmWXb56MWbSW")
	s := servertest.Run(t, strings.Replace(config, "throttle.example.com {", "http://throttle.example {", 1))
	v := newOperator(s, "alice")
	for range 30 { // monitors, link previews, and browsers before their first login
		r := v.request("GET", "", "")
		r.Header.Del("Authorization")
		check.Need(t, s.Do(r).Code, http.StatusUnauthorized, "without a password")
	}
	for range 50 {
		status, body := v.asks("zones", "{}")
		check.Assume(t, status == http.StatusOK, "got %d %s, want 200 for somebody who has logged in", status, body)
	}
	counts := make(map[int]int)
	for range 30 {
		r := v.request("GET", "", "")
		r.SetBasicAuth("alice", "guess")
		counts[s.Do(r).Code]++
	}
	check.That(t, counts[401] == 10 && counts[429] == 20, "got %v, want 10 guesses and 20 refusals", counts)
}

// Overrides name partners by their plain API keys.
func TestTheInspectorTellsReadersNoPlainKey(t *testing.T) {
	s := servertest.Run(t, `http://shop.example {
	throttle {
		zone api {
			key header X-Api-Key
			limit 1 1/h
			override PLAIN-PARTNER 600 10/s
		}
	}
	respond ok
}
http://throttle.example {
	`+inspectorUsers+`
	throttle_inspector
}`)
	for _, key := range []string{"PLAIN-PARTNER", "PLAIN-STRANGER"} {
		for range 2 {
			r := operator{Site: s}.request("GET", "", "")
			r.Host = "shop.example"
			r.Header.Set("X-Api-Key", key)
			s.Do(r)
		}
	}
	v := newOperator(s, "bob")
	for _, call := range []string{"zones", "overrides", "journal", "rates", `top {}`, `top {"by": "ip"}`, `buckets {"zone": "api"}`, `why {"client": "198.51.100.9"}`} {
		name, body, _ := strings.Cut(call, " ")
		status, answer := v.asks(name, cmp.Or(body, "{}"))
		check.That(t, status == http.StatusOK && !strings.Contains(answer, "PLAIN"), "%s: got %d and a plain key in %s", call, status, answer)
	}
}

func TestGolden(t *testing.T) { golden.Run(t) }

func TestMistakes(t *testing.T) {
	for options, want := range map[string]string{
		"allow_change":                         `unknown option "allow_change" in throttle_inspector: did you mean allow_changes?`,
		"allow_changes yes":                    `wrong number of words after allow_changes: it takes no word`,
		"user_header":                          "wrong number of words after user_header: it takes one word",
		"user_header Remote-User Remote-Email": `wrong number of words after user_header: it takes one word`,
		"basic_auth {\nalice hash\n}":          `unknown option "basic_auth" in throttle_inspector: want one of allow_changes,`,
	} {
		for text, want := range map[string]string{
			"throttle_inspector {\n" + options + "\n}": want,
			"throttle_inspector inspector":             `unexpected "inspector" after throttle_inspector: want a matcher such as /inspector, and options in a block`,
		} {
			_, _, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte("http://example.com {\n"+text+"\n}\n"), map[string]any{"filename": "Caddyfile"})
			check.That(t, err != nil && strings.Contains(err.Error(), want) && strings.Contains(err.Error(), "Caddyfile:"), "%s: got %v, want %s", text, err, want)
		}
	}
}
