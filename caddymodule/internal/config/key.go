package config

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/net/http/httpguts"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/fold"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/form"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/limit"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/text"
)

// Key says what identifies a request's bucket.
type Key struct {
	// The values of a request that name its bucket. Default: the client's address. If
	// clients choose all values, they can get a fresh bucket with every request: then
	// add a zone keyed by `client_ip` to the same handler.
	Sources []KeySource `json:"sources,omitempty"`

	// The policy for requests if a part of their key is missing or empty. Default:
	// `client_ip`, which charges a bucket of the client's address. With the source `field` it is
	// `skip`, and `share` in a zone with fields. `share` charges
	// one bucket for all such requests, `refuse` refuses them. `skip` lets them
	// pass, so that leaving the key out is a way around the zone.
	Missing string `json:"missing,omitempty"`

	// The policy for requests whose key no override names, in the words of missing.
	// Default: their own bucket is charged.
	Unlisted string `json:"unlisted,omitempty"`

	// Keep the values of headers, cookies, query parameters and form fields, and
	// the user names of HTTP Basic, readable in logs and in the store. Default: only
	// SHA-256 digests are kept, because these values are often secrets.
	Plain bool `json:"plain,omitempty"`

	// How many leading bits of an IPv4 address identify a client. Default: 32.
	IPv4 int `json:"ipv4,omitempty"`

	// How many leading bits of an IPv6 address identify a client. Default: 64,
	// since a single customer has at least that many addresses.
	IPv6 int `json:"ipv6,omitempty"`
}

// KeyPolicies are the words after missing and unlisted.
var KeyPolicies = []string{string(limit.ByClientIP), string(limit.Share), string(limit.Skip), string(limit.Refuse)}

// Given returns the sources as they were written, nil for a nil receiver.
func (k *Key) Given() []KeySource {
	if k == nil {
		return nil
	}
	return k.Sources
}

// withDefault returns the key with what was not given, of which source is the only part.
// carries says that all requests carry a certain field.
func (k *Key) withDefault(source KeySource, carries bool) *Key {
	full := orNew(k)
	if len(full.Sources) == 0 {
		full.Sources = []KeySource{source}
	}
	if full.Missing == "" {
		full.Missing = string(limit.ByClientIP)
		if slices.ContainsFunc(full.Sources, func(k KeySource) bool { return k.Source == "field" }) {
			full.Missing = string(limit.Skip)
			if carries {
				full.Missing = string(limit.Share)
			}
		}
	}
	full.IPv4 = cmp.Or(full.IPv4, 32)
	full.IPv6 = cmp.Or(full.IPv6, 64)
	return full
}

// KeySource is one part of a zone's key.
type KeySource struct {
	// Where the part comes from: `client_ip`, `header`, `cookie`, `query`, `field`,
	// `basic_user`, `host`, `method`, `route`, `text`, or a string with placeholders
	// such as `{http.vars.tenant}`. Required. `basic_user` is the user name of HTTP
	// Basic, whether or not its password is right. A header, cookie or query
	// parameter that is sent twice counts as missing.
	Source string `json:"source,omitempty"`

	// The name of the header, cookie, query parameter or field. Required for these. A field is
	// taken from the query, a form or JSON.
	Name string `json:"name,omitempty"`

	// The text of the source `text`. Required for it.
	Text string `json:"text,omitempty"`

	// Which spellings of a name are one, for the sources `field` and `basic_user`:
	// `wordpress` folds names as WordPress does, which takes out accents, HTML tags,
	// entities and percent octets; `email` folds addresses. Default: names differ
	// unless they are equal in lower case, without blanks around them.
	Fold string `json:"fold,omitempty"`
}

const KeySources = "client_ip, header <name>, cookie <name>, query <name>, field <name> [fold wordpress|email], basic_user [fold wordpress|email], host, method, route, text <string> or a string with {placeholders}"

// SourceWords are the key sources without placeholders.
var SourceWords = []string{"client_ip", "header", "cookie", "query", "field", "basic_user", "host", "method", "route", "text"}

// FoldWords are the words after fold.
var FoldWords = []string{"wordpress", "email"}

var zoneName = regexp.MustCompile(`^[A-Za-z0-9_.-]+$`)

// CheckName refuses what is no name of something of this kind.
func CheckName(kind, name string) error {
	switch {
	case len(name) > 1 && strings.HasSuffix(name, "{"):
		return fmt.Errorf("invalid %s name %q: want a blank before the brace", kind, name)
	case !zoneName.MatchString(name):
		return fmt.Errorf("invalid %s name %q: want letters, digits, _, . and -, such as pages", kind, name)
	}
	return nil
}

// Folds reports whether the part is a name that can be folded.
func (k *KeySource) Folds() bool { return k.Source == "field" || k.Source == "basic_user" }

// foldings are what the words after fold mean.
var foldings = map[string]fold.Func{"": fold.Plain, "wordpress": fold.WordPress, "email": fold.Email}

// clientPlaceholders are the names of the client's address in configs for other
// limiters. They mean the source client_ip, which masks the address.
var clientPlaceholders = []string{"{http.vars.client_ip}", "{client_ip}", "{http.request.remote.host}", "{remote_host}"}

// plainSources are the sources for placeholders. host is in lower case and without port.
var plainSources = map[string]string{"{http.request.host}": "host", "{http.request.method}": "method"}

// plain returns a source with the same meaning, without other names for it.
func (k *KeySource) plain() KeySource {
	plain := *k
	switch {
	case slices.Contains(clientPlaceholders, k.Source):
		plain.Source = "client_ip"
	case k.Source == "header":
		plain.Name = http.CanonicalHeaderKey(k.Name)
	case plainSources[k.Source] != "":
		plain.Source = plainSources[k.Source]
	}
	return plain
}

func namesRoute(sources []KeySource) bool {
	return slices.ContainsFunc(sources, func(k KeySource) bool { return k.Source == "route" })
}

// compile compiles the key of a zone. It comes after the routes.
func (k *Key) compile(key *limit.Key) (err error) {
	err = cmp.Or(
		among("key missing", k.Missing, KeyPolicies...), among("key unlisted", k.Unlisted, KeyPolicies...),
		Within("key ipv4", k.IPv4, 1, 32), Within("key ipv6", k.IPv6, 1, 128),
	)
	if err != nil {
		return err
	}
	key.Missing, key.Unlisted = limit.Policy(k.Missing), limit.Policy(k.Unlisted)
	key.IPv4Bits, key.IPv6Bits = k.IPv4, k.IPv6
	key.Private = slices.ContainsFunc(k.Sources, func(k KeySource) bool { return k.private() })
	key.Parts, err = compileSources(k.Sources, key, !k.Plain)
	return About("key", 0, err)
}

// compileSources compiles the parts of a key. digest says that values which may be secret are
// kept as digests.
func compileSources(sources []KeySource, key *limit.Key, digest bool) (parts []limit.Part, err error) {
	seen := make(map[KeySource]bool)
	for _, source := range sources {
		part, err := source.compile(key, digest)
		if s := source.plain(); err == nil && seen[s] {
			err = fmt.Errorf("key source %q is given twice: remove one", strings.TrimSpace(s.Source+" "+s.Name+s.Text))
		}
		if err != nil {
			return nil, err
		}
		seen[source.plain()] = true
		parts = append(parts, part)
	}
	return parts, nil
}

// compile compiles a part of a key.
func (source KeySource) compile(key *limit.Key, digest bool) (limit.Part, error) {
	none := limit.Part{}
	named := slices.Contains(NamedSources, source.Source)
	switch {
	case named && source.Name == "":
		return none, fmt.Errorf("key source %q has no name: want one after it", source.Source)
	case !named && source.Name != "":
		return none, fmt.Errorf("key source %q takes no name: unexpected %q", source.Source, source.Name)
	case source.Source == "text" && source.Text == "":
		return none, errors.New("key source \"text\" has no text")
	case source.Source != "text" && source.Text != "":
		return none, fmt.Errorf("key source %q takes no text: unexpected %q", source.Source, source.Text)
	case source.Fold != "" && !source.Folds():
		return none, fmt.Errorf("fold goes with field <name> and basic_user only: key source %q has no names to fold", source.Source)
	case foldings[source.Fold] == nil:
		return none, text.Unknown("word", source.Fold, " after fold", FoldWords)
	}
	source = source.plain()
	switch source.Source {
	case "client_ip":
		return limit.Part{ClientIP: true}, nil
	case "header":
		// Host is no header by the time a request gets here.
		if !httpguts.ValidHeaderFieldName(source.Name) {
			return none, fmt.Errorf("invalid header name %q: want letters, digits and hyphens, such as X-Api-Key", source.Name)
		}
		if source.Name == "Host" {
			return none, errors.New("key source \"header Host\" is always empty: want host")
		}
		return limit.Part{Read: limit.Header(source.Name), Digest: digest}, nil
	case "cookie":
		if !httpguts.ValidHeaderFieldName(source.Name) { // the same letters are valid
			return none, fmt.Errorf("invalid cookie name %q: want the name alone, such as session", source.Name)
		}
		return limit.Part{Read: limit.Cookie(source.Name), Digest: digest}, nil
	case "query":
		if strings.ContainsAny(source.Name, "=&?") {
			return none, fmt.Errorf("invalid query parameter %q: want its name alone, such as %s", source.Name, cmp.Or(strings.Trim(source.Name, "=&?"), "s"))
		}
		return limit.Part{Read: limit.Query(source.Name), Digest: digest}, nil
	case "field":
		if _, err := new(form.Plan).Field(source.Name); err != nil {
			return none, err
		}
		return limit.Part{Field: source.Name, Fold: foldings[source.Fold], Digest: digest}, nil
	case "basic_user":
		folding := foldings[source.Fold]
		return limit.Part{Read: limit.BasicUser(folding), Fold: folding, Digest: digest}, nil
	case "host":
		return limit.Part{Read: limit.Host}, nil
	case "method":
		return limit.Part{Read: limit.Method}, nil
	case "route":
		if len(key.Routes) == 0 {
			return none, errors.New("key source \"route\" has no routes: want at least one line of route <name> <path>... in the zone")
		}
		return limit.Part{Read: key.Route}, nil
	case "text":
		return limit.Part{Read: limit.Text(source.Text)}, nil
	}
	if !strings.Contains(source.Source, "{") {
		if meant := text.Nearest(source.Source, SourceWords); meant != "" {
			return none, fmt.Errorf("unknown key source %q: did you mean %s?", source.Source, meant)
		}
		return none, fmt.Errorf("unknown key source %q: want %s", source.Source, KeySources)
	}
	template, err := parseTemplate(source.Source)
	return limit.Part{Template: template}, err
}

// NamedSources are the sources with a name. Clients choose their values.
var NamedSources = []string{"header", "cookie", "query", "field"}

// chosen reports whether clients choose the value.
func (k *KeySource) chosen() bool {
	return k.Source == "basic_user" || slices.Contains(NamedSources, k.Source)
}

var sentByClient = regexp.MustCompile(`\{http\.request\.(orig_)?(header|cookie|uri)\b`)

// ClientChosen reports whether clients can get any number of buckets by making up values. One
// part of the key is enough for that.
func ClientChosen(sources []KeySource) bool {
	return slices.ContainsFunc(sources, func(k KeySource) bool {
		return k.chosen() || sentByClient.MatchString(k.Source)
	})
}

// SentByClient reports whether clients send the value of a placeholder.
func SentByClient(text string) bool { return sentByClient.MatchString(text) }

var headerPlaceholder = regexp.MustCompile(`^\{http\.request\.header\.(.+)\}$`)

// Header returns the name of the header that is the source, or "".
func (k *KeySource) Header() string {
	if found := headerPlaceholder.FindStringSubmatch(k.Source); found != nil {
		return found[1]
	}
	if k.Source == "header" {
		return k.Name
	}
	return ""
}

// ReadsHeaders reports whether a source is in the request's headers.
func ReadsHeaders(sources []KeySource) bool {
	return slices.ContainsFunc(sources, func(k KeySource) bool {
		return !slices.Contains([]string{"client_ip", "query", "host", "method", "route", "text"}, k.Source)
	})
}
