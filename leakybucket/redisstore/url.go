package redisstore

import (
	"cmp"
	"errors"
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

// target returns the servers that a URL and the options describe. No error holds a
// password.
func (o *Options) target(url string) (target, error) {
	t, err := parseURL(url)
	if err != nil {
		return target{}, err
	}
	t.username, t.password = cmp.Or(o.Username, t.username), cmp.Or(o.Password, t.password)
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
	switch {
	case t.mode == sentinel && t.master == "": // a given client, which knows its sentinels itself
		return "redis by sentinels, first at " + where
	case t.mode == sentinel:
		return fmt.Sprintf("redis master %s by sentinels at %s", t.master, where)
	case t.mode == cluster:
		return "redis cluster at " + where
	}
	return "redis at " + where
}

// urlForm has the scheme, its s for TLS, the mode, user, password, hosts and path.
var urlForm = regexp.MustCompile(`^(redis|unix)(s?)(|\+sentinel|\+cluster)://(?:([^:/?#@]*):(.*)@)?([^/?#@]*)(/[^?#]*)?$`)

var modes = map[string]mode{"": standalone, "+sentinel": sentinel, "+cluster": cluster}

// errURL quotes nothing of a URL: anywhere in a malformed one may be a password.
var errURL = errors.New("invalid redis URL: " + wantURL + "; %25 for a percent sign in user or password, and brackets around an IPv6 address")

// parseURL parses a URL as described at [Open].
func parseURL(raw string) (target, error) {
	parts := urlForm.FindStringSubmatch(raw)
	if parts == nil {
		return target{}, errURL
	}
	hosts, path := parts[6], strings.TrimPrefix(parts[7], "/")
	t := target{network: "tcp", tls: parts[2] != "", mode: modes[parts[3]]}
	var errUser, errPassword error
	t.username, errUser = url.PathUnescape(parts[4])
	t.password, errPassword = url.PathUnescape(parts[5])
	if errUser != nil || errPassword != nil {
		return target{}, errURL
	}
	if parts[1] == "unix" {
		t.network, t.addresses = "unix", []string{parts[7]}
		if t.tls || t.mode != standalone || hosts != "" || path == "" {
			return target{}, errURL
		}
		return t, nil
	}
	port := "6379"
	if t.mode == sentinel {
		port = "26379"
		if t.master, path, _ = strings.Cut(path, "/"); t.master == "" {
			return target{}, errURL
		}
	}
	for host := range strings.SplitSeq(hosts, ",") {
		address, ok := addressOf(host, port)
		if !ok {
			return target{}, errURL
		}
		t.addresses = append(t.addresses, address)
	}
	if path != "" {
		var err error
		if t.database, err = strconv.Atoi(path); err != nil {
			return target{}, errURL
		}
	}
	if t.mode == standalone && len(t.addresses) > 1 {
		return target{}, errURL
	}
	return t, nil
}

// addressOf returns host:port. If host has no port, it gets the one given.
func addressOf(host, port string) (address string, ok bool) {
	if name, given, err := net.SplitHostPort(host); err == nil {
		host, port = name, given
	} else if strings.HasPrefix(host, "[") && strings.HasSuffix(host, "]") {
		host = host[1 : len(host)-1]
	} else if strings.Contains(host, ":") {
		return "", false
	}
	number, err := strconv.ParseUint(port, 10, 16)
	return net.JoinHostPort(host, port), err == nil && number > 0 && host != "" && !strings.ContainsAny(host, " \t[]")
}
