// Package caddymodule adds rate limiting to Caddy: the handler `throttle` protects
// upstreams with leaky buckets.
//
// The exported structs are the JSON config, and their comments are its manual.
// [Zone] describes a limit, [Handler] charges requests to zones, and [App] holds
// the global options. A request's way through the code is [Handler.ServeHTTP]. The
// Caddyfile is sugar for the JSON.
package caddymodule

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/refusal"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/staticfile"
	bucketkey "github.com/caddy-throttle/caddy-throttle/leakybucket/key"
)

// Zone is a named rate limit: which requests it charges, to whose bucket, how
// much the bucket holds, and what happens when it overflows. A zone is one budget
// wherever its name appears, so all definitions of one name must be equal. A zone
// with nothing but a name is the one that the global options define.
type Zone struct {
	// The zone's name, of letters, digits, `_`, `.` and `-`. Required.
	Name string `json:"name,omitempty"`

	// Which requests are charged. Default: all.
	Match caddyhttp.RawMatcherSets `json:"match,omitempty" caddy:"namespace=http.matchers"`

	// Which of these requests are not charged. Default: none. If assets are
	// charged, one page view may cost as much as 80 requests.
	Exempt caddyhttp.RawMatcherSets `json:"exempt,omitempty" caddy:"namespace=http.matchers"`

	// Exempt GET and HEAD requests for regular files that exist, and whose names
	// PHP does not run. Default: such requests are charged.
	ExemptStaticFiles *StaticFiles `json:"exempt_static_files,omitempty"`

	// The values of a request that identify its bucket. Default: the client's
	// address. If clients choose all values, they can get a fresh bucket with every
	// request: then add a zone keyed by `client_ip` to the same handler.
	Key []KeySource `json:"key,omitempty"`

	// The policy for requests if a part of their key is missing or empty. Default:
	// `client_ip`, which charges a bucket of the client's address. `share` charges
	// one bucket for all such requests, `refuse` refuses them. `skip` lets them
	// pass, so that leaving the key out is a way around the zone.
	MissingKey string `json:"missing_key,omitempty"`

	// The policy for requests whose key no override names, in the words of
	// missing_key. Default: their own bucket is charged.
	UnlistedKey string `json:"unlisted_key,omitempty"`

	// Keep the values of headers, cookies, query parameters and form fields, and
	// the user names of HTTP Basic, readable in logs and in the store. Default: only
	// SHA-256 digests are kept, because these values are often secrets.
	PlainKeys bool `json:"plain_keys,omitempty"`

	// How many leading bits of an IPv4 address identify a client. Default: 32.
	IPv4Prefix int `json:"ipv4_prefix,omitempty"`

	// How many leading bits of an IPv6 address identify a client. Default: 64,
	// since a single customer has at least that many addresses.
	IPv6Prefix int `json:"ipv6_prefix,omitempty"`

	// Names for paths, for the key source `route`. The first that matches counts.
	// Paths that match none are `other`.
	Route []Route `json:"route,omitempty"`

	// The burst: how much a bucket holds before it overflows, in units of cost.
	// Required, unless in_flight is given. Too low, and one page view with many
	// assets is refused.
	Capacity float64 `json:"capacity,omitempty"`

	// The sustained rate: how fast a bucket drains, such as `2/s`, `30/m`,
	// `1000/h`, `5000/d` or `5/20s`. Required with a capacity.
	Leak string `json:"leak,omitempty"`

	// Other limits for some keys. If several match, the one that names most parts
	// of the key counts. Default: none.
	Override []bucketkey.Override `json:"override,omitempty"`

	// A file with more overrides, one on each line, as a Caddyfile has them after the
	// word `override`. They are stronger than those in override. Changes are in force
	// within a few seconds, without a reload. If the file is wrong or missing, the
	// config does not load. If it becomes so later, the overrides read before stay in
	// force, and the log says why. A relative path is relative to the Caddyfile, and in
	// JSON to Caddy's working directory. Default: none.
	OverrideFile string `json:"override_file,omitempty"`

	// The cost of a request. The first that matches counts. Default: 1.
	Cost []Cost `json:"cost,omitempty"`

	// How much of the request body may be buffered to compute its cost or key, in
	// bytes. Default: 65536. A longer body costs unread_body_cost, and its form
	// fields are missing.
	MaxBody int64 `json:"max_body,omitempty"`

	// The cost of a request whose body was not read or not understood. Default:
	// the capacity, so that such a request passes only into an empty bucket.
	UnreadBodyCost *float64 `json:"unread_body_cost,omitempty"`

	// How to correct the charge once the response is known. The charge at the
	// request is then a reservation. Default: the charge stays.
	Settle *Settle `json:"settle,omitempty"`

	// How far above the capacity a correction may lift the level, in units.
	// Default: the capacity. With 0, corrections stop at the capacity, so a heavy
	// request pays no more than a light one into a full bucket.
	Debt *float64 `json:"debt,omitempty"`

	// Charge browsers that have logged in to an account before to buckets of their
	// own. The key must name the account. Default: everybody who names an account
	// shares its bucket, and attackers can lock out its owner.
	TrustDevices *TrustDevices `json:"trust_devices,omitempty"`

	// Queue requests instead of passing a burst at once: each waits until what
	// was charged before it has leaked, except for this many units. Default: all
	// requests that fit pass at once.
	Delay *float64 `json:"delay,omitempty"`

	// The longest wait: in the queue of delay, or in a zone without a capacity for
	// a slot of in_flight. A request that would have to wait longer is refused.
	// Default: as long as the capacity allows with delay, and no wait for a slot.
	MaxWait caddy.Duration `json:"max_wait,omitempty"`

	// How many requests of the zone may wait at once on this node. More are
	// refused. Default: 1000. A waiting request uses memory.
	MaxWaiting int `json:"max_waiting,omitempty"`

	// The concurrency limit: how many requests of one key are served at once on
	// this node. Default: any number. Without max_wait, more are refused.
	InFlight int `json:"in_flight,omitempty"`

	// Who takes turns for the slots of in_flight. A client whose requests have used
	// the upstream for longer goes behind others, one whose turn would come too late
	// is refused at once, and no client holds more than half the slots while others
	// wait. The sources are those of a key, but no form field; in a Caddyfile, `share`
	// without a source means `client_ip`. With share, the default of the key is the
	// whole zone, that of status 503, of max_wait 5 s and of max_waiting 200. Default:
	// requests of one key wait in the order of arrival.
	Share []KeySource `json:"share,omitempty"`

	// Who is served before others in a zone with share. Default: clients who have come
	// back when they were told to, and then all others.
	Rank []Rank `json:"rank,omitempty"`

	// `off` sends no passes to clients of a zone with share: the cookie by which those
	// who come back are known, and members. Then nobody has come back. Default: passes
	// are sent over HTTPS.
	Pass string `json:"pass,omitempty"`

	// For how long the slots of in_flight grow after Caddy has started, or after the
	// zone has had no request for as long: from a third to their full number, evenly,
	// while the upstream's caches are cold. Default: all slots are there at once.
	WarmUp caddy.Duration `json:"warm_up,omitempty"`

	// How much of the request body to read before a slot of in_flight is taken, in
	// bytes, so that clients that upload slowly hold no slot meanwhile. Clients have
	// five minutes for it. A longer body, or one of which 10 KiB came in the last 15
	// seconds, takes its slot then, and the rest is handed on as it comes. All requests of this process together
	// buffer at most 64 MiB, and those of one client at most 6.4 MiB; beyond that, the
	// slot comes first. Shadow zones buffer nothing. Default: slots are taken before the body is read.
	//
	// With max_wait, make it as large as the uploads that people send several of at
	// once. Over HTTP/2, uploads of one connection share a window of 1 MiB. Those that
	// wait for a slot with more to come fill it, so that those that are served get
	// nothing more until the others have waited for max_wait and are refused. Leave
	// conversations such as gRPC out of the zone: they would wait for answers while
	// they are buffered.
	RequestBuffer int64 `json:"request_buffer,omitempty"`

	// Ban a key for a while after an overflow. Default: only the requests that
	// overflow are refused.
	Block *Block `json:"block,omitempty"`

	// The fallback when a shared store does not answer: `local` uses buckets in
	// this process, `allow` lets requests pass, `deny` refuses them with status
	// 503. Default: the fallback in the global options.
	OnStoreError string `json:"on_store_error,omitempty"`

	// What Retry-After says: `empty` is the time until the bucket is empty, `fit`
	// the time until the request would fit. A duration is said as it is, unless
	// the time to fit is longer. Default: `empty`.
	RetryAfter string `json:"retry_after,omitempty"`

	// How many percent longer than necessary Retry-After may be. Each client is
	// told a different time, so that they do not all come back in the same
	// second. Default: 0.
	RetryJitter int `json:"retry_jitter,omitempty"`

	// The status of refusals, from 400 to 599. Default: 429.
	Status int `json:"status,omitempty"`

	// The text that people see when this zone refuses them, such as `Too
	// many failed log-ins.` The built-in page shows it, instead of the text of
	// page_style, and JSON answers carry it with the wait in the member `message`,
	// which WordPress's editor shows. Pages of your own have it as
	// `{http.throttle.message}`. Default: that the site receives too many requests, in
	// the visitor's language.
	Message string `json:"message,omitempty"`

	// A file with the HTML of refusals. Placeholders in it are filled in and their
	// values escaped. It is read when the config is loaded. Default: a short
	// built-in page in the visitor's language, which counts down, and reloads by
	// itself after a GET.
	Page string `json:"page,omitempty"`

	// The HTML of refusals itself, instead of a file in page. In a Caddyfile,
	// `page` reads the file into this field. Default: none.
	PageHTML *string `json:"page_html,omitempty"`

	// Brand the built-in page. In a Caddyfile, `page` with a block. Default: the
	// built-in page without a brand.
	PageStyle *PageStyle `json:"page_style,omitempty"`

	// How to refuse: `page` writes the answer, `error` leaves it to the site's
	// error routes. Default: `page`. Error routes cost several times as much, and
	// may run the very upstream that is to be protected.
	Refuse string `json:"refuse,omitempty"`

	// Whether a refusal has a support code that visitors can tell you: `on` or `off`.
	// `caddy throttle why <code>` says what was refused. The built-in page and JSON
	// answers show it; pages of your own and error routes have it as
	// `{http.throttle.support_code}`. Default: `on`. Codes are random and tell visitors
	// nothing. Caddy remembers the last 10,000 refusals.
	SupportCode string `json:"support_code,omitempty"`

	// Name the zone that refuses in the header `X-Throttle-Zone` of its refusals.
	// Default: no such header, since it tells attackers which limit they have met.
	ZoneHeader bool `json:"zone_header,omitempty"`

	// How many refusals by this zone are in Caddy's access log: `all`, `off`, or at
	// most a rate such as `10/s`. Default: `all`. The next line of the zone that is
	// written says how many were not. Metrics and Caddy's own log count them all.
	LogRefused string `json:"log_refused,omitempty"`

	// Dry run: decide, count and log as enforcement would, but never refuse.
	// Default: the zone is enforced.
	Shadow bool `json:"shadow,omitempty"`

	// Judge the zone in shadow together with the enforced zones and with those of the
	// same handler that have this too, as if all of them were enforced. In a Caddyfile,
	// `shadow` beside the zones. Default: with the enforced zones only.
	ShadowTogether bool `json:"shadow_together,omitempty"`

	// Mark responses that the zone would have refused in shadow with the header
	// `Server-Timing: throttle;desc="<zone>"`. A script in the page can read it and
	// report it to the handler `throttle_seen`, so that you know how many of the
	// refused clients are people. Default: no mark.
	ServerTiming bool `json:"server_timing,omitempty"`

	// For how many percent of its keys the zone is enforced. For the others it is
	// a dry run. Default: 100. All nodes choose the same keys, and keys that are
	// enforced stay enforced at a higher percentage.
	Enforce int `json:"enforce,omitempty"`
}

// PageStyle brands the built-in page. Its texts are plain text in one language. All
// others on the page are in the visitor's language.
type PageStyle struct {
	// The heading, such as the name of the site: at most 100 characters. Default:
	// "One moment, please".
	Title string `json:"title,omitempty"`

	// The colour of the page's edge and of its bar: `#0a7f5c`, `0a7f5c`, `#0a7`, or a
	// basic colour of CSS such as `teal`. Default: a blue.
	Accent string `json:"accent,omitempty"`

	// What is the matter, in at most 500 characters. How long to wait, and what to
	// do then, follows it. Default: "This site is receiving too many requests right
	// now."
	Text string `json:"text,omitempty"`
}

// StaticFiles exempts files from being charged. Only the one plain name of a file
// counts, because PHP sites run index.php for most others. Names with a trailing or
// encoded slash, a backslash, a dot file or a PHP extension anywhere are charged, and
// so are symbolic links out of the root.
type StaticFiles struct {
	// The folder with the files. It may have placeholders. Default: the site's
	// root, as the directive `root` sets it.
	Root string `json:"root,omitempty"`
}

// load returns the matcher of these files, or nil for a nil receiver.
func (s *StaticFiles) load(ctx caddy.Context) (*staticfile.Matcher, error) {
	if s == nil {
		return nil, nil
	}
	return staticfile.New(ctx, s.Root)
}

// Route is a name for some paths.
type Route struct {
	// The name that stands for the paths in keys. Required.
	Name string `json:"name,omitempty"`

	// The paths, as the matcher `path` takes them. Required.
	Path caddyhttp.MatchPath `json:"path,omitempty"`
}

const (
	retryEmpty = "empty"
	retryFit   = "fit"

	refusePage  = "page"
	refuseError = "error"

	switchOn  = "on"
	switchOff = "off"
)

var zoneName = regexp.MustCompile(`^[A-Za-z0-9_.-]+$`)

// reference reports whether the zone is nothing but a name, and so stands for a
// zone in the global options.
func (z *Zone) reference() bool {
	definition, err := json.Marshal(z)
	name, err2 := json.Marshal(Zone{Name: z.Name})
	return err == nil && err2 == nil && string(definition) == string(name)
}

// Block bans a key for a while after an overflow.
type Block struct {
	// How long the first block lasts, the next one, and so on; each must be longer
	// than the one before. With `10m` and `1h`, a key that overflows again within
	// 10 minutes of its first block ending is blocked for 1 hour. After staying
	// quiet for as long as its last block, it starts at 10 minutes again. Default:
	// a block lasts until the bucket is empty.
	For []caddy.Duration `json:"for,omitempty"`

	// Refuse the client in every throttle handler of this Caddy. The key must be
	// the client's address alone. Default: only in handlers with this zone.
	Everywhere bool `json:"everywhere,omitempty"`
}

// loadPage returns the zone's page, or nil if it has none of its own.
func (z *Zone) loadPage() (*refusal.Page, error) {
	switch {
	case z.PageHTML != nil:
		return refusal.Compile(*z.PageHTML)
	case z.Page == "" && z.PageStyle == nil && z.Message == "":
		return nil, nil
	case z.Page == "":
		style := z.PageStyle.style()
		style.Text = cmp.Or(z.Message, style.Text)
		return style.Compile()
	}
	raw, err := os.ReadFile(z.Page)
	if err != nil {
		if full, e := filepath.Abs(z.Page); e == nil && !filepath.IsAbs(z.Page) {
			return nil, fmt.Errorf("reading page: %w (that is %s)", err, full)
		}
		return nil, fmt.Errorf("reading page: %w", err)
	}
	page, err := refusal.Compile(string(raw))
	if err != nil {
		return nil, fmt.Errorf("reading page %s: %w", z.Page, err)
	}
	return page, nil
}

func (s *PageStyle) style() refusal.Style {
	if s == nil {
		return refusal.Style{}
	}
	return refusal.Style{Title: s.Title, Accent: s.Accent, Text: s.Text}
}
