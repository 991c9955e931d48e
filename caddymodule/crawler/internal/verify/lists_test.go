package verify

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

// An operator answers instead of the network.
type operator struct {
	answer atomic.Pointer[string] // status and body
	asked  atomic.Int64
}

func (o *operator) publish(list string) { o.answer.Store(&list) }

func (o *operator) RoundTrip(r *http.Request) (*http.Response, error) {
	o.asked.Add(1)
	answer := o.answer.Load()
	if answer == nil {
		return nil, fmt.Errorf("no route to host")
	}
	w := httptest.NewRecorder()
	fmt.Fprint(w, *answer)
	response := w.Result()
	response.Request = r
	return response, nil
}

// A watched is a set with one list, and the warnings about it.
type watched struct {
	*Set
	lists   *Lists
	release func()

	mu       sync.Mutex
	warnings []string
}

const published = "https://example.com/bots.json"

func watch(o *operator, source string) *watched {
	w := &watched{lists: &Lists{Transport: o}}
	w.Set = NewSet(w.lists, NewLookups(), []*Crawler{{Lists: []string{source}}}, "")
	w.use()
	return w
}

func (w *watched) use() {
	w.release = w.lists.Use(w.Sources, func(_ string, err error) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.warnings = append(w.warnings, err.Error())
	})
}

func (w *watched) knows(t *testing.T, addr string, want bool) {
	t.Helper()
	check.Equal(t, w.Verified(netip.MustParseAddr(addr), ""), want, "%s", addr)
}

func (w *watched) warned(t *testing.T, want string) {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	if got := strings.Join(w.warnings, "\n"); want == "" && got != "" || !strings.Contains(got, want) {
		t.Errorf("got the warnings %q, want %q", got, want)
	}
	w.warnings = nil
}

func TestListsAreFetchedOnceADayAndTheLastGoodOneIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := new(operator)
		o.publish(`{"prefixes":[{"ipv4Prefix":"192.0.2.0/28"},{"ipv4Prefix":"192.0.2.32/28"},{"ipv4Prefix":"192.0.2.64/28"}]}`)
		w := watch(o, published)
		synctest.Wait()
		w.knows(t, "192.0.2.1", true)
		w.knows(t, "192.0.2.17", false)
		w.warned(t, "")

		o.publish(`{"prefixes":[{"ipv4Prefix":"192.0.2.16/28"},{"ipv4Prefix":"192.0.2.32/28"},{"ipv4Prefix":"192.0.2.64/28"}]}`)
		time.Sleep(12*time.Hour - 1)
		w.knows(t, "192.0.2.17", false)
		time.Sleep(24*time.Hour + 1)
		w.knows(t, "192.0.2.17", true)
		w.knows(t, "192.0.2.1", false)
		got := o.asked.Load()
		check.That(t, got >= 2 && got <= 3, "the list was fetched %d times in a day and a half, want twice or three times", got)

		for _, bad := range []struct{ list, warning string }{
			{`{"prefixes":[{"ipv4Prefix":"192.0.2.0/28"},{"ipv4P`, "reading its JSON"},
			{`{"prefixes":[{"ipv4Prefix":"10.0.0.0/16"}]}`, "private or reserved"},
		} {
			o.publish(bad.list)
			time.Sleep(36 * time.Hour)
			w.warned(t, bad.warning)
			w.knows(t, "192.0.2.17", true)
			w.knows(t, "198.51.100.1", false)
			w.knows(t, "10.0.0.1", false)
		}
		w.release()
		synctest.Wait()
	})
}

func TestAListOutOfReachIsAskedForAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := new(operator)
		w := watch(o, published)
		synctest.Wait()
		w.warned(t, "no route to host")
		time.Sleep(10 * time.Minute)
		o.publish("192.0.2.0/28")
		time.Sleep(time.Hour)
		w.knows(t, "192.0.2.1", true)
		o.answer.Store(nil)
		o.asked.Store(0)
		time.Sleep(5 * 24 * time.Hour)
		w.knows(t, "192.0.2.1", true)
		got := o.asked.Load()
		check.That(t, got >= 8 && got <= 60, "a list out of reach was asked for %d times in five days, want about one in six hours", got)
		w.release()
		synctest.Wait()
	})
}

func TestAReloadForgetsNoList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := new(operator)
		o.publish("192.0.2.0/28")
		w := watch(o, published)
		synctest.Wait()
		last := w.release
		w.use()
		last()
		w.knows(t, "192.0.2.1", true)
		check.Equal(t, o.asked.Load(), 1, "fetches of the list")
		w.release()
		w.release() // a second time
		synctest.Wait()
	})
}

// TestAListComesOverHTTPSOnly, and from its own host: an operator may not send Caddy to a service of
// the inner network.
func TestAListComesOverHTTPSOnly(t *testing.T) {
	var asked atomic.Int64
	inside := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked.Add(1) }))
	defer inside.Close()
	plain := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "192.0.2.0/28") }))
	defer plain.Close()
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/good":
			fmt.Fprint(w, "192.0.2.0/28")
		case "/moved":
			http.Redirect(w, r, "/good", http.StatusFound)
		case "/plain":
			http.Redirect(w, r, plain.URL, http.StatusFound)
		case "/loop":
			http.Redirect(w, r, "/loop", http.StatusFound)
		case "/inside":
			http.Redirect(w, r, inside.URL, http.StatusFound)
		case "/bomb": // 64 MiB in 64 KiB
			w.Header().Set("Content-Encoding", "gzip")
			packed := gzip.NewWriter(w)
			for range 64 {
				packed.Write(bytes.Repeat([]byte("#"), 1<<20))
			}
			packed.Close()
		case "/packed":
			w.Header().Set("Content-Encoding", "gzip")
			packed := gzip.NewWriter(w)
			fmt.Fprint(packed, "192.0.2.0/28")
			packed.Close()
		case "/broken":
			w.Header().Set("Content-Length", "1000")
			fmt.Fprint(w, "192.0.2.0/28\n")
		default:
			http.Error(w, "192.0.2.0/28", http.StatusNotFound)
		}
	}))
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.StartTLS()
	defer server.Close()
	l := &Lists{Transport: server.Client().Transport}
	for path, want := range map[string]string{
		"/good": "", "/moved": "", "/plain": "redirected to plain http", "/loop": "redirected too often",
		"/packed": "", "/bomb": "larger than 1 MiB", "/broken": "unexpected EOF", "/none": "got status 404",
		"/inside": "it is redirected to another host: if that is the operator's, name the list " + inside.URL,
	} {
		s := &list{source: server.URL + path, transport: l.Transport}
		networks, err := s.fetch(t.Context())
		if want == "" && (err != nil || len(networks) != 1) || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: got %v and %v, want %q", path, networks, err, want)
		}
	}
	check.Equal(t, asked.Load(), 0, "requests inside")
	stranger := &list{source: server.URL + "/good"}
	_, err := stranger.fetch(t.Context())
	check.That(t, err != nil && strings.Contains(err.Error(), "certificate"), "from a server with an unknown certificate: got %v, want an error", err)
}
