package limit

// A Reason is why a request was refused, by a zone or an in_flight.
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
	Connect            // a CONNECT, whose body may hold any number of requests, or what counts as one: see Subject.Judged
	EarlyData          // the client's address is not verified yet
	NoStore            // the store does not answer, and the zone denies
	Banned             // an administrator has banned the client's network
	NoMemory           // there was no memory to read the body, and the request counts as one unread
	Error              // a matcher failed, and the request with it
	InFlight           // no slot is free, and the request may not wait
	NoPlace            // no place to wait for a slot is, or the process is about to end
	Timeout            // its turn for a slot would come too late, or has not come in time, or its body has not
	TooLarge           // its body is longer than is received
	Reasons            // how many there are
)

func (r Reason) String() string {
	return [Reasons]string{"", "capacity", "blocked", "oversize", "denied", "missing_key", "unlisted_key", "waiting", "connect", "early_data", "store", "banned", "memory", "error", "in_flight", "queue_full", "timeout", "too_large"}[r]
}

// Waits reports whether waiting helps a client that was refused for this reason.
func (r Reason) Waits() bool {
	switch r {
	case Capacity, Blocked, QueueFull, NoStore, Banned, NoMemory, InFlight, NoPlace, Timeout:
		return true
	}
	return false
}
