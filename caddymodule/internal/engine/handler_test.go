package engine_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/servertest"
)

func TestABurstPassesAndTheRestIsRefusedUntilItHasLeaked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := servertest.Run(t, `http:// {
			throttle site 3 1/s
			respond ok
		}`)
		c := s.From(servertest.Someone)
		c.Passes(3, "/")
		if got := c.Get("/").Header().Get("Retry-After"); got != "3" {
			t.Errorf("Retry-After: got %q, want 3", got)
		}
		s.From("203.0.113.8:1").Passes(3, "/")
		<-time.After(time.Second)
		c.Passes(1, "/")
		<-time.After(3 * time.Second)
		c.Passes(3, "/")
	})
}

func TestAClientThatWaitsAsLongAsRetryAfterSaysPasses(t *testing.T) {
	for _, test := range []struct {
		retryAfter, first, later string // what Retry-After says at once, and half a second later
		after                    int    // how many pass after that long
	}{
		{"empty", "4", "4", 8},
		{"fit", "1", "1", 2},
		{"3s", "3", "3", 6},
		{"100ms", "1", "1", 2},
	} {
		t.Run(test.retryAfter, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := servertest.Run(t, `http:// {
					throttle {
						zone site {
							limit 8 2/s
							refusal retry_after `+test.retryAfter+`
						}
					}
					respond ok
				}`)
				c := s.From(servertest.Someone)
				c.Passes(8, "/")
				first := c.Get("/").Header().Get("Retry-After")
				<-time.After(100 * time.Millisecond)
				later := c.Get("/").Header().Get("Retry-After")
				if first != test.first || later != test.later {
					t.Fatalf("Retry-After: got %q and then %q, want %q and %q", first, later, test.first, test.later)
				}
				wait, err := time.ParseDuration(later + "s")
				if err != nil {
					t.Fatal(err)
				}
				time.Sleep(wait)
				c.Passes(test.after, "/")
			})
		})
	}
}

func TestSeveralZonesAreChargedAllOrNone(t *testing.T) {
	s := servertest.Run(t, servertest.Both)
	c := s.From(servertest.Someone)
	c.Passes(1, "/both")
	for range 10 {
		if got := c.Get("/both").Code; got != http.StatusTooManyRequests {
			t.Fatalf("got %v, want 429", got)
		}
	}
	c.Passes(4, "/large")
}

func TestARefusalThatNeedsNoAskingChargesNoOtherZone(t *testing.T) {
	s := servertest.Run(t, `{
		throttle {
			zone large {
				limit 5 1/h
			}
		}
	}
	http:// {
		throttle /large large
		throttle /denied {
			zone large
			zone denied {
				limit 5 1/h
				override 203.0.113.0/24 deny
			}
		}
		throttle /keyless {
			zone large
			zone keyless {
				key header X-Api-Key missing refuse
				limit 5 1/h
			}
		}
		throttle /oversize {
			zone large
			zone oversize {
				cost {header.X-Cost}
				limit 5 1/h
			}
		}
		respond ok
	}`)
	c := s.From(servertest.Someone).With("X-Cost", "6")
	for _, path := range []string{"/denied", "/keyless", "/oversize"} {
		w := c.Get(path)
		if got := w.Header().Get("Retry-After"); w.Code != http.StatusTooManyRequests || got != "" {
			t.Errorf("%s: got %v and Retry-After %q, want 429 and none", path, w.Code, got)
		}
	}
	c.Passes(5, "/large")
}

func TestOfSeveralRefusalsTheLongestWaitIsReported(t *testing.T) {
	for _, order := range []string{"zone slow\nzone fast", "zone fast\nzone slow"} {
		s := servertest.Run(t, `{
			throttle {
				zone fast {
					limit 1 1/s
				}
				zone slow {
					limit 1 1/m
				}
			}
		}
		http:// {
			header X-Zone {http.throttle.zone}
			throttle {
				`+order+`
			}
			respond ok
		}`)
		c := s.From(servertest.Someone)
		c.Passes(1, "/")
		w := c.Get("/")
		if got := w.Header().Get("Retry-After"); got != "60" {
			t.Errorf("%s: got Retry-After %q, want 60", order, got)
		}
		s.Stop()
	}
}

func TestRetryAfterIsTrueForAnyLimitAndCost(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 50 {
		capacity := math.Pow(10, random.Float64()*3)
		leak := capacity / math.Pow(10, random.Float64()*6-1) // drains within 0.1 to 100,000 seconds
		cost := max(capacity*random.Float64(), 0.001)
		synctest.Test(t, func(t *testing.T) {
			s := servertest.Run(t, fmt.Sprintf(`http:// {
				throttle {
					zone site {
						limit %f %f/s
						cost %f
						refusal retry_after fit
					}
				}
				respond ok
			}`, capacity, max(leak, 0.000001), cost))
			c := s.From(servertest.Someone)
			for c.Get("/").Code == http.StatusOK {
			}
			seconds, err := strconv.Atoi(c.Get("/").Header().Get("Retry-After"))
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Duration(seconds-1) * time.Second)
			early := c.Get("/").Code
			<-time.After(time.Second)
			if late := c.Get("/").Code; late != http.StatusOK && early != http.StatusOK {
				t.Errorf("capacity %f, leak %f/s, cost %f: got %v after %d seconds, want 200", capacity, leak, cost, late, seconds)
			}
			if seconds > 1 && early == http.StatusOK {
				t.Errorf("capacity %f, leak %f/s, cost %f: got 200 a second before Retry-After", capacity, leak, cost)
			}
		})
	}
}
