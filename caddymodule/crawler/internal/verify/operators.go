// Package verify tells the crawlers of search engines and AI companies from programs that
// only carry their names. An address is a crawler's if its operator publishes it, or if
// reverse and forward DNS agree that it belongs to the operator. Begin with [Set].
package verify

import (
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/caddy-throttle/caddy-throttle/caddymodule"
)

// A Crawler is known by its operator's lists of addresses, by its operator's domains,
// or by both.
type Crawler struct {
	Name    string
	Agents  []string // what its User-Agent contains, in lower case
	Lists   []string // URLs of JSON lists
	Domains []string // of its host names, in lower case
	Hosts   string   // what such a host name begins with; any if empty

	// Claimed says that the lists hold other addresses, too, such as those of fetchers
	// that users trigger. They prove nothing unless the user agent names the crawler.
	Claimed bool
}

// Known are the crawlers that have a name here. Fetchers that act for a user at the
// moment, such as ChatGPT-User, are none: anybody can send them anywhere.
//
// URLs, names and domains are those of the operators' own pages. Each is named with the
// month of the copy that the entry was last compared with. All lists were JSON with
// prefixes of ipv4Prefix or ipv6Prefix then.
var Known = []*Crawler{
	{
		// developers.google.com/crawling/docs/crawlers-fetchers/verify-google-requests, 2026-09.
		// Names are crawl-*.googlebot.com and geo-crawl-*.geo.googlebot.com.
		Name: "googlebot", Agents: []string{"googlebot", "googleother", "google-inspectiontool", "storebot-google", "google-cloudvertexbot"},
		Lists: []string{"https://developers.google.com/static/crawling/ipranges/common-crawlers.json"}, Domains: []string{"googlebot.com"},
	},
	{
		// The same page, 2026-09. These have an agreement with the site, such as those that
		// check its ads. Google's fetchers for users have lists of their own, and names such
		// as google-proxy-*.google.com.
		Name: "google-special", Agents: []string{"adsbot-google", "mediapartners-google", "apis-google", "google-safety"},
		Lists: []string{"https://developers.google.com/static/crawling/ipranges/special-crawlers.json"}, Domains: []string{"google.com"}, Hosts: "rate-limited-proxy-",
	},
	{
		// www.bing.com/webmasters/help/how-to-verify-bingbot-3905dc26, 2026-09.
		Name: "bingbot", Agents: []string{"bingbot"},
		Lists: []string{"https://www.bing.com/toolbox/bingbot.json"}, Domains: []string{"search.msn.com"},
	},
	{
		// support.apple.com/en-us/119829, 2026-09.
		Name: "applebot", Agents: []string{"applebot"},
		Lists: []string{"https://search.developer.apple.com/applebot.json"}, Domains: []string{"applebot.apple.com"},
	},
	{
		// duckduckgo.com/duckduckgo-help-pages/results/duckduckbot, 2026-09. DuckAssistBot,
		// which answers users' questions, has the same addresses.
		Name: "duckduckbot", Agents: []string{"duckduckbot"},
		Lists: []string{"https://duckduckgo.com/duckduckbot.json"}, Claimed: true,
	},
	{
		// developers.openai.com/api/docs/bots, 2026-09.
		Name: "gptbot", Agents: []string{"gptbot"}, Lists: []string{"https://openai.com/gptbot.json"},
	},
	{
		// The same page, 2026-09.
		Name: "oai-searchbot", Agents: []string{"oai-searchbot"}, Lists: []string{"https://openai.com/searchbot.json"},
	},
	{
		// support.claude.com/en/articles/8896518, 2026-09. Claude-User has the same addresses.
		Name: "claudebot", Agents: []string{"claudebot", "claude-searchbot"}, Lists: []string{"https://claude.com/crawling/bots.json"}, Claimed: true,
	},
	{
		// docs.perplexity.ai/guides/bots, 2026-09. It redirects to www.perplexity.ai.
		Name: "perplexitybot", Agents: []string{"perplexitybot"}, Lists: []string{"https://www.perplexity.com/perplexitybot.json"},
	},
	{
		// docs.mistral.ai/robots, 2026-09.
		Name: "mistralai-index", Agents: []string{"mistralai-index"}, Lists: []string{"https://mistral.ai/mistralai-index-ips.json"},
	},
	{
		// commoncrawl.org/ccbot, 2026-10.
		Name: "ccbot", Agents: []string{"ccbot"},
		Lists: []string{"https://index.commoncrawl.org/ccbot.json"}, Domains: []string{"crawl.commoncrawl.org"},
	},
	{
		// developer.amazon.com/amazonbot, 2026-04. Its addresses are on a web page without a
		// file, so only names can prove it.
		Name: "amazonbot", Agents: []string{"amazonbot"}, Domains: []string{"crawl.amazonbot.amazon"},
	},
	{
		// yandex.com/support/webmaster/en/robot-workings/check-yandex-robots, 2026-09.
		Name: "yandexbot", Agents: []string{"yandex"}, Domains: []string{"yandex.ru", "yandex.net", "yandex.com"},
	},
	{
		// help.baidu.com/question?prod_id=99&class=0&id=3001, 2026-09.
		Name: "baiduspider", Agents: []string{"baiduspider"}, Domains: []string{"crawl.baidu.com", "crawl.baidu.jp"},
	},
	{
		// o-seznam.cz/napoveda/vyhledavani/en/seznambot-crawler, 2026-09.
		Name: "seznambot", Agents: []string{"seznambot"}, Domains: []string{"seznam.cz"},
	},
}

// Names returns the names of all known crawlers.
func Names() (names []string) {
	for _, c := range Known {
		names = append(names, c.Name)
	}
	return names
}

// Find returns the known crawler of a name, or nil.
func Find(name string) *Crawler {
	if i := slices.IndexFunc(Known, func(c *Crawler) bool { return c.Name == name }); i >= 0 {
		return Known[i]
	}
	return nil
}

// Claims reports whether a user agent, in lower case, names the crawler.
func (c *Crawler) Claims(agent string) bool {
	return slices.ContainsFunc(c.Agents, func(name string) bool { return strings.Contains(agent, name) })
}

// owns reports whether a host name is the crawler's by its domain.
func (c *Crawler) owns(host string) bool {
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	return strings.HasPrefix(host, c.Hosts) && slices.ContainsFunc(c.Domains, func(domain string) bool {
		return strings.HasSuffix(host, "."+domain)
	})
}

// ParseCrawler returns the known crawler of a name, or another one by the URL of its list.
func ParseCrawler(word string) (*Crawler, error) {
	if strings.Contains(word, "://") {
		if u, err := url.Parse(word); err != nil || u.Scheme != "https" || u.Host == "" || u.User != nil {
			return nil, fmt.Errorf("invalid list %q: want a URL such as https://example.com/bots.json", word)
		}
		return &Crawler{Lists: []string{word}}, nil
	}
	name := strings.ReplaceAll(strings.ToLower(word), "_", "-")
	if c := Find(name); c != nil {
		return c, nil
	}
	return nil, caddymodule.ErrUnknown("crawler", word, append(Names(), "or the list of another one, such as https://example.com/bots.json")...)
}
