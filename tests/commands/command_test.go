package commands

import (
	"syscall"
	"testing"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
	"github.com/caddy-throttle/caddy-throttle/tests/internal/chromium"
)

// watched has a page note what it says of its age.
const watched = `
	window.ages = [];
	new MutationObserver(() => ages.push(document.querySelector("#fresh").textContent)).observe(document.querySelector("#fresh"), {childList: true});
`

// TestTheInspectorIsLiveOnlyWhileCaddyAnswers stops a Caddy that somebody looks at, and ends it.
func TestTheInspectorIsLiveOnlyWhileCaddyAnswers(t *testing.T) {
	t.Parallel()
	s := startInspected(t, "")
	sendBusy(s)
	b := inspect(s, chromium.StartBrowser(t), s.inspector, "light", chromium.Desktop, "pages")
	b.When("a live page", `document.querySelector("#fresh").textContent === "live"`)
	b.Run(watched)
	check.OK(t, s.Cmd.Process.Signal(syscall.SIGSTOP))
	// A busy browser may still show an answer that was sent before Caddy stopped.
	b.When("that it is old", `parseInt(document.querySelector("#fresh").textContent) >= 10`)
	b.Run("ages.length = 0")
	b.When("its age after some time", `parseInt(document.querySelector("#fresh").textContent) >= 18`)
	got := chromium.Eval[[]string](b, "ages")
	check.That(t, len(got) >= 5 && !chromium.Eval[bool](b, `ages.includes("live")`), "got %q of a Caddy that hangs, want its age alone", got)
	b.When("a notice", `document.querySelector("#lost").checkVisibility() && document.querySelector("#lost").textContent.startsWith("Caddy does not answer.")`)
	check.OK(t, s.Cmd.Process.Signal(syscall.SIGCONT))
	b.When("a live page again", `document.querySelector("#fresh").textContent === "live" && document.querySelector("#lost").hidden`)
	check.OK(t, s.ShutDown())
	b.When("a notice", `document.querySelector("#lost").checkVisibility()`) // by then no answer is on its way
	b.Run("ages.length = 0")
	b.When("some of its ages", "ages.length >= 5")
	if got := chromium.Eval[[]string](b, "ages"); chromium.Eval[bool](b, `ages.includes("live")`) {
		t.Errorf("got %q of a Caddy that is gone, want its age alone", got)
	}
}
