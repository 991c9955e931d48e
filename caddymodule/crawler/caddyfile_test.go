package crawler_test

import (
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2/caddyconfig"
	_ "github.com/caddyserver/caddy/v2/modules/standard"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/golden"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

func TestGolden(t *testing.T) { golden.Run(t) }

func TestMistakes(t *testing.T) {
	for text, want := range map[string]string{
		"@bots verified_crawler":                                  "verified_crawler names no crawler: want googlebot, google-special,",
		"@bots verified_crawler gogglebot":                        `unknown crawler "gogglebot": did you mean googlebot?, at`,
		"@bots verified_crawler ChatGPT-User":                     `unknown crawler "ChatGPT-User": want one of googlebot,`,
		"@bots verified_crawler Google-Extended":                  `unknown crawler "Google-Extended": want one of googlebot,`,
		"@bots verified_crawler meta-externalagent":               `unknown crawler "meta-externalagent": want one of googlebot,`,
		"@bots verified_crawler mistral":                          `unknown crawler "mistral": want one of googlebot,`,
		"@bots verified_crawler ./bots.json":                      `unknown crawler "./bots.json": want one of googlebot,`,
		"@bots verified_crawler http://example.com/bots.json":     `invalid list "http://example.com/bots.json": want a URL such as https://`,
		"@bots verified_crawler 66.249.64.0/19":                   `unknown crawler "66.249.64.0/19": want one of googlebot,`,
		"@bots verified_crawler bingbot {\nresolver localhost\n}": `invalid resolver "localhost": want an address and a port, such as 127.0.0.1:53`,
		"@bots verified_crawler bingbot {\nresolver\n}":           "wrong number of words after resolver: it takes one word",
		"@bots verified_crawler bingbot {\ndns 127.0.0.1:53\n}":   `unknown option "dns" in verified_crawler: want resolver`,
		"@bots {\nverified_crawler bingbot {\nresolver 10.0.0.1:53\n}\nverified_crawler googlebot {\nresolver 10.0.0.2:53\n}\n}": "resolver is given twice",
	} {
		_, _, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte("http://example.com {\n"+text+"\nthrottle @bots pages 60 10/s\n}\n"), map[string]any{"filename": "Caddyfile"})
		check.That(t, err != nil && strings.Contains(err.Error(), want) && strings.Contains(err.Error(), "Caddyfile:"), "%s: got %v, want %s", text, err, want)
	}
}

func TestJSONThatNoCaddyfileCouldSayIsRefusedToo(t *testing.T) {
	for matcher, want := range map[string]string{
		`{}`:                              "verified_crawler: nothing stands after it",
		`{"crawlers":["gogglebot"]}`:      `unknown crawler "gogglebot": did you mean googlebot`,
		`{"crawlers":["http://a.com/a"]}`: "want a URL such as https://",
		`{"crawlers":["bingbot"],"resolver":"127.0.0.1"}`: `invalid resolver "127.0.0.1"`,
	} {
		err := golden.Validate(t, []byte(`{"apps":{"throttle":{"exempt":[{"verified_crawler":`+matcher+`}]}}}`))
		check.That(t, err != nil && strings.Contains(err.Error(), want), "%s: got %v, want %s", matcher, err, want)
	}
}
