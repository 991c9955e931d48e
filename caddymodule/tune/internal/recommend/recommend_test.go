package recommend

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/limit"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/tune/internal/accesslog"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/tune/internal/clients"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

var noon = time.Date(2026, 11, 2, 12, 0, 0, 0, time.UTC)

// A hit is a request of a test.
type hit struct {
	addr     string
	at       time.Duration
	uri      string
	duration time.Duration
}

// A site is a zone and its clients.
type site struct {
	*Study
	known  *clients.Log
	agents int // of each client; 0 means that its requests name none
}

// siteOf returns a study of a zone, whose charges responses correct as settle says.
func siteOf(o Options, settle *limit.Settle) *site {
	known := new(clients.Log)
	return &site{Study: NewStudy(&limit.Zone{Settle: settle}, known.By(32, 64), o), known: known}
}

// charge charges a request to a key.
func (s *site) charge(r *accesslog.Request, key string, cost float64) {
	s.Add(r, &limit.Outcome{Charge: leakybucket.Charge{Key: key, Cost: cost}}, 0, 0)
}

// study returns a study of requests, charged to their addresses. Assets are not charged.
func study(t *testing.T, o Options, hits ...hit) *Result {
	t.Helper()
	o.Pages = true
	return studyOf(siteOf(o, nil), hits...)
}

func studyOf(s *site, hits ...hit) *Result {
	assets := 0
	for n, h := range hits {
		r := &accesslog.Request{At: noon.Add(h.at), Sender: accesslog.Sender{Client: netip.MustParseAddr(h.addr)}, Method: "GET", URI: h.uri, Status: 200, Duration: h.duration}
		if s.agents > 0 {
			r.Agent = fmt.Sprint("Firefox/", n%s.agents)
		}
		s.known.Add(r)
		if r.Asset() {
			assets++
			continue
		}
		s.charge(r, h.addr, 1)
	}
	return s.Result(assets)
}

// visits returns page views of one address, with an asset each.
func visits(addr string, from time.Duration, pages int, every time.Duration) (hits []hit) {
	for p := range pages {
		at := from + time.Duration(p)*every
		hits = append(hits, hit{addr, at, fmt.Sprintf("/page/%d", p), accesslog.NoDuration}, hit{addr, at, "/style.css", accesslog.NoDuration})
	}
	return hits
}

// scrapes returns requests of one address that loads no assets.
func scrapes(addr string, requests int, every time.Duration) (hits []hit) {
	for n := range requests {
		hits = append(hits, hit{addr, time.Duration(n) * every, fmt.Sprintf("/page/%d", n), accesslog.NoDuration})
	}
	return hits
}

func TestTheLadderIsInOrderAndParses(t *testing.T) {
	last := 0.0
	for _, text := range ladder {
		leak, err := leakybucket.ParseRate(text)
		check.That(t, err == nil && leak > last, "%s: got %v, %v, want a rate above %v", text, leak, err, last)
		last = leak
	}
}

// TestScrapersDoNotSetTheLimit, though they are the busiest.
func TestScrapersDoNotSetTheLimit(t *testing.T) {
	var hits []hit
	for p := range 50 {
		hits = append(hits, visits(fmt.Sprintf("198.51.100.%d", p), time.Duration(p)*time.Minute, 5, 30*time.Second)...)
	}
	hits = append(hits, scrapes("203.0.113.1", 1000, time.Second)...)

	people := study(t, Options{Spare: 100}, hits...)
	best := people.Units.Best()
	if best.Capacity != 40 || best.Leak != "4/m" || best.RefusedKeys != 1 || best.RefusedPeople != 0 || best.RefusedRequests < 890 {
		t.Errorf("got %+v, want a burst of 40 at 4/m that refuses the scraper alone", best)
	}
	if people.Keys != 51 || people.PeopleKeys != 50 || people.Assets != 250 || people.Requests != 1250 {
		t.Errorf("got %d keys, %d people, %d assets, %d requests, want 51, 50, 250 and 1250", people.Keys, people.PeopleKeys, people.Assets, people.Requests)
	}
	top := people.Refused[0]
	check.That(t, top.Key == "203.0.113.1" && top.Looks == clients.Robot && top.Refused == best.RefusedRequests, "got %+v, want the scraper with all %d refusals", top, best.RefusedRequests)
}

func TestChooseForgivesWithinTenMinutesIfItCan(t *testing.T) {
	point := func(capacity, refill, load float64) Point {
		return Point{Limit: Limit{Capacity: capacity}, RefillSeconds: refill, RefusedLoad: load}
	}
	for _, c := range []struct {
		name   string
		points []Point
		want   int
	}{
		{"the fastest leak of equals", []Point{point(50, 900, 0.5), point(40, 600, 0.5), point(30, 300, 0.5)}, 2},
		{"nearly as much load counts as as much", []Point{point(40, 500, 0.5), point(30, 300, 0.48)}, 1},
		{"much less load does not", []Point{point(40, 500, 0.5), point(30, 300, 0.3)}, 0},
		{"what forgives too late does not count", []Point{point(90, 9000, 0.9), point(30, 300, 0.1)}, 1},
		{"none forgives in time", []Point{point(9000, 9000, 0.9), point(8000, 5000, 0.1)}, 1},
	} {
		check.Equal(t, choose(c.points), c.want, "%s", c.name)
	}
}

func TestNotesSayWhyTheDataIsThin(t *testing.T) {
	long := scrapes("203.0.113.1", 60, time.Hour)
	for _, c := range []struct {
		name string
		o    Options
		hits []hit
		want string
	}{
		{"a short span", Options{Spare: 99}, visits("198.51.100.1", 0, 3, time.Hour), "These requests cover only 2h."},
		{"one key", Options{Spare: 99}, long, "203.0.113.1 sent 100.0% of the load. If that is your proxy"},
		{"one key is most", Options{Spare: 99}, append(visits("198.51.100.1", 0, 3, time.Minute), long...), "203.0.113.1 sent 95.2% of the load"},
		{"no assets", Options{Spare: 99}, long, "None of these clients looks like a person"},
		{"nothing to remove", Options{Spare: 100}, long, "there is nothing to hold back"},
		{"few requests", Options{Spare: 99}, long, "Only 60 requests were charged."},
	} {
		r := study(t, c.o, c.hits...)
		check.Contains(t, strings.Join(append(r.Withheld, r.Notes...), "\n"), c.want, "%s", c.name)
	}
	var many []hit
	for p := range 1000 {
		many = append(many, hit{fmt.Sprintf("198.%d.%d.7", 51+p/250, p%250), time.Duration(p)*11*time.Minute + time.Millisecond, "/", time.Second})
		for n := range p % 9 {
			many = append(many, hit{many[len(many)-1].addr, many[len(many)-1].at + time.Duration(n)*time.Millisecond, "/", time.Second})
		}
	}
	r := study(t, Options{Spare: 99}, many...)
	check.That(t, len(r.Notes) == 0, "got %q for a log of a week with many clients, want nothing", r.Notes)
}

// TestAnOfficeIsManyPeople: a limit that spares 99% of 400 people spares one address of six, too.
func TestAnOfficeIsManyPeople(t *testing.T) {
	s := siteOf(Options{Spare: 99, Pages: true}, nil)
	s.agents = 6
	hits := visits("192.0.2.7", 30*time.Hour, 200, time.Second)
	for p := range 400 {
		hits = append(hits, visits(fmt.Sprintf("198.51.%d.%d", p/200, p%200), time.Duration(p)*time.Minute, 2, 20*time.Second)...)
	}
	for _, point := range studyOf(s, hits...).Units.Points {
		check.Equal(t, point.RefusedPeople, 0, "people whom %v refuses", point.Limit)
	}
}

// TestARefusedOfficeIsSaid: the limit spares only most people.
// A log of less than a day has no limit that would refuse it. One that is checked may refuse hundreds.
func TestARefusedOfficeIsSaid(t *testing.T) {
	tiny := Limit{Leak: "1/h", Capacity: 2}
	for _, c := range []struct {
		name   string
		agents int
		pages  int // of each person: with more than four requests, all look like many
		at     time.Duration
		check  Limit
		want   int
	}{
		{"a person", 1, 2, 30 * time.Hour, Limit{}, 0},
		{"an office", 6, 2, 30 * time.Hour, Limit{}, 1},
		{"a short log", 6, 2, 10 * time.Hour, Limit{}, 0},
		{"a tiny limit", 6, 4, 30 * time.Hour, tiny, 10},
	} {
		s := siteOf(Options{Spare: 95, Pages: true, Check: c.check}, nil)
		s.agents = c.agents
		hits := append(scrapes("203.0.113.1", 1000, time.Second), scrapes("203.0.113.2", 1000, time.Second)...)
		for p := range 400 {
			hits = append(hits, visits(fmt.Sprintf("198.51.%d.%d", p/200, p%200), time.Duration(p)*c.at/400, c.pages, 20*time.Second)...)
		}
		notes := studyOf(s, append(hits, visits("192.0.2.7", c.at, 200, time.Second)...)...).Notes
		said := strings.Contains(strings.Join(notes, "\n"), "192.0.2.7 looks like many people, and would be refused")
		check.That(t, len(notes) == c.want && said == (c.want > 0), "%s: got the notes %q, want %d", c.name, notes, c.want)
	}
}

// TestNobodyBansAnOffice that sends most.
func TestNobodyBansAnOffice(t *testing.T) {
	s := siteOf(Options{Spare: 99, Pages: true}, nil)
	s.agents = 9
	said := strings.Join(studyOf(s, visits("192.0.2.7", 0, 100, time.Hour)...).Withheld, "\n")
	check.Contains(t, said, "If it is an office or a school, give it an override. To judge the rest")
}

// TestARefusedHealthCheckIsSaid: without an answer, a load balancer takes the site out.
func TestARefusedHealthCheckIsSaid(t *testing.T) {
	s := siteOf(Options{Spare: 99, Pages: true, Check: Limit{Leak: "1/m", Capacity: 20}}, nil)
	for n := range 100 {
		r := &accesslog.Request{At: noon.Add(time.Duration(n) * time.Second), Sender: accesslog.Sender{Client: netip.MustParseAddr("10.0.0.2")}, Method: "GET", URI: "/", HeaderFields: accesslog.HeaderFields{Agent: "ELB-HealthChecker/2.0"}}
		s.known.Add(r)
		s.charge(r, "10.0.0.2", 1)
	}
	check.Contains(t, strings.Join(s.Result(0).Notes, "\n"), "10.0.0.2 seems to be a monitor or health check, and would be refused.")
}

// TestTheEdgesOfACDNAreNoClients: each looks like many people, so nothing is to hold back.
func TestTheEdgesOfACDNAreNoClients(t *testing.T) {
	s := siteOf(Options{Spare: 99.9, Pages: true}, nil)
	s.agents = 7
	var hits []hit
	for edge := range 40 {
		hits = append(hits, visits(fmt.Sprint("198.51.100.", edge), time.Duration(edge)*time.Hour, 40, time.Minute)...)
	}
	hits = append(hits, visits("192.0.2.7", 0, 2, 25*time.Hour)...) // past the CDN
	r := studyOf(s, hits...)
	check.That(t, r.Caddyfile == "" && strings.HasPrefix(r.Withheld[0], "40 of 41 clients look like many people each."), "got %q and\n%s\nwant no limit", r.Withheld, r.Caddyfile)
}

// TestTheTextOfARecommendation is golden: it is what people read.
func TestTheTextOfARecommendation(t *testing.T) {
	var hits []hit
	for p := range 20 {
		hits = append(hits, visits(fmt.Sprintf("198.51.100.%d", p), time.Duration(p)*100*time.Minute, 4, 20*time.Second)...)
	}
	for n := range 3 {
		hits = append(hits, scrapes(fmt.Sprintf("203.0.113.%d", n), 400, 3*time.Second)...)
	}
	slices.SortStableFunc(hits, func(a, b hit) int { return cmp.Compare(a.at, b.at) })
	got := study(t, Options{Spare: 100}, hits...).Text()
	const want = `1,280 requests of 23 clients from 2026-11-02 12:00 to 2026-11-03 19:41 UTC,
besides 80 requests for static assets, which should be exempt.
20 clients looked like people: they loaded static assets with pages, and named no robot.
These limits leave 100% of the people untouched:

    leak  capacity    refill   clients   people    requests       load
                               refused  refused     refused    refused
    15/h        20     1h20m         3        0       1,128      88.1%
    30/h        20       40m         3        0       1,113      87.0%
     1/m        20       20m         3        0       1,083      84.6%
*    2/m        20       10m         3        0       1,023      79.9%
     4/m        20        5m         3        0         903      70.5%
`
	check.That(t, strings.HasPrefix(got, want), "got\n%s\nwant it to begin with\n%s", got, want)
	for _, want := range []string{
		"\nRecommended: limit 20 2/m. It would have refused 3 of 23 clients and 1,023 of 1,280 requests, 79.9% of the load, and nobody who looks like a person.\n",
		"\nWho would be refused, of 3 clients:\n\n  key                                       refused        of    assets  looks like\n  203.0.113.0                                   341       400         0  robot\n    2026-11-02 12:01:06 to 2026-11-02 12:19:57, mostly /page/*, no user agent\n",
		"\nTo paste into the Caddyfile:\n\nthrottle {\n\tzone pages {\n\t\texempt static_files # if Caddy cannot read the files, give their folder a small cost, and use --config\n\t\tlimit 20 2/m\n\t\tshadow # log only; remove it to enforce the limit\n\t}\n}\n",
	} {
		check.Contains(t, got, want)
	}
}

// A small sample is no ground for a limit: there is no line to paste, no star, and a remedy.
func TestAThinLogGivesNoLinesToPaste(t *testing.T) {
	hits := scrapes("203.0.113.1", 600, 3*time.Second)
	for i := range hits {
		hits[i].duration = time.Duration(100+i%7) * time.Millisecond
	}
	r := study(t, Options{Spare: 100}, hits...)
	text := r.Text()
	if r.Caddyfile != "" || len(r.Withheld) != 4 || strings.Contains(text, "*  ") || strings.Contains(text, "Recommended:") {
		t.Errorf("got %q and\n%s\nwant four reasons and no limit", r.Withheld, text)
	}
	check.That(t, strings.Contains(text, "\nTo be safe, begin with limit 120 2/s in shadow.\n"), "got\n%s\nwant a starting point", text)
}

// Crawlers that the limit would refuse can be seen, though they name themselves late.
func TestRefusedCrawlersAreNamed(t *testing.T) {
	s := siteOf(Options{Spare: 99, Pages: true}, nil)
	for n := range 500 {
		for addr, agent := range map[string]string{
			"66.249.66.1": "Mozilla/5.0 (Linux; Android 6.0.1; Nexus 5X Build/MMB29P) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/140.0.7339.207 Mobile Safari/537.36 (compatible; Googlebot/2.1; +http://www.google.com/bot.html)",
			"203.0.113.1": []string{"Mozilla", "Mozilla (Applebot/0.1)"}[min(1, n/300)],
		} {
			r := &accesslog.Request{At: noon.Add(time.Duration(n) * time.Second), Sender: accesslog.Sender{Client: netip.MustParseAddr(addr)}, Method: "GET", URI: fmt.Sprintf("/a/%d", n), HeaderFields: accesslog.HeaderFields{Agent: agent}}
			s.known.Add(r)
			s.charge(r, addr, 1)
		}
	}
	r := s.Result(0)
	r.Withheld = nil
	for _, want := range []string{"mostly /a/*, as Mozilla (Applebot/0.1) and 1 other user agent\n", "(compatible; Googlebot/2.1;"} {
		check.That(t, strings.Contains(r.Text(), want), "got\n%s\nwant %q", r.Text(), want)
	}
}

// A limit to check is judged on the same requests as one that is recommended.
func TestALimitIsChecked(t *testing.T) {
	hits := scrapes("203.0.113.1", 600, 3*time.Second)
	for p := range 20 {
		hits = append(hits, visits(fmt.Sprintf("198.51.100.%d", p), time.Duration(p)*time.Minute, 4, 20*time.Second)...)
	}
	slices.SortStableFunc(hits, func(a, b hit) int { return cmp.Compare(a.at, b.at) })
	r := study(t, Options{Spare: 99, Check: Limit{"4/m", 30}}, hits...)
	best := r.Units.Best()
	check.That(t, best.Leak == "4/m" && best.Capacity == 30 && best.RefusedKeys == 1 && best.RefusedPeople == 0, "got %+v, want limit 30 4/m, which refuses the scraper alone", best)
	// It sends one each 3 seconds: 30 fit at first, and 4 in each of 30 minutes.
	want := 600 - 30 - 30*4
	check.That(t, best.RefusedRequests >= want-2 && best.RefusedRequests <= want+2, "got %d refused requests, want about %d", best.RefusedRequests, want)
	if !strings.HasPrefix(r.Units.Reason, "To check: limit 30 4/m. It would have refused 1 of 21 clients") || !strings.Contains(r.Caddyfile, "limit 30 4/m\n") || len(r.Withheld) > 0 {
		t.Errorf("got %q, withheld %q and\n%s\nwant the limit as it was given", r.Units.Reason, r.Withheld, r.Caddyfile)
	}
	check.Contains(t, r.Text(), "These limits leave 99% of the people untouched, but for the last, which is to check:\n")
}

// The curve agrees to the unit with brute force, and counts the same refusals, whatever
// requests cost.
func TestCurveFindsTheCapacityThatBruteForceFinds(t *testing.T) {
	type cost struct {
		key   string
		at    time.Duration
		units float64
	}
	for name, units := range map[string]func(*rand.Rand) float64{
		"one":       func(*rand.Rand) float64 { return 1 },
		"some zero": func(r *rand.Rand) float64 { return float64(r.IntN(3)) },
		"fractions": func(r *rand.Rand) float64 { return r.Float64() * 3 },
	} {
		random := rand.New(rand.NewPCG(3, 1))
		var trace []cost
		for p := range 40 {
			at := random.Float64() * 3600
			for range 1 + random.IntN(20) {
				at += random.ExpFloat64() * 10
				trace = append(trace, cost{fmt.Sprint("person", p), time.Duration(at * float64(time.Second)), units(random)})
			}
		}
		for n := range 600 {
			trace = append(trace, cost{"scraper", time.Duration(n) * time.Second, units(random)})
		}
		slices.SortStableFunc(trace, func(a, b cost) int { return cmp.Compare(a.at, b.at) })
		s := siteOf(Options{}, nil)
		for _, c := range trace {
			r := &accesslog.Request{At: noon.Add(c.at), Method: "GET", URI: "/a.css"}
			if person, is := strings.CutPrefix(c.key, "person"); is {
				r.Client = netip.MustParseAddr("198.51.100." + person)
				s.known.Add(r)
				s.known.Add(r)
			}
			s.charge(r, c.key, c.units)
		}
		refused := func(l leakybucket.Limit) (requests, people int) {
			states, all := make(map[string]leakybucket.State), make(map[string]bool)
			for _, c := range trace {
				state, d := l.Take(states[c.key], c.units, leakybucket.Instant(noon.Add(c.at).UnixMicro()))
				if states[c.key] = state; !d.Fits {
					requests++
					all[c.key] = true
				}
			}
			delete(all, "scraper")
			return requests, len(all)
		}
		for _, leak := range []string{"1/m", "12/m", "1/s"} {
			for _, spare := range []float64{0, .5, .95, 1} {
				rung := s.rungs(leak)[0]
				got, want := rung.capacityFor(spare), 1.
				for ; ; want++ {
					if _, people := refused(leakybucket.Limit{Capacity: want, Leak: rate(leak)}); float64(40-people) >= spare*40-1e-6 {
						break
					}
				}
				p := rung.judge(want, ignored)
				if requests, _ := refused(leakybucket.Limit{Capacity: want, Leak: rate(leak)}); got != want || p.RefusedRequests != requests {
					t.Errorf("costs %s, leak %s, spare %v: got the capacity %v and %d refused, want %v and %d", name, leak, spare, got, p.RefusedRequests, want, requests)
				}
			}
		}
	}
}
