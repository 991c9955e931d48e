package response

import (
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

func TestOnlyWhatNoCacheMayKeepForOthersIsPrivate(t *testing.T) {
	for _, test := range []struct {
		header http.Header
		want   bool
	}{
		{http.Header{}, true},
		{http.Header{"Age": {"0"}}, false},
		{http.Header{"Expires": {"0"}}, false},
		{http.Header{"Cache-Control": {"no-store"}, "Expires": {"0"}}, true},
		{http.Header{"Cache-Control": {"no-cache"}}, true},
		{http.Header{"Cache-Control": {`no-cache="set-cookie", max-age=9`}}, false},
		{http.Header{"Cache-Control": {"max-age=0"}}, true},
		{http.Header{"Cache-Control": {"private", "public"}}, false},
		{http.Header{"Cache-Control": {"private"}, "Cdn-Cache-Control": {"max-age=9"}}, false},
		{http.Header{"Cache-Control": {"private"}, "Cloudflare-Cdn-Cache-Control": {"max-age=9"}}, false},
		{http.Header{"Cache-Control": {"private"}, "Vercel-Cdn-Cache-Control": {"no-store"}}, true},
		{http.Header{"Cache-Control": {"private"}, "Surrogate-Control": {"no-store", "max-age=9"}}, false},
		{http.Header{"Cache-Control": {"private"}, "Edge-Control": {"cache-maxage=9m"}}, false},
		{http.Header{"Cache-Control": {"private"}, "X-Accel-Expires": {"9"}}, false},
		{http.Header{"Cache-Control": {"private"}, "X-Accel-Expires": {"0"}}, true},
	} {
		check.Equal(t, Private(test.header), test.want, "%v: private", test.header)
	}
}

func TestNoCacheMayKeepWhatIsKeptPrivate(t *testing.T) {
	for _, test := range []struct {
		given []string
		want  string
	}{
		{nil, "private"},
		{[]string{"no-cache"}, "no-cache, private"}, // a cache may keep it, and ask whether it is still good
		{[]string{"no-cache, must-revalidate, max-age=0"}, "no-cache, must-revalidate, max-age=0, private"},
		{[]string{"max-age=0", "must-revalidate"}, "max-age=0, must-revalidate, private"},
		{[]string{`private="x-user", no-cache`}, `private="x-user", no-cache, private`},
		{[]string{"max-age=60, Private"}, "max-age=60, Private"},
		{[]string{"no-cache, no-store"}, "no-cache, no-store"},
	} {
		header := http.Header{"Cache-Control": test.given}
		KeepPrivate(header)
		check.Equal(t, strings.Join(header["Cache-Control"], ", "), test.want, "%q", test.given)
	}
}

func TestHeadersForSomeCachesOnlyAreDropped(t *testing.T) {
	header := make(http.Header)
	for _, name := range []string{
		"Cache-Control", "CDN-Cache-Control", "Cloudflare-CDN-Cache-Control", "Surrogate-Control", "Edge-Control", "X-Accel-Expires", "Vary",
	} {
		header.Set(name, "max-age=60")
	}
	DropTargeted(header)
	check.Slices(t, slices.Sorted(maps.Keys(header)), []string{"Cache-Control", "Vary"}, "the headers that are left")
}
