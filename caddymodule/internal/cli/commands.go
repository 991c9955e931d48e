// Package cli is the commands that speak to a running Caddy, over its admin API. Those that
// begin and end a change are in one file. Begin with [Commands], the table of them. It imports
// the JSON of that API and what several commands share, and nothing of what runs.
package cli

import "github.com/spf13/cobra"

// Commands returns the commands, which are used once.
func Commands() (all []*cobra.Command) {
	for _, c := range []command{
		statusCommand(), topCommand(), whyCommand(), releaseCommand(),
		banCommand(), unbanCommand(), bansCommand(), journalCommand(), limitCommand(), unlimitCommand(), shadowCommand(), unshadowCommand(),
		revokeDevicesCommand(), versionCommand(),
	} {
		all = append(all, c.cobra())
	}
	return all
}
