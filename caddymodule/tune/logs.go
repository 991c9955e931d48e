package tune

import (
	"cmp"
	"encoding/json"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/command"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/tune/internal/accesslog"
)

// logFlags are the flags of all commands that read logs.
type logFlags struct {
	accesslog.Options
	json bool
}

const aboutLogs = `

Logs may be those of Caddy, nginx, Apache, Rails and others. A combined line may end
with a request time: seconds with a point, as nginx's $request_time, or microseconds, as
Apache's %D. --fields reads any other line.` + aboutFiles

const aboutFiles = `

It needs no running Caddy and changes nothing. Logs may be plain or compressed by gzip or
zstd, several in any order; a dash is the standard input.`

// A finding is an [Answer].
type finding interface{ Text() string }

// reads lets a command read logs, print what find finds in them, and exit with the code
// that an error means.
func (f *logFlags) reads(cmd *cobra.Command, find func(*accesslog.Reader) (finding, error)) *cobra.Command {
	cmd.Flags().StringVar(&f.Host, "host", "", "The host of requests whose line has none, as in combined logs")
	cmd.Flags().StringVar(&f.TimeField, "time-field", "", "The field of the request's duration, and perhaps its unit: upstream_time:ms in JSON, 2 for the second word after the user agent")
	cmd.Flags().StringVar(&f.Client, "client", "", "The field of the client's address, named as in --time-field; remote_addr is the first of combined lines")
	cmd.Flags().StringVar(&f.Fields, "fields", "", "The fields of each line, as the text of Apache's LogFormat or nginx's log_format")
	cmd.Flags().BoolVar(&f.json, "json", false, "Print JSON")
	cmd.RunE = func(cmd *cobra.Command, logs []string) error { return f.run(cmd, logs, find) }
	return cmd
}

func (f *logFlags) run(cmd *cobra.Command, logs []string, find func(*accesslog.Reader) (finding, error)) error {
	switch {
	case len(logs) == 0:
		return command.UsageErrorf("no log given: want files, or - for the standard input")
	case strings.ContainsAny(f.Host, "/ "):
		return command.UsageErrorf("invalid --host %q: want a name such as example.com", f.Host)
	}
	f.Stdin = os.Stdin
	in, err := accesslog.Open(logs, f.Options)
	if err != nil {
		return err
	}
	defer in.Close()
	found, err := find(in)
	if err != nil {
		return err
	}
	if f.json {
		out := json.NewEncoder(cmd.OutOrStdout())
		out.SetIndent("", "\t")
		err = out.Encode(found)
	} else {
		_, err = io.WriteString(cmd.OutOrStdout(), found.Text())
	}
	return cmp.Or(err, in.Stats().Broken)
}
