package tune

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"os"
	"os/signal"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/accesslog"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/replay"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/usage"
)

// logFlags are the flags of all commands that read logs.
type logFlags struct {
	format, host, timeField string
	json                    bool
}

// A finding is what a command finds in logs. It is printed for people, or as JSON.
type finding interface{ Write(io.Writer) error }

// gcPercent bounds the memory for many clients, of which much is kept. Lines leave little
// garbage, so it costs little time.
const gcPercent = 60

// reads lets a command read logs, print what find finds in them, and exit with the code
// that an error means.
func (f *logFlags) reads(cmd *cobra.Command, find func(*logReader) (finding, error)) *cobra.Command {
	cmd.Flags().StringVar(&f.format, "format", "auto", "How lines are written: auto, caddy, nginx or apache; see caddy throttle --help")
	cmd.Flags().StringVar(&f.host, "host", "", "The host of requests whose line has none, as in combined logs")
	cmd.Flags().StringVar(&f.timeField, "time-field", "", "The field of the request's duration, and perhaps its unit: upstream_time:ms in JSON, 2 for the second word after the user agent")
	cmd.Flags().BoolVar(&f.json, "json", false, "Print JSON")
	cmd.RunE = func(cmd *cobra.Command, logs []string) error {
		return usage.Fail(cmd, f.run(cmd, logs, find))
	}
	usage.FailFlags(cmd)
	return cmd
}

func (f *logFlags) run(cmd *cobra.Command, logs []string, find func(*logReader) (finding, error)) error {
	ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // the next signal ends the process
	debug.SetGCPercent(gcPercent)
	in, err := f.open(ctx, logs)
	if err != nil {
		return err
	}
	defer in.Close()
	found, err := find(in)
	if err = cmp.Or(in.err, err); err != nil {
		return err
	}
	if f.json {
		out := json.NewEncoder(cmd.OutOrStdout())
		out.SetIndent("", "\t")
		err = out.Encode(found)
	} else {
		err = found.Write(cmd.OutOrStdout())
	}
	if broken := in.Stats().Broken; err == nil && len(broken) > 0 {
		return broken[0]
	}
	return err
}

// A logReader reads the requests of logs, shows the progress on a terminal, and ends
// early when the command is interrupted.
type logReader struct {
	*accesslog.Reader
	ctx   context.Context
	names []string
	err   error // why reading ended early

	began time.Time
	shows bool
	bar   *progressbar.ProgressBar // nil until it is shown
}

// open opens logs.
func (f *logFlags) open(ctx context.Context, logs []string) (*logReader, error) {
	format, err := accesslog.ParseFormat(f.format)
	switch {
	case len(logs) == 0:
		return nil, usage.Errorf("no log given: want files, or - for the standard input")
	case err != nil:
		return nil, usage.Errorf("--format: %w", err)
	case strings.ContainsAny(f.host, "/ "):
		return nil, usage.Errorf("invalid --host %q: want a name such as example.com", f.host)
	}
	options := accesslog.Options{Format: format, Host: f.host, TimeField: f.timeField}
	if slices.Contains(logs, "-") {
		options.Stdin = interruptible(ctx, os.Stdin)
	}
	reader, err := accesslog.Open(logs, options)
	if err != nil {
		return nil, err
	}
	return &logReader{Reader: reader, ctx: ctx, names: logs, began: time.Now(), shows: term.IsTerminal(int(os.Stderr.Fd()))}, nil
}

// interruptible returns a reader that ends when the context does, also while it waits for
// input.
func interruptible(ctx context.Context, in io.Reader) io.Reader {
	out, into := io.Pipe()
	context.AfterFunc(ctx, func() { _ = into.Close() })
	go func() {
		_, err := io.Copy(into, in)
		_ = into.CloseWithError(err)
	}()
	return out
}

// requests iterates over the requests that are left, until the command is interrupted or
// they cannot be read.
func (r *logReader) requests() iter.Seq[*accesslog.Request] {
	return func(yield func(*accesslog.Request) bool) {
		for req, err := range r.All() {
			if err != nil && !r.interrupted() {
				r.err = err
			}
			if err != nil || !yield(req) || r.interrupted() {
				return
			}
			if r.shows && r.Stats().Requests%progressEvery == 0 {
				r.show()
			}
		}
	}
}

// interrupted reports whether somebody has seen enough.
func (r *logReader) interrupted() bool { return r.ctx.Err() != nil }

const (
	progressEvery = 256 // requests
	progressAfter = time.Second
	progressPause = 200 * time.Millisecond
)

// show shows the progress of what takes long.
func (r *logReader) show() {
	took := time.Since(r.began)
	if took < progressAfter {
		return
	}
	read, total := r.Progress()
	if r.bar == nil {
		r.bar = progressbar.NewOptions64(cmp.Or(total, -1), progressbar.OptionSetWriter(os.Stderr), progressbar.OptionShowBytes(true),
			progressbar.OptionSetPredictTime(true), progressbar.OptionFullWidth(), progressbar.OptionThrottle(progressPause))
	}
	lines := r.Stats().Lines
	r.bar.Describe(fmt.Sprintf("%s lines, %s a second", humanize.Comma(lines), humanize.Comma(int64(float64(lines)/took.Seconds()))))
	if total == 0 || read < total {
		_ = r.bar.Set64(read)
	}
}

// Close ends the progress and closes the logs.
func (r *logReader) Close() {
	if r.bar != nil {
		_ = r.bar.Clear()
	}
	r.Reader.Close()
}

// log returns what was read.
func (r *logReader) log() replay.Log {
	stats := r.Stats()
	l := replay.Log{
		Files: r.names, From: stats.From, To: stats.To, Lines: stats.Lines, Requests: stats.Requests,
		Other: stats.Other, Unreadable: stats.Unreadable, Unlogged: stats.Unlogged, Problems: append([]string{}, stats.Problems...),
	}
	for _, broken := range stats.Broken {
		l.Problems = append(l.Problems, broken.Error())
	}
	return l
}
