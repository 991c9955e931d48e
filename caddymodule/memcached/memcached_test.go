package memcached

import (
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
)

func TestCaddyfile(t *testing.T) {
	for text, want := range map[string]string{
		"memcached": "want the servers",
		"memcached 127.0.0.1:11211 {\n\tprefix\n}":                      "wrong number of words after prefix",
		"memcached 127.0.0.1:11211 {\n\tprefix a\n\tprefix b\n}":        "given twice",
		"memcached 127.0.0.1:11211 {\n\turl x\n}":                       `unknown option "url"`,
		"memcached 127.0.0.1:11211 {\n\tprefix {x.y}\n}":                "filling in placeholders",
		"memcached 127.0.0.1:11211 {\n\tprefix ä\n}":                    "invalid prefix",
		"memcached 127.0.0.1":                                           "invalid servers",
		"memcached 127.0.0.1:11211 127.0.0.1:11212 {\n\tprefix shop\n}": "",
	} {
		m := new(Memcached)
		err := m.UnmarshalCaddyfile(caddyfile.NewTestDispenser(text))
		if err == nil {
			err = m.Provision(caddy.Context{})
		}
		if want == "" && (err != nil || m.Store() == nil || len(m.Servers) != 2 || m.Prefix != "shop") || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: got %+v, %v, want %q", text, m, err, want)
		}
	}
}
