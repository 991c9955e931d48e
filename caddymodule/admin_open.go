package caddymodule

import (
	"net/netip"
	"reflect"

	"github.com/caddyserver/caddy/v2"
)

// openAdmin reports whether the admin endpoint of a config listens on all interfaces,
// and where. Caddy then checks no hosts there. Caddy tells modules nothing of its admin
// endpoint, so this looks into its context; if that has changed, it reports false.
func openAdmin(ctx caddy.Context) (listen string, open bool) {
	admin := field(field(reflect.ValueOf(ctx), "cfg"), "Admin")
	if disabled := field(admin, "Disabled"); disabled.IsValid() && disabled.Bool() {
		return "", false
	}
	listen = caddy.DefaultAdminListen
	if given := field(admin, "Listen"); given.IsValid() && given.String() != "" {
		listen = caddy.NewReplacer().ReplaceAll(given.String(), "")
	}
	address, err := caddy.ParseNetworkAddress(listen)
	if err != nil || address.IsUnixNetwork() || address.IsFdNetwork() {
		return listen, false
	}
	ip, err := netip.ParseAddr(address.Host)
	return listen, address.Host == "" || err == nil && ip.IsUnspecified()
}

// field returns a field of a struct, or of that to which a pointer points. It is
// invalid if there is none.
func field(of reflect.Value, name string) reflect.Value {
	if of.Kind() == reflect.Pointer {
		of = of.Elem()
	}
	if of.Kind() != reflect.Struct {
		return reflect.Value{}
	}
	return of.FieldByName(name)
}
