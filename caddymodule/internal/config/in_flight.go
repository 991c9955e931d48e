package config

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"golang.org/x/net/http/httpguts"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/cookie"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/limit"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/option"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/refusal"
)

// InFlight is a concurrency limit: how many requests the upstream works on at once, for this
// Caddy. Requests that find no slot wait, or are refused. One that is nothing but a name is the
// one that the global options define.
type InFlight struct {
	// The name in metrics, commands and logs, of letters, digits, `_`, `.` and `-`. Required. All
	// definitions of a name must be equal, and share the same slots. No zone may have the name.
	Name string `json:"name,omitempty"`

	// How many requests the upstream works on at once. Required. Set it to the number of the
	// upstream's workers. With more, requests wait in the upstream's own queue, where nobody has
	// priority; with fewer, workers idle.
	Slots int `json:"slots,omitempty"`

	// The values that have slots of their own, such as the client's address. The sources are those
	// of a zone's key, except `route` and form fields. A request that lacks a part counts for its
	// client's address. Default: all requests share the slots.
	Key []limit.KeySource `json:"key,omitempty"`

	// Which requests need no slot. Default: all need one.
	Exempt caddyhttp.RawMatcherSets `json:"exempt,omitempty" caddy:"namespace=http.matchers"`

	// Exempt GET and HEAD requests for regular files that exist, and whose names PHP does not
	// run. Default: such requests need a slot.
	ExemptStaticFiles []option.StaticFiles `json:"exempt_static_files,omitempty"`

	// The longest wait for a slot. It begins when the request's body has been received. Default:
	// 5s with share; otherwise a request that finds no slot is refused at once.
	Wait caddy.Duration `json:"wait,omitempty"`

	// How many requests may wait at once. More are refused. No client, which is an IPv4 address
	// or an IPv6 /48, may hold more of these places than are still free, so that nobody fills the
	// queue alone. Default: 250, at most 10,000. Only with wait or share.
	Queue int `json:"queue,omitempty"`

	// The longest request body that is received before the request waits or takes a slot, such as
	// `64MiB`, so that a client that sends slowly holds neither. A longer one is refused with
	// status 413. `off` passes bodies on as they come, for gRPC and other two-way streams, in which the
	// client waits for answers while it sends. Default: the buffer of the global options.
	Buffer string `json:"buffer,omitempty"`

	// Share the slots fairly among clients, which these sources of a key identify. The client that
	// has used the least slot time goes first, one that would wait for too long is refused at once,
	// and no client holds more than half the slots while others wait. Cannot be used with key. In a
	// Caddyfile, `share` without a source means `client_ip`. Default: requests wait in order of
	// arrival.
	Share []limit.KeySource `json:"share,omitempty"`

	// Which clients have priority. Needs share. Default: only clients that come back when they were
	// told to.
	Rank []Rank `json:"rank,omitempty"`

	// `off` sends no passes, the cookies by which returning clients and members are recognised.
	// Then no client has priority for coming back. Needs share. Default: passes are sent over HTTPS.
	Pass string `json:"pass,omitempty"`

	// What refused clients get. Default: a short page with status 503 if there is share, otherwise 429.
	Refusal *refusal.Options `json:"refusal,omitempty"`

	// Dry run: count what would happen, by how many requests are in flight on arrival, and delay or
	// refuse nothing. Default: the limit is enforced.
	Shadow bool `json:"shadow,omitempty"`
}

// InFlightHandler is the JSON of a handler.
type InFlightHandler struct {
	InFlight

	// Which requests need a slot. Default: all. In a Caddyfile, the matcher of the directive.
	Match caddyhttp.RawMatcherSets `json:"match,omitempty" caddy:"namespace=http.matchers"`
}

// An InFlightRule is what requests meet of a concurrency limit, without what must be loaded:
// matchers and ranks.
type InFlightRule struct {
	InFlight            // with its defaults, and its refusal compiled
	SlotKey  *limit.Key // whose slots; nil if all requests share them
	ShareKey *limit.Key // what makes a client; nil without share
	MostBody int64      // the longest body, in bytes; below 0 bodies are handed on as they come
}

// mostBuffered bounds what bodies may take, in bytes.
const mostBuffered = 64 << 30

// mostQueued is how many may wait. To make room, all clients that wait are looked at.
const mostQueued = 10_000

// Reference reports whether it is nothing but a name, and so means the one of that name in the
// global options.
func (f *InFlight) Reference() bool { return reflect.DeepEqual(f, &InFlight{Name: f.Name}) }

// Shares reports whether clients take turns.
func (f *InFlight) Shares() bool { return len(f.Share) > 0 }

// SendsPasses reports whether clients get passes.
func (f *InFlight) SendsPasses() bool { return f.Shares() && f.Pass != option.Off }

// withDefaults returns it with its defaults filled in, but for that of buffer.
func (f *InFlight) withDefaults() InFlight {
	full := *f
	status := http.StatusTooManyRequests
	if f.Shares() {
		status, full.Wait = http.StatusServiceUnavailable, cmp.Or(f.Wait, caddy.Duration(5*time.Second))
	}
	if full.Wait > 0 {
		full.Queue = cmp.Or(f.Queue, 250)
	}
	full.Refusal = option.CopyOf(f.Refusal)
	full.Refusal.FillIn(status)
	return full
}

// Definition returns a canonical text: definitions of one name must have the same.
func (f *InFlight) Definition() string {
	full := f.withDefaults()
	raw, _ := json.Marshal(&full) // its matchers have been JSON before
	return option.Canonical(raw)
}

// Compile checks it as far as possible without loading matchers, in a config that bounds bodies
// so. It does not change it.
func (f *InFlight) Compile(bounds *Buffer) (*InFlightRule, error) {
	if err := option.CheckName("in_flight", f.Name); err != nil {
		return nil, err
	}
	r := &InFlightRule{InFlight: f.withDefaults()}
	var wrongBuffer, wrongKey, wrongShare, wrongRank error
	r.MostBody, wrongBuffer = parseBuffer(f.Buffer, bounds)
	r.SlotKey, wrongKey = compileSlotKey("key", f.Key)
	r.ShareKey, wrongShare = compileSlotKey("share", f.Share)
	onlyText := f.Shares() && !slices.ContainsFunc(f.Share, func(k limit.KeySource) bool { return k.Source != "text" })
	for i := range f.Rank {
		wrongRank = cmp.Or(wrongRank, option.About("rank", i, f.Rank[i].check(f.Shares(), f.SendsPasses())))
	}
	err := cmp.Or(
		option.Refuse("slots", f.Slots == 0, "no slots given: want in_flight <name> <slots>, such as in_flight php 5"),
		option.Within("slots", f.Slots, 1, option.MostAtOnce),
		option.Within("wait", time.Duration(f.Wait), 0, option.Longest),
		option.Refuse("queue", f.Queue != 0 && r.Wait == 0, "queue has no meaning without wait: a request that finds no slot is refused at once"),
		option.Within("queue", f.Queue, 0, mostQueued),
		option.About("buffer", 0, wrongBuffer),
		wrongKey,
		option.Refuse("share", f.Shares() && len(f.Key) > 0, "share and a key exclude each other: clients take turns for slots that all share; leave the key out"),
		option.Refuse("share", onlyText, "share has no meaning with a text alone: all clients would be one client, who takes turns with nobody; want client_ip or another key source"),
		wrongShare,
		option.Among("pass", f.Pass, option.Off),
		option.Refuse("pass", f.Pass != "" && !f.Shares(), "pass off has no meaning without share: no passes are sent then"),
		wrongRank,
		option.CheckFree("exempt", f.Exempt),
		option.Refuse("refusal retry_after", f.Refusal != nil && f.Refusal.RetryAfter != "", "retry_after has no meaning in in_flight: nobody knows when a slot is free"),
		r.Refusal.Compile(),
	)
	if err != nil {
		return nil, fmt.Errorf("in_flight %q: %w", f.Name, err)
	}
	return r, nil
}

// Warnings says what probably does not work as meant. The defaults must have been filled in.
func (f *InFlight) Warnings() []string {
	warnings := option.Warnings(f.Exempt)
	for _, r := range f.Rank {
		if slices.ContainsFunc(r.Match, option.AnybodySends) {
			warnings = append(warnings, "anybody can send the header by which clients have priority: want client_ip or verified_crawler, or for members issued or told")
		}
	}
	if limit.ClientChosen(slices.Concat(f.Share, f.Key)) {
		warnings = append(warnings, "clients choose the key, so a client can get a new turn, or slots of its own, with every request: want client_ip, or no key")
	}
	return warnings
}

// parseBuffer reads the longest body in bytes, which is below 0 if bodies are handed on.
func parseBuffer(word string, bounds *Buffer) (int64, error) {
	request, inAll, err := bounds.Bytes()
	switch {
	case err != nil || word == "":
		return request, err
	case word == option.Off:
		return -1, nil
	}
	size, err := option.ParseSize(word, mostBuffered)
	if err != nil {
		return 0, fmt.Errorf("%w, or off", err)
	}
	return size, checkBuffer(size, inAll)
}

// compileSlotKey compiles the key of slots, or what makes a client that takes turns for them. It
// is nil without sources.
func compileSlotKey(word string, sources []limit.KeySource) (*limit.Key, error) {
	takes := func(source string) bool {
		return slices.ContainsFunc(sources, func(k limit.KeySource) bool { return k.Source == source })
	}
	key, err := limit.NewKey(sources)
	return key, cmp.Or(
		option.Refuse(word, takes("field"), "%s takes no form fields: slots are taken before bodies are looked at", word),
		option.Refuse(word, takes("route"), "%s takes no route: give the paths slots of their own, by an in_flight with a matcher for each", word),
		option.About(word, 0, err),
	)
}

// Buffer bounds what is kept of received bodies, and of responses that clients have not read yet.
type Buffer struct {
	// The longest request body that is received. A longer one is refused with status 413.
	// Default: 64MiB.
	Request string `json:"request,omitempty"`

	// How much of all bodies and responses together is kept in a file in Caddy's data directory.
	// No client may hold more of it than is still free. A body that finds no room is refused with
	// status 503. Default: 1GiB, or half of what the disk has free. Beside it, 64 MiB are kept in
	// memory.
	InAll string `json:"in_all,omitempty"`
}

// Bytes returns the longest body, and what all together may take. A nil Buffer has the defaults.
func (b *Buffer) Bytes() (request, inAll int64, err error) {
	given := option.CopyOf(b)
	request, wrong := option.ParseSize(cmp.Or(given.Request, "64MiB"), mostBuffered)
	inAll, err = option.ParseSize(cmp.Or(given.InAll, "1GiB"), mostBuffered)
	if err = cmp.Or(wrong, err); err != nil {
		return 0, 0, fmt.Errorf("buffer: %w", err)
	}
	return request, inAll, checkBuffer(request, inAll)
}

// checkBuffer refuses a longest body that one client would never find room for.
func checkBuffer(request, inAll int64) error {
	return option.Refuse("", request > inAll/2, "buffer %d MiB is more than one client may hold, which is half of the %d MiB of all: want less, or more in all, as in buffer 64MiB 1GiB in the global options", request>>20, inAll>>20)
}

// Rank gives some clients priority in an in_flight with share. It has one of issued, told and
// match.
type Rank struct {
	// The priority: `member` or `crawler`. Required. Members are served first, then clients
	// that come back when they were told to, then crawlers, then all others.
	Rank string `json:"rank,omitempty"`

	// Members are clients to whom the upstream has given one of these cookies: names, or
	// patterns such as `wordpress_logged_in_*`. The cookie must be one that only a login
	// sets. A client that makes one up is no member: the response that set the cookie
	// has brought it a signed pass, which holds a digest of it.
	Issued []string `json:"issued,omitempty"`

	// Members are clients whom the upstream names in this response header, by an ID of
	// its own, such as the number of the user. Clients never see the header, and the
	// upstream never sees one that a client made up. It counts once in a response, and
	// not in one that caches may keep for others.
	Told string `json:"told,omitempty"`

	// The upstream's session cookie, which a client named in the header must keep
	// presenting: a name, or a pattern such as `*_session`. Required with told.
	Session string `json:"session,omitempty"`

	// Which requests have the priority. Required for crawlers.
	Match caddyhttp.RawMatcherSets `json:"match,omitempty" caddy:"namespace=http.matchers"`
}

// The ranks that a line may give.
const (
	RankMember  = "member"
	RankCrawler = "crawler"
)

// check refuses what is no rank.
func (r *Rank) check(shares, passes bool) error {
	issued, told, matched := len(r.Issued) > 0, r.Told != "", len(r.Match) > 0
	err := cmp.Or(
		option.Refuse("", !shares, "rank has no meaning without share: requests wait in the order of arrival"),
		option.Refuse("", r.Rank != RankMember && r.Rank != RankCrawler, "unknown rank %q: want member or crawler", r.Rank),
		option.Refuse("", issued && (told || matched) || told && matched || !issued && !told && !matched, "incomplete rank: want issued <cookie-glob>..., told <Response-Header> <cookie-glob>, or matchers"),
		option.Refuse("", r.Rank == RankCrawler && !matched, "only members are known by what the upstream answers: want matchers for crawlers"),
		option.Refuse("", !passes && !matched, "pass off and rank member issued or told exclude each other: a member is known by the pass"),
		option.Refuse("", told && !httpguts.ValidHeaderFieldName(r.Told), "invalid response header %q in rank member told: want a name such as X-Throttle-User", r.Told),
		option.Refuse("", told != (r.Session != ""), "incomplete rank: want told and session together, such as X-Throttle-User and _redmine_session"),
		option.Refuse("", r.Session != "" && !cookie.ValidPattern(r.Session), "invalid cookie %q in rank member told: want the name of the upstream's session cookie, or a pattern such as *_session", r.Session),
	)
	for _, pattern := range r.Issued {
		visitor := cookie.Anonymous(pattern)
		err = cmp.Or(err,
			option.Refuse("", !cookie.ValidPattern(pattern), "invalid cookie %q in rank member issued: want the name, or a pattern such as wordpress_logged_in_*, of one that only a login sets", pattern),
			option.Refuse("", visitor != "", "cookie %q in rank member issued matches %s, which visitors get who have not logged in: want one that only a login sets, or rank member told <Response-Header> <cookie-glob>", pattern, visitor),
		)
	}
	return cmp.Or(err, option.CheckFree("", r.Match))
}
