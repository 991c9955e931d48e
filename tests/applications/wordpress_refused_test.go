package applications

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
	"github.com/caddy-throttle/caddy-throttle/tests/internal/chromium"
	"github.com/caddy-throttle/caddy-throttle/tests/internal/system"
	"github.com/chromedp/chromedp"
)

// wordPressLosesNothingOfARefusedAuthor whose address is shared with somebody who
// floods the site.
func wordPressLosesNothingOfARefusedAuthor(t *testing.T) {
	s := startWordPress(t)
	p := newPerson(s, startPeople(s), "198.51.100.1")
	p.logIn("author")
	p.openEditor()
	p.Run(`wp.data.dispatch("core/editor").updateEditorSettings({localAutosaveInterval: 1});
		wp.data.dispatch("core/editor").editPost({title: "An old kettle"})`)
	p.write("It holds two litres.")
	save := func() { evalSoon[chromedp.Void](p, `wp.data.dispatch("core/editor").savePost().then(() => {})`) }
	save()

	calm := keepFull(s, p.address)
	const message = "Please wait a moment, and try again. Nothing you wrote is lost."
	said := func() string { return p.Text(".components-notice.is-error") }
	// A request may get in between two of the flood.
	refused := func(what string, try func()) {
		t.Helper()
		for deadline := time.Now().Add(system.StartTime); !strings.Contains(said(), message); try() {
			if time.Now().After(deadline) {
				t.Fatalf("%s: got %q in the editor, want %q", what, said(), message)
			}
			p.write("It whistles.")
		}
		t.Logf("%s refused: %q", what, said())
		p.Screenshot(strings.ReplaceAll(what+" refused", " ", "-"))
		p.Run(`wp.data.select("core/notices").getNotices().forEach(({id}) => wp.data.dispatch("core/notices").removeNotice(id))`)
		p.await(`!document.querySelector(".components-notice.is-error")`)
	}
	refused("autosave", func() {
		evalSoon[chromedp.Void](p, `wp.data.dispatch("core/editor").autosave().then(() => {})`)
	})
	refused("update", save)
	var failures []string
	for deadline := time.Now().Add(system.StartTime); len(failures) == 0 && time.Now().Before(deadline); {
		failures = p.addImages(1)
	}
	t.Logf("upload refused: %q", failures)
	check.That(t, len(failures) != 0 && strings.Contains(failures[0], message), "upload: got %q, want %q", failures, message)

	// The editor keeps what was not saved in the browser.
	p.write("It was mended.")
	p.await(`Object.values(sessionStorage).some((text) => text.includes("It was mended."))`)
	editor := chromium.Eval[string](p.Tab, "location.href")
	for deadline := time.Now().Add(system.StartTime); ; {
		p.Open(editor)
		if p.Text("main .text, main p") != "" && p.Text("h1") == "One moment, please" {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("got the editor all the time, want a refused reload")
		}
	}
	t.Logf("reload refused: %q", p.Text("main"))
	p.Screenshot("reload-refused")
	calm()
	p.await(`window.wp?.data?.select("core/notices")?.getNotices().some(({content}) => content.includes("backup"))`)
	p.Run(`[...document.querySelectorAll(".components-notice button")].find((button) => button.innerText.includes("Restore")).click()`)
	p.await(`wp.data.select("core/editor").getEditedPostContent().includes("It was mended.")`)
	// The bucket is still too full for all that the editor sends at once.
	for deadline := time.Now().Add(system.StartTime); !chromium.Eval[bool](p.Tab, `wp.data.select("core/editor").isCurrentPostPublished()`); {
		if time.Now().After(deadline) {
			t.Fatalf("got %q in the editor, want a published post", said())
		}
		p.Run(`wp.data.dispatch("core/editor").editPost({status: "publish"})`)
		save()
	}
	page := s.Must(system.Request{Address: "203.0.113.1", Target: strings.TrimPrefix(chromium.Eval[string](p.Tab, `wp.data.select("core/editor").getPermalink()`), s.URL)})
	for _, sentence := range []string{"It holds two litres.", "It whistles.", "It was mended."} {
		check.That(t, strings.Contains(page.Body, sentence), "got no %q in the published post", sentence)
	}
}

// keepFull keeps an address' bucket full until the returned function is called.
func keepFull(s *system.Trial, address string) (calm func()) {
	s.T.Helper()
	ctx, stop := context.WithCancel(context.Background())
	var flooding sync.WaitGroup
	s.T.Cleanup(func() { stop(); flooding.Wait() })
	full := make(chan struct{})
	var once sync.Once
	for range 4 {
		flooding.Go(func() {
			tick := time.NewTicker(10 * time.Millisecond)
			defer tick.Stop()
			for n := 0; ctx.Err() == nil; n++ {
				if a, err := s.Do(system.Request{Address: address, Target: fmt.Sprintf("/robots.txt?%d", n)}); err == nil && a.Status == 429 {
					once.Do(func() { close(full) })
				}
				<-tick.C
			}
		})
	}
	<-full
	return func() { stop(); flooding.Wait() }
}
