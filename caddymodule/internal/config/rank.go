package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"golang.org/x/net/http/httpguts"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/cookie"
)

// Rank says who is served before others in a zone with share. It has one of issued, told
// and match.
type Rank struct {
	// The rank: `member` or `crawler`. Required. Members are served first, then clients
	// who have come back when they were told to, then crawlers, then all others.
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

	// The upstream's session cookie, which a client must go on presenting that was named
	// in the header: a name, or a pattern such as `*_session`. Required with told.
	Session string `json:"session,omitempty"`

	// Which requests are those of such clients.
	Match caddyhttp.RawMatcherSets `json:"match,omitempty" caddy:"namespace=http.matchers"`
}

const (
	RankMember  = "member"
	RankCrawler = "crawler"
)

// anonymousCookies are cookies that visitors get who have not logged in.
var anonymousCookies = []string{
	"PHPSESSID", "laravel_session", "laravel-session", "XSRF-TOKEN", "_app_session", "_session_id", "wp_woocommerce_session_0f", "wordpress_test_cookie",
	"woocommerce_items_in_cart", "woocommerce_cart_hash", "comment_author_0f", "JSESSIONID", "ASP.NET_SessionId", ".AspNetCore.Session",
	"connect.sid", "koa.sess", "ci_session", "CAKEPHP", "csrftoken", "csrf_token", "_csrf", "xf_session",
}

// anonymousPrefixes begin the names of such cookies, before a digest of the site.
var anonymousPrefixes = []string{"wp_woocommerce_session_", "comment_author_", "ASPSESSIONID"}

// railsSession matches how Rails names the session, which all visitors get, and its beginning.
var railsSession = regexp.MustCompile(`^_.*(_session|\*)$`)

// anonymous returns a cookie that anonymous visitors get and that matches a pattern, or
// "" if none is known.
func anonymous(pattern string) string {
	pattern = strings.TrimPrefix(strings.TrimPrefix(pattern, "__Host-"), "__Secure-") // any cookie may have one
	for _, name := range anonymousCookies {
		if match, _ := path.Match(pattern, name); match {
			return name
		}
	}
	for _, prefix := range anonymousPrefixes {
		if strings.HasPrefix(pattern, prefix) {
			return pattern
		}
	}
	if railsSession.MatchString(pattern) {
		return pattern
	}
	return ""
}

// sources returns each way to get the rank, as a Caddyfile has it, with matchers in JSON.
func (r *Rank) sources() (sources []string) {
	for _, pattern := range r.Issued {
		sources = append(sources, "rank "+r.Rank+" issued "+pattern)
	}
	if r.Told != "" {
		sources = append(sources, "rank "+r.Rank+" told "+http.CanonicalHeaderKey(r.Told))
	}
	for _, set := range r.Match {
		if raw, err := json.Marshal(set); err == nil {
			sources = append(sources, "rank "+r.Rank+" with the matchers "+string(raw))
		}
	}
	return sources
}

// check refuses a rank of in_flight.
func (r *Rank) check(shares, passes bool) error {
	issued, told, matched := len(r.Issued) > 0, r.Told != "", len(r.Match) > 0
	switch {
	case !shares:
		return errors.New("rank has no meaning without share: clients of other zones wait in the order of arrival")
	case r.Rank != RankMember && r.Rank != RankCrawler:
		return fmt.Errorf("unknown rank %q: want member or crawler", r.Rank)
	case issued && (told || matched) || told && matched || !issued && !told && !matched:
		return errors.New("incomplete rank: want one of issued, told and match")
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
		if meant := unfinished(pattern); meant != "" {
			return fmt.Errorf("invalid cookie %q in rank member issued: no cookie ends so; did you mean %s?", pattern, meant)
		}
		if !cookie.ValidPattern(pattern) {
			return fmt.Errorf("invalid cookie %q in rank member issued: want the name, or a pattern such as wordpress_logged_in_*, of one that only a log-in sets", pattern)
		}
		if name := anonymous(pattern); name != "" {
			return fmt.Errorf("cookie %q in rank member issued matches %s, which visitors get who have not logged in: want one that only a log-in sets, or rank member told <Response-Header> <cookie-glob>", pattern, name)
		}
	}
	for _, set := range r.Match {
		if err := CheckMatcherSet(set); err != nil {
			return err
		}
	}
	return nil
}

// ownHeaders are response headers that clients cannot do without.
var ownHeaders = []string{"Set-Cookie", "Location", "Content-Type", "Content-Length", "Content-Encoding", "Cache-Control", "Connection", "Transfer-Encoding", "Upgrade", "Etag", "Vary", "Retry-After", "Age", "Expires", "Last-Modified", "Date", "Content-Range", "Accept-Ranges", "Content-Disposition", "Content-Language", "Www-Authenticate"}

// weakMatchers are those by which a client can say about itself what it likes.
var weakMatchers = []string{"path", "path_regexp", "header", "header_regexp", "query", "method", "host", "protocol"}

// weak reports whether a client can make a set of matchers match.
func weak(set caddy.ModuleMap) bool {
	for name, raw := range set {
		switch {
		case name == "not" && !slices.ContainsFunc(excludedBy(set), func(s caddy.ModuleMap) bool { return !weak(s) }):
		case (name == "vars" || name == "vars_regexp" || name == "expression") && computesFromTheClient(string(raw)):
		case !slices.Contains(weakMatchers, name):
			return false
		}
	}
	return true
}

var (
	placeholderOf = regexp.MustCompile(`\{[^{}"]+\}`)
	functionOf    = regexp.MustCompile(`\b([A-Za-z_]+)\(`)

	// plainFunctions are those of CEL that ask nothing about the request.
	plainFunctions = []string{"size", "matches", "contains", "startsWith", "endsWith", "int", "double", "string", "has"}
)

// computesFromTheClient reports whether variables or an expression ask for nothing but what
// the client sends.
func computesFromTheClient(expression string) bool {
	asked := placeholderOf.FindAllString(expression, -1)
	for _, function := range functionOf.FindAllStringSubmatch(expression, -1) {
		switch {
		case slices.Contains(weakMatchers, function[1]):
			asked = append(asked, "{http.request.uri}")
		case !slices.Contains(plainFunctions, function[1]):
			return false
		}
	}
	return len(asked) > 0 && !slices.ContainsFunc(asked, func(placeholder string) bool { return !sentByClient.MatchString(placeholder) })
}
