package tests

import (
	"syscall"
	"testing"
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
	s.sendBusy()
	b := s.inspect(startBrowser(t), s.inspector, "light", desktop, "pages")
	b.when("a live page", `document.querySelector("#fresh").textContent === "live"`)
	b.run(watched)
	if err := s.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	// A busy browser may still show an answer that was sent before Caddy stopped.
	b.when("that it is old", `parseInt(document.querySelector("#fresh").textContent) >= 10`)
	b.run("ages.length = 0")
	b.when("its age after some time", `parseInt(document.querySelector("#fresh").textContent) >= 18`)
	if got := eval[[]string](b, "ages"); len(got) < 5 || eval[bool](b, `ages.includes("live")`) {
		t.Errorf("got %q of a Caddy that hangs, want its age alone", got)
	}
	b.when("a notice", `document.querySelector("#lost").checkVisibility() && document.querySelector("#lost").textContent.startsWith("Caddy does not answer.")`)
	if err := s.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	b.when("a live page again", `document.querySelector("#fresh").textContent === "live" && document.querySelector("#lost").hidden`)
	if err := s.shutDown(); err != nil {
		t.Fatal(err)
	}
	b.when("a notice", `document.querySelector("#lost").checkVisibility()`) // by then no answer is on its way
	b.run("ages.length = 0")
	b.when("some of its ages", "ages.length >= 5")
	if got := eval[[]string](b, "ages"); eval[bool](b, `ages.includes("live")`) {
		t.Errorf("got %q of a Caddy that is gone, want its age alone", got)
	}
}
