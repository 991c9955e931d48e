package config

import (
	"errors"
	"fmt"
	"net/http"
	"slices"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"golang.org/x/net/http/httpguts"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/cookie"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/option"
)

// Rank gives some clients priority in an in_flight with share. It has one of issued, told and
// match.
type Rank struct {
	// The priority: `member` or `crawler`. Required. Members are served first, then clients
	// that come back when they were told to, then crawlers, then all others.
	Rank string `json:"rank,omitempty"`

	// Members are clients to whom the upstream has given one of these cookies: names, or
	// patterns such as `wordpress_logged_in_*`. The cookie must be one that only a log-in
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

const (
	RankMember  = "member"
	RankCrawler = "crawler"
)

// check refuses what is no rank.
func (r *Rank) check(shares, passes bool) error {
	issued, told, matched := len(r.Issued) > 0, r.Told != "", len(r.Match) > 0
	switch {
	case !shares:
		return errors.New("rank has no meaning without share: requests wait in the order of arrival")
	case r.Rank != RankMember && r.Rank != RankCrawler:
		return fmt.Errorf("unknown rank %q: want member or crawler", r.Rank)
	case issued && (told || matched) || told && matched || !issued && !told && !matched:
		return errors.New("incomplete rank: want issued <cookie-glob>..., told <Response-Header> <cookie-glob>, or matchers")
	case r.Rank == RankCrawler && len(r.Match) == 0:
		return errors.New("only members are known by what the upstream answers: want matchers for crawlers")
	case !passes && len(r.Match) == 0:
		return errors.New("pass off and rank member issued or told exclude each other: a member is known by the pass")
	case r.Told != "" && !httpguts.ValidHeaderFieldName(r.Told):
		return fmt.Errorf("invalid response header %q in rank member told: want a name such as X-Throttle-User", r.Told)
	case (r.Told != "") != (r.Session != ""):
		return errors.New("incomplete rank: want told and session together, such as X-Throttle-User and _redmine_session")
	case r.Session != "" && !cookie.ValidPattern(r.Session):
		return fmt.Errorf("invalid cookie %q in rank member told: want the name of the upstream's session cookie, or a pattern such as *_session", r.Session)
	case r.Told != "" && slices.Contains(ownHeaders, http.CanonicalHeaderKey(r.Told)):
		return fmt.Errorf("invalid response header %q in rank member told: clients need it, and would not get it; want one of your own, such as X-Throttle-User", r.Told)
	}
	for _, pattern := range r.Issued {
		if meant := option.UnfinishedCookie(pattern); meant != "" {
			return fmt.Errorf("invalid cookie %q in rank member issued: no cookie ends so; did you mean %s?", pattern, meant)
		}
		if !cookie.ValidPattern(pattern) {
			return fmt.Errorf("invalid cookie %q in rank member issued: want the name, or a pattern such as wordpress_logged_in_*, of one that only a log-in sets", pattern)
		}
		if name := cookie.Anonymous(pattern); name != "" {
			return fmt.Errorf("cookie %q in rank member issued matches %s, which visitors get who have not logged in: want one that only a log-in sets, or rank member told <Response-Header> <cookie-glob>", pattern, name)
		}
	}
	return option.CheckMatcherSets(r.Match)
}

// ownHeaders are response headers that clients cannot do without.
var ownHeaders = []string{"Set-Cookie", "Location", "Content-Type", "Content-Length", "Content-Encoding", "Cache-Control", "Connection", "Transfer-Encoding", "Upgrade", "Etag", "Vary", "Retry-After", "Age", "Expires", "Last-Modified", "Date", "Content-Range", "Accept-Ranges", "Content-Disposition", "Content-Language", "Www-Authenticate"}
