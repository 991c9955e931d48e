package tune

import (
	"context"
	"encoding/json"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/accesslog"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/replay"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/usage"
)

// LogFlags are the flags of all commands that read logs.
type LogFlags struct {
	Format, Host string
	JSON         bool
}

// Add adds the flags to a command.
func (f *LogFlags) Add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.Format, "format", "auto", "How lines are written: auto, caddy, nginx or apache; see caddy throttle --help")
	cmd.Flags().StringVar(&f.Host, "host", "", "The host of requests whose line has none, as in combined logs")
	cmd.Flags().BoolVar(&f.JSON, "json", false, "Print JSON")
}

// Print prints what a command has found, for people or as JSON.
func (f *LogFlags) Print(found interface{ Write(io.Writer) error }) error {
	if !f.JSON {
		return found.Write(os.Stdout)
	}
	out := json.NewEncoder(os.Stdout)
	out.SetIndent("", "\t")
	return out.Encode(found)
}

// A LogReader reads the requests of logs, shows the progress on a terminal, and ends
// early when the command is interrupted.
type LogReader struct {
	*accesslog.Reader
	ctx         context.Context
	Interrupted bool
	done        chan struct{} // closed to end the progress
	ended       chan struct{}
}

// Open opens logs.
func (f *LogFlags) Open(ctx context.Context, logs []string) (*LogReader, error) {
	format, err := accesslog.ParseFormat(f.Format)
	if err != nil {
		return nil, usage.Errorf("--format: %w", err)
	}
	if strings.ContainsAny(f.Host, "/ ") {
		return nil, usage.Errorf("invalid --host %q: want a name such as example.com", f.Host)
	}
	reader, err := accesslog.Open(logs, accesslog.Options{Format: format, Host: f.Host, Stdin: &interruptible{ctx: ctx, in: os.Stdin}})
	if err != nil {
		return nil, err
	}
	r := &LogReader{Reader: reader, ctx: ctx, done: make(chan struct{}), ended: make(chan struct{})}
	if term.IsTerminal(int(os.Stderr.Fd())) {
		go r.show(os.Stderr)
	} else {
		close(r.ended)
	}
	return r, nil
}

// checkEvery is after how many requests a command looks whether it is interrupted.
const checkEvery = 256

// Each calls f with each request.
func (r *LogReader) Each(f func(*accesslog.Request) error) error {
	n := 0
	for req, err := range r.All() {
		if err != nil {
			if r.ctx.Err() != nil {
				break
			}
			return err
		}
		if err := f(req); err != nil {
			return err
		}
		if n++; n%checkEvery == 0 && r.ctx.Err() != nil {
			break
		}
	}
	r.Interrupted = r.ctx.Err() != nil
	return nil
}

// Close ends the progress and closes the logs.
func (r *LogReader) Close() {
	close(r.done)
	<-r.ended
	r.Reader.Close()
}

// Broken returns the error of the first log that broke off, or nil.
func (r *LogReader) Broken() error {
	if broken := r.Stats().Broken; len(broken) > 0 {
		return broken[0]
	}
	return nil
}

// Log returns what was read.
func (r *LogReader) Log(files []string) replay.Log {
	stats := r.Stats()
	l := replay.Log{
		Files: files, From: stats.From, To: stats.To, Lines: stats.Lines, Requests: stats.Requests,
		Other: stats.Other, Unreadable: stats.Unreadable, Unlogged: stats.Unlogged, Problems: []string{},
	}
	for _, problem := range stats.Problems {
		l.Problems = append(l.Problems, problem.String())
	}
	for _, broken := range stats.Broken {
		l.Problems = append(l.Problems, broken.Error())
	}
	return l
}
