package limit

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/option"
)

// TrustDevices gives each browser from which somebody has logged in to an account a
// bucket of its own, so that an attack on the account does not lock out its owner. A
// browser is known by a signed cookie, `__Host-throttle-device-<zone>`, which it gets
// over HTTPS only. It is good for this zone, host and account alone, and does not say
// which account that is. The devices of an account share ten buckets, so that whoever earns
// devices without end has no more. Shadow zones trust devices, too, so that they are known
// when the zone is enforced.
//
// A response earns trust if it is refunded and sets the cookie, for this account if its value
// has a name before a |, as WordPress's does. The zone must have refund.
type TrustDevices struct {
	// The cookie that the upstream sets when a log-in has succeeded: a name, or a
	// pattern such as `wordpress_logged_in_*`. Required.
	Cookie string `json:"cookie,omitempty"`

	// How long a device is trusted after its last log-in, at most 365 days. Default:
	// 180 days.
	For caddy.Duration `json:"for,omitempty"`

	trust deviceTrust
}

// namesAccount reports whether the part may name an account, as placeholders may.
func (k *KeySource) namesAccount() bool { return k.chosen() || strings.Contains(k.Source, "{") }

// privateSources are the key sources of which rate-limit headers would tell which
// accounts exist.
var privateSources = []string{"field", "cookie", "basic_user"}

func (k *KeySource) private() bool {
	return slices.Contains(privateSources, k.Source) || strings.Contains(k.Source, "{http.request.cookie.")
}

// compile compiles the trust in devices. It comes after the key and refund.
func (t *TrustDevices) compile(z *Zone) error {
	if t == nil {
		return nil
	}
	t.trust = deviceTrust{Zone: z.Name, Cookie: t.Cookie, For: time.Duration(t.For)}
	named := slices.ContainsFunc(z.Key.Sources, func(k KeySource) bool { return k.namesAccount() })
	return cmp.Or(
		option.Refuse("trust_devices", t.Cookie == "", "trust_devices names no cookie: want the one that the upstream sets when a log-in has succeeded, such as wordpress_logged_in_*"),
		option.CheckLogInCookie("trust_devices", t.Cookie),
		option.Refuse("trust_devices", t.For <= 0 || time.Duration(t.For) > longestTrust, "invalid duration %v in trust_devices: want one above 0 and at most 365d", time.Duration(t.For)),
		option.Refuse("trust_devices", !named, "trust_devices needs a key that names an account: want field, basic_user, header, cookie or query among its sources, such as key field log; client_ip, host, method, route and text name none"),
		option.Refuse("trust_devices", len(z.Refund) == 0, "trust_devices needs refund, by which the zone tells a log-in that succeeded: want refund cookie %s", t.Cookie),
	)
}

func (t *TrustDevices) load(given *Given) {
	if t != nil {
		t.trust.Insecure, t.trust.Keys = given.Insecure, given.Keys()
	}
}
