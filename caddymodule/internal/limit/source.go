package limit

import (
	"cmp"
	"context"
	"crypto/ed25519"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"golang.org/x/net/http/httpguts"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/cookie"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/form"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/option"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/perkey"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/response"
)

// KeySource is one part of a zone's key. In a string with placeholders, each of these is a part,
// and so is each text between them.
type KeySource struct {
	// Where the part comes from: `client_ip`, `header`, `cookie`, `query`, `field`,
	// `basic_user`, `host`, `method`, `route`, `text`, or a string with placeholders
	// such as `{http.vars.tenant}`. Required. `basic_user` is the user name of HTTP
	// Basic, whether or not its password is right. Cookies and query parameters are
	// decoded (`%41` is `A`). A header, cookie or query parameter that is sent twice
	// counts as missing.
	Source string `json:"source,omitempty"`

	// The name of the header, cookie, query parameter or field. Required for these. A field is
	// taken from the query, a form or JSON.
	Name string `json:"name,omitempty"`

	// The text of the source `text`. Required for it.
	Text string `json:"text,omitempty"`

	// Which spellings of a name are one, for the sources `field` and `basic_user`:
	// `wordpress` folds names as WordPress does, which takes out accents, HTML tags,
	// entities and percent octets; `email` takes dots out of addresses, and what follows
	// a + or, at Yahoo, a -, as validator.js does. Default: names differ unless they are equal in lower case
	// (NFKC), without blanks around them.
	Fold string `json:"fold,omitempty"`
}

// sources are the key sources without placeholders, and what goes with each.
var sources = []string{
	"client_ip", "header <name>", "cookie <name>", "query <name>", "field <name> [fold wordpress|email]",
	"basic_user [fold wordpress|email]", "host", "method", "route", "text <string>",
}

// KeySources say in errors what a part of a key may be.
var KeySources = strings.Join(sources, ", ") + " or a string with {placeholders}"

// takes reports whether something goes with the source.
func (k *KeySource) takes(what string) bool {
	return slices.ContainsFunc(sources, func(source string) bool {
		word, with, _ := strings.Cut(source, " ")
		return word == k.Source && strings.Contains(with, what)
	})
}

// TakesName reports whether the source has a name.
func (k *KeySource) TakesName() bool { return k.takes("<name>") }

// Folds reports whether the part is a name that can be folded.
func (k *KeySource) Folds() bool { return k.takes("[fold") }

// foldings are what the words after fold mean.
var foldings = map[string]foldFunc{"": foldPlain, "wordpress": foldWordPress, "email": foldEmail}

// sourcesOf are the sources that placeholders mean. Configs for other limiters have the client's
// address in each of these; client_ip masks it. host is in lower case and without port.
var sourcesOf = map[string]string{
	"{http.vars.client_ip}": "client_ip", "{client_ip}": "client_ip", "{http.request.remote.host}": "client_ip", "{remote_host}": "client_ip",
	"{http.request.host}": "host", "{http.request.method}": "method", "{http.request.orig_method}": "method",
}

// keyPolicies are the words after missing and unlisted.
var keyPolicies = []string{string(ByClientIP), string(Share), string(Skip), string(Refuse)}

// compile compiles the key of a zone. It comes after the routes.
func (k *Key) compile() (err error) {
	err = cmp.Or(
		option.Among("key missing", string(k.Missing), keyPolicies...), option.Among("key unlisted", string(k.Unlisted), keyPolicies...),
		option.Within("key ipv4", k.IPv4, 1, 32), option.Within("key ipv6", k.IPv6, 1, 128),
	)
	if err == nil {
		err = k.compileSources(!k.Plain)
	}
	return option.About("key", 0, err)
}

// NewKey returns a key of these sources outside of a zone, without policies and overrides. It is
// nil without sources.
func NewKey(sources []KeySource) (*Key, error) {
	if len(sources) == 0 {
		return nil, nil
	}
	none, _ := perkey.NewTable(perkey.TableConfig{}) // which cannot be wrong
	k := &Key{Sources: sources, Overrides: none, IPv4: 32, IPv6: 64}
	err := k.compileSources(true)
	k.byIPv4 = k.IsAddress()
	return k, err
}

// compileSources compiles the parts of a key. digest says that values which may be secret are
// kept as digests.
func (k *Key) compileSources(digest bool) error {
	for _, source := range k.Sources {
		source.Source = cmp.Or(sourcesOf[source.Source], source.Source)
		parts, err := source.compile(k, digest)
		if err != nil {
			return err
		}
		for i := range parts {
			parts[i].source = cmp.Or(parts[i].source, source.Source)
		}
		k.parts = append(k.parts, parts...)
	}
	return nil
}

// compile compiles a source, which is one part of a key but for strings with placeholders.
func (k KeySource) compile(key *Key, digest bool) ([]part, error) {
	switch {
	case k.TakesName() && k.Name == "":
		return nil, fmt.Errorf("key source %q has no name: want one after it", k.Source)
	case !k.TakesName() && k.Name != "":
		return nil, fmt.Errorf("key source %q takes no name: unexpected %q", k.Source, k.Name)
	case k.Source == "text" && k.Text == "":
		return nil, errors.New("key source \"text\" has no text")
	case placeholder.MatchString(k.Text):
		return nil, fmt.Errorf("key source \"text\" fills in no placeholders: want %s without text", k.Text)
	case k.Source != "text" && k.Text != "":
		return nil, fmt.Errorf("key source %q takes no text: unexpected %q", k.Source, k.Text)
	case k.Fold != "" && !k.Folds():
		return nil, fmt.Errorf("fold goes with field <name> and basic_user only: key source %q has no names to fold", k.Source)
	case foldings[k.Fold] == nil:
		return nil, option.Unknown("word", k.Fold, " after fold", []string{"wordpress", "email"})
	}
	switch k.Source {
	case "client_ip":
		return []part{{clientIP: true}}, nil
	case "header":
		// Host is no header by the time a request gets here.
		if !httpguts.ValidHeaderFieldName(k.Name) {
			return nil, fmt.Errorf("invalid header name %q: want letters, digits and hyphens, such as X-Api-Key", k.Name)
		}
		name := http.CanonicalHeaderKey(k.Name)
		if name == "Host" {
			return nil, errors.New("key source \"header Host\" is always empty: want host")
		}
		// One that is sent twice is missing, because the upstream may read the other value.
		return []part{{read: func(s *Subject) string { return response.Single(s.Request.Header[name]) }, digest: digest}}, nil
	case "cookie":
		if !httpguts.ValidHeaderFieldName(k.Name) { // the same letters are valid
			return nil, fmt.Errorf("invalid cookie name %q: want the name alone, such as session", k.Name)
		}
		return []part{{read: func(s *Subject) string { return sent(s.Request.Header["Cookie"], k.Name, url.PathUnescape) }, digest: digest}}, nil
	case "query":
		if strings.ContainsAny(k.Name, "=&?") {
			return nil, fmt.Errorf("invalid query parameter %q: want its name alone, such as %s", k.Name, cmp.Or(strings.Trim(k.Name, "=&?"), "s"))
		}
		// Rack begins a parameter after a semicolon, too.
		query := func(s *Subject) []string { return []string{strings.ReplaceAll(s.Request.URL.RawQuery, "&", ";")} }
		return []part{{read: func(s *Subject) string { return sent(query(s), k.Name, url.QueryUnescape) }, digest: digest}}, nil
	case "field":
		if _, err := new(form.Plan).Field(k.Name); err != nil {
			return nil, err
		}
		return []part{{field: k.Name, fold: foldings[k.Fold], digest: digest}}, nil
	case "basic_user":
		folding := foldings[k.Fold]
		return []part{{fold: folding, digest: digest, read: func(s *Subject) string {
			if len(s.Request.Header["Authorization"]) != 1 {
				return "" // see [unclearUser], also of one that is not written as RFC 7617 has it
			}
			user, _, _ := s.Request.BasicAuth()
			return folding(user)
		}}}, nil
	case "host":
		return []part{{read: Host}}, nil
	case "method":
		return []part{{read: Method}}, nil
	case "route":
		if len(key.routes) == 0 {
			return nil, errors.New("key source \"route\" has no routes: want at least one line of route <name> <path>... in the zone")
		}
		return []part{{read: key.route}}, nil
	case "text":
		return []part{{read: func(*Subject) string { return k.Text }}}, nil
	}
	if !strings.Contains(k.Source, "{") {
		words := strings.Fields(strings.Join(sources, " "))
		if meant := option.Nearest(k.Source, slices.DeleteFunc(words, func(word string) bool { return strings.ContainsAny(word, "<[]") })); meant != "" {
			return nil, fmt.Errorf("unknown key source %q: did you mean %s?", k.Source, meant)
		}
		return nil, fmt.Errorf("unknown key source %q: want %s", k.Source, KeySources)
	}
	return parseTemplate(k.Source)
}

// sent returns the value of a cookie or parameter, as upstreams read it: PHP, Rack and Node decode cookies, and
// Node and Python take off blanks and quotes. It is "" if some may read two, or what quotes escape.
func sent(pairs []string, wanted string, decode func(string) (string, error)) string {
	var values []string
	for name, value := range cookie.SentBy(pairs) {
		plain, _ := url.QueryUnescape(name)
		plain, _, _ = strings.Cut(strings.TrimLeft(plain, " "), "\x00") // as PHP does
		if phpNames.Replace(plain) == phpNames.Replace(wanted) {
			values = append(values, value)
		}
	}
	value := strings.Trim(response.Single(values), "\" \t")
	if plain, err := decode(value); err == nil && !strings.ContainsAny(value, `"\`) {
		return plain
	}
	return ""
}

// sentByClient also matches methods, which clients make up, and ports, which any host may be given.
var sentByClient = regexp.MustCompile(`\{http\.request\.(orig_)?(header|cookie|uri|method|hostport|port)\b`)

// ClientChosen reports whether clients can get any number of buckets by making up values. One
// part of the key is enough for that.
func ClientChosen(sources []KeySource) bool {
	return slices.ContainsFunc(sources, func(k KeySource) bool {
		return k.TakesName() || k.Source == "basic_user" || k.Source == "method" || sentByClient.MatchString(k.Source)
	})
}

// Header returns the name of the header that is the source, or "".
func (k *KeySource) Header() string {
	if name, is := strings.CutPrefix(k.Source, "{http.request.header."); is {
		return strings.TrimSuffix(name, "}")
	}
	if k.Source == "header" {
		return k.Name
	}
	return ""
}

// parseTemplate splits a string with placeholders, each of which is a part of the key, so that no
// value can look like that of the next one. So is each text between them. It refuses placeholders
// that cannot work in a key.
func parseTemplate(text string) (parts []part, err error) {
	end := 0
	literal := func(to int) {
		if piece := text[end:to]; piece != "" {
			parts = append(parts, part{source: "text", read: func(*Subject) string { return piece }})
		}
	}
	for _, at := range placeholder.FindAllStringIndex(text, -1) {
		literal(at[0])
		name := text[at[0]+1 : at[1]-1]
		read := func(s *Subject) string {
			value, _ := s.Replacer().GetString(name)
			return value
		}
		switch sourcesOf["{"+name+"}"] {
		case "client_ip":
			return nil, fmt.Errorf("placeholder {%s} within %q: give client_ip as a part of its own, which masks IPv6 addresses", name, text)
		case "host":
			read = Host
		case "method":
			read = Method
		}
		if err = checkPlaceholder(name); err != nil {
			return nil, fmt.Errorf("placeholder {%s}: %w", name, err)
		}
		parts = append(parts, part{read: read})
		end = at[1]
	}
	if end == 0 {
		return nil, fmt.Errorf("no placeholder in %q: for a fixed text, want text %s", text, text)
	}
	literal(len(text))
	return parts, nil
}

// checkPlaceholder refuses placeholders that never have a value, that differ for each
// request, or that are too expensive for every request. Caddy itself says which of
// its own it knows. Placeholders of other modules pass, as they cannot be known
// here.
func checkPlaceholder(name string) error {
	switch {
	case strings.HasPrefix(name, "http.request.body"):
		return errors.New("it would read the whole body of every request into memory")
	case name == "http.request.client_ip":
		return errors.New("no such placeholder in Caddy: want the key source client_ip")
	case name == "http.request.uuid", name == "http.request.remote", name == "http.request.remote.port",
		strings.HasPrefix(name, "http.request.duration"):
		return errors.New("it differs for every request or connection")
	case strings.HasPrefix(name, "http.throttle."):
		return errors.New("it is known only after the decision")
	case !strings.HasPrefix(name, "http.request."):
		return nil
	}
	repl := caddy.NewEmptyReplacer()
	ctx := context.WithValue(context.Background(), http.LocalAddrContextKey, &net.TCPAddr{})
	r := &http.Request{
		Method: http.MethodGet, Host: "localhost", RemoteAddr: "127.0.0.1:1", URL: &url.URL{Path: "/"}, Header: make(http.Header),
		TLS: &tls.ConnectionState{HandshakeComplete: true, PeerCertificates: []*x509.Certificate{{PublicKey: ed25519.PublicKey(make([]byte, ed25519.PublicKeySize))}}},
	}
	caddyhttp.PrepareRequest(r.WithContext(ctx), repl, nil, new(caddyhttp.Server))
	if _, known := repl.Get(name); !known {
		return errors.New("no such placeholder in Caddy, so it would always be empty")
	}
	return nil
}

var placeholder = regexp.MustCompile(`\{[^{}\s]+\}`)

// Host reads the host of a request, in lower case and without port.
func Host(s *Subject) string {
	host := strings.Trim(s.Request.Host, "[]")
	if strings.Contains(host, ":") { // otherwise an error would only cost an allocation
		if name, _, err := net.SplitHostPort(s.Request.Host); err == nil {
			host = name
		}
	}
	return strings.ToLower(strings.TrimSuffix(host, "."))
}

// otherRoute is the name of all paths that match no route.
const otherRoute = "other"

// route reads the name of the first route that matches the request as sent, or else as
// rewritten.
func (k *Key) route(s *Subject) string {
	name := otherRoute
	_, _ = s.anyAddress(func() (bool, error) {
		for i := range k.routes {
			if match, _ := k.routes[i].Path.MatchWithError(s.Judged); match {
				name = k.routes[i].Name
				return true, nil
			}
		}
		return false, nil
	})
	return name
}

// unclearUser reports whether the upstream may read a user name of HTTP Basic that we do
// not: PHP and Ruby skip what is no base64, each in its own way.
func unclearUser(r *http.Request) bool {
	headers := r.Header["Authorization"]
	_, _, plain := r.BasicAuth()
	return (!plain || len(headers) > 1) && slices.ContainsFunc(headers, func(header string) bool {
		return len(header) >= len("basic") && strings.EqualFold(header[:len("basic")], "basic")
	})
}
