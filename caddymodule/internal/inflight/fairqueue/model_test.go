package fairqueue

import (
	"cmp"
	"encoding/binary"
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/testseed"
)

// A model is the law written down as plainly as it can be: one list of requests,
// searched for everything.
type model struct {
	limits   Limits
	mean     float64
	requests []*modelled // that wait or hold a slot, in the order of arrival
	virtual  [Ranks]int64
	owed     int64 // slot time that members have had beyond nine times that of others
	used     map[Rank]map[string]int64
}

type modelled struct {
	request *Request
	rank    Rank
	keys    []string
	turn    int64
	charge  int64
	tenth   int64 // what it has taken of that of others
	serving bool
}

func newModel() *model {
	m := &model{mean: 1e6, used: make(map[Rank]map[string]int64)}
	for rank := range Rank(Ranks) {
		m.used[rank] = make(map[string]int64)
	}
	return m
}

// count returns how many requests there are with some property.
func (m *model) count(is func(*modelled) bool) (n int) {
	for _, r := range m.requests {
		if is(r) {
			n++
		}
	}
	return n
}

func (m *model) running() int {
	return m.count(func(r *modelled) bool { return r.serving })
}

func (m *model) capped(r *modelled) bool {
	for _, key := range r.keys {
		held := m.count(func(o *modelled) bool { return o.serving && slices.Contains(o.keys, key) })
		if float64(held) >= float64(m.limits.Slots)/2 {
			return true
		}
	}
	return false
}

// crowds reports whether half the slots are held by members of the network of a member.
func (m *model) crowds(r *modelled) bool {
	held := m.count(func(o *modelled) bool {
		return o.serving && o.rank == Member && o.request.Network == r.request.Network
	})
	return r.rank == Member && r.request.Network != netip.Prefix{} && float64(held) >= float64(m.limits.Slots)/2
}

// row returns those who wait, in order.
func (m *model) row() (row []*modelled) {
	for _, r := range m.requests {
		if !r.serving {
			row = append(row, r)
		}
	}
	slices.SortStableFunc(row, func(a, b *modelled) int {
		return cmp.Or(cmp.Compare(a.rank, b.rank), cmp.Compare(a.turn, b.turn))
	})
	return row
}

// next returns who gets a free slot: the first that is not capped, otherwise the
// first, unless the slot is the last free one.
func (m *model) next(row []*modelled) *modelled {
	free := m.limits.Slots - m.running()
	if free <= 0 || len(row) == 0 {
		return nil
	}
	for _, r := range row {
		if m.owed > 0 && r.rank != Member && !m.capped(r) {
			return r
		}
	}
	for _, r := range row {
		if r.rank == Member && !m.capped(r) && !m.crowds(r) {
			return r
		}
	}
	for _, r := range row {
		if !m.capped(r) {
			return r
		}
	}
	if free == 1 {
		return nil
	}
	if other := slices.IndexFunc(row, func(r *modelled) bool { return r.rank != Member }); m.owed > 0 && other > 0 {
		return row[other]
	}
	return row[0]
}

func (m *model) serve(r *modelled) {
	r.serving = true
	m.virtual[r.rank] = max(m.virtual[r.rank], r.turn)
	if r.rank != Member {
		r.tenth = int64(m.mean)
		m.owe(-9 * r.tenth)
	}
}

// owe adds to what members have had beyond nine times what others have.
func (m *model) owe(more int64) {
	m.owed = max(m.owed+more, -9*int64(m.mean)*int64(m.limits.Slots))
	if m.count(func(r *modelled) bool { return !r.serving && r.rank != Member }) == 0 {
		m.owed = min(m.owed, 0)
	}
	if len(m.requests) == 0 {
		m.owed = 0
	}
}

// end removes a request, which has used so much, and forgets its keys if it was
// their last one.
func (m *model) end(r *modelled, used int64) {
	m.requests = slices.DeleteFunc(m.requests, func(o *modelled) bool { return o == r })
	for _, key := range r.keys {
		m.used[r.rank][key] += used - r.charge
		if m.count(func(o *modelled) bool { return o.rank == r.rank && slices.Contains(o.keys, key) }) == 0 {
			delete(m.used[r.rank], key)
		}
	}
	if r.rank == Member {
		m.owe(used)
	} else {
		m.owe(9 * (r.tenth - used))
	}
}

func (m *model) arrive(request *Request) (becomes Outcome, displaced *Request) {
	r := &modelled{request: request, rank: request.Rank, turn: m.virtual[request.Rank], charge: int64(m.mean)}
	for _, key := range request.Keys {
		if key != "" && !slices.Contains(r.keys, key) {
			r.keys = append(r.keys, key)
			r.turn = max(r.turn, m.used[r.rank][key])
		}
	}
	row := m.row()
	if m.next(row) == nil && m.next([]*modelled{r}) == r {
		m.add(r)
		m.serve(r)
		return Served, nil
	}
	ahead := slices.IndexFunc(row, func(o *modelled) bool {
		return o.rank > r.rank || o.rank == r.rank && o.turn > r.turn
	})
	if ahead < 0 {
		ahead = len(row)
	}
	slots := float64(max(1, m.limits.Slots))
	predicted := float64(ahead+1) * m.mean / slots
	if r.rank != Member {
		members := 0
		for _, o := range row {
			if o.rank == Member {
				members++
			}
		}
		owing := max(0, 9*m.mean*float64(ahead-members)-float64(m.owed))
		predicted = min(predicted, (owing+m.mean)/slots)
	}
	if time.Duration(predicted*1000) > m.limits.Wait || m.limits.Wait == 0 {
		return TooLong, nil
	}
	for _, key := range r.keys {
		waiting := m.count(func(o *modelled) bool { return !o.serving && slices.Contains(o.keys, key) })
		if 10*waiting >= m.limits.Queue && (r.rank != First || waiting >= m.limits.Queue-len(row)) {
			return Full, nil
		}
	}
	if request.Crowded {
		return Crowded, nil
	}
	if len(row) >= m.limits.Queue {
		full := slices.Insert(slices.Clone(row), ahead, r)
		members := slices.IndexFunc(append(full, &modelled{rank: Ranks}), func(o *modelled) bool { return o.rank != Member })
		if members > m.limits.Queue-m.limits.Queue/10 {
			full = full[:members]
		}
		last := full[len(full)-1]
		if last == r {
			return Full, nil
		}
		displaced = last.request
		m.end(last, 0)
	}
	m.add(r)
	return Waiting, displaced
}

func (m *model) add(r *modelled) {
	m.requests = append(m.requests, r)
	for _, key := range r.keys {
		m.used[r.rank][key] = max(m.used[r.rank][key], m.virtual[r.rank]) + r.charge
	}
}

// A pair is the queue and the model, which go through the same operations.
type pair struct {
	t     testing.TB
	queue Queue
	model *model
	all   []*Request
	seen  map[Outcome]int

	displaced, passedOver int
}

func (p *pair) limit(l Limits) {
	p.queue.SetLimits(l)
	p.model.limits = l
	p.next()
}

func (p *pair) arrive(r *Request) {
	want, last := p.model.arrive(r)
	got, displaced := p.queue.Arrive(r)
	check.Assume(p.t, got == want && displaced == last, "request of rank %v with keys %q: got %v, and %+v displaced, want %v, and %+v", r.Rank, r.Keys, got, displaced, want, last)
	p.seen[got]++
	if displaced != nil {
		p.displaced++
	}
	p.all = append(p.all, r)
	p.check()
}

func (p *pair) find(r *Request) *modelled {
	for _, m := range p.model.requests {
		if m.request == r {
			return m
		}
	}
	return nil
}

// leave lets a request leave: its client hangs up, or it has waited for too long.
func (p *pair) leave(r *Request) {
	if m := p.find(r); m != nil && !m.serving {
		p.queue.Leave(r)
		p.model.end(m, 0)
	}
	p.check()
}

// release ends a request: it is answered, or its handler has panicked.
func (p *pair) release(r *Request, held time.Duration) {
	if m := p.find(r); m != nil && m.serving {
		p.queue.Release(r, held)
		actual := max(0, held.Microseconds())
		if held > 0 { // it was served
			p.model.mean += (min(float64(actual), 10*p.model.mean) - p.model.mean) / 50
		}
		check.Assume(p.t, math.Abs(p.queue.All.Mean.micros-p.model.mean) <= 1e-3, "mean: got %v µs, want %v", p.queue.All.Mean.micros, p.model.mean)
		p.model.mean = p.queue.All.Mean.micros // to the last bit
		p.model.end(m, actual)
	}
	p.next()
}

// abandon ends a request that has its slot in vain.
func (p *pair) abandon(r *Request) {
	if m := p.find(r); m != nil && m.serving {
		p.queue.Release(r, 0)
		p.model.end(m, 0)
	}
	p.next()
}

func (p *pair) next() {
	for {
		row := p.model.row()
		want := p.model.next(row)
		got := p.queue.Next()
		if got == nil && want == nil {
			break
		}
		check.Assume(p.t, want != nil && got == want.request, "next: got %p, want %+v", got, want)
		if want != row[0] {
			p.passedOver++
		}
		p.checkServed(want, row)
		p.model.serve(want)
	}
	p.check()
}

// checkServed checks what nobody may lose by a request that gets a slot.
func (p *pair) checkServed(served *modelled, row []*modelled) {
	capped := p.model.capped(served)
	for _, o := range row {
		switch {
		case o == served || p.model.capped(o):
		case capped:
			p.t.Fatal("a key got more than half the slots while another one waited")
		case o.rank < served.rank && (p.model.owed <= 0 || o.rank != Member):
			p.t.Fatalf("rank %v was served while an eligible %v waited", served.rank, o.rank)
		case p.model.crowds(o) && !p.model.crowds(served):
		case p.model.crowds(served) && o.rank == Member && !p.model.crowds(o):
			p.t.Fatal("a network got more than half the slots while a member of another one waited")
		case o.rank == served.rank && o.turn < served.turn:
			p.t.Fatalf("turn %d was served before %d", served.turn, o.turn)
		}
	}
	check.Assume(p.t, p.model.running() < p.model.limits.Slots, "a slot was given twice")
}

// check compares all that the queue keeps with the model, and looks at the
// promises that hold at any time.
func (p *pair) check() {
	t, q, m := p.t, &p.queue, p.model
	row := m.row()
	check.Assume(t, q.running == m.running() && q.waiting == len(row), "got %d running, %d waiting, want %d and %d", q.running, q.waiting, m.running(), len(row))
	check.Assume(t, int64(q.owed) == m.owed, "got %d owed, want %d", q.owed, m.owed)
	var got []*Request
	for rank := range Rank(Ranks) {
		got = append(got, q.rows[rank]...)
	}
	check.Assume(t, slices.EqualFunc(got, row, func(r *Request, m *modelled) bool { return r == m.request }), "got another order of those who wait")
	check.Assume(t, len(q.keys) <= 2*(q.waiting+q.running), "got %d keys of %d requests", len(q.keys), q.waiting+q.running)
	for name, k := range q.keys {
		requests := 0
		for rank, n := range k.requests {
			requests += n
			if want := m.used[Rank(rank)][name]; n > 0 && int64(k.used[rank]) != want {
				t.Fatalf("key %s: got %d used, want %d", name, k.used[rank], want)
			}
		}
		check.Assume(t, requests != 0, "key %s is kept without a request", name)
	}
}

// finish ends all requests, and checks that nothing is left.
func (p *pair) finish() {
	for len(p.model.requests) > 0 {
		for _, m := range slices.Clone(p.model.requests) {
			if m.serving {
				p.release(m.request, time.Second)
			}
		}
		if p.model.limits.Slots == 0 {
			p.limit(Limits{Share: true, Slots: 1})
		}
	}
	if q := &p.queue; q.running != 0 || q.waiting != 0 || len(q.keys)+len(q.members) != 0 || !q.Idle() {
		p.t.Fatalf("got %d running, %d waiting, %d keys, %d networks after all have ended", q.running, q.waiting, len(q.keys), len(q.members))
	}
}

// operate does what the bytes say.
func (p *pair) operate(bytes []byte) {
	p.limit(Limits{Share: true, Slots: 3, Wait: 10 * time.Second, Queue: 30})
	for ; len(bytes) >= 4; bytes = bytes[4:] {
		op, a, b := bytes[0], bytes[1], bytes[2]
		held := time.Duration(binary.BigEndian.Uint16(bytes[2:])) * 400 * time.Microsecond
		recent := func() *Request {
			if len(p.all) == 0 {
				return new(Request)
			}
			return p.all[max(0, len(p.all)-1-int(a)%40)]
		}
		switch {
		case op < 140:
			r := &Request{Claim: Claim{Rank: Rank(a % Ranks), Keys: [2]string{strconv.Itoa(int(b % 16))}}}
			if b >= 128 {
				r.Keys[1] = "pass" + strconv.Itoa(int(bytes[3]%8))
			}
			if a >= 250 {
				r.Keys[1] = r.Keys[0]
			}
			r.Crowded = bytes[3]%16 == 15
			if network := bytes[3] % 4; network > 0 {
				r.Network = netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, network}), 24)
			}
			p.arrive(r)
		case op < 160:
			p.leave(recent())
		case op < 250:
			r := recent()
			for _, m := range p.model.requests {
				if m.serving && a >= 40 {
					r = m.request
					break
				}
			}
			if a%5 == 0 {
				p.abandon(r)
			} else {
				p.release(r, held)
			}
		default:
			p.limit(Limits{Share: true, Slots: int(a % 9), Wait: time.Duration(b%16) * time.Second, Queue: int(bytes[3] % 64)})
		}
	}
	p.finish()
}

func newPair(t testing.TB) *pair {
	return &pair{t: t, queue: Queue{All: new(Common)}, model: newModel(), seen: make(map[Outcome]int)}
}

func TestTheQueueIsTheLawWrittenDownPlainly(t *testing.T) {
	seed := testseed.Of(t)
	t.Log("seed:", seed)
	random := rand.New(rand.NewPCG(seed, 3))
	seen, displaced, passedOver := make(map[Outcome]int), 0, 0
	for range 150 {
		p := newPair(t)
		bytes := make([]byte, 4*200)
		for i := range bytes {
			bytes[i] = byte(random.Uint32())
		}
		p.operate(bytes)
		for outcome, n := range p.seen {
			seen[outcome] += n
		}
		displaced, passedOver = displaced+p.displaced, passedOver+p.passedOver
	}
	for _, outcome := range []Outcome{Served, Waiting, TooLong, Full, Crowded} {
		check.That(t, seen[outcome] >= 10, "got %v only %d times, want more to test", outcome, seen[outcome])
	}
	check.That(t, displaced >= 10 && passedOver >= 10, "got %d displaced, %d passed over, want more to test", displaced, passedOver)
}

func FuzzQueue(f *testing.F) {
	f.Add([]byte("arrive, leave, release and so on"))
	f.Add([]byte{0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 2, 0, 170, 50, 0, 9, 255, 1, 9, 40, 170, 50, 9, 9})
	f.Fuzz(func(t *testing.T, bytes []byte) {
		newPair(t).operate(bytes[:min(len(bytes), 2000)])
	})
}
