package sketch

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/key"
)

const (
	// Span is how long a part lasts, and parts is how many are kept: the one that runs and
	// three before it.
	Span  = 20 * time.Second
	parts = 4

	// So many requests of a part are counted one by one, admitted and refused ones apart. From
	// then on a sample is, of which each further so many halve the share, down to one in mostWeight.
	exactly, halveAfter, mostWeight = 2000, 500, 1024

	// A sender is listed from so many requests of a sample on. Of fewer, a sample says
	// nothing: any client with one request may be among them.
	leastSamples = 4
)

// A Recent keeps who made most requests lately, and who was refused most, in bounded
// memory: by key and by network. It counts about the last minute, if [Recent.Turn] is called
// each [Span]. It is safe for concurrent use. The zero Recent is ready for use.
//
// Of many requests, a random sample is counted, which stands for the others.
type Recent struct {
	less [2]atomic.Uint32 // of admitted and refused requests, one in less+1 is counted

	mu   sync.Mutex
	part [parts]part // the one that runs comes first
}

type part struct {
	began   time.Time // zero if none was
	tallies [2]tally  // of admitted and refused requests
}

// A tally counts requests by each grouping.
type tally struct {
	samples, total int
	least          int // requests that a sender has at least that is listed
	keys           Counter[string]
	nets           [len(masks)]Counter[netip.Prefix]
}

// masks are the networks by which requests are counted.
var masks = [...]struct{ ipv4, ipv6 int }{{32, 64}, {24, 48}, {16, 32}}

// A Kind is that of a request.
type Kind int

// The kinds.
const (
	Admitted Kind = iota
	Refused
)

// A Grouping is what requests are counted by.
type Grouping int

// The groupings. For IPv6, they are by /64, /48 and /32.
const (
	ByKey Grouping = iota - 1
	ByAddress
	By24
	By16
)

// Turn begins the next part, in which each request is counted again, and forgets the oldest.
func (r *Recent) Turn(now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	copy(r.part[1:], r.part[:])
	r.part[0] = part{began: now}
	r.less[0].Store(0)
	r.less[1].Store(0)
}

// Weight returns for how many an admitted or a refused request stands that is to be counted, or 0
// if it is not. n is another number for each request: steps of the golden ratio spread even
// consecutive ones evenly (Knuth, The Art of Computer Programming, volume 3, section 6.4).
func (r *Recent) Weight(kind Kind, n uint64) int {
	less := r.less[kind].Load()
	if less == 0 || uint32(n*0x9E3779B97F4A7C15>>32)&less == 0 {
		return int(less) + 1
	}
	return 0
}

// Add counts a request that stands for weight of them. An invalid address is none.
func (r *Recent) Add(kind Kind, key string, addr netip.Addr, weight int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	t := &r.part[0].tallies[kind]
	if t.samples < exactly {
		weight = 1 // it may be that of the part before
	}
	t.add(key, addr, weight)
	if more := t.samples - exactly; more >= 0 && more%halveAfter == 0 {
		times := min(2<<min(more/halveAfter, 16), mostWeight)
		r.less[kind].Store(uint32(times - 1))
		t.least = leastSamples * times
	}
}

func (t *tally) add(name string, addr netip.Addr, times int) {
	t.samples++
	t.total += times
	t.keys.Add(name, times)
	if !addr.IsValid() {
		return
	}
	for i := range t.nets {
		t.nets[i].Add(key.ClientPrefix(addr, masks[i].ipv4, masks[i].ipv6), times)
	}
}

// A Summary is who made most requests.
type Summary struct {
	Since             time.Time // what is counted
	Admitted, Refused int
	Busiest           []Sender // the one with most requests first; none of whom a sample says too little
	MostRefused       []Sender // the one with most refusals first
}

// A Sender is a key or a network. Its numbers are lower bounds, but for what a sample
// varies by.
type Sender struct {
	Name     string `json:"key"`
	Requests int    `json:"requests"` // admitted and refused
	Refused  int    `json:"refused"`
	Sampled  bool   `json:"sampled,omitempty"` // the numbers stand for others that were not counted
}

// Top returns at most n keys or networks of each kind.
func (r *Recent) Top(by Grouping, n int) (s Summary) {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := make(map[string]*sum)
	for i := range r.part {
		p := &r.part[i]
		if !p.began.IsZero() {
			s.Since = p.began
		}
		s.Admitted += p.tallies[Admitted].total
		s.Refused += p.tallies[Refused].total
		for kind := range p.tallies {
			p.tallies[kind].addTo(all, kind, by)
		}
	}
	s.Busiest = first(all, n, func(of *sum) (int, int) { return of.times[0] + of.times[1], max(of.least[0], of.least[1]) })
	s.MostRefused = first(all, n, func(of *sum) (int, int) { return of.times[1], of.least[1] })
	return s
}

// A sum is the admitted and the refused requests of a sender, and how many of them it has
// at least if it is listed.
type sum struct{ times, least [2]int }

// addTo adds what was counted to the sums of all senders.
func (t *tally) addTo(all map[string]*sum, kind int, by Grouping) {
	add := func(name string, times int) {
		if all[name] == nil {
			all[name] = new(sum)
		}
		of := all[name]
		of.times[kind] += times
		of.least[kind] = max(of.least[kind], t.least)
	}
	if by == ByKey {
		for _, k := range t.keys.Top(standard) {
			add(k.Key, k.AtLeast)
		}
		return
	}
	for _, k := range t.nets[by].Top(standard) {
		name := k.Key.String()
		if k.Key.Addr().Is4() {
			name = strings.TrimSuffix(name, "/32") // as people write an address
		}
		add(name, k.AtLeast)
	}
}

// first returns the n senders with the highest measure, of those who reach the least.
func first(all map[string]*sum, n int, measure func(*sum) (times, least int)) []Sender {
	var names []string
	for name, of := range all {
		if times, least := measure(of); times >= max(1, least) {
			names = append(names, name)
		}
	}
	times := func(name string) int { times, _ := measure(all[name]); return times }
	slices.SortFunc(names, func(a, b string) int { return cmp.Or(times(b)-times(a), cmp.Compare(a, b)) })
	first := []Sender{}
	for _, name := range names[:min(n, len(names))] {
		of := all[name]
		first = append(first, Sender{name, of.times[0] + of.times[1], of.times[1], of.least[0]+of.least[1] > 0})
	}
	return first
}
