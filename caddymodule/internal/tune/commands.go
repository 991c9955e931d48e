// Package tune is the commands that read the access logs of a site, to find limits before
// they are enforced and to see what they did. Begin with [Commands].
package tune

import "github.com/spf13/cobra"

// Commands returns the commands, which are used once.
func Commands() []*cobra.Command {
	return []*cobra.Command{replayCommand(), recommendCommand(), summaryCommand()}
}
