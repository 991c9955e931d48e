// Package tune is the commands replay, recommend and summary, which read the access logs of a
// site: to find limits before they are enforced, and to see what they did. Begin with
// [logFlags].
package tune

import "github.com/caddy-throttle/caddy-throttle/caddymodule"

func init() {
	caddymodule.RegisterCommand(replayCommand)
	caddymodule.RegisterCommand(recommendCommand)
	caddymodule.RegisterCommand(summaryCommand)
}
