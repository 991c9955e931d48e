package applications

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"html"
	"io"
	"mime/multipart"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
	"github.com/caddy-throttle/caddy-throttle/tests/internal/system"
)

// anApplication is one of Debian's behind what any-application.md says of it.
type anApplication struct {
	application
	name  string // on that page
	root  string // its folder below /usr, if the test has a copy
	trust string // its line trust_devices, if no cookie is refunded
	form  string // the page with its form for logins
	post  string // where that form is sent
	more  string // what is sent with it, beside hidden fields
	home  string // a page
	opens string // what only a page for somebody who has logged in contains
	doors []door
	work  func(b *browser) // of somebody who has logged in
	tabs  func(n int) string
}

// A door is a way to send a password. Those that are open log in who knows it.
type door struct {
	open           bool
	method, target string
	as             string // a query, form, multipart or json
}

var anyApplications = []*anApplication{
	{
		application: application{install: installDokuWiki}, name: "DokuWiki",
		form: "/doku.php?id=start&do=login", post: "/doku.php?id=start", more: "do=login", home: "/doku.php", opens: `class="user"`,
		doors: []door{
			{true, "POST", "/doku.php", "form"},
			{true, "POST", "/doku.php?id=page1", "form"},
			{true, "POST", "/doku.php/page1", "multipart"},
			{true, "GET", "/doku.php?id=page1", "query"},
			{true, "GET", "/", "query"},
			{true, "POST", "/feed.php", "form"},
			{true, "GET", "/lib/exe/taskrunner.php", "query"},
			{true, "GET", "/lib/exe/detail.php", "query"},
			{true, "POST", "/lib/exe/ajax.php", "multipart"},
			{false, "POST", "/doku.php", "json"},
			{false, "POST", "/lib/exe/xmlrpc.php", "form"},
		},
		work: func(b *browser) {
			edit := b.visit("/doku.php?id=page1&do=edit")
			form := hiddenInputs(edit)
			form.Del("do")
			for n := range 20 {
				form.Set("do[preview]", "Preview")
				form.Set("wikitext", fmt.Sprintf("====== Page 1 ======\n\nThe pump %d is mended.\n", n))
				page := b.send("/doku.php?id=page1", form)
				check.That(b.t, strings.Contains(page, fmt.Sprintf("The pump %d is mended.", n)), "got no preview %d", n)
			}
			media := b.visit("/lib/exe/mediamanager.php?ns=")
			b.upload("/lib/exe/mediamanager.php", hiddenInputs(media), "upload", "pump.png", onePixel)
			if page := b.visit("/doku.php?do=search&q=valve"); !strings.Contains(page, "page3") {
				b.t.Error("got no page 3 among those that a search finds")
			}
		},
		tabs: func(n int) string { return fmt.Sprintf("/doku.php?id=page%d", n) },
	},
	{
		application: application{install: installRoundcube}, name: "Roundcube",
		form: "/", post: "/?_task=login", more: "_task=login&_action=login&_timezone=UTC&_url=", home: "/", opens: "task=logout",
		doors: []door{
			{true, "POST", "/?_task=login", "form"},
			{true, "POST", "/", "form"},
			{true, "POST", "/index.php?_task=mail", "form"},
			{true, "POST", "/index.php/x", "multipart"},
			{false, "GET", "/", "query"},
			{false, "POST", "/?_task=login", "json"},
		},
		work: func(b *browser) {
			for n := range 20 {
				page := b.visit(fmt.Sprintf("/?_task=mail&_mbox=INBOX&_uid=%d&_action=preview&_framed=1", n+1))
				check.That(b.t, strings.Contains(page, "Is the valve mended?"), "got no mail %d", n+1)
			}
			compose := b.visit("/?_task=mail&_action=compose")
			id := regexp.MustCompile(`"compose_id":"(\w+)"`).FindStringSubmatch(compose)
			token := regexp.MustCompile(`"request_token":"(\w+)"`).FindStringSubmatch(compose)
			check.Assume(b.t, id != nil && token != nil, "got no form for a mail:\n%s", compose)
			b.upload("/?_task=mail&_action=upload&_remote=1&_from=compose&_id="+id[1]+"&_uploadid=1", url.Values{"_token": {token[1]}},
				"_attachments[]", "pump.png", onePixel)
			b.visit("/?_task=mail&_action=search&_q=valve&_mbox=INBOX&_headers=subject")
		},
		tabs: func(n int) string { return fmt.Sprintf("/?_task=mail&_mbox=INBOX&_uid=%d&_action=show", n+1) },
	},
	{
		application: application{install: installPHPMyAdmin}, name: "phpMyAdmin",
		form: "/", post: "/index.php?route=/", more: "server=1&route=/", home: "/", opens: "route=/logout",
		doors: []door{
			{true, "POST", "/index.php?route=/", "form"},
			{true, "POST", "/", "form"},
			{true, "POST", "/index.php?route=/sql", "multipart"},
			{false, "GET", "/index.php", "query"},
			{false, "POST", "/", "json"},
		},
		work: func(b *browser) {
			form := hiddenInputs(b.visit("/index.php?route=/database/sql&db=site"))
			form = url.Values{"token": form["token"], "db": {"site"}, "server": {"1"}, "ajax_request": {"true"}, "is_js_confirmed": {"0"}}
			for n := range 20 {
				form.Set("sql_query", fmt.Sprintf("SELECT name, %d FROM pumps", n))
				page := b.send("/index.php?route=/sql", form)
				check.That(b.t, strings.Contains(page, "river"), "got no answer to query %d: %s", n, system.Tail(page, 300))
			}
			form.Del("sql_query")
			form.Set("import_type", "database")
			form.Set("format", "sql")
			b.upload("/index.php?route=/import", form, "import_file", "pumps.sql", "INSERT INTO pumps VALUES (3, 'lake');\n")
			form.Set("criteriaSearchString", "well")
			form.Set("criteriaSearchType", "1")
			form.Set("criteriaTables[]", "pumps")
			form.Set("submit_search", "Go")
			b.send("/index.php?route=/database/search&db=site", form)
		},
		tabs: func(n int) string {
			return []string{"/index.php?route=/table/structure&db=site&table=pumps", "/index.php?route=/database/structure&db=site"}[n%2] + fmt.Sprint("&tab=", n)
		},
	},
	{
		application: application{install: installCacti}, name: "Cacti", root: "share/cacti/site", trust: "cacti_remembers",
		form: "/index.php", post: "/index.php", more: "action=login", home: "/index.php", opens: "auth_profile.php",
		doors: []door{
			{true, "POST", "/index.php", "form"},
			{true, "POST", "/graph_view.php", "form"},
			{true, "POST", "/host.php", "multipart"},
			{true, "GET", "/index.php", "query"},
			{false, "POST", "/", "json"},
		},
		work: func(b *browser) {
			for n := range 20 {
				b.visit(fmt.Sprintf("/graph_view.php?action=preview&page=1&rfilter=pump%d", n))
			}
			b.upload("/templates_import.php", hiddenInputs(b.visit("/templates_import.php")), "import_file", "pump.xml", "<cacti></cacti>")
			b.visit("/host.php?action=&filter=pump")
		},
		tabs: func(n int) string {
			return "/" + []string{
				"index", "graph_view", "host", "data_sources", "graphs", "tree", "host_templates", "graph_templates", "data_templates",
				"cdef", "color", "about",
			}[n%12] + ".php"
		},
	},
}

const onePixel = "\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\x00\x00\x00\x01\x00\x00\x00\x01\x08\x00\x00\x00\x00:~\x9bU\x00\x00\x00\nIDATx\x9cc`\x00\x00\x00\x02\x00\x01H\xaf\xa4q\x00\x00\x00\x00IEND\xaeB`\x82"

// names are what the page's table says of an application: the first of each cell in a fence. The
// key is the user's field, perhaps with how it is folded.
type names struct{ password, user, key, refund string }

func namesOf(t *testing.T, application string) names {
	t.Helper()
	page := system.Page(t, "docs/recipes/any-application.md")
	row := regexp.MustCompile("(?m)^\\| [*[]*" + application + "[^|]* \\| `(.*?)` \\| `(.*?)` \\| (?:`(.*?)`|nothing) \\|").FindStringSubmatch(page)
	check.Assume(t, row != nil, "got no %s in the table of any-application.md", application)
	return names{row[1], strings.Fields(row[2])[0], row[2], row[3]}
}

// changes are those to the first configuration of the README that these names are, enforced.
func (n names) changes(trust string) []string {
	refunded := []string{"refund cookie logged_in\n", "refund " + n.refund + "\n"}
	if cookie, ok := strings.CutPrefix(n.refund, "cookie "); ok {
		trust = cookie
	}
	return append([]string{
		"\t\tshadow\n", "",
		"field password\n", "field " + n.password + "\n",
		"field password\n", "field " + n.password + "\n",
		"key field username\n", "key field " + n.key + "\n",
		"trust_devices logged_in\n", "trust_devices " + trust + "\n",
	}, append(refunded, refunded...)...)
}

// firstConfiguration returns that of the README.
func firstConfiguration(t *testing.T) string {
	t.Helper()
	blocks := system.Code(system.Page(t, "README.md"), "caddyfile")
	check.Assume(t, len(blocks) == 2, "got %d Caddyfiles in the README, want a small one and the first one", len(blocks))
	return blocks[1]
}

var basicZone = regexp.MustCompile(`(?ms)^\t\tzone basic(?:_address)? \{.*?^\t\t\}\n`)

// start runs the application behind the documented lines, enforced. A chapter of the page has the
// whole Caddyfile, or what is instead of root and the zones for Basic, and below exempt static_files.
func (a *anApplication) start(t *testing.T) *system.Trial {
	t.Helper()
	page := system.Page(t, "docs/recipes/any-application.md")
	_, chapter, _ := strings.Cut(page, "\n## "+a.name+"\n")
	chapter, _, _ = strings.Cut(chapter, "\n## ")
	blocks := system.Code(chapter, "caddyfile")
	check.Assume(t, len(blocks) != 0, "got no Caddyfile for %s in any-application.md", a.name)
	file, changes := blocks[0], []string{"\t\tshadow\n", ""}
	if !strings.HasPrefix(file, "example.com {") {
		file, changes = basicZone.ReplaceAllString(firstConfiguration(t), ""), namesOf(t, a.name).changes(a.trust)
		changes = append(changes, "\troot * /srv/www\n", blocks[0])
		if len(blocks) > 1 {
			changes = append(changes, "exempt static_files\n", "exempt static_files\n"+blocks[1])
		}
	}
	changes = append(changes, "unix//run/php/php-fpm.sock", "unix/"+filepath.Join(a.dir, "fpm.sock"))
	if a.root != "" {
		changes = append(changes, "root * /usr/"+a.root, "root * "+filepath.Join(a.dir, a.root))
	}
	return system.RunTrial(t, "any-application.md", "{\n}\n"+file, changes...)
}

// A loginForm has the hidden fields of a form for logins, and the cookies that belong to it.
type loginForm struct {
	hidden url.Values
	cookie string
}

func (a *anApplication) loginForm(s *system.Trial, address string) loginForm {
	s.T.Helper()
	page := s.Must(system.Request{Address: address, Target: a.form})
	return loginForm{hiddenInputs(page.Body), cookiesOf(page)}
}

var (
	hiddenInput = regexp.MustCompile(`<input [^>]*type=["']?hidden[^>]*>`)
	inputName   = regexp.MustCompile(`name=["']([^"']*)["']`)
	inputValue  = regexp.MustCompile(`value=(?:"([^"]*)"|'([^']*)')`)
	assetsOf    = regexp.MustCompile(`<(?:script|img)[^>]* src=["']([^"']+)["']|<link[^>]* rel=["']stylesheet["'][^>]* href=["']([^"']+)["']|<link[^>]* href=["']([^"']+)["'][^>]*rel=["']stylesheet["']`)
)

// hiddenInputs returns those of all forms of a page.
func hiddenInputs(page string) url.Values {
	fields := make(url.Values)
	for _, input := range hiddenInput.FindAllString(page, -1) {
		if n, v := inputName.FindStringSubmatch(input), inputValue.FindStringSubmatch(input); n != nil && v != nil {
			fields.Set(html.UnescapeString(n[1]), html.UnescapeString(v[1]+v[2]))
		}
	}
	return fields
}

// guess sends a password through a door.
func (a *anApplication) guess(d door, n names, form loginForm, address, password string) system.Request {
	fields := make(url.Values)
	for name, values := range form.hidden {
		fields[name] = values
	}
	more, _ := url.ParseQuery(a.more)
	for name, values := range more {
		fields[name] = values
	}
	fields.Set(n.user, "alice")
	fields.Set(n.password, password)
	r := system.Request{Address: address, Method: d.method, Target: d.target, Header: []string{"Cookie", form.cookie}}
	switch d.as {
	case "query":
		separator := "?"
		if strings.Contains(d.target, "?") {
			separator = "&"
		}
		r.Target += separator + fields.Encode()
	case "form":
		r.Body = fields.Encode()
	case "multipart":
		body, kind := multipartOf(fields, "", "", "")
		r.Body, r.Header = body, append(r.Header, "Content-Type", kind)
	case "json":
		object := make(map[string]string)
		for name := range fields {
			object[name] = fields.Get(name)
		}
		text, _ := json.Marshal(object) // of strings never fails
		r.Body, r.Header = string(text), append(r.Header, "Content-Type", "application/json")
	}
	return r
}

func multipartOf(fields url.Values, file, name, content string) (body, kind string) {
	var text bytes.Buffer
	w := multipart.NewWriter(&text) // to memory, which never fails
	for field, values := range fields {
		w.WriteField(field, values[0])
	}
	if file != "" {
		part, _ := w.CreateFormFile(file, name)
		io.WriteString(part, content)
	}
	w.Close()
	return text.String(), w.FormDataContentType()
}

// TestTheTableHoldsGuesses that answer or are sent in another way than from the form for logins, as
// we read in the source.
func TestTheTableHoldsGuesses(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ application, target, body, cookie string }{
		// A dialog does not show the error, so it is kept in a session.
		{"Drupal", "/user/login?_wrapper_format=drupal_modal", "form_id=user_login_form&name=alice&pass=wrong", "SSESS0=x"},
		{"phpBB's links", "/ucp.php?mode=login_link&auth_provider=db&login_link_x=1", "login=1&login_username=alice&login_password=wrong", ""},
		{"Matomo's API", "/?module=API&method=UsersManager.createAppSpecificTokenAuth&userLogin=alice", "passwordConfirmation=wrong", ""},
		// Every page takes passwords, and redirects to the form after wrong ones.
		{"Request Tracker", "/Ticket/Create.html", "user=alice&pass=wrong", ""},
		{"TYPO3's website", "/", "logintype=login&user=alice&pass=wrong", ""},
		// Whoever has not logged in may change a password, or ask for a token.
		{"SOGo", "/SOGo/so/changePassword", "userName=alice&oldPassword=wrong&newPassword=x", ""},
		{"JupyterHub's API", "/hub/api/users/alice/tokens", "auth[username]=alice&auth[password]=wrong", ""},
		{"ZoneMinder's API", "/api/host/login.json", "user=alice&pass=wrong", ""},
	} {
		t.Run(c.application, func(t *testing.T) {
			t.Parallel()
			n := namesOf(t, c.application)
			zone := fmt.Sprintf("zone login {\nfield %s\nlimit 5 30/h\nrefund %s\n}", n.password, cmp.Or(n.refund, "status 299"))
			up := system.StartUpstream(t, func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Set-Cookie", c.cookie) })
			s := system.RunTrial(t, "any-application.md", "{\n}\nexample.com {\nthrottle {\n"+zone+"\n}\nreverse_proxy "+up.Address+"\n}\n")
			got := statusesOf(s, 12, func(int) system.Request {
				return system.Request{Address: "203.0.113.2", Method: "POST", Target: c.target, Body: c.body}
			})
			check.That(t, got[200] >= 5 && got[200] <= 6 && got[429] == 12-got[200], "got %v, want 5 of 200", got)
		})
	}
}

// TestTheWorkSheetHoldsGuesses whose fields no log-in form shows, by other lines of the page.
func TestTheWorkSheetHoldsGuesses(t *testing.T) {
	t.Parallel()
	const digest = `match header_regexp Authorization (?i)^[\S\t]*(basic|digest)`
	const inPath = "path */username/* */password/*"
	const paths = "path */xmlrpc* *jsonrpc* */api/soap* *soap.php* *rest.php* */graphql* */batch* */ClientLogin* */fever*"
	for _, c := range []struct {
		name, line, zone, target, body string
		header                         []string
		want                           int // of twelve that reach the application
	}{
		{"nested, and many at once", paths, "field password", "/zabbix/api_jsonrpc.php", `[
			{"jsonrpc": "2.0", "method": "user.login", "params": {"username": "Admin", "password": "a"}, "id": 1},
			{"jsonrpc": "2.0", "method": "user.login", "params": {"username": "Admin", "password": "b"}, "id": 2}]`, []string{"Content-Type", "application/json-rpc"}, 0},
		{"at Parse Server", paths, "field password", "/parse//batch", `{"requests": [
			{"method": "POST", "path": "/parse/login", "body": {"username": "alice", "password": "a"}},
			{"method": "POST", "path": "/parse/login", "body": {"username": "alice", "password": "b"}}]}`, []string{"Content-Type", "application/json"}, 0},
		{"in the path", inPath, "field password", "/auth/login/id/alice/pass%77ord/wrong", "", nil, 0},
		{"of a name in the path", inPath, "field password", "/auth/login/username/alice", "username=bob&password=wrong", nil, 0},
		{
			"by place, as PHP's SoapServer takes them", paths, "field password", "/mantis/api/soap/mantisconnect.php",
			`<Envelope xmlns="http://schemas.xmlsoap.org/soap/envelope/"><Body><mc_login><a>alice</a><b>wrong</b></mc_login></Body></Envelope>`,
			[]string{"Content-Type", "text/xml"},
			0,
		},
		{
			"as JSON in a form, at SuiteCRM", paths, "field password", "/service/v4_1/rest.php",
			`method=login&input_type=JSON&rest_data={"user_auth":{"user_name":"alice","password":"wrong"}}`, nil, 0,
		},
		{"at Google Reader's API, as in Miniflux and FreshRSS", paths, "field password", "/api/greader.php/accounts/ClientLogin", "Email=alice&Passwd=wrong", nil, 0},
		{"at Fever's API, as in Miniflux and FreshRSS", paths, "field password", "/fever/?api", "api_key=00000000000000000000000000000000", nil, 0},
		{"of other names each time", "match path /front/login.php*", "match path /front/login.php*", "/front/login.php/x", "fielda6923=alice&fieldb6923=wrong", nil, 5},
		{"by HTTP Basic where wrong ones get 200, as at DAViCal", `not path_regexp ^/caldav\.php(/|$)`, digest + "\nsettle status 401 1 after", "/Caldav.php/x", "", []string{"Authorization", "Basic YWxpY2U6d3Jvbmc="}, 0},
		{"by HTTP Digest", digest, digest + "\nsettle status 200 1 after", "/dav.php", "", []string{"Authorization", `Digest username="alice", response="wrong"`}, 5},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			pages := system.Page(t, "docs/recipes/any-application.md") + system.Page(t, "README.md")
			check.Assume(t, strings.Contains(pages, c.line), "got no %s on the pages", c.line)
			closed := ""
			if c.want == 0 {
				closed = "@closed {\n" + c.line + "\n}\nrespond @closed 403\n"
			}
			s := system.RunTrial(t, "any-application.md", "{\n}\nexample.com {\n"+closed+"throttle {\nzone login {\n"+c.zone+"\nlimit 5 30/h\n}\n}\nrespond ok\n}\n")
			got := statusesOf(s, 12, func(int) system.Request {
				return system.Request{Address: "203.0.113.2", Method: "POST", Target: c.target, Body: c.body, Header: c.header}
			})
			check.That(t, got[200] == c.want || c.want > 0 && got[200] == c.want+1, "got %v, want %d of 200", got, c.want)
		})
	}
}

// TestRegistrationEarnsNoDevice of an account that somebody else names in more fields than its form has.
func TestRegistrationEarnsNoDevice(t *testing.T) {
	t.Parallel()
	const line = "exempt path /register*"
	check.Assume(t, strings.Contains(system.Page(t, "docs/recipes/any-application.md"), line), "got no %s on the page", line)
	up := system.StartUpstream(t, func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Set-Cookie", "sid=x") })
	zone := "zone account {\nfield password\nkey field login\n" + line + "\nlimit 10 10/h\nrefund cookie sid\ntrust_devices sid\n}"
	s := system.RunTrial(t, "any-application.md", "{\n}\nexample.com {\nthrottle {\n"+zone+"\n}\nreverse_proxy "+up.Address+"\n}\n")
	for target, want := range map[string]int{"/login": 2, "/register": 1} {
		got := s.Must(system.Request{Address: "203.0.113.2", Method: "POST", Target: target, Body: "username=eve&password1=x&login=alice&password=x"})
		check.That(t, len(got.Header["Set-Cookie"]) == want, "%s: got cookies %q, want %d", target, got.Header["Set-Cookie"], want)
	}
}

// TestNoHeaderChoosesThePath of an application behind the lines of the page, as Zend Framework 1 lets it.
func TestNoHeaderChoosesThePath(t *testing.T) {
	t.Parallel()
	const lines = "request_header -*Original*\nrequest_header -*Rewrite*\n"
	check.Assume(t, strings.Contains(system.Page(t, "docs/recipes/any-application.md"), lines), "got no %s on the page", lines)
	up := system.StartUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		for name := range r.Header {
			if strings.HasSuffix(strings.ToLower(name), "url") {
				w.WriteHeader(http.StatusTeapot)
			}
		}
	})
	s := system.RunTrial(t, "any-application.md", "{\n}\nexample.com {\n"+lines+"reverse_proxy "+up.Address+"\n}\n")
	for _, name := range []string{"X-Original-Url", "x_original_url", "X-Rewrite-Url", "X_REWRITE_URL"} {
		got := s.Must(system.Request{Address: "203.0.113.2", Target: "/", Header: []string{name, "/admin"}})
		check.That(t, got.Status == 200, "got %d, want no %s", got.Status, name)
	}
}

// succeeded reports whether an answer is one that is refunded.
func (n names) succeeded(a system.Answer) bool {
	if status, ok := strings.CutPrefix(n.refund, "status "); ok {
		return fmt.Sprint(a.Status) == status
	}
	for _, line := range a.Header["Set-Cookie"] {
		set, err := http.ParseSetCookie(line)
		if err != nil {
			continue
		}
		matches, _ := path.Match(strings.TrimPrefix(n.refund, "cookie "), set.Name)
		if matches && set.Value != "" && set.MaxAge >= 0 && (set.Expires.IsZero() || set.Expires.After(time.Now())) {
			return true
		}
	}
	return false
}

// TestAnyApplication of Debian that has no page of its own holds guesses through all its doors, and
// refuses nothing to people, behind the lines of any-application.md.
func TestAnyApplication(t *testing.T) {
	for _, a := range anyApplications {
		t.Run(a.name, func(t *testing.T) {
			t.Parallel()
			a.use(t)
			n := namesOf(t, a.name)
			t.Run("doors", func(t *testing.T) { a.doorsAreWhatTheySeem(t, n) })
			t.Run("one address", func(t *testing.T) { a.holdsGuesses(t, n, 1, 5) })
			t.Run("100 addresses", func(t *testing.T) { a.holdsGuesses(t, n, 100, 10) })
			t.Run("people", func(t *testing.T) { a.servesPeople(t, n) })
		})
	}
}

// doorsAreWhatTheySeem: those that are open log in who knows the password, which is refunded.
func (a *anApplication) doorsAreWhatTheySeem(t *testing.T, n names) {
	s := a.start(t)
	for i, d := range a.doors {
		address := fmt.Sprintf("203.0.113.%d", 100+i)
		form := a.loginForm(s, address)
		got := s.Must(a.guess(d, n, form, address, "right"))
		cookies := openSession(s, address, form.cookie)
		cookies.keep(got)
		open := strings.Contains(cookies.opens("GET", a.home, "").Body, a.opens)
		if open != d.open || open && !n.succeeded(got) {
			t.Errorf("%s %s as %s: got %d and %q for the right password, and logged in %t, want %t", d.method, d.target, d.as, got.Status, got.Header["Set-Cookie"], open, d.open)
		}
	}
}

// holdsGuesses through all open doors together, and as many by HTTP Basic. Somebody who has logged
// in before gets in after them. Closed doors check no password, and Cacti answers there like after
// a right one.
func (a *anApplication) holdsGuesses(t *testing.T, n names, addresses, most int) {
	s := a.start(t)
	owner := browse(s, t, "203.0.113.1")
	owner.logIn(a, n, "right")
	form, began := a.loginForm(s, "203.0.113.2"), time.Now()
	open := slices.DeleteFunc(slices.Clone(a.doors), func(d door) bool { return !d.open })
	attack := func(what string, network int, most int, each func(i int, address string) system.Request) {
		statuses := s.Attack(300, 80, func(i int) system.Request { return each(i, system.NetworkAddress(network+i%addresses)) })
		reached := 0
		for i := range addresses {
			reached += a.reached(t, system.NetworkAddress(network+i)+",")
		}
		most += int(time.Since(began) / (2 * time.Minute)) // what has leaked
		t.Logf("%s: %d of 300 guesses %s from %d addresses reached PHP, %v by status", a.name, reached, what, addresses, statuses)
		check.That(t, reached <= most, "got %d, want %d at most", reached, most)
	}
	network := addresses * 5 // of its own, since php.log is that of all attacks
	attack("through open doors", network, most, func(i int, address string) system.Request {
		return a.guess(open[i%len(open)], n, form, address, fmt.Sprint("wrong", i))
	})
	attack("with a second user", network+100, most, func(i int, address string) system.Request {
		r := a.guess(a.doors[0], n, form, address, fmt.Sprint("wrong", i))
		separator := "?"
		if strings.Contains(r.Target, "?") {
			separator = "&"
		}
		r.Target += separator + n.user + "=bob"
		return r
	})
	attack("by HTTP Basic", network+200, most, func(i int, address string) system.Request {
		r := basic(address, "alice", fmt.Sprint("wrong", i), a.doors[i%len(a.doors)].target)
		r.Method = a.doors[i%len(a.doors)].method
		return r
	})
	if strings.HasPrefix(n.refund, "cookie ") {
		owner.logIn(a, n, "right")
	}
	refused := s.Refusals(owner.address)
	check.That(t, len(refused) == 0, "the owner: got %q refused, want nothing", refused)
}

// servesPeople: two behind one address, one of whom errs three times, log in and work, beside
// a scraper.
func (a *anApplication) servesPeople(t *testing.T, n names) {
	s := a.start(t)
	one, other := browse(s, t, "203.0.113.1"), browse(s, t, "203.0.113.1")
	for range 3 {
		one.logIn(a, n, "wrong")
	}
	one.logIn(a, n, "right")
	var working sync.WaitGroup
	working.Go(func() {
		other.logIn(a, n, "right")
		other.open(3, a.tabs)
	})
	working.Go(func() {
		began := time.Now()
		statuses := s.Attack(200, 10, func(i int) system.Request { return system.Request{Address: "198.51.100.1", Target: a.tabs(i % 12)} })
		if took := time.Since(began); statuses[429] < 20 && took < 20*time.Second { // slower ones fit
			t.Errorf("got %v for a scraper in %v, want some refused", statuses, took)
		}
	})
	a.work(one)
	one.open(12, a.tabs)
	working.Wait()
	t.Logf("%s: %d requests, buckets at most %s full", a.name, len(s.Entries(one.address)), system.Percents(s.Peaks(one.address)))
	refused := s.Refusals(one.address)
	check.That(t, len(refused) == 0, "got %d refused, want none: %q", len(refused), refused)
}

// A browser keeps cookies, and loads what pages show, once.
type browser struct {
	*system.Trial
	t       *testing.T
	address string
	client  *http.Client

	mu     sync.Mutex
	loaded map[string]bool
}

func browse(s *system.Trial, t *testing.T, address string) *browser {
	jar, _ := cookiejar.New(nil) // never fails
	return &browser{
		Trial: s, t: t, address: address, client: &http.Client{Transport: s.Client.Transport, Jar: jar, Timeout: time.Minute},
		loaded: make(map[string]bool),
	}
}

// do sends a request, follows where it leads, and returns the page and its address.
func (b *browser) do(method, target, body, kind string) (string, *url.URL) {
	b.t.Helper()
	req, err := http.NewRequest(method, target, strings.NewReader(body))
	if err != nil {
		b.t.Error(err)
		return "", nil
	}
	req.Header.Set("X-Forwarded-For", b.address)
	req.Header.Set("User-Agent", "Mozilla/5.0 (X11; Linux x86_64) Gecko/20100101 Firefox/140.0")
	req.Header.Set("Accept-Language", "en")
	if kind != "" {
		req.Header.Set("Content-Type", kind)
	}
	resp, err := b.client.Do(req)
	if err != nil {
		b.t.Error(err)
		return "", nil
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode == http.StatusTooManyRequests || resp.StatusCode >= 500 {
		b.t.Errorf("%s %s: got %d, %v: %s", method, target, resp.StatusCode, err, system.Tail(string(text), 300))
	}
	return string(text), resp.Request.URL
}

// visit opens a page, with what it shows.
func (b *browser) visit(target string) string {
	b.t.Helper()
	page, at := b.do("GET", b.URL+target, "", "")
	b.load(page, at)
	return page
}

func (b *browser) load(page string, at *url.URL) {
	b.t.Helper()
	var loading sync.WaitGroup
	for _, found := range assetsOf.FindAllStringSubmatch(page, -1) {
		asset, err := url.Parse(html.UnescapeString(found[1] + found[2] + found[3]))
		if err != nil || at == nil {
			continue
		}
		asset = at.ResolveReference(asset)
		b.mu.Lock()
		known := b.loaded[asset.String()]
		b.loaded[asset.String()] = true
		b.mu.Unlock()
		if !known && asset.Host == b.Host {
			loading.Go(func() { b.do("GET", asset.String(), "", "") })
		}
	}
	loading.Wait()
}

// send sends a form, and opens the page that it leads to.
func (b *browser) send(target string, form url.Values) string {
	b.t.Helper()
	page, at := b.do("POST", b.URL+target, form.Encode(), system.Urlencoded)
	b.load(page, at)
	return page
}

func (b *browser) upload(target string, form url.Values, field, name, content string) {
	b.t.Helper()
	body, kind := multipartOf(form, field, name, content)
	b.do("POST", b.URL+target, body, kind)
}

// open opens so many tabs at once.
func (b *browser) open(n int, target func(n int) string) {
	b.t.Helper()
	var opening sync.WaitGroup
	for i := range n {
		opening.Go(func() { b.visit(target(i)) })
	}
	opening.Wait()
}

// logIn sends the form for logins.
func (b *browser) logIn(a *anApplication, n names, password string) {
	b.t.Helper()
	jar, _ := cookiejar.New(nil)
	for _, cookie := range b.client.Jar.Cookies(&url.URL{Scheme: "https", Host: b.Host, Path: "/"}) { // the others are those of its session
		if strings.HasPrefix(cookie.Name, "__Host-throttle-") {
			cookie.Secure, cookie.Path = true, "/"
			jar.SetCookies(&url.URL{Scheme: "https", Host: b.Host, Path: "/"}, []*http.Cookie{cookie})
		}
	}
	b.client.Jar = jar
	form := hiddenInputs(b.visit(a.form))
	more, _ := url.ParseQuery(a.more)
	for name, values := range more {
		form[name] = values
	}
	form.Set(n.user, "alice")
	form.Set(n.password, password)
	page := b.send(a.post, form)
	got, want := strings.Contains(page, a.opens), password == "right"
	check.That(b.t, got == want, "logging in to %s with the %s password: got logged in %t\n%s", a.name, password, got, system.Tail(page, 2000))
}
