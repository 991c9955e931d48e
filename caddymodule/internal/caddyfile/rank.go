package caddyfile

import (
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/config"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/tokens"
)

const (
	rankSyntax = "member issued <cookie-glob>...|member told <Response-Header> <cookie-glob>|member|crawler <request matchers>"

	wantRank = "want rank member issued <cookie-glob>..., rank member told <Response-Header> <cookie-glob>, or rank member|crawler with request matchers"
)

// parseRank reads the option rank.
func parseRank(r *zoneReader) error {
	if !r.NextArg() {
		return r.Err("rank names no rank: " + wantRank)
	}
	rank := config.Rank{Rank: r.Val()}
	if rank.Rank != config.RankMember && rank.Rank != config.RankCrawler {
		return r.Errf("unknown rank %q: want member or crawler; clients with a pass rank between them, and all others last", rank.Rank)
	}
	switch word, args := nextWord(r.Dispenser); word {
	case "issued", "told":
		r.NextArg()
		args = args[1:]
		if rank.Rank != config.RankMember {
			return r.Errf("rank %s %s: only members are known by what the upstream answers; want rank crawler with request matchers", rank.Rank, word)
		}
		if word == "issued" {
			if len(args) == 0 {
				return r.Err("rank member issued names no cookie: want the one that only a log-in sets, such as wordpress_logged_in_*")
			}
			if slices.Contains(args, "told") {
				return r.Err("rank member issued and rank member told stand on one line: want a line for each")
			}
			rank.Issued = args
		} else {
			if len(args) != 2 {
				return r.Err("wrong number of words after rank member told: want one response header and the cookie of the session, such as X-Throttle-User _redmine_session")
			}
			rank.Told, rank.Session = args[0], args[1]
		}
		r.RemainingArgs()
		if r.NextBlock(r.Nesting()) {
			return r.Errf("rank member %s takes no block: want a line of its own for the matchers", word)
		}
	default:
		if word == "" && !blockFollows(r.Dispenser) {
			return r.Errf("rank %s does not say who that is: %s", rank.Rank, wantRank)
		}
		line := strings.Join(args, " ")
		if name := strings.TrimPrefix(line, "cookie "); rank.Rank == config.RankMember && (name != line || strings.HasSuffix(word, "*")) {
			return r.Errf("unknown matcher %q in rank member: did you mean rank member issued %s?", word, name)
		}
		if err := parseMatchers(r.Dispenser, "rank "+rank.Rank, r.matcher, &rank.Match); err != nil {
			return err
		}
	}
	inFlightIn(r.zone).Rank = append(inFlightIn(r.zone).Rank, rank)
	return nil
}

// blockFollows reports whether a block comes next, and reads nothing.
func blockFollows(d *caddyfile.Dispenser) bool {
	peek := *d
	return peek.Next() && peek.Val() == "{"
}

// nextWord returns the next word on the line, which stays unread, and the rest of the
// line with it.
func nextWord(d *caddyfile.Dispenser) (word string, rest []string) {
	_, rest = lineHere(d)
	return append(rest, "")[0], rest
}

func parseTrustDevices(z *config.Zone, d *caddyfile.Dispenser) error {
	words := d.RemainingArgs()
	if len(words) == 0 || len(words) > 2 {
		return d.Err("wrong number of words after trust_devices: want trust_devices <cookie-glob> [<duration>], such as trust_devices wordpress_logged_in_* 180d")
	}
	if _, err := caddy.ParseDuration(words[0]); err == nil || slices.Contains([]string{"on", "yes", "true"}, words[0]) {
		return d.Errf("unexpected %q after trust_devices: want the cookie that a log-in sets first, as in trust_devices wordpress_logged_in_* 180d", words[0])
	}
	z.TrustDevices = &config.TrustDevices{Cookie: words[0]}
	if len(words) == 2 {
		duration, err := tokens.ParseDuration(words[1])
		if err != nil {
			return d.Errf("parsing trust_devices: %w", err)
		}
		z.TrustDevices.For = duration
	}
	return nil
}
