package cli

func bansCommand() command {
	return command{
		watch: true, use: "bans", short: "Lists bans and other changes at run time",
		long: "Lists bans, limits and shadow switches that hold, and how long.",
		run: func(c *adminClient, _ []string) error {
			return show(c, "overrides", nil, c.showOverrides)
		},
	}
}
