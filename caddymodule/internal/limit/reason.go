package limit

// A Reason is why a request was refused.
type Reason uint8

// The reasons.
const (
	None        Reason = iota
	Capacity           // the bucket would overflow, or the delay be longer than its bound
	Blocked            // the key is blocked
	Oversize           // the cost can never fit
	Denied             // an override denies the key
	MissingKey         // the key is missing, and the zone refuses such requests
	UnlistedKey        // no override names the key, and the zone refuses such requests
	QueueFull          // too many requests wait already, or the server is about to stop
	EarlyData          // the client's address is not verified yet
	NoStore            // the store does not answer, and the zone denies
	Banned             // an administrator has banned the client's network
	NoMemory           // there was no memory to read the body, and the request counts as one unread
	Error              // a matcher of the zone failed, and the request with it
	Reasons            // how many there are
)

func (r Reason) String() string {
	return [Reasons]string{"", "capacity", "blocked", "oversize", "denied", "missing_key", "unlisted_key", "waiting", "early_data", "store", "banned", "memory", "error"}[r]
}

// Waits reports whether waiting helps a client that was refused for this reason.
func (r Reason) Waits() bool {
	switch r {
	case Capacity, Blocked, QueueFull, NoStore, Banned, NoMemory:
		return true
	}
	return false
}

// A ReasonSet is a set of reasons.
type ReasonSet uint32

// With returns the set with a reason more.
func (s ReasonSet) With(why Reason) ReasonSet { return s | 1<<why }

// Has reports whether a reason is in the set.
func (s ReasonSet) Has(why Reason) bool { return s>>why&1 != 0 }

// Refusals returns the reasons for which the config may have the zone refuse. Some of them
// only enforced zones know.
func (z *Zone) Refusals(enforced bool) (all ReasonSet) {
	for why, may := range [Reasons]bool{
		Capacity:    true,
		Oversize:    true,
		Denied:      len(z.Override) > 0,
		MissingKey:  z.Key.Missing == Refuse,
		UnlistedKey: z.Key.Unlisted == Refuse,
		NoMemory:    z.ReadsFields() || z.ReadBody.bytes > 0,
		QueueFull:   enforced && z.Delay != nil,
		Blocked:     z.Block != nil,
		EarlyData:   enforced,
	} {
		if may {
			all = all.With(Reason(why))
		}
	}
	return all
}
