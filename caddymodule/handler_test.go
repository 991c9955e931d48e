package caddymodule

import (
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"strconv"
	"testing"
	"testing/synctest"
	"time"
)

func TestABurstPassesAndTheRestIsRefusedUntilItHasLeaked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := run(t, `http:// {
			throttle site 3 1/s
			respond ok
		}`)
		c := s.from(someone)
		c.passes(3, "/")
		if got := c.get("/").Header().Get("Retry-After"); got != "3" {
			t.Errorf("Retry-After: got %q, want 3", got)
		}
		s.from("203.0.113.8:1").passes(3, "/")
		<-time.After(time.Second)
		c.passes(1, "/")
		<-time.After(3 * time.Second)
		c.passes(3, "/")
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
				s := run(t, `http:// {
					throttle {
						zone site {
							limit 8 2/s
							refusal retry_after `+test.retryAfter+`
						}
					}
					respond ok
				}`)
				c := s.from(someone)
				c.passes(8, "/")
				first := c.get("/").Header().Get("Retry-After")
				<-time.After(100 * time.Millisecond)
				later := c.get("/").Header().Get("Retry-After")
				if first != test.first || later != test.later {
					t.Fatalf("Retry-After: got %q and then %q, want %q and %q", first, later, test.first, test.later)
				}
				wait, err := time.ParseDuration(later + "s")
				if err != nil {
					t.Fatal(err)
				}
				time.Sleep(wait)
				c.passes(test.after, "/")
			})
		})
	}
}

// both is two zones that are charged together at /both, and each alone.
const both = `{
	throttle {
		zone small {
			limit 1 1/h
		}
		zone large {
			limit 5 1/h
		}
	}
}
http:// {
	throttle /small small
	throttle /large large
	throttle /both {
		zone large
		zone small
	}
	respond {http.throttle.zone}
}`

func TestSeveralZonesAreChargedAllOrNone(t *testing.T) {
	s := run(t, both)
	c := s.from(someone)
	c.passes(1, "/both")
	for range 10 {
		if got := c.get("/both").Code; got != http.StatusTooManyRequests {
			t.Fatalf("got %v, want 429", got)
		}
	}
	c.passes(4, "/large")
}

func TestARefusalThatNeedsNoAskingChargesNoOtherZone(t *testing.T) {
	s := run(t, `{
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
	c := s.from(someone).with("X-Cost", "6")
	for _, path := range []string{"/denied", "/keyless", "/oversize"} {
		w := c.get(path)
		if got := w.Header().Get("Retry-After"); w.Code != http.StatusTooManyRequests || got != "" {
			t.Errorf("%s: got %v and Retry-After %q, want 429 and none", path, w.Code, got)
		}
	}
	c.passes(5, "/large")
}

func TestOfSeveralRefusalsTheLongestWaitIsReported(t *testing.T) {
	for _, order := range []string{"zone slow\nzone fast", "zone fast\nzone slow"} {
		s := run(t, `{
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
		c := s.from(someone)
		c.passes(1, "/")
		w := c.get("/")
		if got := w.Header().Get("Retry-After"); got != "60" {
			t.Errorf("%s: got Retry-After %q, want 60", order, got)
		}
		s.stop()
	}
}

func TestRetryAfterIsTrueForAnyLimitAndCost(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 50 {
		capacity := math.Pow(10, random.Float64()*3)
		leak := capacity / math.Pow(10, random.Float64()*6-1) // drains within 0.1 to 100,000 seconds
		cost := max(capacity*random.Float64(), 0.001)
		synctest.Test(t, func(t *testing.T) {
			s := run(t, fmt.Sprintf(`http:// {
				throttle {
					zone site {
						limit %f %f/s
						cost %f
						refusal retry_after fit
					}
				}
				respond ok
			}`, capacity, max(leak, 0.000001), cost))
			c := s.from(someone)
			for c.get("/").Code == http.StatusOK {
			}
			seconds, err := strconv.Atoi(c.get("/").Header().Get("Retry-After"))
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Duration(seconds-1) * time.Second)
			early := c.get("/").Code
			<-time.After(time.Second)
			if late := c.get("/").Code; late != http.StatusOK && early != http.StatusOK {
				t.Errorf("capacity %f, leak %f/s, cost %f: got %v after %d seconds, want 200", capacity, leak, cost, late, seconds)
			}
			if seconds > 1 && early == http.StatusOK {
				t.Errorf("capacity %f, leak %f/s, cost %f: got 200 a second before Retry-After", capacity, leak, cost)
			}
		})
	}
}
