package crawler

import (
	"fmt"
	"net/netip"
	"net/url"
	"strings"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/text"
)

// ParseCrawler returns the crawler of a name, or the list that it is.
func ParseCrawler(word string) (*Crawler, string, error) {
	if scheme, _, is := strings.Cut(word, "://"); is {
		u, err := url.Parse(word)
		switch {
		case strings.EqualFold(scheme, "http"):
			return nil, "", fmt.Errorf("list %q would come over plain http, where anybody can change it: want https://", word)
		case err != nil || u.Scheme != "https" || u.Host == "" || u.User != nil:
			return nil, "", fmt.Errorf("invalid list %q: want a URL such as https://example.com/bots.json", word)
		}
		return nil, word, nil
	}
	name := strings.ReplaceAll(strings.ToLower(word), "_", "-")
	if c := Find(name); c != nil {
		return c, "", nil
	}
	_, notAddress := netip.ParseAddr(word)
	if _, notNetwork := netip.ParsePrefix(word); notAddress == nil || notNetwork == nil {
		return nil, "", fmt.Errorf("unknown crawler %q: for addresses, want client_ip %[1]s", word)
	}
	if meant := text.Nearest(name, Names()); meant != "" {
		return nil, "", fmt.Errorf("unknown crawler %q: did you mean %s?", word, meant)
	}
	return nil, "", fmt.Errorf("unknown crawler %q: want %s, or the list of another one, such as https://example.com/bots.json", word, strings.Join(Names(), ", "))
}
