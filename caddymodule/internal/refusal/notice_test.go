package refusal

import (
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"html"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

// visit is a request of a browser.
func visit(method, languages string) *http.Request {
	r := httptest.NewRequest(method, "http://example.com/", nil)
	r.Header.Set("Accept", "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8")
	if languages != "" {
		r.Header.Set("Accept-Language", languages)
	}
	return r
}

var waiting = &Refusal{Status: 429, Waits: true, RetryAfter: 10 * time.Minute, TimeToFit: 26 * time.Second}

func TestTheNoticeIsInTheVisitorsLanguage(t *testing.T) {
	for _, test := range []struct{ accept, want string }{
		{"", "en"},
		{"de", "de"},
		{"de-AT,de;q=0.9,en;q=0.8", "de"},
		{"PT-br", "pt"},
		{"zh-CN,zh;q=0.9,fr;q=0.8,en;q=0.7", "fr"},
		{"zh-CN,zh;q=0.9", "en"},
		{"ru;q=0.2, en;q=0.9", "ru"}, // browsers name first what is wanted most
		{"*", "en"},
		{"fil, hsb;q=0.9, pl;q=0.1", "pl"},
		{"j, ja_JP, es;q=0.5", "es"},
		{"es;q=0.5, ja;q=0.5", "es"},
		{" ;q=1,,ja ; q=0.3", "ja"},
		{strings.Repeat("x,", mostAccept) + "de", "en"},
		{"\x00\xff,de;q=nonsense", "de"},
	} {
		w := refuse(t, waiting, visit("GET", test.accept))
		check.Equal(t, w.Header().Get("Content-Language"), test.want, "%.40q", test.accept)
		want := `<html lang="` + test.want + `">`
		check.That(t, strings.Contains(w.Body.String(), want), "%.40q: got a page without %s", test.accept, want)
	}
}

func TestPluralsAreRightInEachLanguage(t *testing.T) {
	for tag, want := range map[string]string{
		"en": "1 second, 2 seconds, 5 seconds, 21 seconds, 22 seconds, 111 seconds, 3 minutes, 21 minutes, 3 hours, 21 hours, 112 hours",
		"es": "1 segundo, 2 segundos, 5 segundos, 21 segundos, 22 segundos, 111 segundos, 3 minutos, 21 minutos, 3 horas, 21 horas, 112 horas",
		"de": "1 Sekunde, 2 Sekunden, 5 Sekunden, 21 Sekunden, 22 Sekunden, 111 Sekunden, 3 Minuten, 21 Minuten, 3 Stunden, 21 Stunden, 112 Stunden",
		"ja": "1秒, 2秒, 5秒, 21秒, 22秒, 111秒, 3分, 21分, 3時間, 21時間, 112時間",
		"fr": "1 seconde, 2 secondes, 5 secondes, 21 secondes, 22 secondes, 111 secondes, 3 minutes, 21 minutes, 3 heures, 21 heures, 112 heures",
		"pt": "1 segundo, 2 segundos, 5 segundos, 21 segundos, 22 segundos, 111 segundos, 3 minutos, 21 minutos, 3 horas, 21 horas, 112 horas",
		"ru": "1 секунду, 2 секунды, 5 секунд, 21 секунду, 22 секунды, 111 секунд, 3 минуты, 21 минуту, 3 часа, 21 час, 112 часов",
		"it": "1 secondo, 2 secondi, 5 secondi, 21 secondi, 22 secondi, 111 secondi, 3 minuti, 21 minuti, 3 ore, 21 ore, 112 ore",
		"nl": "1 seconde, 2 seconden, 5 seconden, 21 seconden, 22 seconden, 111 seconden, 3 minuten, 21 minuten, 3 uur, 21 uur, 112 uur",
		"pl": "1 sekunda, 2 sekundy, 5 sekund, 21 sekund, 22 sekundy, 111 sekund, 3 minuty, 21 minut, 3 godziny, 21 godzin, 112 godzin",
	} {
		l := &languages[spoken(tag)]
		var got []string
		for _, d := range []time.Duration{1, 2, 5, 21, 22, 111, 3 * 60, 21 * 60, 3 * 3600, 21 * 3600, 112 * 3600} {
			n := d * time.Second
			if d == 21*60 { // minutes are told from 121 seconds on
				n -= 59 * time.Second
			}
			got = append(got, string(l.appendWait(nil, n)))
		}
		check.Equal(t, strings.Join(got, ", "), want, "%s", tag)
	}
}

// TestEachNoticeIsCompleteAndSmall: also with the longest texts that take five
// bytes and more each.
func TestEachNoticeIsCompleteAndSmall(t *testing.T) {
	forever := &Refusal{Status: 429, Waits: true, TimeToFit: 20 * 365 * 24 * time.Hour}
	for _, l := range languages {
		for _, method := range []string{"GET", "POST"} {
			w := refuse(t, forever, visit(method, l.Tag))
			body := w.Body.String()
			n := len(body)
			check.That(t, n < 4<<10, "%s: got %d bytes, want less than 4 KiB", l.Tag, n)
			for _, want := range []string{l.Title, l.Reason, strings.Split(l.Wait, "%s")[0], "175200" + l.Forms[2][len(l.Forms[2])-1]} {
				check.Contains(t, body, want, "%s %s", method, l.Tag)
			}
			got, want := strings.Contains(body, l.Reload), method == "GET"
			check.That(t, got == want, "%s %s: says that it reloads: %v, want %v", method, l.Tag, got, want)
		}
		for _, text := range []string{l.Title, l.Reason, l.LogIns, l.Banned, l.Wait, l.Reload, l.Loading, l.Resend, l.ResendNow, l.Never, l.NeverReason} {
			check.That(t, text != "" && html.EscapeString(text) == text, "%s: got the text %q", l.Tag, text)
		}
		check.That(t, strings.Count(l.Wait, "%s") == 1, "%s: got %q, want one %%s", l.Tag, l.Wait)
	}
}

// TestLogInsAreTheReason: and bans are, in each language and form, before the text of a page that all zones
// have, and logins behind the message of one.
func TestLogInsAreTheReason(t *testing.T) {
	style, err := Style{Title: "Ours", Text: "Our shop is busy."}.Compile()
	check.OK(t, err)
	own, err := Style{Text: "Wrong passwords."}.Compile() // as config compiles a message
	check.OK(t, err)
	for i := range languages {
		l := &languages[i]
		for _, test := range []struct {
			about string
			f     Refusal
			want  string
			never []string
		}{
			{"built_in", Refusal{LogIns: true}, l.LogIns, []string{l.Reason}},
			{"text", Refusal{LogIns: true, Page: style}, l.LogIns, []string{l.Reason, "Our shop"}},
			{"message", Refusal{LogIns: true, Page: own, Message: "Wrong passwords."}, "Wrong passwords.", []string{l.Reason, l.LogIns}},
			{"banned", Refusal{Banned: true, LogIns: true, Page: own, Message: "Wrong passwords."}, l.Banned, []string{l.Reason, l.LogIns, "Wrong"}},
			{"other_zone", Refusal{}, l.Reason, []string{l.LogIns}},
		} {
			f := test.f
			f.Status, f.Waits, f.TimeToFit = 429, true, time.Minute
			for _, accept := range []string{"text/html", "*/*", "application/json"} {
				for _, method := range []string{"GET", "POST"} {
					r := visit(method, l.Tag)
					r.Header.Set("Accept", accept)
					body := refuse(t, &f, r).Body.String()
					n := strings.Count(body, test.want)
					check.That(t, n == 1, "%s %s %s %s: got %s, want %q once, not %d times", test.about, l.Tag, method, accept, body, test.want, n)
					for _, other := range test.never {
						check.That(t, !strings.Contains(body, other), "%s %s %s %s: got %s, want no %q in it", test.about, l.Tag, method, accept, body, other)
					}
				}
			}
		}
		f := Refusal{Status: 403, LogIns: true}
		body := refuse(t, &f, visit("POST", l.Tag)).Body.String()
		check.That(t, !strings.Contains(body, l.LogIns) && strings.Contains(body, l.NeverReason), "%s: got %s, want %q alone if waiting does not help", l.Tag, body, l.NeverReason)
	}
}

func TestTheWaitIsSaidOnce(t *testing.T) {
	text := regexp.MustCompile(`(?s)<(style|script)>.*?</(style|script)>|<[^>]*>`)
	said := text.ReplaceAllString(refuse(t, waiting, visit("GET", "")).Body.String(), " ")
	n := len(regexp.MustCompile(`[0-9]+`).FindAllString(said, -1))
	check.That(t, n == 1 && strings.Contains(said, "26 seconds"), "got %q, want one number in it", said)
}

// TestOnlyAGetReloadsByItself: whatever else was sent would be sent twice.
func TestOnlyAGetReloadsByItself(t *testing.T) {
	for method, want := range map[string]bool{"GET": true, "HEAD": true, "POST": false, "PUT": false, "get": false, "DELETE": false, "OPTIONS": false} {
		body := refuse(t, waiting, visit(method, "")).Body.String()
		refresh := strings.Contains(body, `<noscript><meta http-equiv="refresh" content="26"></noscript>`)
		// The script reloads if there is a text for it.
		scripted := strings.Contains(body, `<noscript>`+languages[0].Reload)
		check.That(t, refresh == want && scripted == want, "%s: got a reload without a script: %v, with: %v, want %v", method, refresh, scripted, want)
	}
}

func TestARefusalThatWaitingCannotFixHasNoCountdown(t *testing.T) {
	page := check.Must(Style{Title: "The Library", Text: "Quiet, please."}.Compile())(t)
	for _, p := range []*Page{nil, page} {
		body := refuse(t, &Refusal{Status: 403, Page: p}, visit("GET", "de")).Body.String()
		for _, not := range []string{"<script", "refresh", "timer", "progress", `"></p>`} {
			check.That(t, !strings.Contains(strings.Split(body, "<main>")[1], not), "got %q in %s", not, body)
		}
		check.Contains(t, body, "Warten oder Neuladen hilft nicht.")
		check.Equal(t, strings.Contains(body, ">Quiet, please.</p>"), p != nil, "the text of the page")
	}
}

// TestThePolicyAllowsWhatIsInThePageAndNothingElse in each style.
func TestThePolicyAllowsWhatIsInThePageAndNothingElse(t *testing.T) {
	for _, style := range []Style{{}, {Accent: "#0A7"}, {Title: "</style><script>alert(1)</script>", Text: "<script>alert(2)</script>"}} {
		page := check.Must(style.Compile())(t)
		f := *waiting
		f.Page = page
		w := refuse(t, &f, visit("GET", ""))
		of := func(element string) string {
			found := regexp.MustCompile(`(?s)<`+element+`>(.*?)</`+element+`>`).FindAllStringSubmatch(w.Body.String(), -1)
			check.Assume(t, len(found) == 1, "got %d elements %s, want 1", len(found), element)
			sum := sha256.Sum256([]byte(found[0][1]))
			return "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
		}
		want := fmt.Sprintf("default-src 'none'; script-src %s; style-src %s; base-uri 'none'; form-action 'none'", of("script"), of("style"))
		got := w.Header()["Content-Security-Policy"]
		check.That(t, len(got) == 1 && got[0] == want, "got %q, want %q", got, want)
		for _, forbidden := range []string{"://", "src=", "href=", "style=", " on"} {
			body := regexp.MustCompile(`(?s)<style>.*?</style>|<script>.*?</script>`).ReplaceAllString(w.Body.String(), "")
			check.That(t, !strings.Contains(body, forbidden), "got %q in %s", forbidden, body)
		}
	}
}

func TestAStyleIsPlainTextAndAColour(t *testing.T) {
	page := check.Must(Style{Title: `Müller & "Söhne"`, Accent: "0A7f5C", Text: "<b>One</b>\n{http.request.host}"}.Compile())(t)
	f := *waiting
	f.Page = page
	body := refuse(t, &f, visit("GET", "pl")).Body.String()
	for _, want := range []string{
		"<title>Müller &amp; &#34;Söhne&#34;</title>", "<h1 dir=\"auto\">Müller &amp; &#34;Söhne&#34;</h1>",
		"&lt;b&gt;One&lt;/b&gt;\n{http.request.host}", ":root{--accent:#0a7f5c}", "Pozostało do odczekania: ", "26 sekund<",
	} {
		check.Contains(t, body, want)
	}
	for _, style := range []Style{
		{Accent: "#12"},
		{Accent: "12345"},
		{Accent: "#12345g"},
		{Accent: "##123"},
		{Accent: "red;}"},
		{Accent: "red"},
		{Accent: "url(x)"},
		{Accent: " 0a7f5c"},
		{Title: " "},
		{Title: "a\nb"},
		{Title: "a\x00"},
		{Title: "\xff"},
		{Title: strings.Repeat("ä", mostTitle+1)},
		{Text: "\n"},
		{Text: "a\rb"},
		{Text: "a\u0085"},
		{Text: strings.Repeat("ä", mostText+1)},
	} {
		_, err := style.Compile()
		check.That(t, err != nil, "%+.40q: got no error", style)
	}
	for _, style := range []Style{{Accent: "0A7F5C"}, {Accent: "#fff"}, {Title: strings.Repeat("ä", mostTitle)}, {Text: "a\n\tb" + strings.Repeat("ä", mostText-4)}} {
		_, err := style.Compile()
		check.That(t, err == nil, "%+.40q: %v", style, err)
	}
}

func FuzzStyle(f *testing.F) {
	f.Add("Shop", "#0a7", "text")
	f.Add("</title><script>", "red}", "<style>")
	f.Fuzz(func(t *testing.T, title, accent, text string) {
		page, err := Style{title, accent, text}.Compile()
		if err != nil {
			t.Skip()
		}
		f := *waiting
		f.Page = page
		body := refuse(t, &f, visit("GET", "")).Body.String()
		for _, element := range []string{"<script", "<style", "</style", "</script", "<title", "<main", "<p", "<h1"} {
			got, want := strings.Count(body, element), strings.Count(refuse(t, waiting, visit("GET", "")).Body.String(), element)
			check.That(t, got == want, "got %d of %s, want %d in %s", got, element, want, body)
		}
	})
}
