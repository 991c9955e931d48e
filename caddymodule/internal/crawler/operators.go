// Package crawler tells the crawlers of search engines and AI companies from programs
// that only carry their names. An address is a crawler's if its operator publishes it,
// or if reverse and forward DNS agree that it belongs to the operator.
package crawler

import (
	"slices"
	"strings"
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
// URLs and domains are those that the operators document, as of November 2026:
//
//	developers.google.com/crawling/docs/crawlers-fetchers/verify-google-requests
//	www.bing.com/webmasters/help/which-crawlers-does-bing-use-8c184ec0
//	support.apple.com/en-us/119829
//	duckduckgo.com/duckduckgo-help-pages/results/duckduckbot
//	developers.openai.com/api/docs/bots
//	support.claude.com/en/articles/8896518
//	docs.perplexity.ai/guides/bots
//	commoncrawl.org/ccbot
//	developer.amazon.com/amazonbot
//	yandex.com/support/webmaster/en/robot-workings/check-yandex-robots
//	o-seznam.cz/napoveda/vyhledavani/en/seznambot-crawler
var Known = []*Crawler{
	{
		Name: "googlebot", Agents: []string{"googlebot", "googleother", "google-inspectiontool", "storebot-google", "google-cloudvertexbot"},
		Lists: []string{"https://developers.google.com/static/crawling/ipranges/common-crawlers.json"}, Domains: []string{"googlebot.com"},
	},
	{
		// These have an agreement with the site, such as those that check its ads.
		Name: "google-special", Agents: []string{"adsbot-google", "mediapartners-google", "apis-google", "google-safety"},
		Lists: []string{"https://developers.google.com/static/crawling/ipranges/special-crawlers.json"}, Domains: []string{"google.com"}, Hosts: "rate-limited-proxy-",
	},
	{Name: "bingbot", Agents: []string{"bingbot"}, Lists: []string{"https://www.bing.com/toolbox/bingbot.json"}, Domains: []string{"search.msn.com"}},
	{Name: "applebot", Agents: []string{"applebot"}, Lists: []string{"https://search.developer.apple.com/applebot.json"}, Domains: []string{"applebot.apple.com"}},
	{Name: "duckduckbot", Agents: []string{"duckduckbot"}, Lists: []string{"https://duckduckgo.com/duckduckbot.json"}},
	{Name: "gptbot", Agents: []string{"gptbot"}, Lists: []string{"https://openai.com/gptbot.json"}},
	{Name: "oai-searchbot", Agents: []string{"oai-searchbot"}, Lists: []string{"https://openai.com/searchbot.json"}},
	// Claude-User has the same addresses.
	{Name: "claudebot", Agents: []string{"claudebot", "claude-searchbot"}, Lists: []string{"https://claude.com/crawling/bots.json"}, Claimed: true},
	{Name: "perplexitybot", Agents: []string{"perplexitybot"}, Lists: []string{"https://www.perplexity.com/perplexitybot.json"}},
	{Name: "ccbot", Agents: []string{"ccbot"}, Lists: []string{"https://index.commoncrawl.org/ccbot.json"}, Domains: []string{"crawl.commoncrawl.org"}},
	{Name: "amazonbot", Agents: []string{"amazonbot"}, Domains: []string{"crawl.amazonbot.amazon"}},
	{Name: "yandexbot", Agents: []string{"yandex"}, Domains: []string{"yandex.ru", "yandex.net", "yandex.com"}},
	{Name: "baiduspider", Agents: []string{"baiduspider"}, Domains: []string{"crawl.baidu.com", "crawl.baidu.jp"}},
	{Name: "seznambot", Agents: []string{"seznambot"}, Domains: []string{"seznam.cz"}},
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

// claims reports whether a user agent, in lower case, names the crawler.
func (c *Crawler) claims(agent string) bool {
	return slices.ContainsFunc(c.Agents, func(name string) bool { return strings.Contains(agent, name) })
}

// owns reports whether a host name is the crawler's by its domain.
func (c *Crawler) owns(host string) bool {
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	return strings.HasPrefix(host, c.Hosts) && slices.ContainsFunc(c.Domains, func(domain string) bool {
		return strings.HasSuffix(host, "."+domain)
	})
}
