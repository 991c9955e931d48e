package rule

import (
	"strings"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/device"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// DeviceClient returns what device cookies tell of a request to an account, or nil if the
// zone trusts no devices or the request names no account.
func (r *Rule) DeviceClient(s *Subject, k *Bucket) *device.Client {
	if r.Trust == nil || !k.own {
		return nil
	}
	host := Host(s)
	if host == "" {
		return nil
	}
	return r.Trust.Client(s.Request, host, k.Name, time.Now())
}

// DeviceKey returns the key of a client's device, or "" if none is known for the
// account. No client can spell it, since a leading @ is escaped in parts.
func DeviceKey(account string, client *device.Client) string {
	name, known := client.Device()
	if !known {
		return ""
	}
	return account + "/@device/" + name
}

// AccountOf returns the key of the account whose device has a bucket of this name, or
// the name itself.
func AccountOf(name string) string {
	account, _, _ := strings.Cut(name, "/@device/")
	return account
}

// PlaceLimit is that of a place for a device.
func PlaceLimit(t *device.Trust) leakybucket.Limit {
	return leakybucket.Limit{Capacity: 1, Leak: 1 / t.For.Seconds()}
}
