package redisstore

import (
	"crypto/tls"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/servertest"
)

func TestURLsThatSayWhereTheServersAre(t *testing.T) {
	for url, want := range map[string]target{
		"redis://h":                {addresses: []string{"h:6379"}},
		"redis://h:1/":             {addresses: []string{"h:1"}},
		"redis://10.0.0.7:6380/3":  {addresses: []string{"10.0.0.7:6380"}, database: 3},
		"redis://[::1]":            {addresses: []string{"[::1]:6379"}},
		"redis://[::1]:7":          {addresses: []string{"[::1]:7"}},
		"redis://:pw@h":            {addresses: []string{"h:6379"}, password: "pw"},
		"redis://u:p%40%25/@h":     {addresses: []string{"h:6379"}, username: "u", password: "p@%/"},
		"redis://u:a@b@h":          {addresses: []string{"h:6379"}, username: "u", password: "a@b"},
		"redis://u:a:b@h":          {addresses: []string{"h:6379"}, username: "u", password: "a:b"},
		"rediss://h":               {addresses: []string{"h:6379"}, tls: true},
		"unix:///run/r.sock":       {addresses: []string{"/run/r.sock"}, network: "unix"},
		"unix://u:p@/run/r.sock":   {addresses: []string{"/run/r.sock"}, network: "unix", username: "u", password: "p"},
		"redis+sentinel://a,b:2/m": {addresses: []string{"a:26379", "b:2"}, mode: sentinel, master: "m"},
		"rediss+sentinel://a/m/2":  {addresses: []string{"a:26379"}, mode: sentinel, master: "m", database: 2, tls: true},
		"redis+cluster://a:1,b":    {addresses: []string{"a:1", "b:6379"}, mode: cluster},
		"rediss+cluster://a":       {addresses: []string{"a:6379"}, mode: cluster, tls: true},
	} {
		if want.network == "" {
			want.network = "tcp"
		}
		got, err := parseURL(url)
		check.That(t, err == nil && reflect.DeepEqual(got, want), "%s: got %+v, %v, want %+v", url, got, err, want)
	}
}

func TestURLsThatAreWrongAreToldWithoutThePassword(t *testing.T) {
	for _, url := range []string{
		"", "h:6379", "hunter2", "http://u:hunter2@h", "://u:hunter2@h", "redis://", "redis://h:0", "redis://h:65536", "redis://u:hunter2", "redis://u:hunter2/0",
		"u:hunter2@h", "redis://u:hunter2@h:x", "redis://u:hunter2%@h", "redis://u:hunter2%zz@h", "redis://hunter2@h", "redis://::1", "redis://[::1", "redis://a,b",
		"redis://a,", "redis://h/x", "redis://h/0/1", "redis://h?db=1", "redis://h?password=hunter2", "redis://u:hunter2@h/0#x", "redis+sentinel://h", "redis+sentinel://h/",
		"unix://run/r.sock", "unix://u:hunter2@run/r.sock", "unix:///", "unixs:///r.sock", "unix+cluster:///r.sock", "redis://u:hunter2@a b", "redis://u:hunter2@h:6379:637",
	} {
		_, err := parseURL(url)
		check.That(t, err != nil && strings.Contains(err.Error(), "want redis://") && !strings.Contains(err.Error(), "hunter2"), "%s: got error %v, want one that says the forms", url, err)
	}
}

func FuzzParseURL(f *testing.F) {
	f.Add("redis://u:secret@h:1/0")
	f.Add("redis+sentinel://a,b/m/0")
	f.Fuzz(func(t *testing.T, text string) {
		got, err := parseURL(text)
		if err == nil && len(got.addresses) == 0 {
			t.Errorf("%q: got no address and no error", text)
		}
	})
}

type located struct {
	url string
	Options
}

func TestOptionsThatCannotWorkAreErrors(t *testing.T) {
	for want, o := range map[string]located{
		"want redis://":       {},
		"invalid database -1": {"redis://h/-1", Options{}},
		"invalid database 1":  {"redis+cluster://h/1", Options{}},
		"invalid database 2":  {"redis+cluster://h/2", Options{}},
		"invalid database -2": {"redis://h/-2", Options{}},
		"without a password":  {"redis://h", Options{Username: "u"}},
		"begins with rediss":  {"redis://h", Options{TLS: &tls.Config{}}},
	} {
		_, err := Open(o.url, o.Options)
		check.That(t, err != nil && strings.Contains(err.Error(), want) && !strings.Contains(err.Error(), "hunter2"), "%+v: got %v, want an error with %q", o, err, want)
	}
}

func TestPasswordsAreUsedAndNeverShown(t *testing.T) {
	server := servertest.StartRedis(t, "--requirepass", "hunter2", "--user", "app", "on", ">s3cret/@%", "~p:*", "+eval", "+evalsha", "+get", "+set", "+del", "+scan", "+time", "+info")
	at := server.Addr
	for _, o := range []located{
		{"redis://:hunter2@" + at, Options{}},
		{"redis://" + at, Options{Password: "hunter2"}},
		{"redis://wrong:wrong@" + at, Options{Username: "default", Password: "hunter2"}},
		{"redis://app:s3cret/@%25@" + at, Options{Prefix: "p:"}},
		{"redis://" + at, Options{Username: "app", Password: "s3cret/@%", Prefix: "p:"}},
		{"redis://" + at + "/2", Options{Password: "hunter2"}},
	} {
		s := open(t, o.url, o.Options)
		mustTake(t, s, charge("k", frozen, 1))
		text := fmt.Sprint(s, s.connection.target)
		check.That(t, !strings.Contains(text, "hunter2") && !strings.Contains(text, "s3cret"), "got the store as %s, want no password in it", text)
	}
	for _, o := range []located{
		{"redis://:hunter22@" + at, Options{}},
		{"redis://app:hunter22@" + at, Options{}},
		{"redis://" + at, Options{}},
		{"redis://app:s3cret/@%25@" + at + "/2", Options{Prefix: "p:"}},
		{"redis://app:s3cret/@%25@" + at, Options{Prefix: "q:"}},
	} {
		_, err := take(open(t, o.url, o.Options), charge("k", frozen, 1))
		check.That(t, err != nil && !strings.Contains(err.Error(), "hunter22") && !strings.Contains(err.Error(), "s3cret"), "%s: got %v, want an error without a password", o.url, err)
	}
}
