package cli

import "github.com/caddy-throttle/caddy-throttle/caddymodule/internal/admin/wire"

func revokeDevicesCommand() command {
	return command{
		use: "revoke-devices", short: "Trusts no device any more",
		long: `Replaces the keys that the cookies of trust_devices and the passes of share are signed
with. No device is trusted any more until somebody logs in with it again, and all
passes are void: on this Caddy at once, on others that share its storage within ten
minutes.`,
		run: func(c *adminClient, _ []string) error {
			return show(c, "revoke", struct{}{}, func(*wire.Revoked) {
				c.say("No device is trusted any more, and no pass is valid.")
			})
		},
	}
}
