package caddymodule

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/body"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	bucketkey "github.com/caddy-throttle/caddy-throttle/leakybucket/key"
)

// KeySource is one part of a zone's key.
type KeySource struct {
	// Where the part comes from: `client_ip`, `header`, `cookie`, `query`,
	// `form`, `host`, `method`, `route`, `text`, or a string with placeholders,
	// such as `{http.vars.tenant}`. Required.
	Source string `json:"source,omitempty"`

	// The name of the header, cookie, query parameter or form field. Required
	// for these.
	Name string `json:"name,omitempty"`

	// A fixed text. Required for the source `text`.
	Text string `json:"text,omitempty"`
}

const keySources = "client_ip, header <name>, cookie <name>, query <name>, form <field>, host, method, route, text <string> or a string with {placeholders}"

// parseKey reads key sources as they stand in a Caddyfile.
func parseKey(words []string) ([]KeySource, error) {
	var key []KeySource
	for i := 0; i < len(words); i++ {
		source := KeySource{Source: words[i]}
		switch words[i] {
		case "header", "cookie", "query", "form", "text":
			if i++; i == len(words) {
				return nil, fmt.Errorf("parsing key: %q needs a word after it: want %s", source.Source, keySources)
			}
			if source.Source == "text" {
				source.Text = words[i]
			} else {
				source.Name = words[i]
			}
		}
		key = append(key, source)
	}
	return key, nil
}

// A part reads one part of the key from a request. What is missing or empty
// is "".
type part struct {
	read func(*subject) string

	clientIP bool // read is nil, and the address is taken
	form     bool // the body must be read first
	digest   bool // the value is a secret as likely as not, and is not kept
	template []piece
}

// A piece of a template is a literal text or a placeholder.
type piece struct{ text, placeholder string }

// clientPlaceholders are what the client's address is called in configs that
// come from other limiters. It needs masking, so it must be the source.
var clientPlaceholders = []string{"{http.vars.client_ip}", "{client_ip}", "{http.request.remote.host}", "{remote_host}"}

func (z *Zone) compileKey() error {
	if len(z.Key) == 0 {
		z.Key = []KeySource{{Source: "client_ip"}}
	}
	z.about("key", 0)
	routed := false
	for _, source := range z.Key {
		part, err := z.compilePart(source)
		if err != nil {
			return err
		}
		routed = routed || source.Source == "route"
		z.parts = append(z.parts, part)
		z.addresses = append(z.addresses, part.clientIP)
		z.formKey = z.formKey || part.form
	}
	if routed && len(z.Route) == 0 {
		return errors.New("key source \"route\" knows no routes: want at least one line of route <name> <path>... in the zone")
	}
	if !routed && len(z.Route) > 0 {
		z.about("route", 0)
		return fmt.Errorf("route %q serves no purpose: want \"route\" among the sources of the key", z.Route[0].Name)
	}
	return nil
}

func (z *Zone) compilePart(source KeySource) (part, error) {
	named := slices.Contains([]string{"header", "cookie", "query", "form"}, source.Source)
	switch {
	case named && source.Name == "":
		return part{}, fmt.Errorf("key source %q has no name", source.Source)
	case !named && source.Name != "":
		return part{}, fmt.Errorf("key source %q takes no name, and has %q", source.Source, source.Name)
	case source.Source == "text" && source.Text == "":
		return part{}, errors.New("key source \"text\" has no text")
	case source.Source != "text" && source.Text != "":
		return part{}, fmt.Errorf("key source %q takes no text, and has %q", source.Source, source.Text)
	}
	name := source.Name
	switch source.Source {
	case "client_ip":
		return part{clientIP: true}, nil
	case "header":
		// Host is no header by the time a request gets here.
		if name = http.CanonicalHeaderKey(name); name == "Host" {
			return part{}, errors.New("key source \"header Host\" is always empty: want host")
		}
		return part{digest: !z.PlainKeys, read: func(s *subject) string {
			return single(s.r.Header[name])
		}}, nil
	case "cookie":
		return part{digest: !z.PlainKeys, read: func(s *subject) string {
			cookies := s.r.CookiesNamed(name)
			if len(cookies) != 1 {
				return ""
			}
			return cookies[0].Value
		}}, nil
	case "query":
		return part{digest: !z.PlainKeys, read: func(s *subject) string {
			return single(s.r.URL.Query()[name])
		}}, nil
	case "form":
		return part{form: true, digest: !z.PlainKeys, read: func(s *subject) string {
			if s.body == nil {
				return ""
			}
			return s.body.Field(name)
		}}, nil
	case "host":
		return part{read: func(s *subject) string { return hostname(s.r.Host) }}, nil
	case "method":
		return part{read: func(s *subject) string { return s.r.Method }}, nil
	case "route":
		return part{read: func(s *subject) string { return z.routeOf(s.r) }}, nil
	case "text":
		return part{read: func(*subject) string { return source.Text }}, nil
	}
	if !strings.Contains(source.Source, "{") {
		return part{}, fmt.Errorf("unknown key source %q: want %s", source.Source, keySources)
	}
	switch {
	case slices.Contains(clientPlaceholders, source.Source):
		return part{clientIP: true}, nil
	case source.Source == "{http.request.host}":
		return z.compilePart(KeySource{Source: "host"}) // which is in one case only
	}
	template, err := parseTemplate(source.Source)
	return part{template: template}, err
}

// single returns the value of a header or parameter that is given once. One
// that is given twice may be read differently by the upstream, so that it
// cannot say who the client is.
func single(values []string) string {
	if len(values) != 1 {
		return ""
	}
	return values[0]
}

func hostname(hostport string) string {
	host, _, err := net.SplitHostPort(hostport)
	if err != nil {
		host = strings.Trim(hostport, "[]")
	}
	return strings.ToLower(strings.TrimSuffix(host, "."))
}

// A subject is a request as keys and costs see it.
type subject struct {
	r    *http.Request
	repl *caddy.Replacer

	spent time.Duration // waiting for a shared store

	// looked says that the body has been looked at; body is nil if it could not
	// be understood.
	looked bool
	body   *body.Body
}

// A key names a bucket, and says which limit holds for it.
type key struct {
	name    string // the parts, without the zone
	rule    bucketkey.Rule
	limit   leakybucket.Limit
	listed  bool // an override names it
	address bool // the name holds the client's address
}

// keyRoom is memory that building a key needs, kept between requests.
type keyRoom struct {
	name  []byte
	parts []bucketkey.Part
}

// keyOf returns the key of a request, and false if a part of it is missing.
func (z *Zone) keyOf(s *subject, room *keyRoom) (key, bool) {
	name, parts := room.name[:0], room.parts[:0]
	for i := range z.parts {
		if i > 0 {
			name = append(name, '/')
		}
		p := &z.parts[i]
		var text string
		var client netip.Prefix
		switch {
		case p.clientIP:
			if client = z.clientOf(s.r); !client.IsValid() {
				return key{}, false
			}
			name = client.Addr().AppendTo(name)
		case p.template != nil:
			if name, text = p.appendTemplate(name, s.repl); text == "" {
				return key{}, false
			}
		default:
			if text = p.read(s); text == "" {
				return key{}, false
			}
			if p.digest {
				name = bucketkey.AppendDigest(name, text)
			} else {
				name = bucketkey.AppendPart(name, text)
			}
		}
		if !z.table.Plain() {
			parts = append(parts, bucketkey.Part{Text: text, Network: client})
		}
	}
	room.name, room.parts = name, parts
	k := key{name: string(name), address: z.byClient()}
	k.rule, k.limit, k.listed = z.table.Lookup(parts)
	return k, true
}

// appendTemplate appends the pieces as parts of their own, so that what one
// placeholder says can never look like what the next one says. It returns the
// plain text too, which is "" if a placeholder has no value.
func (p *part) appendTemplate(name []byte, repl *caddy.Replacer) (longer []byte, text string) {
	for i, piece := range p.template {
		if i > 0 {
			name = append(name, '/')
		}
		value := piece.text
		if piece.placeholder != "" {
			if value, _ = repl.GetString(piece.placeholder); value == "" {
				return name, ""
			}
		}
		name = bucketkey.AppendPart(name, value)
		text += value
	}
	return name, text
}

// clientOf returns who the client is: the address Caddy found, which honours
// trusted_proxies, masked to what counts as one client. It is invalid where a
// request has no address, as over a Unix socket.
func (z *Zone) clientOf(r *http.Request) netip.Prefix {
	text, _ := caddyhttp.GetVar(r.Context(), caddyhttp.ClientIPVarKey).(string)
	addr, err := netip.ParseAddr(text)
	if err != nil {
		return netip.Prefix{}
	}
	return bucketkey.ClientPrefix(addr, z.IPv4Prefix, z.IPv6Prefix)
}

// fallback returns the key of requests that have none: @client_ip/<address> or
// @share, which no client can spell, since a leading @ is escaped in parts.
func (z *Zone) fallback(r *http.Request, policy string) key {
	k := key{name: "@share", rule: bucketkey.Limited, limit: z.limit}
	if policy == missingShare {
		return k
	}
	if client := z.clientOf(r); client.IsValid() {
		k.name, k.address = "@client_ip/"+client.Addr().String(), true
	} else {
		z.shared.app.warnNoAddress()
	}
	return k
}
