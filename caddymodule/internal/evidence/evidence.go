// Package evidence is what a zone has met since its config was loaded. No reader of a config
// can know that zones do what their owner means; requests show it. Begin with [Zone]: it
// counts facts, and says, once, what cannot be meant. It imports decision, and nothing that
// runs.
package evidence

import (
	"hash/maphash"
	"math/bits"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/decision"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/rule"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/settlement"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/sketch"
	bucketkey "github.com/caddy-throttle/caddy-throttle/leakybucket/key"
)

const (
	// watchedFirst is how many charged requests are looked into. Of later ones it is one in
	// watchedShare.
	watchedFirst = 4096
	watchedShare = 16

	// A sign counts if fewestNetworks show it, and so many of those that came that day.
	fewestNetworks = 20
	mostNetworks   = .8
	judgedAfter    = 24 * time.Hour

	// A zone that no request has met for unmetAfter, and in so many requests of its
	// handlers, is told of, though not as a warning.
	unmetRequests = 20_000
	unmetAfter    = 7 * 24 * time.Hour

	// Exempt matches nearly all if it does for spareMost times the networks that are charged.
	spareMost = 50

	// The key is missing in nearly all requests if one in keylessMost has it at most.
	keylessMost = 100

	// nearNetworks must have had a near miss of a zone, and an answer to it.
	nearNetworks = 3
)

// A sign is what a network may show of a zone in a day.
type sign uint8

const (
	came         sign = iota // at all
	charged                  // a request was
	spared                   // exempt, by a matcher
	sparedAsSent             // exempt is the address as sent, and not that which a rewrite has made
	keyless                  // its key lacks a part
	settledBy                // a response said what a request cost
	untold                   // a response did not
	loginCharged             // charged was a redirect with a new cookie that scripts cannot read
	oneItem                  // a body had one item, or what counts them found none
	moreItems                // a body had more
	signs
)

// networkBits is the size of a set of networks. When a quarter of the bits are set, the day
// has shown enough, and two networks that share a bit begin to blur it.
const networkBits = 8192

type networkSet [networkBits / 64]atomic.Uint64

// add sets a bit, and reports whether it was clear.
func (s *networkSet) add(bit uint64) bool {
	word, mask := &s[bit/64], uint64(1)<<(bit%64)
	return word.Load()&mask == 0 && word.Or(mask)&mask == 0
}

// Facts are what a zone has met since its config was loaded.
type Facts struct {
	Since    time.Time `json:"since"`
	Requests uint64    `json:"requests"` // of the handlers that have the zone
	Asked    uint64    `json:"asked"`    // of these, those that the zone decided about
	Exempt   uint64    `json:"exempt"`   // or not limited by an override
	Keyless  uint64    `json:"without_key"`
	Keys     uint64    `json:"keys"` // at least, as are the networks: of many requests a sample is looked at
	Networks uint64    `json:"networks"`
	Charged  uint64    `json:"charged"`  // reservations that were kept when the response was known
	Refunded uint64    `json:"refunded"` // reservations that were given back
}

// Options are what a zone's evidence depends on.
type Options struct {
	Logger   *zap.Logger
	Requests func() uint64 // how many the handlers had that have the zone

	NamedKey     bool // the key is a header or a parameter
	MissingGiven bool // the config says what a missing key means
}

// A Zone is what a zone of one config has met. It takes at most 64 KiB.
type Zone struct {
	Options
	rule  *rule.Rule
	paths []nearPath
	since time.Time
	seed  maphash.Seed

	asked, exempt, asSent, keyless, charged, refunded, untold atomic.Uint64

	keys, networks sketch.Distinct

	day struct {
		sets  [signs]networkSet
		count atomic.Int64 // bits of the networks that came
		keys  networkSet   // of hashes of keys
	}

	dayEnds atomic.Int64 // Unix nanoseconds

	mu         sync.Mutex
	near, made []netip.Prefix // that had a near miss and an answer
	told       map[string]bool
}

// New returns the evidence of a zone whose config is loaded now.
func New(compiled *rule.Rule, options Options) *Zone {
	now := time.Now()
	e := &Zone{Options: options, rule: compiled, since: now, seed: maphash.MakeSeed(), told: make(map[string]bool)}
	e.dayEnds.Store(now.Add(judgedAfter).UnixNano())
	return e
}

// count counts a request, and reports whether to look into it.
func count(requests *atomic.Uint64) bool {
	n := requests.Add(1)
	return n <= watchedFirst || n%watchedShare == 0
}

// Facts returns what the zone has met.
func (e *Zone) Facts() Facts {
	e.Judge(time.Now())
	return Facts{
		Since: e.since, Requests: e.Requests(), Asked: e.asked.Load(), Exempt: e.exempt.Load(), Keyless: e.keyless.Load(),
		Keys: e.keys.Estimate(), Networks: e.networks.Estimate(), Charged: e.charged.Load(), Refunded: e.refunded.Load(),
	}
}

// met reports whether a request has met the zone, whatever came of it.
func (e *Zone) met() bool {
	return e.asked.Load() > 0 || e.exempt.Load() > 0 || e.keyless.Load() > 0
}

// network returns the network that signs are counted by.
func network(addr netip.Addr) netip.Prefix { return bucketkey.ClientPrefix(addr, 24, 48) }

// show notes signs of the network of a client.
func (e *Zone) show(client netip.Addr, shown ...sign) {
	if !client.IsValid() {
		return
	}
	hash := maphash.Comparable(e.seed, network(client)) % networkBits
	if e.day.count.Load() > networkBits/4 {
		return
	}
	if e.day.sets[came].add(hash) {
		e.day.count.Add(1)
	}
	for _, s := range shown {
		e.day.sets[s].add(hash)
	}
}

// Decided notes a request that the zone has decided about.
func (e *Zone) Decided(o *decision.Outcome, r *http.Request) {
	if !count(&e.asked) {
		return
	}
	e.keys.Add(o.Key)
	e.day.keys.add(maphash.String(e.seed, o.Key) % networkBits)
	client := o.ClientIP(r)
	e.show(client, charged)
	switch {
	case !e.rule.Cost.IsItems() || r.ContentLength == 0:
	case o.Cost == 1:
		e.show(client, oneItem)
	default:
		e.show(client, moreItems)
	}
	if client.IsValid() {
		var room [48]byte
		e.networks.AddBytes(network(client).AppendTo(room[:0]))
	}
	e.Judge(time.Now())
}

// Met notes a request that the zone did not charge by its key.
func (e *Zone) Met(what decision.Meeting, s *rule.Subject) {
	switch what {
	case decision.NotLimited:
		e.exempt.Add(1)
	case decision.Exempt:
		e.notice(&e.exempt, s, spared)
	case decision.ExemptAsSent:
		e.notice(&e.asSent, s, sparedAsSent)
	case decision.Keyless:
		e.notice(&e.keyless, s, keyless)
	}
}

// notice counts a request, and may look into it.
func (e *Zone) notice(requests *atomic.Uint64, s *rule.Subject, shown sign) {
	if count(requests) {
		e.show(s.Address(), shown)
	}
}

// Settled notes what a request has cost.
func (e *Zone) Settled(o *decision.Outcome, r *http.Request, response *settlement.Observer, cost float64, known bool) {
	of, shown := &e.charged, settledBy
	switch {
	case !known:
		of, shown = &e.untold, untold
	case cost == 0, len(e.rule.Refund) > 0 && cost < o.Cost:
		of = &e.refunded
	}
	if !count(of) {
		return
	}
	client := o.ClientIP(r)
	e.show(client, shown)
	if known && cost > 0 && e.rule.Settle != nil && e.rule.Settle.Source == settlement.Status && response.Status/100 == 3 && newCookie(r, response.Header()) {
		e.show(client, loginCharged)
	}
}

// newCookie reports whether a response sets a cookie for the server alone, as log-ins do,
// that the client did not send.
func newCookie(r *http.Request, header http.Header) bool {
	return slices.ContainsFunc(header["Set-Cookie"], func(line string) bool {
		cookie, err := http.ParseSetCookie(line)
		if err != nil || !cookie.HttpOnly || cookie.MaxAge < 0 || cookie.Value == "" {
			return false
		}
		_, err = r.Cookie(cookie.Name)
		return err != nil
	})
}

// A word says what a day has shown of a zone.
type word struct {
	holds func(e *Zone, d *dayShown) bool
	says  string
}

// dayShown are the networks that have shown each sign in a day, and how many keys came.
type dayShown struct {
	shown [signs]int
	keys  int
}

// mostly reports whether so many networks, of those that could, are enough to tell of.
func mostly(some, all int) bool {
	return some >= fewestNetworks && float64(some) >= mostNetworks*float64(all)
}

// Three signs have no word. No number of networks, days or requests tells a mistake from a site
// that is right, which shows them, too:
//   - Many keys of one network. Guessers try hundreds of names, and an office has hundreds of
//     users. Of other keys that clients choose, Caddy warns when the config is loaded.
//   - Nothing refunded. So it is wherever only guessers log in.
//   - An exempt address that the upstream answers. Owners exempt monitors, feeds, and assets that
//     Rails or Apache serves.
var words = []word{
	{func(_ *Zone, d *dayShown) bool {
		return d.shown[spared] >= fewestNetworks && spareMost*d.shown[charged] <= d.shown[spared]
	},
		"exempt matches nearly all requests, so the zone limits next to nothing: look whether it matches more than was meant"},
	{func(_ *Zone, d *dayShown) bool {
		return mostly(d.shown[sparedAsSent], d.shown[came]) && d.shown[spared] == 0
	},
		"exempt matches addresses as clients send them, and no longer when a rewrite before throttle has changed them, so nothing is exempt: look whether exempt names what the rewrite makes, too"},
	{func(e *Zone, d *dayShown) bool {
		return e.NamedKey && !e.MissingGiven && mostly(d.shown[keyless], d.shown[came]) && keylessMost*e.keyless.Load() >= (keylessMost-1)*e.asked.Load()
	},
		"the key is missing in nearly all requests, which then count by address: look whether its name is spelled as clients send it, or say what is meant by missing"},
	{func(e *Zone, d *dayShown) bool {
		return e.NamedKey && d.shown[charged] >= fewestNetworks && d.shown[keyless] == 0 && d.keys == 1
	},
		"all networks have sent the same key, so all clients share one bucket: look whether the key tells clients apart"},
	{func(e *Zone, d *dayShown) bool {
		return d.shown[settledBy] == 0 && mostly(d.shown[untold], d.shown[charged])
	},
		"no response has said what a request cost, so reservations stay as they are: look whether the upstream sends what settle reads"},
	{func(_ *Zone, d *dayShown) bool {
		return d.shown[moreItems] == 0 && mostly(d.shown[oneItem], d.shown[charged])
	},
		"body_items has found no more than one item in any body: look whether it names the array or the field that clients send"},
	{func(_ *Zone, d *dayShown) bool { return mostly(d.shown[loginCharged], d.shown[settledBy]) },
		"settle charges redirects that bring a new cookie, as log-ins that succeed do: look whether it names the status of those that fail"},
}

// Judge says, once the day is over, what it has shown, and begins another one.
func (e *Zone) Judge(now time.Time) {
	if ends := e.dayEnds.Load(); now.UnixNano() < ends || !e.dayEnds.CompareAndSwap(ends, now.Add(judgedAfter).UnixNano()) {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	d := e.endDay()
	for _, w := range words {
		if w.holds(e, &d) && e.tellOnce(w.says) {
			e.Logger.Warn(w.says)
		}
	}
	const unmet = "no request has met the zone since the config was loaded: look whether its match is what clients ask for"
	const unlisted = "no request has met some overrides of the zone since the config was loaded: look whether they name what clients send"
	if e.met() && now.Sub(e.since) >= unmetAfter {
		if numbers := e.rule.Key.Overrides.Load().Unmet(); len(numbers) > 0 && e.tellOnce(unlisted) {
			e.Logger.Info(unlisted, zap.Ints("overrides", numbers[:min(len(numbers), 20)]))
		}
	}
	if now.Sub(e.since) >= unmetAfter && !e.met() && e.Requests() >= unmetRequests && e.tellOnce(unmet) {
		e.Logger.Info(unmet, zap.Uint64("requests", e.Requests()))
	}
}

// tellOnce reports whether a word is news. The caller holds the lock.
func (e *Zone) tellOnce(says string) bool {
	again := e.told[says]
	e.told[says] = true
	return !again
}

// endDay returns what the day has shown, and forgets it. Requests that are counted meanwhile
// may count on either day.
func (e *Zone) endDay() (d dayShown) {
	sets := &e.day.sets
	for i := range sets[came] {
		d.keys += bits.OnesCount64(e.day.keys[i].Swap(0))
		for s := range sets {
			d.shown[s] += bits.OnesCount64(sets[s][i].Swap(0))
		}
	}
	e.day.count.Store(0)
	return d
}
