package commands

import (
	"fmt"
	"net/http"
	"os"
	"testing"

	"github.com/chromedp/cdproto/emulation"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/servertest"
	"github.com/caddy-throttle/caddy-throttle/tests/internal/chromium"
	"github.com/caddy-throttle/caddy-throttle/tests/internal/system"
)

// An inspectedSite is a site with zones, and the inspector beside it on a port of its
// own.
type inspectedSite struct {
	*system.Caddy
	url       string
	inspector string // with a user who may change things
	looker    string // with one who may not
}

// in returns the same site for a subtest.
func (s inspectedSite) in(t *testing.T) *inspectedSite {
	running := *s.Caddy
	running.T = t
	s.Caddy = &running
	return &s
}

// startInspected starts such a site, with global options of throttle.
func startInspected(t *testing.T, options string) *inspectedSite {
	t.Helper()
	port, inspector, looker := servertest.FreePort(t), servertest.FreePort(t), servertest.FreePort(t)
	c := system.StartCaddy(t, system.Config{Throttle: options, Servers: "trusted_proxies static 127.0.0.0/8\ntrusted_proxies_strict", Sites: fmt.Sprintf(`
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
}`, port, inspector, system.Alice, looker)})
	return &inspectedSite{
		c, fmt.Sprintf("http://127.0.0.1:%d", port),
		fmt.Sprintf("http://alice:secret@127.0.0.1:%d/", inspector), fmt.Sprintf("http://alice:secret@127.0.0.1:%d/", looker),
	}
}

// status sends a request of a client, and returns the status of the answer.
func (s *inspectedSite) status(client, target string) int {
	s.T.Helper()
	req, err := http.NewRequest("GET", s.url+target, nil)
	check.OK(s.T, err)
	req.Header.Set("X-Forwarded-For", client)
	resp := system.Surely(s.T, req)
	resp.Body.Close()
	return resp.StatusCode
}

func (s *inspectedSite) send(client, target string, n int) {
	s.T.Helper()
	for range n {
		s.status(client, target)
	}
}

// TestTheInspectorFitsEveryScreen, and has nothing that axe-core finds. THROTTLE_AXE is the
// file axe.min.js of the npm package axe-core.
func TestTheInspectorFitsEveryScreen(t *testing.T) {
	t.Parallel()
	s := startInspected(t, "")
	sendBusy(s)
	sendHostile(s)
	s.Throttle("ban", "192.0.2.0/24", "--for", "2h", "--note", "a scraper")
	axe := os.Getenv("THROTTLE_AXE")
	browser := chromium.StartBrowser(t)
	for _, scheme := range []string{"light", "dark"} {
		b := inspect(s, browser, s.inspector, scheme, chromium.Desktop, "accounts")
		b.Set("#why-form [name=client]", "203.0.113.7")
		b.Run(`document.querySelector("#why-form").requestSubmit()`)
		b.When("an answer", "document.querySelector('#why-table tbody tr')")
		s.send("203.0.113.50", "/api?who=near", 10)
		b.When("a plot", `document.querySelector('#zones path.refused[d^="M"]')`)
		for _, width := range []int64{320, 360, 480, 704, 706, 768, 880, 990, 994, 1024, 1440, 1920, 2560} {
			chromium.Call(b, emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{Width: width, Height: 800, DeviceScaleFactor: 1})
			b.When("the width", fmt.Sprintf("innerWidth === %d", width))
			out := chromium.Eval[[]string](b, `[document.documentElement.scrollWidth > innerWidth ? "page" : "", ...Array.from(document.querySelectorAll("main *"), (e) => e.checkVisibility() && e.getBoundingClientRect().right > innerWidth ? e.outerHTML.slice(0, 80) : "")].filter(Boolean)`)
			check.That(t, len(out) == 0, "%s at %d: %q are beyond the edge", scheme, width, out)
			out = chromium.Eval[[]string](b, `Array.from(document.querySelectorAll("td[data-label]")).filter((cell) => cell.checkVisibility() && !cell.textContent && getComputedStyle(cell, "::before").content !== "none").map((cell) => cell.dataset.label)`)
			check.That(t, len(out) == 0, "%s at %d: %q label nothing", scheme, width, out)
			if width != 360 && width != 768 && width != 1440 {
				continue
			}
			if axe != "" {
				runAxe(b, axe, fmt.Sprintf("%s at %d", scheme, width))
			}
			picture(b, fmt.Sprintf("form-%s-%d", scheme, width))
		}
	}
}

// runAxe reports what axe-core finds in a page.
func runAxe(b chromium.Tab, file, where string) {
	b.T.Helper()
	script, err := os.ReadFile(file)
	check.OK(b.T, err)
	b.Run(string(script))
	b.Run(`window.found = undefined; axe.run().then((r) => { window.found = r.violations.map((v) => v.id + ": " + v.impact + ": " + v.nodes.map((n) => n.target).join(" ")) })`)
	b.When("what axe finds", "window.found")
	for _, violation := range chromium.Eval[[]string](b, "window.found") {
		b.T.Errorf("%s: axe finds %s", where, violation)
	}
}

// TestTheInspectorSortsZonesByTrouble reads the plots with the keyboard, too.
func TestTheInspectorSortsZonesByTrouble(t *testing.T) {
	t.Parallel()
	s := startInspected(t, "")
	b := chromium.NewTab(t, chromium.StartBrowser(t), "en", "light", chromium.Desktop, 800)
	b.Open(s.inspector)
	group := func(n int) string {
		return fmt.Sprintf(`Array.from(document.querySelectorAll("#zones > :nth-child(%d) h4"), (h) => h.textContent).join(" ")`, n)
	}
	b.When("quiet zones", group(2)+` === "accounts login pages search"`)
	b.When("no scale of plots without requests", `document.querySelector("#scale").textContent === ""`)
	s.send("203.0.113.7", "/login", 5)
	b.When("a zone that refuses", group(1)+` === "login" && document.querySelector("#zones article .own").textContent === "3 3/h"`)
	b.When("reasons", `document.querySelector("#zones article .reasons").textContent === "Refused since Caddy began: 1 blocked, 1 capacity." || document.querySelector("#zones article .reasons").textContent === "Refused since Caddy began: 2 blocked."`)
	s.send("203.0.113.50", "/api?who=near", 10)
	b.When("a plot", `document.querySelector("#zones article .read").textContent`)
	// The knob is under what it reads, however short the history is.
	b.When("the knob at the end of the plot", `(() => {
		const slider = document.querySelector("#zones article input"), line = document.querySelector("#zones article line").x1.baseVal.value;
		return slider.min === "-59" && Math.abs(1000 * (slider.value - slider.min) / (slider.max - slider.min) - line) < 30;
	})()`)
	b.TabTo("#zones article input")
	b.Press("\uE012") // the arrow to the left
	b.When("values", `/^[0-9:]+: [0-9.]+ admitted.* a second$/.test(document.querySelector("#zones article input").getAttribute("aria-valuetext"))`)

	b.Click("#ban")
	b.Set("#ask [name=network]", "192.0.2.0/24")
	b.Set("#ask [name=until]", "09:00")
	b.Click("#do")
	b.When("until when it holds", `/, until .*09:00/.test(document.querySelector("#changes-table tbody").innerText)`)
}
