// Package swarm sends a site the traffic of people and of robots, and counts what the
// people get. It is an open loop: visitors come when they come, however slow the site
// is. The people behave the same whatever is in front of the site, so that the order of
// service is all that differs.
//
// The site has a page /page.php?ms=<n>&request=<id> that keeps a worker busy for n
// milliseconds, and a page /login.php?user=<name> that logs a member in with a cookie. It
// takes the client's address from X-Forwarded-For.
package swarm

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

// A Site is what is tried.
type Site struct {
	URL string // without a path

	// Reloads says that people see an error page that reloads itself, although the
	// site's own does not say so by a Refresh header.
	Reloads bool

	// Log is a file with a line for each page that a worker has made: the microseconds
	// that it took, a blank, and the query. If empty, nothing is known of the work that
	// nobody got. It is read when the trial is over.
	Log string

	// transport is how requests get there; nil for the network.
	transport http.RoundTripper
}

// A Scenario is the traffic of one trial.
type Scenario struct {
	Workers int // of the site
	Seed    uint64

	// Sessions that begin within From and To, counted from the start, are counted. The
	// robots come from RobotsFrom on. Nobody comes after End, and robots and people who are
	// not counted leave then. The trial ends with the last session.
	RobotsFrom, From, To, End time.Duration

	People  float64       // the worker seconds a second that people ask for
	Flash   float64       // the same, of more newcomers, from RobotsFrom on
	Members float64       // the share of people who are logged in
	Page    time.Duration // the mean time of a page of people
	Think   time.Duration // the mean time between two pages
	Fetches int           // further requests of a page, by a script
	Once    bool          // each person wants one page, and does not come back when refused
	NAT     float64       // the share of people behind one address, members among them

	Robots     float64       // the worker seconds a second that robots ask for
	RobotPage  time.Duration // the mean time of theirs
	Pool       int           // how many robots there are; if zero, each comes once
	Addresses  int           // of the pool; if zero, each robot has one
	Cookies    float64       // the share of the pool that keeps cookies
	SharedPass bool          // one jar for all of these
	Farmed     bool          // these were given cookies before the trial begins

	Scraper float64       // the worker seconds a second that one member asks for
	Exports int           // requests of one member at once, every two minutes
	Export  time.Duration // the time of each
}

// How people behave.
const (
	Patience   = 30 * time.Second // for a page, reloads included
	perRequest = 10 * time.Second // until the client leaves
	reloads    = 3                // that an error page makes by itself
	obey       = 0.95             // the share who let it
	comeBack   = 0.5              // the share who try again by hand, once
	another    = 0.75             // the share who want another page
	mostPages  = 20
)

// A Count is what visitors of one kind got.
type Count struct {
	Sessions, Done     int // sessions whose every page was served in time
	Wanted             int // pages, also those that a lost session did not come to
	Within10, Within30 int
	Fetches, Fetched   int
	Refused            int
	Requests, Served   int
}

// Share returns the share of wanted pages that were served within the patience.
func (c *Count) Share() float64 { return ratio(c.Within30, c.Wanted) }

// FetchShare returns the share of further requests that were served.
func (c *Count) FetchShare() float64 { return ratio(c.Fetched, c.Fetches) }

// Completed returns the share of sessions that got all their pages.
func (c *Count) Completed() float64 { return ratio(c.Done, c.Sessions) }

func ratio(part, whole int) float64 {
	if whole == 0 {
		return math.NaN()
	}
	return float64(part) / float64(whole)
}

// A Result is what a trial has counted.
type Result struct {
	Member, First, NAT Count // people; those on the NAT are not among the others
	Robot, Cookie      Count // robots without and with cookies
	Scraper, Export    Count

	// Utilisation is the share of the workers' time that answers took which arrived.
	Utilisation float64

	// Of the pages that workers made for requests sent between From and To, in seconds: for
	// how long they were asked to work, for how long they did, and what of the first was for
	// answers that nobody got.
	Asked, Took, Wasted float64

	// What a zone says of its requests: how many it decided, and how many it refused, or
	// would have. The caller may add it.
	Decided, Refused int
}

// Stretch returns by which share pages took longer than they were asked to. It tells
// whether the machine was the limit, and not the workers.
func (r *Result) Stretch() float64 { return r.Took/r.Asked - 1 }

// steady is by how much pages may stretch. Some milliseconds are those of PHP itself.
const steady = 0.05

// Disturbed reports whether the machine was too busy for the result to mean anything.
func (r *Result) Disturbed() bool { return r.Stretch() > steady }

// Waste returns the share of the work that was for nobody.
func (r *Result) Waste() float64 { return r.Wasted / r.Asked }

// Refusals returns the share that the zone refused, or would have refused.
func (r *Result) Refusals() float64 { return ratio(r.Refused, r.Decided) }

// A trial is a scenario that runs.
type trial struct {
	Scenario
	site   Site
	client *http.Client
	began  time.Time
	ctx    context.Context
	robots context.Context // ends when they leave
	greedy *client         // the member who exports or scrapes
	all    sync.WaitGroup

	mu     sync.Mutex
	result Result
	busy   time.Duration // of workers, for answers within From and End
	people int
	pages  []sent
}

// What comes at random instants. Each kind has dice of its own, so that the same visitors
// come to every site.
const (
	somePeople = iota
	aFlash
	someRobots
	aScraper
)

// sent is a request for a page.
type sent struct {
	at       time.Duration
	answered bool
}

// Run tries a site. It takes as long as the scenario does.
func Run(ctx context.Context, site Site, s Scenario) (*Result, error) {
	client := &http.Client{Transport: site.transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	if site.transport == nil {
		client.Transport = &http.Transport{MaxIdleConns: 500, MaxIdleConnsPerHost: 500, DisableCompression: true}
		defer client.CloseIdleConnections()
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	t := &trial{Scenario: s, site: site, ctx: ctx, client: client}
	members, err := t.logIn()
	if err != nil {
		return nil, err
	}
	pool := t.pool()
	if s.Farmed {
		if err := t.farm(pool); err != nil {
			return nil, err
		}
	}
	t.began = time.Now()
	var leave context.CancelFunc
	t.robots, leave = context.WithTimeout(ctx, s.End)
	defer leave()
	perPage := s.Page.Seconds()
	t.stream(somePeople, 0, s.People/perPage/s.pagesOfSession(), func(d dice) { t.session(d, d.chance(s.Members), members) })
	t.stream(aFlash, s.RobotsFrom, s.Flash/perPage/s.pagesOfSession(), func(d dice) { t.session(d, false, nil) })
	t.startRobots(pool)
	t.all.Wait()
	t.result.Utilisation = t.busy.Seconds() / (s.End - s.From).Seconds() / float64(s.Workers)
	if site.Log != "" {
		log, err := os.Open(site.Log)
		if err != nil {
			return nil, err
		}
		defer func() { _ = log.Close() }()
		if err := t.addUp(log); err != nil {
			return nil, err
		}
	}
	return &t.result, ctx.Err()
}

// addUp reads what the workers have done.
func (t *trial) addUp(log io.Reader) error {
	lines := bufio.NewScanner(log)
	for lines.Scan() {
		took, query, _ := strings.Cut(lines.Text(), " ")
		values, err := url.ParseQuery(query)
		if err != nil {
			return fmt.Errorf("reading the workers' log: %w", err)
		}
		id, err := strconv.Atoi(values.Get("request"))
		if err != nil || id >= len(t.pages) || t.pages[id].at < t.From || t.pages[id].at > t.To {
			continue // a login, the farming of a pass, or not counted
		}
		micros, err := strconv.ParseFloat(took, 64)
		if err != nil {
			return fmt.Errorf("reading the workers' log: %w", err)
		}
		millis, err := strconv.ParseFloat(values.Get("ms"), 64)
		if err != nil {
			return fmt.Errorf("reading the workers' log: %w", err)
		}
		t.result.Asked += millis / 1e3
		t.result.Took += micros / 1e6
		if !t.pages[id].answered {
			t.result.Wasted += millis / 1e3
		}
	}
	return lines.Err()
}

// manyMembers come back again and again, with a few pages to read each.
const manyMembers = 50

// pagesOfSession returns the mean.
func (s *Scenario) pagesOfSession() float64 {
	if s.Once {
		return 1
	}
	return 1 / (1 - another)
}

// stream calls visit at random instants, so many a second on average, until the end.
func (t *trial) stream(kind uint64, from time.Duration, perSecond float64, visit func(dice)) {
	if perSecond <= 0 {
		return
	}
	t.all.Go(func() {
		next, own := from, diceOf(t.Seed, kind)
		for {
			next += own.exponential(time.Duration(float64(time.Second) / perSecond))
			seed := own.Uint64()
			if next > t.End || !t.sleepUntil(next) {
				return
			}
			t.all.Go(func() { visit(diceOf(seed, kind)) })
		}
	})
}

func (t *trial) now() time.Duration { return time.Since(t.began) }

func (t *trial) sleepUntil(at time.Duration) bool { return t.sleep(at - t.now()) }

func (t *trial) sleep(wait time.Duration) bool {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-t.ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// dice say what one visitor does.
type dice struct{ *rand.Rand }

func diceOf(seed, kind uint64) dice { return dice{rand.New(rand.NewPCG(seed, kind))} }

func (d dice) chance(p float64) bool { return d.Float64() < p }

func (d dice) exponential(mean time.Duration) time.Duration {
	return time.Duration(d.ExpFloat64() * float64(mean))
}

// service draws how long a page takes: log-normal, with a long tail.
func (d dice) service(mean time.Duration) time.Duration {
	const sigma = 0.8
	return time.Duration(float64(mean) * math.Exp(d.NormFloat64()*sigma-sigma*sigma/2))
}

// count changes the result.
func (t *trial) count(change func(*Result)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	change(&t.result)
}

// A client has an address, and a jar if it keeps cookies.
type client struct {
	address string
	jar     *jar
}

// A jar holds cookies.
type jar struct {
	mu      sync.Mutex
	cookies map[string]string
}

func newJar() *jar { return &jar{cookies: make(map[string]string)} }

func (j *jar) send(r *http.Request) {
	if j == nil {
		return
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	for name, value := range j.cookies {
		r.Header.Add("Cookie", name+"="+value)
	}
}

func (j *jar) empty() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return len(j.cookies) == 0
}

func (j *jar) keep(cookies []*http.Cookie) {
	if j == nil {
		return
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, cookie := range cookies {
		j.cookies[cookie.Name] = cookie.Value
		if cookie.MaxAge < 0 {
			delete(j.cookies, cookie.Name)
		}
	}
}

// An answer is what a request got.
type answer struct {
	status  int           // zero if the client left before there was one
	refresh bool          // the page reloads itself
	retry   time.Duration // after that
}

func (a answer) ok() bool { return a.status == http.StatusOK }

// page asks for a page that keeps a worker busy for so long.
func (t *trial) page(ctx context.Context, c *client, mode string, patience, service time.Duration) answer {
	t.mu.Lock()
	id := len(t.pages)
	t.pages = append(t.pages, sent{at: t.now()})
	t.mu.Unlock()
	a := t.ask(ctx, c, fmt.Sprintf("/page.php?ms=%d&request=%d", service.Milliseconds(), id), mode, patience)
	if !a.ok() {
		return a
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.pages[id].answered = true
	if now := t.now(); now >= t.From && now <= t.End {
		t.busy += service
	}
	return a
}

// ask sends a request. The client leaves when its patience is over.
func (t *trial) ask(ctx context.Context, c *client, path, mode string, patience time.Duration) answer {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, t.site.URL+path, nil)
	if err != nil {
		return answer{}
	}
	accept := "text/html"
	if mode == script {
		accept = "application/json"
	}
	for name, value := range map[string]string{
		"X-Forwarded-For": c.address, "X-Forwarded-Proto": "https", "User-Agent": "Mozilla/5.0", "Accept": accept, "Sec-Fetch-Mode": mode,
	} {
		r.Header.Set(name, value)
	}
	c.jar.send(r)
	response, err := t.client.Do(r)
	if err != nil {
		return answer{}
	}
	defer func() { _ = response.Body.Close() }()
	if _, err := io.Copy(io.Discard, response.Body); err != nil {
		return answer{}
	}
	c.jar.keep(response.Cookies())
	a := answer{status: response.StatusCode}
	if seconds, err := strconv.Atoi(response.Header.Get("Retry-After")); err == nil {
		a.retry = time.Duration(seconds) * time.Second
	}
	if text, _, _ := strings.Cut(response.Header.Get("Refresh"), ";"); text != "" {
		if seconds, err := strconv.ParseFloat(text, 64); err == nil {
			a.refresh, a.retry = true, time.Duration(seconds*float64(time.Second))
		}
	}
	return a
}

// How a browser asks.
const (
	navigation = "navigate"
	script     = "cors"
)

// Add adds what another trial has counted. Utilisations are summed up, too.
func (r *Result) Add(other *Result) {
	for to, from := range map[*Count]*Count{
		&r.Member: &other.Member, &r.First: &other.First, &r.NAT: &other.NAT, &r.Robot: &other.Robot, &r.Cookie: &other.Cookie,
		&r.Scraper: &other.Scraper, &r.Export: &other.Export,
	} {
		to.add(from)
	}
	r.Utilisation += other.Utilisation
	r.Asked += other.Asked
	r.Took += other.Took
	r.Wasted += other.Wasted
	r.Decided += other.Decided
	r.Refused += other.Refused
}

func (c *Count) add(other *Count) {
	c.Sessions += other.Sessions
	c.Done += other.Done
	c.Wanted += other.Wanted
	c.Within10 += other.Within10
	c.Within30 += other.Within30
	c.Fetches += other.Fetches
	c.Fetched += other.Fetched
	c.Refused += other.Refused
	c.Requests += other.Requests
	c.Served += other.Served
}
