package limit_test

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/admin/wire"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/servertest"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/memstore"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

// verdictSite has zones of all kinds, of which each request meets one.
const verdictSite = `{
		throttle {
			%s
			zone plain {
				limit 5 1/h
				override 203.0.113.3 deny
				override 203.0.113.4 unlimited
				override 203.0.113.5 1 1/h
			}
			zone blocks {
				limit 3 1/h
				block 10m
			}
			zone everywhere {
				limit 6 1/h
				block 10m everywhere
			}
			zone trial {
				limit 2 1/h
				shadow
			}
			zone some {
				limit 2 1/h
				enforce 50
			}
			zone waits {
				limit 3 1/h
				delay wait 10s
			}
			zone settled {
				limit 4 1/h
				settle status 404 2
			}
			zone must {
				key header X-Key missing refuse
				limit 3 1/h
			}
			zone may {
				key header X-Key
				limit 3 1/h
			}
		}
	}
	http:// {
		throttle /plain* plain
		throttle /blocks* blocks
		throttle /everywhere* everywhere
		throttle /trial* trial
		throttle /some* some
		throttle /waits* waits
		throttle /settled* settled
		throttle /must* must
		throttle /may* may
		respond /settled/missing 404
		respond ok
	}`

// TestWhySaysWhatARequestWouldMeet: in 1,000 states, with TEST_LONG=1 in 5,000, of levels, blocks, bans, overrides, costs,
// delays, settlements, missing keys and shadow, what why says of a bucket, buckets says too, and a request meets it.
func TestWhySaysWhatARequestWouldMeet(t *testing.T) {
	verdictsHold(t, servertest.Run(t, fmt.Sprintf(verdictSite, "")), func(int) {})
}

// TestWhySaysWhatARequestWouldMeetInAnOutage: also while this Caddy goes by its share of the limits.
func TestWhySaysWhatARequestWouldMeetInAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		servertest.TheShared = &servertest.SharedStore{Store: memstore.New(memstore.Options{})}
		s := servertest.Run(t, fmt.Sprintf(verdictSite, "store test_shared\nnodes 2"))
		s.Engine().Exiting = nil
		check.OK(t, s.Module().Start())
		verdictsHold(t, s, func(n int) {
			if n%25 == 0 {
				servertest.TheShared.Down.Store(!servertest.TheShared.Down.Load())
				for range 4 {
					s.From("198.51.100.1:1000").Get("/plain") // so that the outage is known
				}
				time.Sleep(10 * time.Second) // or that it is over
			}
		})
		time.Sleep(time.Second)
		_ = s.Module().Stop()
	})
}

// verdictsHold compares what commands say of clients with what becomes of their requests.
func verdictsHold(t *testing.T, s *servertest.Site, before func(state int)) {
	zones := []string{"plain", "blocks", "everywhere", "trial", "some", "waits", "settled", "must", "may"}
	seen := make(map[string]int)
	states, least := check.OrShort(1000, 250), 1
	if os.Getenv("TEST_LONG") == "1" {
		states, least = 5000, 5
	}
	wanted := []string{"plain capacity", "blocks blocked", "some capacity", "waits capacity", "settled capacity", "must missing_key", "must capacity", "may capacity"}
	rare := func(want string) bool { return seen[want] < least }
	for n := 0; n < states || n < 10*states && slices.ContainsFunc(wanted, rare); n++ {
		before(n)
		last := rand.IntN(250)
		if n%4 == 0 {
			last = 3 + rand.IntN(3) // which have overrides
		}
		addr, zone := fmt.Sprintf("203.0.113.%d", last), zones[rand.IntN(len(zones))]
		c, path, client := s.From(addr+":1000"), "/"+zone, addr
		keyless := zone == "must" && rand.IntN(2) == 0
		if zone == "must" && !keyless || zone == "may" && rand.IntN(2) == 0 {
			client = "key of " + addr
			c = c.With("X-Key", client)
		}
		change := func(path, body string, args ...any) {
			s.Admin(http.MethodPost, "/throttle/"+path, fmt.Sprintf(body, args...), nil)
		}
		switch rand.IntN(12) {
		case 0:
			change("ban", `{"network": %q, "for": "1h"}`, addr)
		case 1:
			change("unban", `{"network": %q}`, addr)
		case 2:
			limits := []string{"deny", "unlimited", "x0.5", "8 1/h"}
			change("limit", `{"zone": %q, "key": %q, "limit": %q, "for": "1h"}`, zone, addr, limits[rand.IntN(len(limits))])
		case 3:
			change("shadow", `{"zone": %q, "for": "1h"}`, zone)
		case 4, 5:
			change("unshadow", `{"zone": %q}`, zone)
		case 6:
			change("shadow", `{"for": "1h"}`)
		case 7, 8:
			change("unshadow", `{}`)
		case 9:
			change("release", `{"client": %q}`, addr)
		}
		for range rand.IntN(7) {
			of := path
			if zone == "settled" && rand.IntN(2) == 0 {
				of += "/missing"
			}
			c.Get(of)
		}

		var why wire.Why
		s.Admin(http.MethodPost, "/throttle/why", fmt.Sprintf(`{"client": %q}`, addr), &why)
		said, refused := "", false
		if zone == "must" || zone == "may" { // whose empty buckets are not of the address
			refused = why.Ban != nil && why.Refused
		}
		if client != addr {
			var byKey wire.Why
			s.Admin(http.MethodPost, "/throttle/why", fmt.Sprintf(`{"client": %q, "zone": %q}`, client, zone), &byKey)
			why.Buckets = append(why.Buckets, byKey.Buckets...)
		}
		if keyless {
			said, refused = "missing_key", !slices.ContainsFunc(why.Shadows, func(s wire.Override) bool { return s.Zone == "" })
			var status wire.Status
			s.Admin(http.MethodGet, "/throttle/zones", "", &status)
			for _, z := range status.Zones {
				refused = refused && (z.Zone != zone || z.Mode == "enforcing" || why.Ban != nil)
			}
		}
		switched := slices.ContainsFunc(why.Shadows, func(s wire.Override) bool { return s.Zone == "" || s.Zone == "everywhere" })
		for i := range why.Buckets {
			b := &why.Buckets[i]
			v := &b.Verdict
			if client != addr && strings.HasPrefix(b.Key, "@client_ip/") {
				continue // not this request's
			}
			if v.Refused() && (b.Zone == zone || b.Zone == "everywhere" && b.Blocked > 0 && b.Rule == "limited" && !b.Shadow && !switched) {
				refused, said = true, v.Reason
			}
			if (v.Reason == "") != (v.Decision == "admitted") || v.Refused() && v.Reason == "" {
				t.Fatalf("%s: got the verdict %+v, which contradicts itself", addr, v)
			}
			listed := bucketOf(s, b.Zone, b.Key, b.Shadow)
			switch {
			case listed == nil && b.Blocked > 0:
				t.Fatalf("%s: why says %+v, and buckets nothing", addr, b.Verdict)
			case listed != nil && (listed.Verdict.Reason != b.Verdict.Reason || listed.Verdict.Decision != b.Verdict.Decision):
				t.Fatalf("%s: why says %+v, and buckets %+v", addr, b.Verdict, listed.Verdict)
			}
		}
		got := c.Get(path).Code == http.StatusTooManyRequests
		check.Assume(t, got == refused, "state %d, %s %s: refused %v, why says %v (%s) of %+v", n, addr, path, got, refused, said, why.Buckets)
		seen[zone+" "+said]++
	}
	for _, want := range wanted {
		if rare(want) {
			t.Errorf("%s: got %d states, want at least %d, of %v", want, seen[want], least, seen)
		}
	}
}

// bucketOf returns a bucket as a listing has it, or nil.
func bucketOf(s *servertest.Site, zone, key string, shadow bool) *wire.Bucket {
	var list wire.Buckets
	s.Admin(http.MethodPost, "/throttle/buckets", fmt.Sprintf(`{"zone": %q, "prefix": %q, "shadow": %v, "limit": 1000}`, zone, key, shadow), &list)
	for i := range list.Buckets {
		if list.Buckets[i].Key == key {
			return &list.Buckets[i]
		}
	}
	return nil
}
