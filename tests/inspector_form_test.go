package tests

import (
	"fmt"
	"os"
	"testing"

	"github.com/chromedp/cdproto/emulation"
)

// TestTheInspectorFitsEveryScreen, and has nothing that axe-core finds. THROTTLE_AXE is the
// file axe.min.js of the npm package axe-core.
func TestTheInspectorFitsEveryScreen(t *testing.T) {
	t.Parallel()
	s := startInspected(t, "")
	s.sendBusy()
	s.sendHostile()
	s.throttle("ban", "192.0.2.0/24", "--for", "2h", "--note", "a scraper")
	axe := os.Getenv("THROTTLE_AXE")
	browser := startBrowser(t)
	for _, scheme := range []string{"light", "dark"} {
		b := s.inspect(browser, s.inspector, scheme, desktop, "accounts")
		b.set("#why-form [name=client]", "203.0.113.7")
		b.run(`document.querySelector("#why-form").requestSubmit()`)
		b.when("an answer", "document.querySelector('#why-table tbody tr')")
		b.when("a plot", `document.querySelector('#zones path.refused[d^="M"]')`)
		for _, width := range []int64{320, 360, 480, 704, 706, 768, 880, 990, 994, 1024, 1440, 1920, 2560} {
			call(b, emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{Width: width, Height: 800, DeviceScaleFactor: 1})
			b.when("the width", fmt.Sprintf("innerWidth === %d", width))
			if out := eval[[]string](b, `[document.documentElement.scrollWidth > innerWidth ? "page" : "", ...Array.from(document.querySelectorAll("main *"), (e) => e.checkVisibility() && e.getBoundingClientRect().right > innerWidth ? e.outerHTML.slice(0, 80) : "")].filter(Boolean)`); len(out) > 0 {
				t.Errorf("%s at %d: %q are beyond the edge", scheme, width, out)
			}
			if width != 360 && width != 768 && width != 1440 {
				continue
			}
			if axe != "" {
				b.axe(axe, fmt.Sprintf("%s at %d", scheme, width))
			}
			b.picture(fmt.Sprintf("form-%s-%d", scheme, width))
		}
	}
}

// axe reports what axe-core finds in a page.
func (b tab) axe(file, where string) {
	b.t.Helper()
	script, err := os.ReadFile(file)
	if err != nil {
		b.t.Fatal(err)
	}
	b.run(string(script))
	b.run(`window.found = undefined; axe.run().then((r) => { window.found = r.violations.map((v) => v.id + ": " + v.impact + ": " + v.nodes.map((n) => n.target).join(" ")) })`)
	b.when("what axe finds", "window.found")
	for _, violation := range eval[[]string](b, "window.found") {
		b.t.Errorf("%s: axe finds %s", where, violation)
	}
}

// TestTheInspectorSortsZonesByTrouble reads the plots with the keyboard, too.
func TestTheInspectorSortsZonesByTrouble(t *testing.T) {
	t.Parallel()
	s := startInspected(t, "")
	b := newTab(t, startBrowser(t), "en", "light", desktop, 800)
	b.open(s.inspector)
	group := func(n int) string {
		return fmt.Sprintf(`Array.from(document.querySelectorAll("#zones > :nth-child(%d) h4"), (h) => h.textContent).join(" ")`, n)
	}
	b.when("quiet zones", group(3)+` === "accounts login pages search"`)
	b.when("no scale of plots without requests", `document.querySelector("#scale").textContent === ""`)
	s.send("203.0.113.7", "/login", 5)
	b.when("a zone that refuses", group(1)+` === "login" && document.querySelector("#zones article .own").textContent === "3 3/h"`)
	b.when("reasons", `document.querySelector("#zones article .reasons").textContent === "Refused since Caddy began: 1 blocked, 1 capacity." || document.querySelector("#zones article .reasons").textContent === "Refused since Caddy began: 2 blocked."`)
	s.send("203.0.113.50", "/api?who=near", 10)
	b.when("a zone near full", group(2)+` === "accounts"`)
	b.when("a plot", `document.querySelector("#zones article .read").textContent`)
	// The knob is under what it reads, however short the history is.
	b.when("the knob at the end of the plot", `(() => {
		const slider = document.querySelector("#zones article input"), line = document.querySelector("#zones article line").x1.baseVal.value;
		return slider.min === "-59" && Math.abs(1000 * (slider.value - slider.min) / (slider.max - slider.min) - line) < 30;
	})()`)
	b.tabTo("#zones article input")
	b.press("\uE012") // the arrow to the left
	b.when("values", `/^[0-9:]+: [0-9.]+ admitted.* a second$/.test(document.querySelector("#zones article input").getAttribute("aria-valuetext"))`)

	b.click("#ban")
	b.set("#ask [name=network]", "192.0.2.0/24")
	b.set("#ask [name=until]", "09:00")
	b.click("#do")
	b.when("until when it holds", `/, until .*09:00/.test(document.querySelector("#changes-table tbody").innerText)`)
}
