package caddymodule

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"go.uber.org/zap"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/cookie"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/device"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/signer"
)

// TrustDevices gives each browser from which somebody has logged in to an account a
// bucket of its own, so that an attack on the account does not lock out its owner. A
// browser is known by a signed cookie, `__Host-throttle-device-<zone>`, which it gets
// over HTTPS only. It is good for this zone, host and account alone, and does not say
// which account that is. When the browser's bucket is full, the account's is charged.
// An account has at most ten devices: the store keeps ten places, and a place is taken
// until its device has not logged in for the whole duration. A store that forgets them,
// as memory without a snapshot does when Caddy is restarted, has room for ten more.
// Shadow zones trust devices, too, so that they are known when the zone is enforced.
//
// A response earns trust if it sets the cookie, and `settle status` or
// `settle header` charge nothing for it. Without these the zone cannot tell failures,
// so a request that comes with such a cookie earns no trust: the site may only have
// renewed it.
type TrustDevices struct {
	// The cookie that the upstream sets when a log-in has succeeded: a name, or a
	// pattern such as `wordpress_logged_in_*`. Required. The zone must match the log-in
	// alone: if another request that it matches gets such a cookie, because it is a
	// session's or renewed while somebody is logged in, a device is trusted for an
	// account into which nobody has logged in.
	Cookie string `json:"cookie,omitempty"`

	// How long a device is trusted after its last log-in, at most 365 days. Default:
	// 180 days.
	For caddy.Duration `json:"for,omitempty"`
}

const defaultTrust = caddy.Duration(180 * 24 * time.Hour)

// accountSources are the key sources that may name an account.
var accountSources = []string{"form", "cookie", "header", "query", "basic_user"}

var requestPlaceholder = regexp.MustCompile(`^http\.request\.(header|cookie|uri\.query)\.|^http\.auth\.`)

// namesAccount reports whether a key source may name an account.
func (k *KeySource) namesAccount() bool {
	if slices.Contains(accountSources, k.Source) {
		return true
	}
	template, err := parseTemplate(k.Source)
	return err == nil && slices.ContainsFunc(template.Placeholders(), func(name string) bool {
		return requestPlaceholder.MatchString(name) || !strings.HasPrefix(name, "http.request.")
	})
}

// privateSources are the key sources of which rate-limit headers would tell which
// accounts exist.
var privateSources = []string{"form", "cookie", "basic_user"}

func (k *KeySource) private() bool {
	return slices.Contains(privateSources, k.Source) || strings.Contains(k.Source, "{http.request.cookie.")
}

func (c *compilation) compileTrust() error {
	c.rule.Key.Private = slices.ContainsFunc(c.Key.Sources, func(k KeySource) bool { return k.private() })
	if c.TrustDevices == nil {
		return nil
	}
	t := *c.TrustDevices
	var err error
	switch {
	case t.Cookie == "":
		err = errors.New("trust_devices names no cookie: want the one that the upstream sets when a log-in has succeeded, such as wordpress_logged_in_*")
	case strings.HasSuffix(t.Cookie, "_") || strings.HasSuffix(t.Cookie, "-"):
		err = fmt.Errorf("invalid cookie %q in trust_devices: no cookie ends so; did you mean %[1]s*?", t.Cookie)
	case !cookie.ValidPattern(t.Cookie):
		err = fmt.Errorf("invalid cookie %q in trust_devices: want the name, or a pattern such as wordpress_logged_in_*, of one that nothing but a log-in sets", t.Cookie)
	case t.For <= 0 || time.Duration(t.For) > signer.Term:
		err = fmt.Errorf("invalid duration %v in trust_devices: want one above 0 and at most 365d", time.Duration(t.For))
	case !slices.ContainsFunc(c.Key.Sources, func(k KeySource) bool { return k.namesAccount() }):
		err = errors.New("trust_devices needs a key that names an account: want form, basic_user, header, cookie or query among its sources, such as key form log; client_ip, host, method, route and text name none")
	}
	if err != nil {
		return about("trust_devices", 0, err)
	}
	c.rule.Trust = &device.Trust{Zone: c.Name, Cookie: t.Cookie, For: time.Duration(t.For)}
	if c.rule.Settle.TellsFailures() {
		c.rule.Trust.Failed = c.rule.Settle.Failed
	}
	return nil
}

func (z *Zone) parseTrustDevices(d *caddyfile.Dispenser) error {
	words := d.RemainingArgs()
	if len(words) == 0 || len(words) > 2 {
		return d.Err("wrong number of words after trust_devices: want trust_devices <cookie-glob> [<duration>], such as trust_devices wordpress_logged_in_* 180d")
	}
	if _, err := caddy.ParseDuration(words[0]); err == nil || slices.Contains([]string{"on", "yes", "true"}, words[0]) {
		return d.Errf("unexpected %q after trust_devices: want the cookie that a log-in sets first, as in trust_devices wordpress_logged_in_* 180d", words[0])
	}
	z.TrustDevices = &TrustDevices{Cookie: words[0]}
	if len(words) == 2 {
		duration, err := parseDuration(words[1])
		if err != nil {
			return d.Errf("parsing trust_devices: %w", err)
		}
		z.TrustDevices.For = duration
	}
	return nil
}

// signingKeys are the keys that device cookies and passes are signed with, as one config
// has them. They are read from Caddy's storage when the config starts.
type signingKeys struct {
	*signer.Ring
	stop context.CancelFunc
}

// lastKeys remembers the signing keys of the config that started last, so that a
// reload keeps them although storage fails meanwhile.
type lastKeys struct{ atomic.Pointer[signer.Ring] }

// Destruct implements caddy.Destructor.
func (*lastKeys) Destruct() error { return nil }

// patience is how long a config waits for its keys when it starts. A storage that takes
// longer must not keep sites from being served.
const patience = time.Second

// signingKeys returns the config's keys, which all its zones share.
func (a *engine) signingKeys(ctx caddy.Context) (*signer.Ring, error) {
	if a.signing.Ring == nil {
		last, err := join(signingKey, func() (*lastKeys, error) { return new(lastKeys), nil })
		if err != nil {
			return nil, err
		}
		a.lastKeys = last
		a.signing.Ring = signer.New(ctx.Storage(), last.Load())
	}
	return a.signing.Ring, nil
}

// start reads the keys, and keeps them up to date until stop is called.
func (s *signingKeys) start(last *lastKeys, logger *zap.Logger) {
	if s.Ring == nil {
		return
	}
	var ctx context.Context
	ctx, s.stop = context.WithCancel(context.Background())
	go s.Run(ctx, func(err error) {
		logger.Error("reading the keys of device cookies and passes; it is tried again every minute, and meanwhile neither may be issued", zap.Error(err))
	})
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-s.Tried():
	case <-timer.C:
	}
	last.Store(s.Ring)
}

// revoked says that the keys of device cookies and passes were replaced.
type revoked struct {
	Revoked bool `json:"revoked"`
}

// adminRevoke replaces the keys, so that no device is trusted and no pass is good any
// more.
func (a *engine) adminRevoke(ctx context.Context, in *adminInput) (any, error) {
	if err := in.decode(new(struct{})); err != nil {
		return nil, err
	}
	if a.signing.Ring == nil {
		return nil, badRequest("no zone has trust_devices, and none sends passes")
	}
	if err := a.signing.Rotate(ctx, time.Now()); err != nil {
		return nil, err
	}
	return revoked{true}, nil
}

// warnInsecure logs, once, that a log-in succeeded over plain HTTP.
func (z *runningZone) warnInsecure() {
	switch {
	case z.warnedInsecure.Swap(true):
	case z.Share != nil:
		z.logger.Warn("a log-in succeeded over plain HTTP, where no passes are sent, so nobody is a member: serve the site over HTTPS, or list the proxy that does in trusted_proxies and let it send X-Forwarded-Proto")
	default:
		z.logger.Warn("a log-in succeeded over plain HTTP, where devices cannot be trusted: serve the site over HTTPS, or list the proxy that does in trusted_proxies and let it send X-Forwarded-Proto")
	}
}

// Interface guards
var _ caddy.Destructor = (*lastKeys)(nil)
