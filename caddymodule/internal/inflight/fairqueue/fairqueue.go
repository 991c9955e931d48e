// Package fairqueue decides which request gets the next slot, and which one is refused, when
// more clients want the upstream than it can serve. Begin with [Queue].
//
// There are as many slots as the upstream has workers. While all are taken,
// requests wait in four rows, one for each [Rank], and the order of service is:
//
//   - A free slot goes at once to a request that arrives while nobody eligible waits.
//   - Higher ranks go first. Within a rank, keys take turns: a request's turn is the
//     largest of the rank's virtual time, which is the largest turn served in it, and
//     of the seconds that each of its keys has used in it. Equal turns keep the order of
//     arrival.
//   - A key is charged the mean time of a request on arrival. The charge is corrected
//     when the slot is given back, and refunded if the request is never served.
//   - A key that holds half the slots, rounded up, is passed over while others wait,
//     and never takes the last free slot. With one slot the rule has no effect; with
//     two a key gets one.
//   - Members of one network that hold half the slots are passed over while members of
//     others wait.
//   - While others wait, members leave them a tenth of the slot time. What they have had
//     beyond nine tenths is counted from when the others began to wait, and as soon as
//     there is any, the next free slot goes to one of the others. What the others have
//     had beyond their tenth counts for as much as all slots for a mean, at most.
//   - A request whose predicted wait exceeds Limits.Wait is refused on arrival. That
//     is also the caller's timeout.
//   - At most Limits.Queue requests wait. One more displaces the last in the
//     order, or is refused if it would be the last itself. Here, too, members leave
//     the others a tenth: where they would hold more of the places, their last one goes.
//     A key may hold a tenth of the places. In the last rank, where its surplus keeps
//     nobody else waiting, it may hold more, as long as that is fewer than are still free.
//
// A key is forgotten as soon as none of its requests waits or holds a slot. State is
// therefore bounded by the requests that wait and the slots, however many clients
// come.
//
// The package knows no clock, lock or goroutine. The caller holds a lock around each
// call, says how long a slot was held, and calls [Queue.Leave] when a request has
// waited for its limit or its client has left. After [Queue.Release] and [Queue.SetLimits] it
// calls [Queue.Next] until that returns nil.
package fairqueue

import (
	"cmp"
	"net/netip"
	"slices"
	"time"
)

// A Rank is a class of clients. Lower values are served first.
type Rank uint8

const (
	// Member is a client whom the upstream itself has logged in.
	Member Rank = iota
	// Returned is a client with a valid pass: it came back when it was told to.
	Returned
	// Crawler is a crawler whose operator is verified.
	Crawler
	// First is everyone else.
	First

	// Ranks is how many there are.
	Ranks = 4
)

// String returns the name of the rank in lower case, and "" for none of them.
func (r Rank) String() string {
	return [...]string{"member", "returned", "crawler", "first", ""}[r]
}

// Limits are those of a queue. They may change at any time.
type Limits struct {
	// Slots is how many requests are served at once. After it was lowered, requests that
	// hold a slot keep it, and nobody else gets one until enough are given back.
	Slots int

	// Wait is how long a request may wait for a slot. If it has, it must leave. Zero means
	// that it is refused at once if no slot is free.
	Wait time.Duration

	// Queue is how many requests may wait at once.
	Queue int

	// Share refuses a request on arrival if it would wait for longer than Wait.
	Share bool
}

// half is how many slots a key may hold while others wait.
func (l Limits) half() int { return (l.Slots + 1) / 2 }

// WaitingPerKey is how many requests of one key may wait, at any rank: a tenth, rounded up.
func (l Limits) WaitingPerKey() int { return (l.Queue + 9) / 10 }

const (
	// meanWeight is the weight of a new measurement in the mean.
	meanWeight = 1. / 50

	// toOne is how much of the slot time members may have for one of the others, while
	// these wait.
	toOne = 9

	// mostMeans is how many means one measurement counts at most, so that a few slow
	// requests do not make all predictions long.
	mostMeans = 10
)

// micros is slot time in microseconds. Charges are integers so that refunds and
// corrections are exact.
type micros int64

func microsOf(d time.Duration) micros { return micros(d / time.Microsecond) }

// A Mean is for how long a slot is held on average, with a weight of 1/50 for each
// new measurement, which counts at most ten means. The zero value is one second.
type Mean struct {
	micros float64 // 0 before the first measurement, and never after it
}

func (m *Mean) value() float64 { return cmp.Or(m.micros, float64(microsOf(time.Second))) }

func (m *Mean) add(held micros) {
	counted := min(float64(held), mostMeans*max(1, m.value()))
	m.micros = m.value() + meanWeight*(counted-m.value())
}

// Duration returns the mean.
func (m *Mean) Duration() time.Duration {
	return time.Duration(m.value() * float64(time.Microsecond))
}

// A Common is what the queues of several keys have in common. The zero Common is that of none.
type Common struct {
	Mean             Mean // of slots; charges and predictions go by it
	Running, Waiting int  // requests. The caller may let others wait, for something else.
}

// A Queue is the slots and rows of one key, or of all requests if these have none. It has no
// slots before SetLimits is called. It is not safe for concurrent use.
type Queue struct {
	All *Common // required

	limits   Limits
	running  int // here, unlike those of All
	waiting  int // likewise
	arrivals uint64
	rows     [Ranks][]*Request // in the order of service
	virtual  [Ranks]micros
	owed     micros // what members have had beyond nine times what others have
	keys     map[string]*key
	members  map[netip.Prefix]int // slots that members of a network hold
}

// A Claim is what a request takes turns by.
type Claim struct {
	Rank Rank

	// Keys are what takes turns: the client's share key and, if it holds a valid pass,
	// that pass. A member's only key is its identity. Empty strings are no keys. Keys of
	// different kinds must differ, by a prefix for example. Without any, the order is that of
	// arrival, and nothing counts for the members' part of the slot time.
	Keys [2]string

	// Network is where a member comes from. The zero Prefix is none.
	Network netip.Prefix
}

// A Request is one that wants a slot. Its fields must not change while it waits or
// holds a slot. A Request that was refused may arrive again.
type Request struct {
	Claim

	// Owner is the caller's own. The queue does not look at it.
	Owner any

	// Crowded says that the request may not wait, since others hold the places that it could
	// get, by a rule of the caller's.
	Crowded bool

	found   []*key  // what it takes turns by, from when it has come
	room    [2]*key // of found
	turn    micros
	charge  micros
	tenth   micros // what counts of it for the others' tenth
	arrival uint64 // breaks ties
}

// A key is what a client takes turns by.
type key struct {
	name     string
	used     [Ranks]micros // slot time, including charges of requests that wait
	requests [Ranks]int    // that wait or hold a slot
	waiting  int
	held     int // slots
}

// An Outcome says what becomes of a request that arrives.
type Outcome uint8

const (
	// Served requests hold a slot, and must be released.
	Served Outcome = iota
	// Waiting requests are in a row until Next returns them, they are displaced or
	// they leave.
	Waiting
	// TooLong means that the predicted wait exceeds Wait, or that this is zero.
	TooLong
	// Full means that Queue requests wait and none of them can give its place to this one,
	// or that those with the same key hold as many places as they may.
	Full
	// Crowded means that Request.Crowded says so, and nothing else would have kept the request
	// from waiting, or only that Queue others do.
	Crowded
)

// Watch gives a slot to a request, whether or not one is free, and returns how many were held. It takes
// no turn, and is released as not served.
func (q *Queue) Watch(r *Request) (others int) {
	q.hold(r, 1)
	return q.running - 1
}

// SetLimits changes the limits. Requests that wait keep their places. After it the
// caller calls Next.
func (q *Queue) SetLimits(l Limits) { q.limits = l }

// Idle reports whether no request waits or holds a slot. An idle queue remembers nothing
// of them; the mean is in All.
func (q *Queue) Idle() bool { return q.running+q.waiting == 0 }

// Arrive decides about a request that is neither waiting nor served. If another one lost its place to
// it, that is displaced: its charge is refunded, and the caller refuses it. Otherwise displaced is nil.
func (q *Queue) Arrive(r *Request) (becomes Outcome, displaced *Request) {
	q.enter(r)
	becomes, displaced = q.judge(r)
	switch becomes {
	case Served:
		q.charge(r)
		q.serve(r)
	case Waiting:
		if displaced != nil {
			q.Leave(displaced)
		}
		q.charge(r)
		q.wait(r)
	default:
		q.exit(r)
	}
	return becomes, displaced
}

// judge decides about a request that has just come.
func (q *Queue) judge(r *Request) (becomes Outcome, displaced *Request) {
	free := q.limits.Slots - q.running
	if free > 0 && (q.waiting == 0 || q.eligible(free) == nil) && (free > 1 || !q.capped(r)) {
		return Served, nil
	}
	ahead := q.place(r) // how many go before it
	for _, row := range q.rows[:r.Rank] {
		ahead += len(row)
	}
	mean, slots := q.All.Mean.value(), float64(max(1, q.limits.Slots))
	wait := float64(ahead+1) * mean / slots
	if r.Rank != Member { // then no later than if members take all that they may
		others := float64(ahead - len(q.rows[Member]))
		wait = min(wait, (max(0, toOne*mean*others-float64(q.owed))+mean)/slots)
	}
	switch {
	case q.limits.Wait == 0, q.limits.Share && time.Duration(wait*float64(time.Microsecond)) > q.limits.Wait:
		return TooLong, nil
	case q.keyFull(r):
		return Full, nil
	case r.Crowded:
		return Crowded, nil
	case q.All.Waiting >= q.limits.Queue:
		if displaced = q.last(r); displaced == nil {
			return Full, nil
		}
	}
	return Waiting, displaced
}

// owe adds to what members have had beyond their part of the slot time. What they have
// had while nobody else waits does not count.
func (q *Queue) owe(more micros) {
	q.owed = max(q.owed+more, -toOne*micros(q.All.Mean.value())*micros(q.limits.Slots))
	switch {
	case q.Idle():
		q.owed = 0
	case q.waiting == len(q.rows[Member]): // no others wait
		q.owed = min(q.owed, 0)
	}
}

// settle replaces the charge of a request that is done, and what counts for the others'
// tenth, by what it has used.
func (q *Queue) settle(r *Request, actual micros) {
	if len(r.found) == 0 {
		return
	}
	for _, k := range r.found {
		k.used[r.Rank] += actual - r.charge
	}
	q.exit(r)
	if r.Rank == Member {
		q.owe(actual)
	} else {
		q.owe(toOne * (r.tenth - actual))
	}
}

// wait puts a request into its row.
func (q *Queue) wait(r *Request) {
	q.rows[r.Rank] = slices.Insert(q.rows[r.Rank], q.place(r), r)
	q.waiting++
	q.All.Waiting++
	for _, k := range r.found {
		k.waiting++
	}
}

// Next gives a free slot to the next request and returns that, or nil if no slot is
// free or nobody is eligible for it.
func (q *Queue) Next() (r *Request) {
	if q.waiting == 0 { // as mostly
		return nil
	}
	if free := q.limits.Slots - q.running; free > 0 {
		r = q.eligible(free)
	}
	if r != nil {
		q.remove(r)
		q.serve(r)
	}
	return r
}

// Leave takes a waiting request out of its row and refunds its charge.
func (q *Queue) Leave(r *Request) {
	q.remove(r)
	q.settle(r, 0)
}

// Release gives back the slot that a request holds, and has held for so long. Zero means that it was
// not served after all: its charge is refunded, and the mean is that of the others. After it the caller
// calls Next.
func (q *Queue) Release(r *Request, held time.Duration) {
	actual := microsOf(max(0, held))
	if held > 0 {
		q.All.Mean.add(actual)
	}
	q.hold(r, -1)
	q.settle(r, actual)
}

// hold counts a slot that a request gets, by 1, or gives back, by -1.
func (q *Queue) hold(r *Request, by int) {
	q.running += by
	q.All.Running += by
	if r.ofNetwork() {
		if q.members == nil {
			q.members = make(map[netip.Prefix]int)
		}
		if q.members[r.Network] += by; q.members[r.Network] == 0 {
			delete(q.members, r.Network)
		}
	}
	for _, k := range r.found {
		k.held += by
	}
}

// enter finds the keys of a request and computes its turn.
func (q *Queue) enter(r *Request) {
	q.arrivals++
	r.arrival, r.turn = q.arrivals, q.virtual[r.Rank]
	r.found = r.room[:0]
	for i, name := range r.Keys {
		if name == "" || i > 0 && name == r.Keys[0] {
			continue
		}
		k := q.keys[name]
		if k == nil {
			if q.keys == nil {
				q.keys = make(map[string]*key)
			}
			k = &key{name: name}
			q.keys[name] = k
		}
		if k.requests[r.Rank] == 0 {
			k.used[r.Rank] = 0
		}
		k.requests[r.Rank]++
		r.found = append(r.found, k)
		r.turn = max(r.turn, k.used[r.Rank])
	}
}

// exit forgets the keys of a request that have no other one.
func (q *Queue) exit(r *Request) {
	for _, k := range r.found {
		k.requests[r.Rank]--
		if k.requests == [Ranks]int{} {
			delete(q.keys, k.name)
		}
	}
}

// charge charges the mean to the keys of a request.
func (q *Queue) charge(r *Request) {
	r.charge = micros(q.All.Mean.value())
	for _, k := range r.found {
		k.used[r.Rank] = max(k.used[r.Rank], q.virtual[r.Rank]) + r.charge
	}
}

// serve gives a slot to a request.
func (q *Queue) serve(r *Request) {
	q.hold(r, 1)
	if len(r.found) == 0 {
		return
	}
	q.virtual[r.Rank] = max(q.virtual[r.Rank], r.turn)
	if r.Rank != Member {
		r.tenth = micros(q.All.Mean.value())
		q.owe(-toOne * r.tenth)
	}
}

// ofNetwork reports whether the request is a member's from a known network.
func (r *Request) ofNetwork() bool { return r.Rank == Member && r.Network.IsValid() }

// eligible returns the waiting request that one of the free slots goes to, or nil.
func (q *Queue) eligible(free int) *Request {
	rows := q.rows
	if q.owed > 0 { // the others come first
		rows = [...][]*Request{q.rows[Returned], q.rows[Crawler], q.rows[First], q.rows[Member]}
	}
	var passedOver, crowding *Request
	for _, row := range rows {
		for _, r := range row {
			switch {
			case q.capped(r):
				passedOver = cmp.Or(passedOver, r)
			case q.crowds(r):
				crowding = cmp.Or(crowding, r)
			default:
				return r
			}
		}
		if crowding != nil {
			return crowding // since no member of another network waits
		}
	}
	if free == 1 {
		return nil
	}
	return passedOver
}

// capped reports whether a key of the request holds half the slots.
func (q *Queue) capped(r *Request) bool {
	half := q.limits.half()
	return slices.ContainsFunc(r.found, func(k *key) bool { return k.held >= half })
}

// crowds reports whether the request is a member's whose network holds half the slots: a
// member of another one goes first.
func (q *Queue) crowds(r *Request) bool {
	return r.ofNetwork() && q.members[r.Network] >= q.limits.half()
}

// keyFull reports whether as many requests wait with a key of r as may.
func (q *Queue) keyFull(r *Request) bool {
	most := q.limits.WaitingPerKey()
	if r.Rank == First {
		most = max(most, q.limits.Queue-q.All.Waiting)
	}
	return slices.ContainsFunc(r.found, func(k *key) bool { return k.waiting >= most })
}

// place returns the index of a request in its row.
func (q *Queue) place(r *Request) int {
	i, _ := slices.BinarySearchFunc(q.rows[r.Rank], r, inOrder)
	return i
}

// remove takes a request out of its row.
func (q *Queue) remove(r *Request) {
	i := q.place(r)
	q.rows[r.Rank] = slices.Delete(q.rows[r.Rank], i, i+1)
	q.waiting--
	q.All.Waiting--
	for _, k := range r.found {
		k.waiting--
	}
}

// last returns the waiting request that gives its place to r, or nil if r goes last: in the order, or
// among members if these would hold more than nine tenths of the places.
func (q *Queue) last(r *Request) *Request {
	rows, members := q.rows[:], len(q.rows[Member])
	if r.Rank == Member {
		members++
	}
	tooMany := members > q.limits.Queue-q.limits.Queue/10
	if tooMany {
		rows = rows[:Member+1]
	}
	for _, row := range slices.Backward(rows) {
		if len(row) > 0 {
			last := row[len(row)-1]
			if tooMany && r.Rank != Member || r.Before(last) {
				return last
			}
			return nil
		}
	}
	return nil
}

// Before reports whether a request goes before another one of its queue. Either has arrived, if
// only to be refused.
func (r *Request) Before(o *Request) bool { return inOrder(r, o) < 0 }

// inOrder compares requests by their ranks, then their turns, then by arrival.
func inOrder(a, b *Request) int {
	return cmp.Or(cmp.Compare(a.Rank, b.Rank), cmp.Compare(a.turn, b.turn), cmp.Compare(a.arrival, b.arrival))
}
