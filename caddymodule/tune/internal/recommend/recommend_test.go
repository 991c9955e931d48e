package recommend

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	_ "github.com/caddy-throttle/caddy-throttle/caddymodule/crawler" // which knows the names of crawlers
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/limit"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/tune/internal/accesslog"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/tune/internal/clients"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
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
	known *clients.Log
}

// siteOf returns a study of a zone, whose charges responses correct as settle says.
func siteOf(o Options, settle *limit.Settle) *site {
	known := new(clients.Log)
	return &site{NewStudy(&limit.Zone{Settle: settle}, known.By(32, 64), o), known}
}

// charge charges a request to a key.
func (s *site) charge(r *accesslog.Request, key string, cost float64) {
	s.Add(r, &limit.Outcome{Charge: leakybucket.Charge{Key: key, Cost: cost}}, 0, 0)
}

// study returns a study of requests, charged to their addresses. Assets are not charged.
func study(t *testing.T, o Options, hits ...hit) *Result {
	t.Helper()
	o.Key = "client_ip"
	return studyOf(siteOf(o, nil), hits...)
}

func studyOf(s *site, hits ...hit) *Result {
	assets := 0
	for _, h := range hits {
		r := &accesslog.Request{At: noon.Add(h.at), Client: netip.MustParseAddr(h.addr), Method: "GET", URI: h.uri, Status: 200, Duration: h.duration}
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
		if err != nil || leak <= last {
			t.Errorf("%s: got %v, %v, want a rate above %v", text, leak, err, last)
		}
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
	if top := people.Refused[0]; top.Key != "203.0.113.1" || top.Looks != accesslog.Robot || top.Refused != best.RefusedRequests {
		t.Errorf("got %+v, want the scraper with all %d refusals", top, best.RefusedRequests)
	}
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
		if got := choose(c.points); got != c.want {
			t.Errorf("%s: got %d, want %d", c.name, got, c.want)
		}
	}
}

// request reads a line of a combined log.
func request(line string) (*accesslog.Request, error) {
	in, err := accesslog.Open([]string{"-"}, accesslog.Options{Stdin: strings.NewReader(line)})
	if err != nil {
		return nil, err
	}
	for batch, err := range in.Batches() {
		if err != nil {
			return nil, err
		}
		return batch[0], nil
	}
	return nil, io.EOF
}

func TestNotesSayWhyTheDataIsThin(t *testing.T) {
	long := scrapes("203.0.113.1", 60, time.Hour)
	for _, c := range []struct {
		name string
		o    Options
		hits []hit
		want string
	}{
		{"few people", Options{Spare: 99.9}, append(visits("198.51.100.1", 0, 2, 0), visits("198.51.100.2", 0, 2, 0)...), "99.9% of 2 people is all of them"},
		{"a short span", Options{Spare: 99}, visits("198.51.100.1", 0, 3, time.Hour), "The log covers only 2 h"},
		{"one key", Options{Spare: 99}, long, "203.0.113.1 sent 100.0% of the load. If that is your proxy"},
		{"one key is most", Options{Spare: 99}, append(visits("198.51.100.1", 0, 3, time.Minute), long...), "203.0.113.1 sent 95.2% of the load"},
		{"no assets", Options{Spare: 99}, long, "No client looks like a person"},
		{"nothing to remove", Options{Spare: 100}, long, "there is nothing to hold back"},
		{"few requests", Options{Spare: 99}, long, "Only 60 requests were charged."},
	} {
		r := study(t, c.o, c.hits...)
		if notes := strings.Join(append(r.Withheld, r.Notes...), "\n"); !strings.Contains(notes, c.want) {
			t.Errorf("%s: got %s, want %q in it", c.name, notes, c.want)
		}
	}
	var many []hit
	for p := range 1000 {
		many = append(many, hit{fmt.Sprintf("198.%d.%d.7", 51+p/250, p%250), time.Duration(p)*11*time.Minute + time.Millisecond, "/", time.Second})
		for n := range p % 9 {
			many = append(many, hit{many[len(many)-1].addr, many[len(many)-1].at + time.Duration(n)*time.Millisecond, "/", time.Second})
		}
	}
	if r := study(t, Options{Spare: 99}, many...); len(r.Notes) != 0 {
		t.Errorf("got %q for a log of a week with many clients, want nothing", r.Notes)
	}
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

    leak  capacity    refill   clients   people    requests  share of the load
                               refused  refused     refused  refused
    15/h        20    80 min         3        0       1,128   88.1% ██████████████████
    30/h        20    40 min         3        0       1,113   87.0% █████████████████
     1/m        20    20 min         3        0       1,083   84.6% █████████████████
*    2/m        20    10 min         3        0       1,023   79.9% ████████████████
     4/m        20     5 min         3        0         903   70.5% ██████████████
`
	if got := got; !strings.HasPrefix(got, want) {
		t.Errorf("got\n%s\nwant it to begin with\n%s", got, want)
	}
	for _, want := range []string{
		"\nRecommended: a burst of 20 requests, and 2 requests a minute after it. It would have refused 3 of 23 clients and 1,023 of 1,280 requests, 79.9% of the load, and nobody who looks like a person. Up to 88.1% could be removed with 20 15/h, but then a client would wait 80 min for its whole burst, not 10 min.\n",
		"\nNo address of this log had more than 1 person. An office where 30 people begin at once would need a burst of about 61: give its address an override.\n",
		"\nWho would be refused, of 3 clients:\n\n  client                                   requests   refused    assets  looks like\n  203.0.113.0                                   400       341         0  robot\n    2026-11-02 12:00 to 2026-11-02 12:19, mostly /page/*, no user agent\n",
		"\nTo paste into the Caddyfile:\n\nthrottle {\n\tzone pages {\n\t\texempt static_files # if Caddy does not see the files: exempt path /assets/*\n\t\tlimit 20 2/m\n\t\tshadow # log only; remove it to enforce the limit\n\t}\n}\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("got\n%s\nwant it to contain %q", got, want)
		}
	}
}

// TestTheLimitOfTheFirstDaysIsJudgedByTheRest: a log whose last day is another traffic gives
// no limit.
func TestTheLimitOfTheFirstDaysIsJudgedByTheRest(t *testing.T) {
	for _, other := range []bool{false, true} {
		var hits []hit
		for day := range 10 {
			for p := range 20 {
				pages := 4
				if other && day >= 8 {
					pages = 90
				}
				hits = append(hits, visits(fmt.Sprintf("198.51.100.%d", p), time.Duration(day)*24*time.Hour+time.Duration(p)*time.Hour, pages, time.Second)...)
			}
			for n := range 3 {
				for _, h := range scrapes(fmt.Sprintf("203.0.113.%d", n), 1000, 3*time.Second) {
					h.at += time.Duration(day) * 24 * time.Hour
					hits = append(hits, h)
				}
			}
		}
		slices.SortStableFunc(hits, func(a, b hit) int { return cmp.Compare(a.at, b.at) })
		r := study(t, Options{Spare: 100}, hits...)
		h := r.HoldOut
		if h == nil {
			t.Fatal("got no hold-out, want one")
		}
		if !other && (len(r.Withheld) > 0 || h.Capacity != r.Units.Best().Capacity || h.People != 0 || h.Load < 0.5) {
			t.Errorf("days of one kind: got %+v and withheld %q, want the limit %+v to hold in the rest", h, r.Withheld, r.Units.Best())
		}
		if other && (len(r.Withheld) != 1 || r.Caddyfile != "" || h.People != 20) {
			t.Errorf("last days of another kind: got %+v and withheld %q, want all 20 people refused, and no limit", h, r.Withheld)
		}
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
	if !strings.Contains(text, "\nUntil there is a better log, begin with limit 120 2/s in shadow.\n") {
		t.Errorf("got\n%s\nwant a starting point", text)
	}
}

// The burst is the largest of the round ones that removes nearly as much as the least, by trying
// each.
func TestTheBurstIsTheMostGenerousThatRemovesNearlyAsMuch(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 40 {
		in := siteOf(Options{Spare: 100}, nil)
		at := noon
		for range 3000 {
			at = at.Add(time.Duration(random.Int64N(2e9)))
			key := fmt.Sprintf("scraper%d", random.IntN(3))
			if random.IntN(4) == 0 {
				key = fmt.Sprintf("person%d", random.IntN(200))
			}
			in.charge(&accesslog.Request{At: at}, key, 1)
		}
		for id := range in.keys {
			in.weights = append(in.weights, float64(strings.Count(in.keys[id].name, "person")))
		}
		leak := random.IntN(8) + 4
		rung := in.rungs(ladder[leak])[0]
		least := rung.judge(rung.capacityFor(1), nothing)
		got := generous(rung, least)
		want := least.Capacity
		for capacity := want + 1; capacity <= rate(least.Leak)*600; capacity++ {
			p := rung.judge(capacity, nothing)
			digits := strings.TrimRight(numberText(capacity), "0")
			if up := capacity/math.Pow10(len(numberText(capacity))-1) == math.Ceil(least.Capacity/math.Pow10(len(numberText(least.Capacity))-1)); p.RefusedLoad >= 0.95*least.RefusedLoad && (up || strings.Contains("1 2 3 4 5 6 8", digits)) {
				want = capacity
			}
		}
		if got.Capacity != want || want > least.Capacity && got.RefusedLoad < 0.95*least.RefusedLoad {
			t.Errorf("leak %s: got the burst %v for the least %v, want %v", ladder[leak], got.Capacity, least.Capacity, want)
		}
	}
}

// Crawlers that the limit would refuse are named, with what lets the real ones pass.
func TestRefusedCrawlersAreNamed(t *testing.T) {
	s := siteOf(Options{Spare: 99, Key: "client_ip"}, nil)
	for n := range 500 {
		for addr, agent := range map[string]string{
			"66.249.66.1": "Mozilla/5.0 (Linux; Android 6.0.1; Nexus 5X Build/MMB29P) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/140.0.7339.207 Mobile Safari/537.36 (compatible; Googlebot/2.1; +http://www.google.com/bot.html)",
			"157.55.39.1": "Mozilla/5.0 (compatible; bingbot/2.0)", "203.0.113.1": []string{"Mozilla", "Mozilla (Applebot/0.1)"}[min(1, n/300)],
		} {
			r, err := request(fmt.Sprintf("%s - - [%s] \"GET /a/%d HTTP/1.1\" 200 1 \"-\" %q\n", addr, noon.Add(time.Duration(n)*time.Second).Format("02/Jan/2006:15:04:05 -0700"), n, agent))
			if err != nil {
				t.Fatal(err)
			}
			s.known.Add(r)
			s.charge(r, addr, 1)
		}
	}
	r := s.Result(0)
	if want := []string{"applebot", "bingbot", "googlebot"}; !slices.Equal(r.Crawlers, want) || !strings.Contains(strings.Join(r.Notes, "\n"), "exempt verified_crawler applebot bingbot googlebot.") {
		t.Errorf("got the crawlers %v and the notes %q, want %v", r.Crawlers, r.Notes, want)
	}
	if len(r.Refused) != 3 || r.Refused[0].Asks != "/a/*" {
		t.Errorf("got the refused clients %+v, want three that ask for /a/*", r.Refused)
	}
	for _, k := range r.Refused {
		if want := "as Mozilla and 1 other user agent: it says that it is applebot"; k.Key == "203.0.113.1" && strings.TrimPrefix(k.About(), "mostly /a/*, ") != want {
			t.Errorf("got %+v, want %q", k, want)
		}
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
	if best.Leak != "4/m" || best.Capacity != 30 || best.RefusedKeys != 1 || best.RefusedPeople != 0 {
		t.Errorf("got %+v, want limit 30 4/m, which refuses the scraper alone", best)
	}
	// It sends one each 3 seconds: 30 fit at first, and 4 in each of 30 minutes.
	if want := 600 - 30 - 30*4; best.RefusedRequests < want-2 || best.RefusedRequests > want+2 {
		t.Errorf("got %d refused requests, want about %d", best.RefusedRequests, want)
	}
	if !strings.HasPrefix(r.Units.Reason, "To check: a burst of 30 requests, and 4 requests a minute after it. It would have refused 1 of 21 clients") || !strings.Contains(r.Caddyfile, "limit 30 4/m\n") || len(r.Withheld) > 0 {
		t.Errorf("got %q, withheld %q and\n%s\nwant the limit as it was given", r.Units.Reason, r.Withheld, r.Caddyfile)
	}
	if want := "These limits leave 99% of the people untouched, but for the last, which is to check"; r.promise() != want {
		t.Errorf("got %q, want %q", r.promise(), want)
	}
}

func TestALeakIsSaidAsItWasGiven(t *testing.T) {
	for leak, want := range map[string]string{
		"5/20s":  "and 5 requests every 20s after it",
		"1000/d": "and 1000 requests a day after it",
		"1/s":    "and 1 request a second after it",
	} {
		r := study(t, Options{Spare: 99, Check: Limit{leak, 1}}, scrapes("203.0.113.1", 10, time.Second)...)
		if want = "To check: a burst of 1 request, " + want; !strings.HasPrefix(r.Units.Reason, want) {
			t.Errorf("%s: got %q, want %q", leak, r.Units.Reason, want)
		}
	}
}

// A thousand robots below the limit are called a swarm.
func TestASwarmOfQuietAddressesShows(t *testing.T) {
	var hits []hit
	for n := range 1200 {
		if n < 200 {
			hits = append(hits, visits(fmt.Sprintf("198.51.%d.7", n), time.Duration(n)*10*time.Minute, 5, time.Second)...)
			hits = append(hits, hit{fmt.Sprintf("203.0.113.%d", n), time.Duration(n) * 10 * time.Minute, "/a", accesslog.NoDuration})
		}
		hits = append(hits, hit{fmt.Sprintf("192.%d.%d.1", n/200, n%200), time.Duration(n) * time.Minute, "/b", accesslog.NoDuration})
	}
	hits = append(hits, scrapes("203.0.113.250", 2000, time.Second)...)
	slices.SortStableFunc(hits, func(a, b hit) int { return cmp.Compare(a.at, b.at) })
	r := study(t, Options{Spare: 99}, hits...)
	if notes := strings.Join(r.Notes, "\n"); !strings.Contains(notes, "1,400 clients that look like no people stay below the limit, and sent 31.8% of the load: a swarm.") {
		t.Errorf("got the notes %s, want the swarm", notes)
	}
}

// No network is more than a twentieth of the people, where these come from as many.
func TestNoNetworkIsMoreThanATwentiethOfThePeople(t *testing.T) {
	for _, c := range []struct {
		others, here int
		want         float64 // of the network, of all weights
	}{{19, 500, 1. / 20}, {100, 900, 1. / 20}, {95, 5, 1. / 20}, {96, 4, 4. / 100}, {18, 500, 500. / 518}} {
		s := siteOf(Options{Spare: 99, Key: "client_ip"}, nil)
		for n := range c.others + c.here {
			addr := fmt.Sprintf("198.51.%d.1", n)
			if n >= c.others {
				addr = fmt.Sprintf("2001:db8:1:%x::1", n)
			}
			for range 2 {
				s.known.Add(&accesslog.Request{At: noon, Client: netip.MustParseAddr(addr), Method: "GET", URI: "/a.css"})
			}
			s.charge(&accesslog.Request{At: noon, Client: netip.MustParseAddr(addr), Method: "GET", URI: "/"}, addr, 1)
		}
		sum, all := 0.0, 0.0
		s.weigh()
		for id, weight := range s.weights {
			all += weight
			if id >= c.others {
				sum += weight
			}
		}
		if math.Abs(sum/all-c.want) > 1e-9 {
			t.Errorf("%d people in a network beside %d in others: got a share of %v, want %v", c.here, c.others, sum/all, c.want)
		}
	}
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
		random.Shuffle(len(trace), func(i, j int) { trace[i], trace[j] = trace[j], trace[i] })
		s := siteOf(Options{}, nil)
		for _, c := range trace {
			s.charge(&accesslog.Request{At: noon.Add(c.at)}, c.key, c.units)
		}
		for id := range s.keys {
			s.weights = append(s.weights, float64(strings.Count(s.keys[id].name, "person")))
		}
		slices.SortStableFunc(trace, func(a, b cost) int { return cmp.Compare(a.at, b.at) })
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
				p := rung.judge(want, nothing)
				if requests, _ := refused(leakybucket.Limit{Capacity: want, Leak: rate(leak)}); got != want || p.RefusedRequests != requests {
					t.Errorf("costs %s, leak %s, spare %v: got the capacity %v and %d refused, want %v and %d", name, leak, spare, got, p.RefusedRequests, want, requests)
				}
			}
		}
	}
}
