package redisstore

import (
	"fmt"
	"net"
	"net/url"
	"regexp"
	"strconv"
	"strings"
)

// A mode is how the servers of a URL work together.
type mode int

const (
	standalone mode = iota
	sentinel
	cluster
)

// schemes are the known schemes of a URL.
var schemes = map[string]struct {
	mode mode
	tls  bool
}{
	"redis":           {standalone, false},
	"rediss":          {standalone, true},
	"redis+sentinel":  {sentinel, false},
	"rediss+sentinel": {sentinel, true},
	"redis+cluster":   {cluster, false},
	"rediss+cluster":  {cluster, true},
}

// A target says where the servers are, and how to log in.
type target struct {
	mode               mode
	tls                bool
	network            string // of each address: tcp or unix
	addresses          []string
	username, password string
	database           int
	master             string // the name under which the Sentinels know it
}

const wantURL = "want redis://[user:password@]host[:6379][/database], rediss:// for TLS, unix:///path, " +
	"redis+sentinel://host[:26379],.../master[/database] or redis+cluster://host[:6379],..."

// target returns the servers that the options describe. No error holds a
// password.
func (o *Options) target() (target, error) {
	t, err := parseURL(o.URL)
	if err != nil {
		return target{}, err
	}
	if o.Username != "" {
		t.username = o.Username
	}
	if o.Password != "" {
		t.password = o.Password
	}
	if o.Database != 0 {
		t.database = o.Database
	}
	switch {
	case t.database < 0 || t.mode == cluster && t.database != 0:
		return target{}, fmt.Errorf("invalid database %d: want 0 or more, and 0 in a cluster", t.database)
	case t.username != "" && t.password == "":
		return target{}, fmt.Errorf("got a user %q without a password: want both, or none", t.username)
	case o.TLS != nil && !t.tls:
		return target{}, fmt.Errorf("got a TLS config for %s: want a URL that begins with rediss", t)
	}
	return t, nil
}

// String names the servers.
func (t target) String() string {
	where := strings.Join(t.addresses, ",")
	switch t.mode {
	case sentinel:
		return fmt.Sprintf("redis master %s by sentinels at %s", t.master, where)
	case cluster:
		return "redis cluster at " + where
	}
	return "redis at " + where
}

// parseURL parses a URL as described at [Options]. No error holds a password.
func parseURL(raw string) (target, error) {
	shown := redact(raw)
	scheme, rest, found := strings.Cut(raw, "://")
	if !found {
		return target{}, fmt.Errorf("parsing redis URL %q: %s", shown, wantURL)
	}
	t := target{network: "tcp"}
	if at := strings.LastIndexByte(rest, '@'); at >= 0 {
		if err := t.parseUser(rest[:at]); err != nil {
			return target{}, fmt.Errorf("parsing redis URL %q: %w", shown, err)
		}
		rest = rest[at+1:]
	}
	var err error
	if kind, known := schemes[scheme]; known {
		t.mode, t.tls = kind.mode, kind.tls
		err = t.parseServers(rest)
	} else if scheme == "unix" {
		t.network, t.addresses = "unix", []string{rest}
		if !strings.HasPrefix(rest, "/") {
			err = fmt.Errorf("invalid path %q: want an absolute one, as in unix:///run/redis.sock", rest)
		}
	} else {
		err = fmt.Errorf("unknown scheme %q: %s", scheme, wantURL)
	}
	if err != nil {
		return target{}, fmt.Errorf("parsing redis URL %q: %w", shown, err)
	}
	return t, nil
}

// secret matches text in place of a port that is no number. It is a password if
// somebody forgot the host.
var secret = regexp.MustCompile(`:[^/,:@]*[^0-9/,:@\]][^/,:@]*`)

// redact returns a URL, however malformed, without anything that may be a
// password.
func redact(raw string) string {
	scheme, rest, found := strings.Cut(raw, "://")
	if found {
		scheme += "://"
	} else {
		scheme, rest = "", raw
	}
	if at := strings.LastIndexByte(rest, '@'); at >= 0 {
		rest = "***" + rest[at:]
	}
	if at := strings.IndexAny(rest, "?#"); at >= 0 {
		rest = rest[:at+1] + "***"
	}
	return scheme + secret.ReplaceAllString(rest, ":***")
}

func (t *target) parseUser(text string) (err error) {
	user, password, found := strings.Cut(text, ":")
	if !found {
		return fmt.Errorf("got a user without a password: want user:password@, or :password@ for the default user")
	}
	if t.username, err = url.PathUnescape(user); err == nil {
		t.password, err = url.PathUnescape(password)
	}
	if err != nil {
		// The cause would show a part of the password.
		return fmt.Errorf("got a percent sign in user or password that begins no %%XX: want %%25 for it")
	}
	return nil
}

func (t *target) parseServers(rest string) error {
	hosts, path, _ := strings.Cut(rest, "/")
	if strings.ContainsAny(rest, "?#") {
		return fmt.Errorf("got a query or a fragment: want none: all else is an option of its own")
	}
	port := "6379"
	if t.mode == sentinel {
		port = "26379"
		t.master, path, _ = strings.Cut(path, "/")
		if t.master == "" {
			return fmt.Errorf("got no name of the master: want redis+sentinel://host:26379/mymaster")
		}
	}
	for host := range strings.SplitSeq(hosts, ",") {
		address, err := parseAddress(host, port)
		if err != nil {
			return err
		}
		t.addresses = append(t.addresses, address)
	}
	if t.mode == standalone && len(t.addresses) > 1 {
		return fmt.Errorf("got %d hosts: want one, or redis+sentinel:// or redis+cluster://", len(t.addresses))
	}
	if path == "" {
		return nil
	}
	if t.mode == cluster {
		return fmt.Errorf("got a path %q: want none, a cluster has one database", path)
	}
	var err error
	if t.database, err = strconv.Atoi(path); err != nil || t.database < 0 {
		return fmt.Errorf("invalid database %q: want a number such as 0", path)
	}
	return nil
}

// parseAddress returns host:port. If host has no port, it gets the one given.
func parseAddress(host, port string) (string, error) {
	name := host
	if h, p, err := net.SplitHostPort(host); err == nil {
		name, port = h, p
	} else {
		name = strings.TrimSuffix(strings.TrimPrefix(name, "["), "]")
		if strings.HasPrefix(host, "[") != strings.HasSuffix(host, "]") || !strings.HasPrefix(host, "[") && strings.Contains(host, ":") {
			return "", fmt.Errorf("invalid host %q: want host:port, and an IPv6 address in brackets", redact(host))
		}
	}
	number, err := strconv.ParseUint(port, 10, 16)
	if name == "" || err != nil || number == 0 || strings.ContainsAny(name, " \t@[]") {
		return "", fmt.Errorf("invalid host %q: want host:port, such as 10.0.0.7:6379", redact(host))
	}
	return net.JoinHostPort(name, port), nil
}
