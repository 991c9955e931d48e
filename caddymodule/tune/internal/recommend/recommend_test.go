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
	"github.com/caddy-throttle/caddy-throttle/caddymodule/tune/internal/accesslog"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/tune/internal/survey"
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

// study returns a study of requests, charged to their addresses. Assets are not charged.
func study(t *testing.T, o Options, hits ...hit) *Result {
	t.Helper()
	clients := NewClients()
	o.Key = "client_ip"
	s := NewStudy("", clients, o)
	assets := 0
	for _, h := range hits {
		r := &accesslog.Request{At: noon.Add(h.at), Client: netip.MustParseAddr(h.addr), Method: "GET", URI: h.uri, Status: 200, Duration: h.duration}
		clients.Add(r)
		if r.Asset() {
			assets++
			continue
		}
		s.Add(r, h.addr, 1)
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
	for i, leak := range leaksOf(ladder) {
		if want, err := leakybucket.ParseRate(ladder[i]); err != nil || leak != want || leak <= last {
			t.Errorf("%s: got %v, %v, want a rate above %v", ladder[i], leak, err, last)
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
	if top := people.Top[0]; top.Key != "203.0.113.1" || top.Looks != accesslog.Robot || top.Refused != best.RefusedRequests {
		t.Errorf("got %+v, want the scraper with all %d refusals", top, best.RefusedRequests)
	}
}

func TestChooseForgivesWithinTenMinutesIfItCan(t *testing.T) {
	point := func(capacity, refill, load float64) survey.Point {
		return survey.Point{Limit: leakybucket.Limit{Capacity: capacity, Leak: capacity / refill}, RefusedLoad: load}
	}
	for _, c := range []struct {
		name   string
		points []survey.Point
		want   int
	}{
		{"the fastest leak of equals", []survey.Point{point(50, 900, 0.5), point(40, 600, 0.5), point(30, 300, 0.5)}, 2},
		{"nearly as much load counts as as much", []survey.Point{point(40, 500, 0.5), point(30, 300, 0.48)}, 1},
		{"much less load does not", []survey.Point{point(40, 500, 0.5), point(30, 300, 0.3)}, 0},
		{"what forgives too late does not count", []survey.Point{point(90, 9000, 0.9), point(30, 300, 0.1)}, 1},
		{"none forgives in time", []survey.Point{point(9000, 9000, 0.9), point(8000, 5000, 0.1)}, 1},
	} {
		if got := choose(c.points); got != c.want {
			t.Errorf("%s: got %d, want %d", c.name, got, c.want)
		}
	}
}

func TestAnOfficeIsProposedForAnOverride(t *testing.T) {
	clients := NewClients()
	s := NewStudy("", clients, Options{Spare: 90, Key: "client_ip"})
	add := func(addr, agent string, at time.Duration, uri string) {
		r, err := request(fmt.Sprintf("%s - - [%s] \"GET %s HTTP/1.1\" 200 1 \"-\" %q\n", addr, noon.Add(at).Format("02/Jan/2006:15:04:05 -0700"), uri, agent))
		if err != nil {
			t.Fatal(err)
		}
		clients.Add(r)
		if !r.Asset() {
			s.Add(r, addr, 1)
		}
	}
	for p := range 40 {
		addr := fmt.Sprintf("198.51.100.%d", p)
		add(addr, "Mozilla", time.Duration(p)*time.Second, "/")
		add(addr, "Mozilla", time.Duration(p)*time.Second, "/x.css")
		add(addr, "Mozilla", time.Duration(p)*time.Second, "/x.js")
	}
	for n := range 60 {
		at := time.Minute + time.Duration(n/30)*25*time.Hour + time.Duration(n%30)*time.Second
		add("203.0.113.10", fmt.Sprintf("Mozilla/%d", n%12), at, "/")
		add("203.0.113.10", fmt.Sprintf("Mozilla/%d", n%12), at, "/x.css")
		add("203.0.113.66", "bot", at, "/")
	}
	r := s.Result(0)
	best := r.Units.Best()
	if len(r.Overrides) != 1 || r.Overrides[0].Key != "203.0.113.10" || r.Overrides[0].Agents != 12 {
		t.Fatalf("got overrides %+v, want one for the office", r.Overrides)
	}
	if o := r.Overrides[0]; o.Capacity < best.Capacity || o.Leak != best.Leak {
		t.Errorf("got an override of %v %s, want more than %v %s", o.Capacity, o.Leak, best.Capacity, best.Leak)
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

func TestDurationsGiveWorkAndSlots(t *testing.T) {
	var hits []hit
	for p := range 30 { // one request after the other
		for n := range 3 {
			hits = append(hits, hit{fmt.Sprintf("198.51.100.%d", p), time.Duration(n) * time.Second, "/x.css", 0})
			hits = append(hits, hit{fmt.Sprintf("198.51.100.%d", p), time.Duration(n) * time.Second, "/", 500 * time.Millisecond})
		}
	}
	for n := range 12 { // four at once
		hits = append(hits, hit{"203.0.113.1", time.Duration(n/4) * 10 * time.Second, "/", 2 * time.Second})
	}
	r := study(t, Options{Spare: 90}, hits...)
	if r.Seconds == nil || r.Seconds.Load != 30*3*0.5+12*2 {
		t.Fatalf("got %+v, want a load of 69 seconds", r.Seconds)
	}
	if want := (InFlight{Slots: 1, Most: 4, All: 34, RefusedKeys: 1}); *r.InFlight != want {
		t.Errorf("got %+v, want %+v", *r.InFlight, want)
	}
	if best := r.Seconds.Best(); best.RefusedKeys != 1 || best.Capacity > 3 {
		t.Errorf("got %+v, want a limit of few seconds that refuses the one client", best)
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
		{"few people", Options{Spare: 99.9}, append(visits("198.51.100.1", 0, 2, 0), visits("198.51.100.2", 0, 2, 0)...), "99.9% of 2 people is all of them"},
		{"a short span", Options{Spare: 99}, visits("198.51.100.1", 0, 3, time.Hour), "The log covers only 2 h"},
		{"one key", Options{Spare: 99}, long, "203.0.113.1 sent 100.0% of the load. If that is your proxy"},
		{"one key is most", Options{Spare: 99}, append(visits("198.51.100.1", 0, 3, time.Minute), long...), "203.0.113.1 sent 95.2% of the load"},
		{"no assets", Options{Spare: 99}, long, "No client looks like a person"},
		{"no durations", Options{Spare: 99}, long, "no durations"},
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
13.0% of all clients may be either: they named no robot, and loaded few assets or none.
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
		"\n  network                                   clients    people  requests   refused  load\n  203.0.113.0/24                                  3         0     1,200     1,023  93.8%\n  198.51.100.0/24                                20        20        80         0  6.2%\n",
		"\nWho would be refused, of 3 clients:\n\n  client                                   requests   refused    assets  looks like\n  203.0.113.0                                   400       341         0  robot\n    2026-11-02 12:00 to 2026-11-02 12:19, mostly /page/*\n",
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
	if r.Seconds == nil || strings.Contains(text, "in_flight") || strings.Contains(text, "settle seconds") {
		t.Errorf("got\n%s\nwant no limit of work either", text)
	}
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
		in := survey.New(leaksOf(ladder))
		at := leakybucket.Instant(1.7e15)
		for range 3000 {
			at += leakybucket.Instant(random.Int64N(2e6))
			key := fmt.Sprintf("scraper%d", random.IntN(3))
			if random.IntN(4) == 0 {
				key = fmt.Sprintf("person%d", random.IntN(200))
			}
			in.Add(key, at, 1, -1)
		}
		for id := range in.Keys {
			in.Weights[id] = float64(strings.Count(in.Name(id), "person"))
		}
		points := in.Curve(1, 1)
		leak := random.IntN(8) + 4
		least := points[leak]
		rung := in.Rung(leak)
		got := generous(rung, least)
		want := least.Capacity
		for capacity := want + 1; capacity <= least.Leak*600; capacity++ {
			p := rung.Judge(capacity)
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
	clients := NewClients()
	s := NewStudy("", clients, Options{Spare: 99, Key: "client_ip"})
	for n := range 500 {
		for addr, agent := range map[string]string{
			"66.249.66.1": "Mozilla/5.0 (Linux; Android 6.0.1; Nexus 5X Build/MMB29P) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/140.0.7339.207 Mobile Safari/537.36 (compatible; Googlebot/2.1; +http://www.google.com/bot.html)",
			"157.55.39.1": "Mozilla/5.0 (compatible; bingbot/2.0)", "203.0.113.1": []string{"Mozilla", "Mozilla (Applebot/0.1)"}[min(1, n/300)],
		} {
			r, err := request(fmt.Sprintf("%s - - [%s] \"GET /a/%d HTTP/1.1\" 200 1 \"-\" %q\n", addr, noon.Add(time.Duration(n)*time.Second).Format("02/Jan/2006:15:04:05 -0700"), n, agent))
			if err != nil {
				t.Fatal(err)
			}
			clients.Add(r)
			s.Add(r, addr, 1)
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
		if want := ", as Mozilla and 1 other user agent: it says that it is applebot"; k.Key == "203.0.113.1" && k.said() != want {
			t.Errorf("got %q, want %q", k.said(), want)
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

// Numbers in the place of durations that cannot be times give no limits.
func TestDurationsThatCannotBeAreLeftOut(t *testing.T) {
	for _, c := range []struct {
		about string
		took  func(n int) time.Duration
		want  bool
	}{
		{"times", func(n int) time.Duration { return time.Duration(n%17) * 10 * time.Millisecond }, true},
		{"zeros", func(int) time.Duration { return 0 }, false},
		{"a count of requests", func(n int) time.Duration { return time.Duration(n) * time.Microsecond * 10_000 }, false},
		{"tiny numbers", func(n int) time.Duration { return time.Duration(n%3) * time.Microsecond }, false},
	} {
		var hits []hit
		for n := range 300 {
			hits = append(hits, hit{fmt.Sprintf("198.51.100.%d", n%20), time.Duration(n) * time.Second, "/", c.took(n)})
		}
		r := study(t, Options{Spare: 99}, hits...)
		if got := r.Seconds != nil && r.InFlight != nil; got != c.want || strings.Contains(strings.Join(r.Notes, "\n"), "cannot be times") == c.want {
			t.Errorf("%s: got limits by durations: %v, and the notes %q", c.about, got, r.Notes)
		}
	}
}

// A network whose addresses are quiet one by one is shown, and a thousand robots below the
// limit are called a swarm.
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
	refused := r.Units.Best().RefusedRequests
	if want := []Network{{"203.0.113.0/24", 201, 0, 2200, refused, 2200. / 4400}}; !slices.Equal(r.Networks, want) {
		t.Errorf("got %+v, want %+v", r.Networks, want)
	}
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
		clients := NewClients()
		s := NewStudy("", clients, Options{Spare: 99, Key: "client_ip"})
		for n := range c.others + c.here {
			addr := fmt.Sprintf("198.51.%d.1", n)
			if n >= c.others {
				addr = fmt.Sprintf("2001:db8:1:%x::1", n)
			}
			for range 2 {
				clients.Add(&accesslog.Request{At: noon, Client: netip.MustParseAddr(addr), Method: "GET", URI: "/a.css"})
			}
			s.Add(&accesslog.Request{At: noon, Client: netip.MustParseAddr(addr), Method: "GET", URI: "/"}, addr, 1)
		}
		sum, all := 0.0, 0.0
		for id, weight := range s.weights() {
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
