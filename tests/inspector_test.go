package tests

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

// An inspectedSite is a site with zones, and the inspector beside it on a port of its
// own.
type inspectedSite struct {
	*caddy
	url       string
	inspector string // with a user who may change things
	looker    string // with one who may not
}

// in returns the same site for a subtest.
func (s inspectedSite) in(t *testing.T) *inspectedSite {
	running := *s.caddy
	running.t = t
	s.caddy = &running
	return &s
}

// alice may look, with the password secret.
const alice = "alice $2a$04$eDXNeXgikNveTaV.vPS.O.TUci7Sw7.RQIR0Pj.98bmWXb56MWbSW"

// startInspected starts such a site, with global options of throttle.
func startInspected(t *testing.T, options string) *inspectedSite {
	t.Helper()
	port, inspector, looker := freePort(t), freePort(t), freePort(t)
	c := startCaddy(t, config{throttle: options, servers: "trusted_proxies static 127.0.0.0/8\ntrusted_proxies_strict", sites: fmt.Sprintf(`
http://:%d {
	throttle {
		zone pages {
			limit 60 6/m
		}
		zone login {
			match path /login
			limit 3 3/h
			block 1h
		}
		zone accounts {
			match path /api
			key query who plain
			limit 10 1/h
		}
		zone search {
			match path /search
			limit 5 1/h
			shadow
		}
	}
	respond ok
}
http://127.0.0.1:%d {
	basic_auth {
		%s
	}
	throttle_inspector {
		allow_changes
	}
}
http://127.0.0.1:%d {
	basic_auth {
		%[3]s
	}
	throttle_inspector
}`, port, inspector, alice, looker)})
	return &inspectedSite{
		c, fmt.Sprintf("http://127.0.0.1:%d", port),
		fmt.Sprintf("http://alice:secret@127.0.0.1:%d/", inspector), fmt.Sprintf("http://alice:secret@127.0.0.1:%d/", looker),
	}
}

// status sends a request of a client, and returns the status of the answer.
func (s *inspectedSite) status(client, target string) int {
	s.t.Helper()
	req, err := http.NewRequest("GET", s.url+target, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	req.Header.Set("X-Forwarded-For", client)
	resp := surely(s.t, req)
	resp.Body.Close()
	return resp.StatusCode
}

// code returns the support code of a refusal.
func (s *inspectedSite) code(client, target string) string {
	s.t.Helper()
	req, err := http.NewRequest("GET", s.url+target, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	req.Header.Set("X-Forwarded-For", client)
	req.Header.Set("Accept", "application/json")
	resp := surely(s.t, req)
	defer resp.Body.Close()
	var problem struct {
		Code string `json:"support_code"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&problem); err != nil || problem.Code == "" {
		s.t.Fatalf("got status %d, the code %q and error %v, want a refusal with a code", resp.StatusCode, problem.Code, err)
	}
	return problem.Code
}

func (s *inspectedSite) send(client, target string, n int) {
	s.t.Helper()
	for range n {
		s.status(client, target)
	}
}

// hostileKeys are what somebody may write into a key so that it does something on a
// page or in a terminal.
var hostileKeys = []string{
	`<img src=x onerror="document.title='executed'">`,
	`</script><script>document.title='executed'</script>`,
	`"><svg onload=document.title='executed'>`,
	`javascript:document.title='executed'`,
	"\u202egnp.exe", "a\r\nSet-Cookie: b", "\x1b[31mred\x1b[2J", "zero\u200bwidth", "\u2066isolated", "tab\tnul\x00",
	"مكتبة المدينة", "한국어 키", "👩‍👩‍👧", "../../../etc/passwd", "%2e%2e%2f", "{{constructor}}", "__proto__", " ", "'; DROP TABLE zones; --",
	strings.Repeat("long ", 50),
}

func (s *inspectedSite) sendHostile() {
	for i, key := range hostileKeys {
		s.send(fmt.Sprintf("203.0.113.%d", i), "/api?who="+url.QueryEscape(key), 1+i%10)
	}
}

// sendBusy has four zones decide: some clients are refused, and one is blocked.
func (s *inspectedSite) sendBusy() {
	for i := range 60 {
		s.send(fmt.Sprintf("198.51.100.%d", i), fmt.Sprintf("/api?who=user%02d", i), 1+i%10)
	}
	s.send("203.0.113.8", "/login", 2)
	s.send("203.0.113.7", "/login", 5)
	s.send("203.0.113.9", "/search", 12)
	s.send("2001:db8::7", "/", 61)
}

// when waits for an expression of JavaScript to be true.
func (b tab) when(what, expression string) {
	b.t.Helper()
	eventually(b.t, what, func() bool {
		got, err := chromedp.Run(b, chromedp.Evaluate[bool]("Boolean("+expression+")"))
		return err == nil && got
	})
}

// click clicks on what a query finds.
func (b tab) click(query string) {
	b.t.Helper()
	b.when(query, fmt.Sprintf("document.querySelector(%q)?.checkVisibility() && !document.querySelector(%[1]q).disabled", query))
	b.run(fmt.Sprintf("document.querySelector(%q).click()", query))
}

// set fills a field, as somebody who types does.
func (b tab) set(query string, value any) {
	b.t.Helper()
	property := "value"
	if _, ticked := value.(bool); ticked {
		property = "checked"
	}
	text, _ := json.Marshal(value)
	b.run(fmt.Sprintf(`{ const field = document.querySelector(%q); field.%s = %s; for (const name of ["input", "change"]) field.dispatchEvent(new Event(name, {bubbles: true})) }`, query, property, text))
}

// press presses keys, such as kb.Tab.
func (b tab) press(keys string) {
	b.t.Helper()
	if err := chromedp.Do(b, chromedp.KeyEvent(keys)); err != nil {
		b.t.Fatalf("pressing %q: %v", keys, err)
	}
}

// tabTo presses the tab key until something that a query finds has the focus, and shows
// it.
func (b tab) tabTo(query string) {
	b.t.Helper()
	for range 500 { // new rows may take the focus back
		b.press(kb.Tab)
		if eval[bool](b, fmt.Sprintf("document.activeElement.matches(%q)", query)) {
			if eval[string](b, "getComputedStyle(document.activeElement).outlineStyle") == "none" {
				b.t.Errorf("%s shows no focus", query)
			}
			return
		}
	}
	b.t.Fatalf("got to no %s in 500 presses of the tab key", query)
}

// keys returns the keys of the rows of a table.
func (b tab) keys(table string) []string {
	b.t.Helper()
	return eval[[]string](b, fmt.Sprintf("Array.from(document.querySelectorAll(%q), (cell) => cell.textContent)", table+" tbody td.key"))
}

// inspect opens the inspector, and waits until it shows the buckets of a zone.
func (s *inspectedSite) inspect(browser context.Context, url, scheme string, width int64, zone string) tab {
	s.t.Helper()
	b := newTab(s.t, browser, "en", scheme, width, 800)
	call(b, page.AddScriptToEvaluateOnNewDocument, page.AddScriptToEvaluateOnNewDocumentParams{Source: `
		window.violations = [];
		document.addEventListener("securitypolicyviolation", (event) => violations.push(event.violatedDirective));
	`})
	b.open(url)
	b.when("the status", "document.querySelector('#zones article')")
	b.set("#buckets-form [name=zone]", zone)
	b.when("buckets of "+zone, fmt.Sprintf("document.querySelector('#buckets-table tbody tr')?.bucket.zone === %q", zone))
	return b
}

// sound sees to it that nothing strange has happened in the page.
func (b tab) sound() {
	b.t.Helper()
	if title := eval[string](b, "document.title"); title != "throttle" {
		b.t.Errorf("got the title %q, want throttle: something was executed", title)
	}
	if violations := eval[[]string](b, "violations"); len(violations) > 0 {
		b.t.Errorf("got violations of the policy: %v", violations)
	}
	if n := eval[int](b, "document.querySelectorAll('script').length + document.querySelectorAll('main img, main iframe, main object, main a, main link, main style').length"); n != 1 {
		b.t.Errorf("got %d elements that load or do something, want the one script", n)
	}
	if wide := eval[int](b, "document.documentElement.scrollWidth - innerWidth"); wide > 0 {
		b.t.Errorf("the page is %d pixels wider than the screen", wide)
	}
}

// picture keeps a picture of the whole page.
func (b tab) picture(name string) {
	b.t.Helper()
	if os.Getenv("TEST_SCREENSHOTS") == "" {
		return
	}
	width := eval[int64](b, "innerWidth")
	call(b, emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{
		Width: width, Height: eval[int64](b, "document.documentElement.scrollHeight"), DeviceScaleFactor: 1, Mobile: width < 500,
	})
	b.screenshot("inspector-" + name)
}

// looks are what is looked at, as pictures, too.
var looks = []struct {
	scheme string
	width  int64
}{{"light", phone}, {"dark", desktop}}

// TestTheInspectorInABrowser has people use it.
func TestTheInspectorInABrowser(t *testing.T) {
	t.Parallel()
	browser := startBrowser(t)
	busy := startInspected(t, "")
	busy.sendBusy()

	t.Run("it filters, sorts and pages", func(t *testing.T) {
		b := busy.in(t).inspect(browser, busy.inspector, "light", desktop, "accounts")
		if got := eval[string](b, "document.querySelector('[data-sort=level]').parentNode.ariaSort"); got != "descending" {
			t.Errorf("got the order %q by level, want descending", got)
		}
		b.click("[data-sort=key]")
		b.when("the first by key", "document.querySelector('#buckets-table tbody .key').textContent === 'user00'")
		if got := eval[[]string](b, "Array.from(document.querySelectorAll('[aria-sort]'), (head) => head.ariaSort)"); !slices.Equal(got, []string{"ascending", "none", "none"}) {
			t.Errorf("got the orders %v, want only that by key", got)
		}
		seen := b.keys("#buckets-table")
		for range 2 {
			b.click("#after")
			seen = append(seen, b.keys("#buckets-table")...)
		}
		if len(seen) != 60 || !slices.IsSorted(seen) || len(slices.Compact(seen)) != 60 {
			t.Errorf("got %d keys on three pages, %q, want all 60 once", len(seen), seen)
		}
		if !eval[bool](b, "document.querySelector('#after').disabled") {
			t.Error("got a page after the last one")
		}
		b.click("#before")
		if got := b.keys("#buckets-table")[0]; got != "user25" {
			t.Errorf("got %s first on the page before, want user25", got)
		}
		b.set("[name=prefix]", "user4")
		b.when("ten keys", "document.querySelectorAll('#buckets-table tbody tr').length === 10")
		b.set("[name=min_fraction]", "0.75")
		b.when("only full ones", "Array.from(document.querySelectorAll('#buckets-table tbody tr'), (row) => row.bucket.fraction).every((f) => f >= 0.75)")
		if got := b.keys("#buckets-table"); len(got) == 0 || len(got) == 10 {
			t.Errorf("got %q, want some of the ten", got)
		}
		b.set("[name=prefix]", "nobody")
		b.when("nothing", "document.querySelector('#buckets-empty').innerText === 'No bucket matches.'")
		b.sound()
	})

	t.Run("levels drain between two answers", func(t *testing.T) {
		busy.in(t).send("203.0.113.20", "/", 60)
		b := busy.in(t).inspect(browser, busy.inspector, "dark", desktop, "pages")
		b.set("[name=prefix]", "203.0.113.20")
		b.when("the bucket", "document.querySelector('#buckets-table tbody .key')?.textContent === '203.0.113.20'")
		b.click("#pause")
		b.run(`window.answers = performance.getEntriesByType("resource").length; window.first = document.querySelector("#buckets-table .level span").textContent`)
		b.when("a lower level", `parseFloat(document.querySelector("#buckets-table .level span").textContent) < parseFloat(first)`)
		scale := `Number(/scaleX\(([0-9.]+)/.exec(document.querySelector("#buckets-table .track div").style.transform)[1])`
		b.run("window.scale = " + scale)
		b.when("a shorter bar", scale+" < scale")
		b.sound()
	})

	t.Run("a client comes back in", func(t *testing.T) {
		busy := busy.in(t)
		b := busy.inspect(browser, busy.inspector, "light", phone, "login")
		b.set("#why-form [name=client]", "203.0.113.7")
		b.run(`document.querySelector("#why-form").requestSubmit()`)
		b.when("the reason", "document.querySelector('#why-said').innerText.startsWith('login refuses it: blocked, for another ')")
		b.when("the plot", "document.querySelector('#zones .refused').getAttribute('d') !== null")
		b.sound()
		b.picture("why-phone")
		if got := busy.status("203.0.113.7", "/login"); got != 429 {
			t.Fatalf("got %d, want it blocked", got)
		}
		b.set("#why-form [name=client]", busy.code("203.0.113.7", "/login"))
		b.run(`document.querySelector("#why-form").requestSubmit()`)
		b.when("the refusal", "/^203.0.113.7 was refused by login at [0-9:]+: blocked/.test(document.querySelector('#why-said').innerText)")
		b.click("#why-actions button")
		b.click("#do")
		b.when("what was done", "document.querySelector('#said').innerText.startsWith('Emptied ')")
		b.when("no reason", "document.querySelector('#why-said').innerText.endsWith('Nothing refuses it now.')")
		if got := busy.status("203.0.113.7", "/login"); got != 200 {
			t.Errorf("got %d, want it back in", got)
		}
		b.when("the journal", "document.querySelector('#journal-table tbody tr')?.innerText.includes('alice') && document.querySelector('#journal-table tbody tr').innerText.includes('release')")
	})

	t.Run("a network is banned and let back in", func(t *testing.T) {
		busy := busy.in(t)
		b := busy.inspect(browser, busy.inspector, "light", desktop, "pages")
		b.click("#ban")
		b.set("#ask [name=network]", "0.0.0.0/0")
		b.click("#do")
		b.when("why not", "document.querySelector('#ask-error').innerText.includes('too large')")
		b.set("#ask [name=network]", "192.0.2.0/24")
		b.set("#ask [name=note]", "<b>a scraper</b>")
		b.click("#do")
		b.when("the ban", "document.querySelector('#changes-table tbody')?.innerText.includes('192.0.2.0/24')")
		b.when("what is left of it", "/1 h 5[0-9] min/.test(document.querySelector('#changes-table tbody').innerText)")
		b.sound()
		if got := busy.status("192.0.2.99", "/"); got != 429 {
			t.Errorf("got %d, want it banned", got)
		}
		b.click("#changes-table tbody button")
		b.click("#do")
		b.when("nothing held", "document.querySelector('#changes-empty').checkVisibility()")
		if got := busy.status("192.0.2.99", "/"); got != 200 {
			t.Errorf("got %d, want it back in", got)
		}
	})

	t.Run("it says how to find those of very many buckets", func(t *testing.T) {
		busy := busy.in(t)
		for i := range 1001 {
			busy.send(fmt.Sprintf("10.1.%d.%d", i/250, i%250), fmt.Sprintf("/api?who=many%d", i), 1)
		}
		b := busy.inspect(browser, busy.inspector, "light", desktop, "accounts")
		b.set("[name=prefix]", "many")
		b.when("what to do", "/^1 to 25 of 1,001. Only the first 1,000 .* say how the key begins/.test(document.querySelector('#buckets-said').innerText)")
		b.set("[name=prefix]", "many1000")
		b.when("the one", "document.querySelector('#buckets-said').innerText === '1 to 1 of 1.'")
		b.sound()
	})

	hostile := startInspected(t, "")
	hostile.sendHostile()
	hostile.throttle("limit", "accounts", hostileKeys[0], "x0.9", "--for", "90m", "--note", hostileKeys[1])
	for _, look := range looks {
		t.Run(fmt.Sprintf("hostile keys are text, %s at %d pixels", look.scheme, look.width), func(t *testing.T) {
			b := hostile.in(t).inspect(browser, hostile.inspector, look.scheme, look.width, "accounts")
			b.when("all keys", fmt.Sprintf("document.querySelectorAll('#buckets-table tbody tr').length === %d", len(hostileKeys)))
			shown := b.keys("#buckets-table")
			for _, want := range []string{
				"<img src=x onerror=\"document.title='executed'\">", "<%2Fscript><script>document.title='executed'<%2Fscript>",
				"U+202Egnp.exe", "a%0D%0ASet-Cookie: b", "%1B[31mred%1B[2J", "zeroU+200Bwidth", "مكتبة المدينة", "..%2F..%2F..%2Fetc%2Fpasswd", "__proto__",
			} {
				if !slices.Contains(shown, want) {
					t.Errorf("got no key %q as text", want)
				}
			}
			b.when("the note", "document.querySelector('#changes-table tbody').innerText.includes('<script>')")
			b.click("#buckets-table tbody tr:nth-child(3) button") // why
			b.when("an answer", "document.querySelector('#why-table tbody tr')")
			b.click("#buckets-table tbody tr:nth-child(3) td.do button:nth-child(2)") // empty
			b.when("the question", "document.querySelector('#ask').open")
			b.sound()
			b.press(kb.Escape)
			b.picture(fmt.Sprintf("hostile-%s-%d", look.scheme, look.width))
		})
	}

	t.Run("it needs no mouse", func(t *testing.T) {
		busy := busy.in(t)
		b := busy.inspect(browser, busy.inspector, "dark", desktop, "accounts")
		b.press(kb.Tab)
		if got := eval[string](b, "document.activeElement.textContent"); got != "Skip to the status" {
			t.Errorf("got %q first, want the link that skips", got)
		}
		b.press(kb.Enter)
		b.tabTo("#why-form input")
		b.press("user07" + kb.Enter)
		b.when("an answer", "document.querySelector('#why-answer').checkVisibility() && document.activeElement.id === 'why-answer'")
		b.tabTo("[data-sort=last]")
		b.press(kb.Enter)
		b.when("the order", "document.querySelector('[data-sort=last]').parentNode.ariaSort === 'descending'")
		b.tabTo("#after")
		b.press(" ")
		b.when("the second page", "document.querySelector('#buckets-said').innerText.startsWith('26 to 50')")
		b.tabTo("#ban")
		b.press(kb.Enter)
		b.when("the question", "document.activeElement.matches('#ask [name=network]')")
		b.press(kb.Escape)
		b.when("no question any more", "!document.querySelector('#ask').open && document.activeElement.id === 'ban'")
		b.press(kb.Enter)
		b.press("198.51.100.200" + kb.Enter)
		b.when("the ban", "document.querySelector('#changes-table tbody')?.innerText.includes('198.51.100.200/32')")
		b.tabTo("#changes-table tbody button")
		b.press(kb.Enter)
		b.when("the question", "document.querySelector('#ask').open")
		b.press(kb.Enter)
		b.when("nothing held", "document.querySelector('#changes-empty').checkVisibility()")
		b.sound()
	})

	for _, look := range looks {
		t.Run(fmt.Sprintf("it can be read, and only shows without allow_changes, %s at %d pixels", look.scheme, look.width), func(t *testing.T) {
			b := busy.in(t).inspect(browser, busy.looker, look.scheme, look.width, "pages")
			if got := eval[[]string](b, "Array.from(document.querySelectorAll('main button'), (b) => b.textContent).filter((text) => text.endsWith('…'))"); len(got) > 0 {
				t.Errorf("got the buttons %q, want none that changes things", got)
			}
			for _, query := range []string{"h2", "h3", ".soft", ".badge", ".badge.shadow", "dd", "th", "td.key", "nav a", "#pause", "select"} {
				colours := eval[[]string](b, fmt.Sprintf(`(() => {
					const found = document.querySelector(%q);
					let behind = found;
					while (getComputedStyle(behind).backgroundColor === "rgba(0, 0, 0, 0)") behind = behind.parentNode;
					return [getComputedStyle(found).color, getComputedStyle(behind).backgroundColor];
				})()`, query))
				if got := contrast(t, colours[0], colours[1]); got < 4.5 {
					t.Errorf("%s in %s: %s on %s has a contrast of %.1f, want 4.5", query, look.scheme, colours[0], colours[1], got)
				}
			}
			b.sound()
			b.picture(fmt.Sprintf("busy-%s-%d", look.scheme, look.width))
		})
	}

	empty := startInspected(t, "")
	for _, look := range looks {
		t.Run(fmt.Sprintf("it says when there is nothing, %s at %d pixels", look.scheme, look.width), func(t *testing.T) {
			b := newTab(t, browser, "en", look.scheme, look.width, 800)
			b.open(empty.inspector)
			b.when("the status", "document.querySelectorAll('#zones article').length === 4")
			b.when("no buckets", "document.querySelector('#buckets-empty').innerText === 'All buckets are empty.'")
			b.when("no top", "document.querySelector('#top-empty').innerText.startsWith('No requests in the last')")
			b.picture(fmt.Sprintf("empty-%s-%d", look.scheme, look.width))
		})
	}
}
