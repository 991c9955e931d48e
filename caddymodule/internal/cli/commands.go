// Package cli is the commands that speak to a running Caddy, over its admin API. Each is in
// the file of its name. Begin with [Commands], the table of them. It imports the JSON of that
// API and what several commands share, and nothing of what runs.
package cli

import "github.com/spf13/cobra"

// Commands returns the commands, which are used once.
func Commands() (all []*cobra.Command) {
	for _, c := range []command{
		statusCommand(), topCommand(), whyCommand(), checkCommand(), bucketsCommand(), releaseCommand(),
		banCommand(), unbanCommand(), bansCommand(), journalCommand(), limitCommand(), unlimitCommand(), shadowCommand(), unshadowCommand(),
		revokeDevicesCommand(),
	} {
		all = append(all, c.cobra())
	}
	return append(all, versionCommand()) // which asks nobody
}
