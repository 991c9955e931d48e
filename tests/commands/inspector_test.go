package commands

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

	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
	"github.com/caddy-throttle/caddy-throttle/tests/internal/chromium"
	"github.com/caddy-throttle/caddy-throttle/tests/internal/system"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp/kb"
)

// code returns the support code of a refusal.
func code(s *inspectedSite, client, target string) string {
	s.T.Helper()
	req, err := http.NewRequest("GET", s.url+target, nil)
	check.OK(s.T, err)
	req.Header.Set("X-Forwarded-For", client)
	req.Header.Set("Accept", "application/json")
	resp := system.Surely(s.T, req)
	defer resp.Body.Close()
	var problem struct {
		Code string `json:"support_code"`
	}
	err = json.NewDecoder(resp.Body).Decode(&problem)
	check.Assume(s.T, err == nil && problem.Code != "", "got status %d, the code %q and error %v, want a refusal with a code", resp.StatusCode, problem.Code, err)
	return problem.Code
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

func sendHostile(s *inspectedSite) {
	for i, key := range hostileKeys {
		s.send(fmt.Sprintf("203.0.113.%d", i), "/api?who="+url.QueryEscape(key), 1+i%10)
	}
}

// sendBusy has four zones decide: some clients are refused, and one is blocked.
func sendBusy(s *inspectedSite) {
	for i := range 60 {
		s.send(fmt.Sprintf("198.51.100.%d", i), fmt.Sprintf("/api?who=user%02d", i), 1+i%10)
	}
	s.send("203.0.113.8", "/login", 2)
	s.send("203.0.113.7", "/login", 5)
	s.send("203.0.113.9", "/search", 12)
	s.send("2001:db8::7", "/", 61)
}

// keys returns the keys of the rows of a table.
func keysIn(b chromium.Tab, table string) []string {
	b.T.Helper()
	return chromium.Eval[[]string](b, fmt.Sprintf("Array.from(document.querySelectorAll(%q), (cell) => cell.textContent)", table+" tbody td.key"))
}

// inspect opens the inspector, and waits until it shows the buckets of a zone.
func inspect(s *inspectedSite, browser context.Context, url, scheme string, width int64, zone string) chromium.Tab {
	s.T.Helper()
	b := chromium.NewTab(s.T, browser, "en", scheme, width, 800)
	chromium.Call(b, page.AddScriptToEvaluateOnNewDocument, page.AddScriptToEvaluateOnNewDocumentParams{Source: `
		window.violations = [];
		document.addEventListener("securitypolicyviolation", (event) => violations.push(event.violatedDirective));
	`})
	b.Open(url)
	b.When("the status", "document.querySelector('#zones article')")
	b.Set("#buckets-form [name=zone]", zone)
	b.When("buckets of "+zone, fmt.Sprintf("document.querySelector('#buckets-table tbody tr')?.bucket.zone === %q", zone))
	return b
}

// sound sees to it that nothing strange has happened in the page.
func sound(b chromium.Tab) {
	b.T.Helper()
	title := chromium.Eval[string](b, "document.title")
	check.That(b.T, title == "throttle", "got the title %q, want throttle: something was executed", title)
	violations := chromium.Eval[[]string](b, "violations")
	check.That(b.T, len(violations) == 0, "got violations of the policy: %v", violations)
	n := chromium.Eval[int](b, "document.querySelectorAll('script').length + document.querySelectorAll('main img, main iframe, main object, main a, main link, main style').length")
	check.That(b.T, n == 1, "got %d elements that load or do something, want the one script", n)
	wide := chromium.Eval[int](b, "document.documentElement.scrollWidth - innerWidth")
	check.That(b.T, wide <= 0, "the page is %d pixels wider than the screen", wide)
}

// picture keeps a picture of the whole page.
func picture(b chromium.Tab, name string) {
	b.T.Helper()
	if os.Getenv("TEST_SCREENSHOTS") == "" {
		return
	}
	width := chromium.Eval[int64](b, "innerWidth")
	chromium.Call(b, emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{
		Width: width, Height: chromium.Eval[int64](b, "document.documentElement.scrollHeight"), DeviceScaleFactor: 1, Mobile: width < 500,
	})
	b.Screenshot("inspector-" + name)
}

// looks are what is looked at, as pictures, too.
var looks = []struct {
	scheme string
	width  int64
}{{"light", chromium.Phone}, {"dark", chromium.Desktop}}

// TestTheInspectorInABrowser has people use it.
func TestTheInspectorInABrowser(t *testing.T) {
	t.Parallel()
	browser := chromium.StartBrowser(t)
	busy := startInspected(t, "")
	sendBusy(busy)

	t.Run("it filters, sorts and pages", func(t *testing.T) {
		b := inspect(busy.in(t), browser, busy.inspector, "light", chromium.Desktop, "accounts")
		check.Equal(t, chromium.Eval[string](b, "document.querySelector('[data-sort=level]').parentNode.ariaSort"), "descending", "the order by level")
		b.Click("[data-sort=key]")
		b.When("the first by key", "document.querySelector('#buckets-table tbody .key').textContent === 'user00'")
		check.Slices(t, chromium.Eval[[]string](b, "Array.from(document.querySelectorAll('[aria-sort]'), (head) => head.ariaSort)"), []string{"ascending", "none", "none"}, "orders, want only that by key")
		seen := keysIn(b, "#buckets-table")
		for range 2 {
			b.Click("#after")
			seen = append(seen, keysIn(b, "#buckets-table")...)
		}
		check.That(t, len(seen) == 60 && slices.IsSorted(seen) && len(slices.Compact(seen)) == 60, "got %d keys on three pages, %q, want all 60 once", len(seen), seen)
		check.That(t, chromium.Eval[bool](b, "document.querySelector('#after').disabled"), "got a page after the last one")
		b.Click("#before")
		check.Equal(t, keysIn(b, "#buckets-table")[0], "user25", "first on the page before")
		b.Set("[name=prefix]", "user4")
		b.When("ten keys", "document.querySelectorAll('#buckets-table tbody tr').length === 10")
		b.Set("[name=min_fraction]", "0.75")
		b.When("only full ones", "Array.from(document.querySelectorAll('#buckets-table tbody tr'), (row) => row.bucket.fraction).every((f) => f >= 0.75)")
		got := keysIn(b, "#buckets-table")
		check.That(t, len(got) != 0 && len(got) != 10, "got %q, want some of the ten", got)
		b.Set("[name=prefix]", "nobody")
		b.When("nothing", "document.querySelector('#buckets-empty').innerText === 'No bucket matches.'")
		sound(b)
	})

	t.Run("levels drain between two answers", func(t *testing.T) {
		busy.in(t).send("203.0.113.20", "/", 60)
		b := inspect(busy.in(t), browser, busy.inspector, "dark", chromium.Desktop, "pages")
		b.Set("[name=prefix]", "203.0.113.20")
		b.When("the bucket", "document.querySelector('#buckets-table tbody .key')?.textContent === '203.0.113.20'")
		b.Click("#pause")
		b.Run(`window.answers = performance.getEntriesByType("resource").length; window.first = document.querySelector("#buckets-table .level span").textContent`)
		b.When("a lower level", `parseFloat(document.querySelector("#buckets-table .level span").textContent) < parseFloat(first)`)
		scale := `Number(/scaleX\(([0-9.]+)/.exec(document.querySelector("#buckets-table .track div").style.transform)[1])`
		b.Run("window.scale = " + scale)
		b.When("a shorter bar", scale+" < scale")
		sound(b)
	})

	t.Run("a client comes back in", func(t *testing.T) {
		busy := busy.in(t)
		b := inspect(busy, browser, busy.inspector, "light", chromium.Phone, "login")
		b.Set("#why-form [name=client]", "203.0.113.7")
		b.Run(`document.querySelector("#why-form").requestSubmit()`)
		b.When("the reason", "document.querySelector('#why-said').innerText.startsWith('login refuses it: blocked, for another ')")
		b.When("the plot", "document.querySelector('#zones .refused').getAttribute('d') !== null")
		sound(b)
		picture(b, "why-phone")
		check.Need(t, busy.status("203.0.113.7", "/login"), 429, "want it blocked")
		b.Set("#why-form [name=client]", code(busy, "203.0.113.7", "/login"))
		b.Run(`document.querySelector("#why-form").requestSubmit()`)
		b.When("the refusal", "/^203.0.113.7 was refused by login at [0-9:]+: blocked/.test(document.querySelector('#why-said').innerText)")
		b.Click("#why-actions button")
		b.Click("#do")
		b.When("what was done", "document.querySelector('#said').innerText.startsWith('Emptied ')")
		b.When("no reason", "document.querySelector('#why-said').innerText.endsWith('No zone refuses it now.')")
		check.Equal(t, busy.status("203.0.113.7", "/login"), 200, "want it back in")
		b.When("the journal", "document.querySelector('#journal-table tbody tr')?.innerText.includes('alice') && document.querySelector('#journal-table tbody tr').innerText.includes('release')")
	})

	t.Run("a network is banned and let back in", func(t *testing.T) {
		busy := busy.in(t)
		b := inspect(busy, browser, busy.inspector, "light", chromium.Desktop, "pages")
		b.Click("#ban")
		b.Set("#ask [name=network]", "0.0.0.0/0")
		b.Click("#do")
		b.When("why not", "document.querySelector('#ask-error').innerText.includes('too large')")
		b.Set("#ask [name=network]", "192.0.2.0/24")
		b.Set("#ask [name=note]", "<b>a scraper</b>")
		b.Click("#do")
		b.When("the ban", "document.querySelector('#changes-table tbody')?.innerText.includes('192.0.2.0/24')")
		b.When("what is left of it", "/1 h 5[0-9] min/.test(document.querySelector('#changes-table tbody').innerText)")
		sound(b)
		check.Equal(t, busy.status("192.0.2.99", "/"), 429, "want it banned")
		b.Click("#changes-table tbody button")
		b.Click("#do")
		b.When("nothing held", "document.querySelector('#changes-empty').checkVisibility()")
		check.Equal(t, busy.status("192.0.2.99", "/"), 200, "want it back in")
	})

	t.Run("it says how to find those of very many buckets", func(t *testing.T) {
		busy := busy.in(t)
		for i := range 1001 {
			busy.send(fmt.Sprintf("10.1.%d.%d", i/250, i%250), fmt.Sprintf("/api?who=many%d", i), 1)
		}
		b := inspect(busy, browser, busy.inspector, "light", chromium.Desktop, "accounts")
		b.Set("[name=prefix]", "many")
		b.When("what to do", "/^1 to 25 of 1,001. Only the first 1,000 .* say how the key begins/.test(document.querySelector('#buckets-said').innerText)")
		b.Set("[name=prefix]", "many1000")
		b.When("the one", "document.querySelector('#buckets-said').innerText === '1 to 1 of 1.'")
		sound(b)
	})

	hostile := startInspected(t, "")
	sendHostile(hostile)
	hostile.Throttle("limit", "accounts", hostileKeys[0], "x0.9", "--for", "90m", "--note", hostileKeys[1])
	for _, look := range looks {
		t.Run(fmt.Sprintf("hostile keys are text, %s at %d pixels", look.scheme, look.width), func(t *testing.T) {
			b := inspect(hostile.in(t), browser, hostile.inspector, look.scheme, look.width, "accounts")
			b.When("all keys", fmt.Sprintf("document.querySelectorAll('#buckets-table tbody tr').length === %d", len(hostileKeys)))
			shown := keysIn(b, "#buckets-table")
			for _, want := range []string{
				"<img src=x onerror=\"document.title='executed'\">", "<%2Fscript><script>document.title='executed'<%2Fscript>",
				"U+202Egnp.exe", "a%0D%0ASet-Cookie: b", "%1B[31mred%1B[2J", "zeroU+200Bwidth", "مكتبة المدينة", "..%2F..%2F..%2Fetc%2Fpasswd", "__proto__",
			} {
				check.That(t, slices.Contains(shown, want), "got no key %q as text", want)
			}
			b.When("the note", "document.querySelector('#changes-table tbody').innerText.includes('<script>')")
			b.Click("#buckets-table tbody tr:nth-child(3) button") // why
			b.When("an answer", "document.querySelector('#why-table tbody tr')")
			b.Click("#buckets-table tbody tr:nth-child(3) td.do button:nth-child(2)") // empty
			b.When("the question", "document.querySelector('#ask').open")
			sound(b)
			b.Press(kb.Escape)
			picture(b, fmt.Sprintf("hostile-%s-%d", look.scheme, look.width))
		})
	}

	t.Run("it needs no mouse", func(t *testing.T) {
		busy := busy.in(t)
		b := inspect(busy, browser, busy.inspector, "dark", chromium.Desktop, "accounts")
		b.Press(kb.Tab)
		check.Equal(t, chromium.Eval[string](b, "document.activeElement.textContent"), "Skip to the status", "first, want the link that skips")
		b.Press(kb.Enter)
		b.TabTo("#why-form input")
		b.Press("user07" + kb.Enter)
		b.When("an answer", "document.querySelector('#why-answer').checkVisibility() && document.activeElement.id === 'why-answer'")
		b.TabTo("[data-sort=last]")
		b.Press(kb.Enter)
		b.When("the order", "document.querySelector('[data-sort=last]').parentNode.ariaSort === 'descending'")
		b.TabTo("#after")
		b.Press(" ")
		b.When("the second page", "document.querySelector('#buckets-said').innerText.startsWith('26 to 50')")
		b.TabTo("#ban")
		b.Press(kb.Enter)
		b.When("the question", "document.activeElement.matches('#ask [name=network]')")
		b.Press(kb.Escape)
		b.When("no question any more", "!document.querySelector('#ask').open && document.activeElement.id === 'ban'")
		b.Press(kb.Enter)
		b.Press("198.51.100.200" + kb.Enter)
		b.When("the ban", "document.querySelector('#changes-table tbody')?.innerText.includes('198.51.100.200/32')")
		b.TabTo("#changes-table tbody button")
		b.Press(kb.Enter)
		b.When("the question", "document.querySelector('#ask').open")
		b.Press(kb.Enter)
		b.When("nothing held", "document.querySelector('#changes-empty').checkVisibility()")
		sound(b)
	})

	for _, look := range looks {
		t.Run(fmt.Sprintf("it can be read, and only shows without allow_changes, %s at %d pixels", look.scheme, look.width), func(t *testing.T) {
			b := inspect(busy.in(t), browser, busy.looker, look.scheme, look.width, "pages")
			if got := chromium.Eval[[]string](b, "Array.from(document.querySelectorAll('main button'), (b) => b.textContent).filter((text) => text.endsWith('…'))"); len(got) > 0 {
				t.Errorf("got the buttons %q, want none that changes things", got)
			}
			for _, query := range []string{"h2", "h3", ".soft", ".badge", ".badge.shadow", "dd", "th", "td.key", "nav a", "#pause", "select"} {
				colours := chromium.Eval[[]string](b, fmt.Sprintf(`(() => {
					const found = document.querySelector(%q);
					let behind = found;
					while (getComputedStyle(behind).backgroundColor === "rgba(0, 0, 0, 0)") behind = behind.parentNode;
					return [getComputedStyle(found).color, getComputedStyle(behind).backgroundColor];
				})()`, query))
				if got := chromium.Contrast(t, colours[0], colours[1]); got < 4.5 {
					t.Errorf("%s in %s: %s on %s has a contrast of %.1f, want 4.5", query, look.scheme, colours[0], colours[1], got)
				}
			}
			sound(b)
			picture(b, fmt.Sprintf("busy-%s-%d", look.scheme, look.width))
		})
	}

	empty := startInspected(t, "")
	for _, look := range looks {
		t.Run(fmt.Sprintf("it says when there is nothing, %s at %d pixels", look.scheme, look.width), func(t *testing.T) {
			b := chromium.NewTab(t, browser, "en", look.scheme, look.width, 800)
			b.Open(empty.inspector)
			b.When("the status", "document.querySelectorAll('#zones article').length === 4")
			b.When("no buckets", "document.querySelector('#buckets-empty').innerText === 'All buckets are empty.'")
			b.When("no top", "document.querySelector('#top-empty').innerText.startsWith('No requests in the last')")
			picture(b, fmt.Sprintf("empty-%s-%d", look.scheme, look.width))
		})
	}
}
