// Package docs tests the documentation: each configuration in it is adapted and
// validated, and each link leads somewhere.
package docs

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	_ "github.com/caddyserver/caddy/v2/modules/standard"

	_ "github.com/caddy-throttle/caddy-throttle/caddymodule/standard"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/servertest"
)

// A machine has the files that configurations in the documentation name.
type machine struct{ secret, pem, page, overrides, logs string }

func newMachine(t *testing.T) *machine {
	t.Helper()
	folder := t.TempDir()
	t.Setenv("XDG_DATA_HOME", folder)
	t.Setenv("XDG_CONFIG_HOME", folder)
	page := check.Must(filepath.Abs("too-many-requests.html"))(t)
	m := &machine{filepath.Join(folder, "secret"), filepath.Join(folder, "both.pem"), page, filepath.Join(folder, "overrides"), folder + "/"}
	certificate, key := servertest.NewAuthority(t, "docs").Certify(t)
	both := append(certificate, key...)
	for name, text := range map[string][]byte{m.secret: []byte("a secret of at least 32 characters"), m.pem: both, m.overrides: []byte("override 192.0.2.1 600 10/s\n")} {
		check.OK(t, os.WriteFile(name, text, 0o600))
	}
	return m
}

var (
	secretFile = regexp.MustCompile(`\{file\.[^}]+\}`)
	pemFile    = regexp.MustCompile(`/[\w./-]+\.(pem|crt|key)\b`)
	pageFile   = regexp.MustCompile(`(?m)^(\s*page )[^\s{]+$`)
	imported   = regexp.MustCompile(`(?m)^(\s*import )/\S+$`)
	logFile    = regexp.MustCompile(`/var/log/(caddy/)?`)
)

// local replaces the files that the configuration names by those that are here.
func (m *machine) local(config string) string {
	config = secretFile.ReplaceAllLiteralString(config, "{file."+m.secret+"}")
	config = pemFile.ReplaceAllLiteralString(config, m.pem)
	config = pageFile.ReplaceAllString(config, "${1}"+m.page)
	config = imported.ReplaceAllString(config, "${1}"+m.overrides)
	return logFile.ReplaceAllLiteralString(config, m.logs)
}

// validate does what `caddy validate` does.
func (m *machine) validate(adapter, config string) error {
	raw := []byte(m.local(config))
	if adapter != "" {
		var err error
		if raw, _, err = caddyconfig.GetAdapter(adapter).Adapt(raw, map[string]any{"filename": "Caddyfile"}); err != nil {
			return fmt.Errorf("adapting: %w", err)
		}
	}
	parsed := new(caddy.Config)
	if err := caddy.StrictUnmarshalJSON(raw, parsed); err != nil {
		return err
	}
	return caddy.Validate(parsed)
}

// The words that fragments of Caddyfiles begin with, by what is around them. Other
// fragments are options of a zone.
var (
	inGlobalOptions  = strings.Fields("admin debug email events grace_period metrics order servers storage")
	inGlobalThrottle = strings.Fields("nodes plan signing_key store store_timeout")
	inSite           = strings.Fields(`abort basic_auth encode error file_server forward_auth handle handle_errors handle_path
		header import in_flight log log_append log_skip map php_fastcgi redir request_body request_header respond reverse_proxy
		rewrite root route templates throttle tls vars`)
	wholeFile = regexp.MustCompile(`^(\{$|&?\(\w+\) \{|[^\s{]*[.:*/][^{]*\{$|localhost \{)`)
)

// fragments of Caddyfiles name what stands elsewhere in the file.
var (
	zoneByName   = regexp.MustCompile(`(?m)^\s*(?:zone|throttle) ([\w.-]+)$`)
	zoneDefined  = regexp.MustCompile(`(?m)^\s*zone ([\w.-]+) \{$`)
	planByName   = regexp.MustCompile(`(?m)^\s*override .* ([a-z]\w*)$`)
	planDefined  = regexp.MustCompile(`(?m)^\s*plan (\w+) `)
	matcherUsed  = regexp.MustCompile(`[ \t]@(\w+)`)
	matcherGiven = regexp.MustCompile(`(?m)^\s*@(\w+)`)
	comment      = regexp.MustCompile(`(?m)(^|\s)#.*$`)
)

func named(pattern *regexp.Regexp, text string) (names []string) {
	for _, found := range pattern.FindAllStringSubmatch(text, -1) {
		if !slices.Contains(names, found[1]) {
			names = append(names, found[1])
		}
	}
	return names
}

func without(names, others []string) []string {
	return slices.DeleteFunc(names, func(name string) bool { return slices.Contains(others, name) })
}

// wholeCaddyfile returns the fragment with what its shape needs around it.
func wholeCaddyfile(fragment string) string {
	code := comment.ReplaceAllString(fragment, "")
	var first string
	for line := range strings.Lines(code) {
		if first = strings.TrimSpace(line); first != "" {
			break
		}
	}
	if wholeFile.MatchString(first) {
		return fragment
	}
	word, _, _ := strings.Cut(first, " ")
	if slices.Contains(inGlobalOptions, word) {
		return "{\n" + fragment + "}\n"
	}
	if slices.Contains(inGlobalThrottle, word) {
		return "{\nthrottle {\n" + fragment + "}\n}\n"
	}
	site := fragment
	if !slices.Contains(inSite, word) && !strings.HasPrefix(word, "@") {
		if word != "zone" {
			site = aroundZoneOptions(code) + fragment + "}\n"
		}
		site = "throttle {\n" + site + "}\n"
	}
	var global, matchers string
	for _, plan := range without(without(named(planByName, code), named(planDefined, code)), []string{"unlimited", "deny"}) {
		global += "plan " + plan + " 600 10/s\n"
	}
	for _, zone := range without(named(zoneByName, code), named(zoneDefined, code)) {
		global += "zone " + zone + " {\nlimit 60 2/s\n}\n"
	}
	for _, matcher := range without(named(matcherUsed, code), named(matcherGiven, code)) {
		matchers += "@" + matcher + " path /" + matcher + "*\n"
	}
	return "{\nthrottle {\n" + global + "}\n}\nhttp://example.com {\nroot * /srv/www\n" + matchers + site + "\n}\n"
}

// aroundZoneOptions returns the beginning of a zone with what these options need.
func aroundZoneOptions(options string) string {
	has := func(line string) bool { return regexp.MustCompile(`(?m)^\s*` + line).MatchString(options) }
	zone := "zone some {\n"
	if !has(`limit `) {
		zone += "limit 60 1/s\n"
	}
	if has(`key .*\broute\b`) && !has(`route `) {
		zone += "route search /search*\n"
	}
	return zone
}

func TestEveryConfigurationIsValid(t *testing.T) {
	m := newMachine(t)
	example := check.Must(os.ReadFile("example.json"))(t)
	check.NoError(t, m.validate("", string(example)), "example.json")
	valid := 0
	for p, f := range fencesOf(t, "caddyfile") {
		valid++
		config := wholeCaddyfile(f.text)
		check.NoError(t, m.validate("caddyfile", config), "%s:%d: the configuration\n%s", p.name, f.line, config)
	}
	check.That(t, valid >= 10, "got %d configurations in the documentation, want more", valid)
}

func TestAnInvalidConfigurationIsFound(t *testing.T) {
	m := newMachine(t)
	for _, fragment := range []string{
		"example.com {\n\tthrottle pages client_ip 60\n}\n",
		"throttle {\n\tzone pages {\n\t\tcapcity 60\n\t}\n}\n",
		"zone pages {\n\tlimit 60 2/s\n\tsettle 401\n}\n",
		"limit 60\n",
		"store redis localhost\n",
		"servers {\n\ttrusted_proxies nobody\n}\n",
	} {
		check.That(t, m.validate("caddyfile", wholeCaddyfile(fragment)) != nil, "got a valid configuration for\n%s", fragment)
	}
}

// TestDoorsAreClosedBeforeTheSite: Caddy runs `abort` and `respond` after each `handle`.
func TestDoorsAreClosedBeforeTheSite(t *testing.T) {
	for p, f := range fencesOf(t, "caddyfile") {
		check.That(t, !strings.Contains(f.text, "\n\thandle {"), "%s:%d: got a handle that answers before `respond @admin 403`", p.name, f.line)
		if strings.Contains(f.text, "@direct") {
			config := strings.TrimSuffix(strings.TrimSpace(wholeCaddyfile(f.text)), "}") + "handle {\nrespond site\n}\n}\n"
			raw, _, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte(config), nil)
			check.NoError(t, err, "%s", config)
			check.That(t, bytes.Index(raw, []byte("remote_ip")) < bytes.Index(raw, []byte(`"site"`)), "got an origin that is open to handle:\n%s", raw)
		}
	}
}

func TestEveryCaddyfileIsFormattedAsCaddyFmtDoes(t *testing.T) {
	for p, f := range fencesOf(t, "caddyfile") {
		formatted := string(caddyfile.Format([]byte(f.text)))
		check.That(t, formatted == f.text, "%s:%d: got\n%s\nwant\n%s", p.name, f.line, f.text, formatted)
	}
}

func TestEveryJSONIsWellFormed(t *testing.T) {
	for p, f := range fencesOf(t, "json") {
		check.That(t, json.Valid([]byte(f.text)), "%s:%d: got JSON that is not well formed:\n%s", p.name, f.line, f.text)
	}
}
