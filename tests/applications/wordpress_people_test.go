package applications

import (
	"bytes"
	"context"
	"fmt"
	"image"
	"image/color"
	"image/jpeg"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
	"github.com/caddy-throttle/caddy-throttle/tests/internal/chromium"
	"github.com/caddy-throttle/caddy-throttle/tests/internal/system"
	"github.com/chromedp/chromedp"
)

// logIn logs in by WordPress's form.
func (p person) logIn(name string) {
	p.T.Helper()
	p.visit("/wp-login.php")
	p.Run(fmt.Sprintf(`document.querySelector("#user_login").value = %q;
		document.querySelector("#user_pass").value = "right";
		document.querySelector("#wp-submit").click()`, name))
	p.await(`document.querySelector("#wpadminbar")`)
}

// openEditor opens a new post in the block editor.
func (p person) openEditor() {
	p.T.Helper()
	p.visit("/wp-admin/post-new.php")
	p.await(`window.wp?.data?.select("core/editor")?.getCurrentPost().id && document.querySelector(".wp-block-post-title")`)
}

// write adds a paragraph to the post.
func (p person) write(text string) {
	p.T.Helper()
	p.Run(fmt.Sprintf(`wp.data.dispatch("core/block-editor").insertBlocks(wp.blocks.createBlock("core/paragraph", {content: %q}))`, text))
}

// addImages uploads photos as an image block does, one after the other. It returns
// what the editor says of failures.
func (p person) addImages(n int) []string {
	p.T.Helper()
	return evalSoon[[]string](p, fmt.Sprintf(`(async () => {
		const failures = [];
		for (let i = 0; i < %d; i++) {
			const canvas = new OffscreenCanvas(1600, 1200);
			const brush = canvas.getContext("2d");
			for (let x = 0; x < 40; x++) {
				brush.fillStyle = "hsl(" + Math.random() * 360 + " 60%% 50%%)";
				brush.fillRect(x * 40, 0, 40, 1200);
			}
			const file = new File([await canvas.convertToBlob({type: "image/jpeg"})], "kettle-" + i + ".jpg", {type: "image/jpeg"});
			await new Promise((done) => wp.data.select("core/block-editor").getSettings().mediaUpload({
				filesList: [file], allowedTypes: ["image"],
				onFileChange: ([image]) => {
					if (!image?.id) return; // still a preview, or refused
					wp.data.dispatch("core/block-editor").insertBlocks(wp.blocks.createBlock("core/image", {id: image.id, url: image.url}));
					done();
				},
				onError: (error) => { failures.push(error.message ?? String(error)); done(); },
			}));
		}
		return failures;
	})()`, n))
}

// publish clicks on Publish, twice as WordPress wants it.
func (p person) publish() {
	p.T.Helper()
	p.await(`document.querySelector(".editor-post-publish-panel__toggle:not([aria-disabled=true])")`)
	p.Run(`document.querySelector(".editor-post-publish-panel__toggle").click()`)
	// The editor forgets a click that comes while it draws itself anew.
	p.await(`document.querySelector(".editor-post-publish-panel__header-publish-button button:not([aria-disabled=true])") ||
		void (wp.data.select("core/edit-post").isPublishSidebarOpened() || wp.data.dispatch("core/edit-post").openPublishSidebar())`)
	p.Run(`document.querySelector(".editor-post-publish-panel__header-publish-button button").click()`)
}

// work is what an author does: log in, write for a while, add five images, publish,
// and look at the post.
func (p person) work(name string, while time.Duration) {
	p.T.Helper()
	p.logIn(name)
	p.openEditor()
	p.Run(`wp.data.dispatch("core/editor").editPost({title: "A new kettle"})`)
	for end := time.Now().Add(while); time.Now().Before(end); time.Sleep(while / 5) {
		p.write("It holds two litres.")
		evalSoon[chromedp.Void](p, `wp.data.dispatch("core/editor").autosave().then(() => {})`)
	}
	failures := p.addImages(5)
	check.That(p.T, len(failures) == 0, "got %q for images, want no failures", failures)
	p.publish()
	p.await(`wp.data.select("core/editor").isCurrentPostPublished()`)
	p.Open(chromium.Eval[string](p.Tab, `wp.data.select("core/editor").getPermalink()`))
	got := chromium.Eval[string](p.Tab, "document.title")
	check.That(p.T, strings.HasPrefix(got, "A new kettle"), "got the title %q, want the published post", got)
}

// photo returns a JPEG picture of its own.
func photo(t *testing.T, n int) []byte {
	t.Helper()
	picture := image.NewRGBA(image.Rect(0, 0, 1600, 1200))
	for y := range 1200 {
		for x := range 1600 {
			picture.Set(x, y, color.RGBA{uint8(x * n), uint8(y + n), uint8(x ^ y), 255})
		}
	}
	var file bytes.Buffer
	check.OK(t, jpeg.Encode(&file, picture, nil))
	return file.Bytes()
}

// wordPressServesPeople refuses them nothing, and fills no bucket of theirs above
// 60 %.
func wordPressServesPeople(t *testing.T) {
	// Shorter than people write, so that more of it is in the bucket at once.
	readingTime, writingTime, photos := 4*time.Second, 25*time.Second, 12
	if system.Long() {
		readingTime, writingTime, photos = 10*time.Second, 150*time.Second, 30
	}

	t.Run("a reader", func(t *testing.T) {
		s := startWordPress(t)
		p := newPerson(s, startPeople(s), "198.51.100.1")
		for n := range 10 {
			p.visit(fmt.Sprintf("/kettle-%d/", n+1))
		}
		end := time.Now().Add(readingTime)
		tick := time.NewTicker(time.Second / 3)
		defer tick.Stop()
		for n := 0; time.Now().Before(end); n++ {
			<-tick.C
			p.visit(fmt.Sprintf("/kettle-%d/", n%30+1))
		}
		s.CheckComfort(p.address)
	})

	t.Run("two authors behind one address", func(t *testing.T) {
		s := startWordPress(t)
		browser := startPeople(s)
		var both sync.WaitGroup
		for _, name := range []string{"author", "colleague"} {
			p := newPerson(s, browser, "198.51.100.1")
			both.Go(func() { p.work(name, writingTime) })
		}
		both.Wait()
		s.CheckComfort("198.51.100.1")
	})

	t.Run("an office at nine", func(t *testing.T) {
		const office = "198.51.100.1"
		s := startWordPress(t)
		logins := statusesOf(s, 30, func(int) system.Request {
			return system.Request{Address: office, Method: "POST", Target: "/wp-login.php", Header: []string{"Cookie", "wordpress_test_cookie=x"}, Body: "log=author&pwd=right"}
		})
		check.Equal(t, logins[302], 30, "right passwords that log in")
	})

	t.Run("an author whose links lead nowhere", func(t *testing.T) {
		const author = "198.51.100.1"
		s := startWordPress(t)
		for _, target := range []string{"/wp-json/wp/v2/posts/9999", "/index.php?rest_route=/wp/v2/posts/9999", "/wp-content/a.woff2"} {
			found := statusesOf(s, 25, func(int) system.Request {
				return system.Request{Address: author, Target: target, Header: []string{"Cookie", "wordpress_logged_in_x=x"}}
			})
			check.Equal(t, found[404], 25, "%s: missing, not refused", target)
		}
		probes := statusesOf(s, 25, func(int) system.Request { return system.Request{Address: author, Target: "/shell.php/wp-json/"} })
		check.That(t, probes[404] >= 20 && probes[429] > 0, "got %v for probes, want twenty of 404, and 429", probes)
	})

	t.Run("photos", func(t *testing.T) {
		s := startWordPress(t)
		p := newPerson(s, startPeople(s), "198.51.100.1")
		p.logIn("author")
		var files []string
		for n := range photos {
			files = append(files, writeUpload(s, fmt.Sprintf("photo-%d.jpg", n), photo(t, n+1)))
		}
		p.visit("/wp-admin/media-new.php")
		p.await(`document.querySelector(".moxie-shim input[type=file]")`)
		check.OK(t, chromedp.Do(p, chromedp.SetUploadFiles(chromedp.CSS(".moxie-shim input[type=file]"), files, chromedp.NodeReady)))
		p.await(fmt.Sprintf(`document.querySelectorAll("#media-items .edit-attachment, #media-items .error").length >= %d`, photos))
		p.Screenshot("photos")
		check.Equal(t, chromium.Eval[int](p.Tab, `document.querySelectorAll("#media-items .edit-attachment").length`), photos, "photos in the library: %s", p.Text("#media-items"))
		s.CheckComfort(p.address)
	})
}

// wordPressServesVisitorsInACrowd of thirty networks that send two requests each at once.
func wordPressServesVisitorsInACrowd(t *testing.T) {
	rounds := 2
	if system.Long() {
		rounds = 10
	}
	s := startWordPress(t)
	var crowd sync.WaitGroup
	crowd.Go(func() {
		for range rounds {
			s.Attack(60, 60, func(i int) system.Request {
				return system.Request{Address: system.NetworkAddress(i % 30), Target: fmt.Sprintf("/?x=%d", i)}
			})
		}
	})
	ended := make(chan struct{})
	go func() { crowd.Wait(); close(ended) }()
	statuses, slowest := politely(s, ended)
	t.Logf("while 30 networks sent 2 requests at once, %d times: visitors got %v by status, the slowest page took %v", rounds, statuses, slowest)
	check.That(t, len(statuses) == 1 && statuses[200] != 0, "got %v by status, want 200 only", statuses)
	refused := s.Refusals("")
	check.That(t, len(refused) == 0, "got %d refused, want none: %q", len(refused), refused)
}

// politely lets three visitors ask for a page a second each, until the end, and returns
// the statuses and the slowest page. They wait for a page before they ask for another.
func politely(s *system.Trial, ended <-chan struct{}) (map[int]int, time.Duration) {
	s.T.Helper()
	statuses, slowest := make(map[int]int), time.Duration(0)
	var mu sync.Mutex
	var visitors sync.WaitGroup
	for n := range 3 {
		visitors.Go(func() {
			tick := time.NewTicker(time.Second)
			defer tick.Stop()
			for {
				start := time.Now()
				a, err := s.Do(system.Request{Address: fmt.Sprintf("203.0.113.%d", n+1), Target: fmt.Sprintf("/kettle-%d/", n+1)})
				mu.Lock()
				check.NoError(s.T, err)
				statuses[a.Status]++
				slowest = max(slowest, time.Since(start))
				mu.Unlock()
				select {
				case <-ended:
					return
				case <-tick.C:
				}
			}
		})
	}
	visitors.Wait()
	return statuses, slowest.Round(time.Millisecond)
}

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
		check.Assume(t, !time.Now().After(deadline), "got the editor all the time, want a refused reload")
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
