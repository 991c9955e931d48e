package admin_test

import (
	"net/http"
	"slices"
	"testing"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/admin/wire"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/servertest"
)

// namesOf are the names of the buckets, without their zones.
func namesOf(buckets []wire.Bucket) (names []string) {
	for _, b := range buckets {
		names = append(names, b.Key)
	}
	return names
}

// The requests of a key that no override lists may use another bucket, or none.
func TestWhyShowsTheBucketThatRequestsOfAnUnlistedKeyUse(t *testing.T) {
	for policy, want := range map[string][]string{
		"client_ip": nil, // it depends on the client
		"share":     {"@share"},
		"skip":      nil,
		"refuse":    {"unlisted"}, // with its verdict
	} {
		s := servertest.Run(t, `http:// {
			throttle {
				zone api {
					key header X-Api-Key unlisted `+policy+` plain
					limit 9 1/h
					override shop 5 1/h
				}
			}
			respond ok
		}`)
		s.From(servertest.Someone).With("X-Api-Key", "unlisted").Get("/")
		var got wire.Why
		s.Admin(http.MethodPost, "/throttle/why", `{"client": "unlisted"}`, &got)
		if names := namesOf(got.Buckets); !slices.Equal(names, want) {
			t.Errorf("%s: got the buckets %v, want %v", policy, names, want)
		}
		if wanted := []wire.UnlistedKey{{Zone: "api", Key: "unlisted", Policy: policy}}; !slices.Equal(got.Unlisted, wanted) {
			t.Errorf("%s: got %v, want %v", policy, got.Unlisted, wanted)
		}
		got = wire.Why{}
		s.Admin(http.MethodPost, "/throttle/why", `{"client": "shop"}`, &got)
		if names := namesOf(got.Buckets); !slices.Equal(names, []string{"shop"}) || got.Unlisted != nil {
			t.Errorf("%s: got the buckets %v and %v of a listed key, want its own", policy, names, got.Unlisted)
		}
		if status := s.Admin(http.MethodPost, "/throttle/limit", `{"zone": "api", "key": "unlisted", "limit": "x2"}`, nil); status != http.StatusBadRequest {
			t.Errorf("%s: got %d for a limit of a bucket that no request uses, want 400", policy, status)
		}
	}
}

// Logs and codes give names of buckets, which are no keys that a client sent.
func TestWhyTakesTheNameOfABucketForNoKeyOfItsOwn(t *testing.T) {
	s := servertest.Run(t, `http:// {
		throttle /api {
			zone api {
				key header X-Api-Key unlisted refuse
				limit 1 1/h
				override shop 1 1/h as shops
				override leaked deny
			}
		}
		throttle /all {
			zone all {
				key text everybody
				limit 1 1/h
			}
		}
		respond ok
	}`)
	for _, test := range []struct {
		path, key, reason string
		passes            int
		unlisted          bool
	}{
		{"/api", "leaked", "denied", 0, false},
		{"/api", "shop", "capacity", 1, false},
		{"/api", "made-up", "unlisted_key", 0, true},
		{"/all", "", "capacity", 1, false}, // which is nobody's API key
	} {
		c := s.From(servertest.Someone).With("X-Api-Key", test.key)
		c.Passes(test.passes, test.path)
		var got wire.Why
		s.Admin(http.MethodPost, "/throttle/why", `{"client": "`+servertest.CodeOn(t, c.Get(test.path))+`"}`, &got)
		if got.Refusal == nil || got.Refusal.Reason != test.reason || !got.Refused || len(got.Buckets) != 1 || got.Buckets[0].Verdict.Reason != test.reason {
			t.Fatalf("%s %q: got %+v, want one bucket that refuses for %s, then and now", test.path, test.key, got, test.reason)
		}
		if (got.Unlisted != nil) != test.unlisted {
			t.Errorf("%s %q: got the unlisted keys %v, want some: %v", test.path, test.key, got.Unlisted, test.unlisted)
		}
	}
}

// A zone that has addresses in its key has buckets beside those, for requests whose key
// is not usable.
func TestBucketsOfAnAddressAreFoundBesideTheKey(t *testing.T) {
	for name, options := range map[string]string{
		"missing_key":  "key client_ip header X-Account missing client_ip",
		"unlisted_key": "key client_ip unlisted client_ip\noverride 198.51.100.0/24 5 1/h",
	} {
		s := servertest.Run(t, "http:// {\nthrottle {\nzone "+name+" {\n"+options+"\nlimit 2 1/h\n}\n}\nrespond ok\n}")
		s.From(servertest.Someone).Passes(2, "/")
		var why wire.Why
		s.Admin(http.MethodPost, "/throttle/why", `{"client": "203.0.113.7"}`, &why)
		if names := namesOf(why.Buckets); !slices.Equal(names, []string{"@client_ip/203.0.113.7"}) {
			t.Errorf("%s: got the buckets %v, want that of the address", name, names)
		}
		var freed wire.Released
		s.Admin(http.MethodPost, "/throttle/release", `{"client": "203.0.113.7"}`, &freed)
		if !slices.Equal(freed.Freed, []string{name + "/@client_ip/203.0.113.7"}) {
			t.Errorf("%s: got %v freed, want that bucket", name, freed.Freed)
		}
		s.From(servertest.Someone).Passes(2, "/")
	}
}
