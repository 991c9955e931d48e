package limit

import (
	"cmp"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/form"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/option"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/perkey"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	bucketkey "github.com/caddy-throttle/caddy-throttle/leakybucket/key"
)

// Key says what identifies a request's bucket.
type Key struct {
	// What each request reads lies first.
	byIPv4   bool              // the key is the client's address, all of it over IPv4, and there are no overrides
	verbatim bool              // the key has one part, neither folded nor digested, and there are no overrides
	names    bool              // an account: a part is a field or the user of HTTP Basic
	limit    leakybucket.Limit // the zone's own

	// The values of a request that name its bucket. Default: the client's address. If
	// clients choose all values, they can get a fresh bucket with every request: then
	// add a zone keyed by `client_ip` to the same handler.
	Sources []KeySource `json:"sources,omitempty"`

	// What happens if a part of the key is missing or empty. `client_ip` charges a separate
	// bucket of the client's address, `share` one bucket for all such requests. `refuse`
	// refuses them. `skip` does not limit them, so clients get around the zone by leaving the
	// key out. Default: `client_ip`; with the source `field` it is `skip`, or `share` if the
	// zone has `field`.
	Missing Policy `json:"missing,omitempty"`

	// What happens to requests whose key no override lists, with the values of missing.
	// Default: their own bucket is charged.
	Unlisted Policy `json:"unlisted,omitempty"`

	// Keep the values of headers, cookies, query parameters and form fields, and
	// the user names of HTTP Basic, readable in logs and in the store. Default: only
	// SHA-256 digests are kept, because these values are often secrets.
	Plain bool `json:"plain,omitempty"`

	// How many leading bits of an IPv4 address identify a client. Default: 32. With fewer, a
	// network counts as one client and needs a larger limit.
	IPv4 int `json:"ipv4,omitempty"`

	// How many leading bits of an IPv6 address identify a client. Default: 64,
	// since a single customer has at least that many addresses.
	IPv6 int `json:"ipv6,omitempty"`

	Overrides *perkey.Table `json:"-"` // which are also the limits of buckets
	Form      *form.Plan    `json:"-"` // of fields in it

	parts  []part
	routes []Route
}

// withDefault returns the key with what was not given. carries says that all requests carry a
// certain field.
func (k *Key) withDefault(carries bool) *Key {
	full := option.CopyOf(k)
	if len(full.Sources) == 0 {
		full.Sources = []KeySource{{Source: "client_ip"}}
	}
	if full.Missing == "" {
		full.Missing = ByClientIP
		if slices.ContainsFunc(full.Sources, func(k KeySource) bool { return k.Source == "field" }) {
			full.Missing = Skip
			if carries {
				full.Missing = Share
			}
		}
	}
	full.IPv4 = cmp.Or(full.IPv4, 32)
	full.IPv6 = cmp.Or(full.IPv6, 64)
	return full
}

// FromBody reports whether a part of the key comes from the request's body.
func (k *Key) FromBody() bool {
	return slices.ContainsFunc(k.parts, func(p part) bool { return p.field != "" })
}

// HasAddress reports whether the key contains the client's address, so that clients
// cannot make up all of it.
func (k *Key) HasAddress() bool {
	return slices.ContainsFunc(k.parts, func(p part) bool { return p.clientIP })
}

// IsAddress reports whether the key is the client's address and nothing else.
func (k *Key) IsAddress() bool { return len(k.parts) == 1 && k.parts[0].clientIP }

// typed returns the names of accounts in the key as the request has them, with a NUL between them, and
// without the blanks around them that no application keeps, or "" if there are none.
func (k *Key) typed(s *Subject) string {
	var names []string
	for i := range k.parts {
		name := ""
		switch p := &k.parts[i]; {
		case p.field != "" && s.CarriesAny():
			name, _ = s.Form(k.Form).Field(p.wanted)
		case p.field == "" && p.fold != nil:
			name, _, _ = s.Request.BasicAuth()
		}
		if name = strings.Trim(name, " \t\n\v\f\r\x00"); name != "" {
			names = append(names, name)
		}
	}
	return strings.Join(names, "\x00")
}

// private reports whether keys say which account a request is about. Rate-limit headers would
// tell which accounts exist.
func (k *Key) private() bool {
	return slices.ContainsFunc(k.parts, func(p part) bool {
		return p.fold != nil || p.source == "cookie" || strings.Contains(p.source, "{http.request.cookie.")
	})
}

// A Policy decides about requests without a usable key.
type Policy string

// The policies, as configs spell them.
const (
	ByClientIP Policy = "client_ip" // charge a bucket of the client's address
	Share      Policy = "share"     // charge one bucket for all such requests
	Skip       Policy = "skip"      // let the request pass
	Refuse     Policy = "refuse"
)

// A part reads one part of the key from a request.
type part struct {
	source string // as in [KeySource]

	// One of these is set.
	clientIP bool                  // the client's address, masked
	field    string                // the name of a form field, which is wanted as
	wanted   form.Field            // in the plan
	read     func(*Subject) string // any other source; "" is missing

	// Fold turns the spellings of one name into one text. It is nil for parts that
	// are no names.
	fold foldFunc

	// Digest replaces the value by a digest, because it may be a secret.
	digest bool
}

// A Bucket is the name of a bucket and its limit.
type Bucket struct {
	Name    string // the parts, without the zone, or the name of a bucket that several keys share
	Rule    perkey.Rule
	Limit   leakybucket.Limit
	Address bool // the name holds the client's address
	Lacking bool // the request lacks a part of the key, and a policy stands in
	listed  bool // an override names the key
	own     bool // the request gave it, and no policy stands in
}

// missing says why a key lacks a part.
type missing uint8

const (
	keyComplete missing = iota
	keyAbsent           // there is neither a query nor a body, or nobody logs in by HTTP Basic
	keyUnclear          // a field may be read in several ways, or HTTP Basic, or a name is one that nobody types
	keyLacking          // any other reason, such as a header that was sent twice
)

// own returns the request's own key, without any policy.
func (k *Key) own(s *Subject) (found Bucket, state missing) {
	switch {
	case k.byIPv4: // which has one spelling, so nothing need be built
		found.Name, found.Address = s.ipv4(), true
	case k.verbatim:
		text := k.parts[0].read(s)
		name := bucketkey.AppendPart(make([]byte, 0, 64), text)
		if found.Name = text; k.Sources[0].Source != "header" || string(name) != text {
			found.Name = string(name) // a piece of the first line or of a cookie would keep all of that in memory
		}
	}
	if found.Name == "" {
		return k.compose(s)
	}
	found.Limit, found.own = k.limit, true
	return found, keyComplete
}

// compose is own for keys that must be built of their parts. It is apart because its frame is
// large: on the way of every request, that would have its goroutine's stack grow.
func (k *Key) compose(s *Subject) (found Bucket, state missing) {
	var nameRoom [128]byte
	var partsRoom [2]perkey.Part
	name, parts := nameRoom[:0], partsRoom[:0]
	plain := k.Overrides.Empty()
	for i := range k.parts {
		if i > 0 {
			name = append(name, '/')
		}
		p := &k.parts[i]
		var client netip.Prefix
		var digest bucketkey.Digest
		switch {
		case p.clientIP:
			if client = k.Network(s); !client.IsValid() {
				return Bucket{}, keyLacking
			}
			name = client.Addr().AppendTo(name)
		default:
			text, state := k.value(s, p)
			switch {
			case state != keyComplete:
				return Bucket{}, state
			case p.fold != nil && text == oddName:
				return Bucket{Name: perkey.Odd}, keyUnclear
			}
			if p.digest || !plain {
				digest = bucketkey.DigestOf(text)
			}
			if p.digest {
				name = digest.Append(name)
			} else {
				name = bucketkey.AppendPart(name, text)
			}
		}
		if !plain {
			parts = append(parts, perkey.Part{Digest: digest, Network: client})
		}
	}
	e := k.Overrides.Lookup(parts)
	found = Bucket{Name: e.Bucket, Rule: e.Rule, Limit: e.Limit, listed: e.Listed(), Address: k.HasAddress(), own: true}
	if found.Name == "" {
		found.Name = string(name)
	}
	return found, keyComplete
}

// value returns the value of a part that is no address.
func (k *Key) value(s *Subject, p *part) (string, missing) {
	if p.field == "" {
		text := p.read(s)
		switch {
		case text != "":
			return text, keyComplete
		case p.fold != nil && s.Request.Header["Authorization"] == nil:
			return "", keyAbsent
		case p.fold != nil && unclearUser(s.Request):
			return "", keyUnclear
		}
		return "", keyLacking
	}
	switch {
	case !s.CarriesAny():
		return "", keyAbsent
	case s.Starved:
		return "", keyUnclear
	case !s.whole(): // so much a guess is price enough
		return "", keyLacking
	}
	sent, state := s.Form(k.Form).Field(p.wanted)
	if state == form.Unclear {
		return "", keyUnclear
	}
	if text := p.fold(sent); text != "" {
		return text, keyComplete
	}
	return "", keyLacking
}

// SharedBucket is the name of the bucket of the policy [Share]. Clients cannot forge it, or another that several
// keys share, because a leading @ in a part is escaped.
const SharedBucket = "@share"

// byAddress returns the name @client_ip/<address>, or that of the shared bucket if the
// request has no address.
func (k *Key) byAddress(s *Subject) (name string, found bool) {
	if client := k.Network(s); client.IsValid() {
		return "@client_ip/" + client.Addr().String(), true
	}
	return SharedBucket, false
}

// Name returns the name of what the client of a request takes turns by: its own key, or
// else its address.
func (k *Key) Name(s *Subject) string {
	own, state := k.own(s)
	if state != keyComplete {
		own.Name, _ = k.byAddress(s)
	}
	return own.Name
}

// Network returns the network that counts as the client: the address as Caddy
// determined it by trusted_proxies, masked. It is invalid for requests without an
// address, as over a Unix socket.
func (k *Key) Network(s *Subject) netip.Prefix { return k.network(s.Address()) }

// network returns the network of one client that an address is in.
func (k *Key) network(addr netip.Addr) netip.Prefix {
	return bucketkey.ClientPrefix(addr, k.IPv4, k.IPv6)
}

// ReadBy makes the plan one that also reads what the zone wants of bodies.
func (z *Zone) ReadBy(p *form.Plan) (err error) {
	z.Key.Form, z.wanted = p, nil
	for _, name := range z.Field {
		wanted, err := p.Field(name)
		if err != nil {
			return option.About("field", 0, err)
		}
		z.wanted = append(z.wanted, wanted)
	}
	for i := range z.Key.parts {
		if part := &z.Key.parts[i]; err == nil && part.field != "" {
			part.wanted, err = p.Field(part.field)
		}
	}
	for i := range z.Cost {
		if c := &z.Cost[i]; err == nil && c.source == bodyItems {
			c.items, err = p.Array(c.Path)
		}
	}
	return err
}

// ReadsFields reports whether the zone reads fields of the body.
func (z *Zone) ReadsFields() bool { return len(z.Field) > 0 || z.Key.FromBody() }

// MaxBody returns how long a body may be that the zone reads, in bytes; 0 stands for the bound of
// all bodies.
func (z *Zone) MaxBody() int64 {
	if z.ReadsFields() {
		return 0
	}
	return z.ReadBody.bytes
}

// carries reports whether a request with a query or a body carries one of the zone's fields. What
// cannot be read, or not for sure, carries every field.
func (z *Zone) carries(s *Subject) bool {
	return s.Request.URL.Opaque != "" || !s.whole() || s.Form(z.Key.Form).Carries(z.wanted...)
}

// Find returns the bucket that a request is charged to. If why is not None, the zone
// refuses the request without a store. If skip, the zone does not charge it.
func (z *Zone) Find(s *Subject) (k Bucket, why Reason, skip bool) {
	k, state := z.Key.own(s)
	policy := Policy("")
	switch {
	case state == keyUnclear:
		k.Name = cmp.Or(k.Name, perkey.Unclear)
		n := z.Read(k.Name)
		k.Rule, k.Limit, policy, why = n.Rule, n.Limit, n.Unlisted, UnlistedKey
	case state != keyComplete:
		policy, why, k.Lacking = z.Key.Missing, MissingKey, true
		switch {
		case s.preflight():
			policy = Skip
		case state == keyAbsent && policy == Share:
			policy = ByClientIP // a few page views must not close the zone to everybody
		}
	case !k.listed:
		policy, why = z.Key.Unlisted, UnlistedKey
	}
	switch policy {
	case "":
		why = None
	case Skip:
		return k, None, true
	case Refuse:
		return k, why, false
	default:
		k, why = Bucket{Name: SharedBucket, Limit: z.Limit, Lacking: k.Lacking}, None
		if policy == ByClientIP {
			k.Name, k.Address = z.Key.byAddress(s)
		}
	}
	if s.Overrides != nil {
		k.Rule, k.Limit = s.Overrides.Apply(z.Name, k.Name, k.Rule, k.Limit, z.MostCost, time.Now())
	}
	return k, why, false
}

// BlockedBucket returns a charge that names the bucket with the client's block,
// whether or not the zone matches the request. It returns false for requests that the
// zone can never block.
func (z *Zone) BlockedBucket(s *Subject) (c leakybucket.Charge, can bool) {
	if z.Block == nil || z.Key.FromBody() && !s.whole() {
		return c, false // or nobody knows yet whom the request names
	}
	if exempt, err := z.Exempts(s); err != nil || exempt {
		return c, false
	}
	k, why, skip := z.Find(s)
	if why != None || skip || k.Rule != perkey.Limited {
		return c, false
	}
	z.Charge(&c, &k, z.InShadow(s.Overrides, k.Name), 0)
	c.Key = deviceKey(k.Name, z.deviceClient(s, &k))
	return c, true
}

// account returns the account that a request names, as it was typed. An unclear one may be any.
func (z *Zone) account(s *Subject, k *Bucket) string {
	if k.Name == perkey.Unclear {
		return k.Name
	}
	return z.Key.typed(s)
}

// deviceClient returns what device cookies tell of a request, or nil if the zone trusts no devices. No
// device is known of a request that names no account, or that a page of another site has a browser send,
// which could use up the device's bucket, or have its cookie replaced.
func (z *Zone) deviceClient(s *Subject, k *Bucket) *deviceClient {
	if z.TrustDevices == nil {
		return nil
	}
	host := Host(s)
	if !k.own || s.Request.Header.Get("Sec-Fetch-Site") == "cross-site" {
		host = ""
	}
	return z.TrustDevices.client(s.Request, host, k.Name, z.account(s, k), time.Now())
}

// deviceKey returns the key of a client's device, or that of the account if no device is
// known. No client can spell it, since a leading @ is escaped in parts.
func deviceKey(account string, client *deviceClient) string {
	if place, known := client.Place(); known {
		return account + "/@device/" + strconv.Itoa(place)
	}
	return account
}

// AccountOf returns the key of the account whose device has a bucket of this name, or
// the name itself.
func AccountOf(name string) string {
	account, _, _ := strings.Cut(name, "/@device/")
	return account
}
