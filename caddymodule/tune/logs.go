package tune

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/caddy-throttle/caddy-throttle/caddymodule"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/tune/internal/accesslog"
)

// logFlags are the flags of all commands that read logs.
type logFlags struct {
	host, timeField, client, fields string
	json                            bool
}

const aboutLogs = `

It reads files and prints what it finds. It needs no running Caddy and changes nothing.
Logs may be those of Caddy, nginx, Apache, Rails and others, plain or compressed by
gzip or zstd. Give several, such as a rotated set, in any order. A dash is the
standard input. A combined line may end with a request time: seconds, as nginx's
$request_time, or microseconds, as Apache's %D. A number without a point is taken
for microseconds, unless --time-field says more. --fields reads any other line.`

// A finding is an [Answer].
type finding interface{ Text() string }

const (
	// gcPercent bounds the memory for many clients, of which much is kept.
	gcPercent = 50

	// ballast is memory that nobody touches, so that it is none of the machine's. It keeps the
	// garbage collector from coming often while little is kept.
	ballast = 32 << 20
)

// reads lets a command read logs, print what find finds in them, and exit with the code
// that an error means.
func (f *logFlags) reads(cmd *cobra.Command, find func(*logReader) (finding, error)) *cobra.Command {
	cmd.Flags().StringVar(&f.host, "host", "", "The host of requests whose line has none, as in combined logs")
	cmd.Flags().StringVar(&f.timeField, "time-field", "", "The field of the request's duration, and perhaps its unit: upstream_time:ms in JSON, 2 for the second word after the user agent")
	cmd.Flags().StringVar(&f.client, "client", "", "The field of the client's address, named as in --time-field; remote_addr is the first of combined lines")
	cmd.Flags().StringVar(&f.fields, "fields", "", "The fields of each line, as the text of Apache's LogFormat or nginx's log_format")
	cmd.Flags().BoolVar(&f.json, "json", false, "Print JSON")
	cmd.Long += aboutLogs
	cmd.RunE = func(cmd *cobra.Command, logs []string) error { return f.run(cmd, logs, find) }
	return cmd
}

func (f *logFlags) run(cmd *cobra.Command, logs []string, find func(*logReader) (finding, error)) error {
	ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // the next signal ends the process
	debug.SetGCPercent(gcPercent)
	untouched := make([]byte, ballast)
	defer runtime.KeepAlive(untouched)
	in, err := f.open(ctx, logs)
	if err != nil {
		return err
	}
	defer in.Close()
	found, err := find(in)
	if errors.Is(in.err, accesslog.ErrLate) {
		var sorted *accesslog.Reader
		if sorted, err = in.Sorted(ctx); err != nil {
			return err
		}
		in.Close()
		in.Reader, in.err = sorted, nil
		found, err = find(in)
	}
	if err = cmp.Or(in.err, err); err != nil {
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

// A logReader reads the requests of logs, shows the progress on a terminal, and ends
// early when the command is interrupted.
type logReader struct {
	*accesslog.Reader
	ctx context.Context
	err error // why reading ended early

	began time.Time
	bar   *progressbar.ProgressBar
}

// open opens logs.
func (f *logFlags) open(ctx context.Context, logs []string) (*logReader, error) {
	switch {
	case len(logs) == 0:
		return nil, caddymodule.UsageErrorf("no log given: want files, or - for the standard input")
	case strings.ContainsAny(f.host, "/ "):
		return nil, caddymodule.UsageErrorf("invalid --host %q: want a name such as example.com", f.host)
	}
	options := accesslog.Options{Host: f.host, TimeField: f.timeField, Client: f.client, Fields: f.fields}
	if slices.Contains(logs, "-") {
		options.Stdin = interruptible(ctx, os.Stdin)
	}
	reader, err := accesslog.Open(logs, options)
	if err != nil {
		return nil, err
	}
	_, total := reader.Progress()
	bar := progressbar.NewOptions64(cmp.Or(total, -1), progressbar.OptionSetWriter(os.Stderr), progressbar.OptionSetVisibility(term.IsTerminal(int(os.Stderr.Fd()))), progressbar.OptionShowBytes(true),
		progressbar.OptionSetPredictTime(true), progressbar.OptionFullWidth(), progressbar.OptionThrottle(progressPause), progressbar.OptionClearOnFinish())
	return &logReader{Reader: reader, ctx: ctx, began: time.Now(), bar: bar}, nil
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

// batches iterates over the requests that are left, until the command is interrupted or
// they cannot be read.
func (r *logReader) batches() iter.Seq[[]*accesslog.Request] {
	return func(yield func([]*accesslog.Request) bool) {
		for batch, err := range r.Batches() {
			if err != nil && !r.interrupted() {
				r.err = err
			}
			if err != nil || !yield(batch) || r.interrupted() {
				return
			}
			r.show()
		}
	}
}

// interrupted reports whether somebody has seen enough.
func (r *logReader) interrupted() bool { return r.ctx.Err() != nil }

const progressPause = 200 * time.Millisecond

// show shows the progress.
func (r *logReader) show() {
	read, _ := r.Progress()
	lines, took := r.Stats().Lines, time.Since(r.began)
	r.bar.Describe(fmt.Sprintf("%s lines, %s a second", humanize.Comma(lines), humanize.Comma(int64(float64(lines)/took.Seconds()))))
	_ = r.bar.Set64(read)
}

// Close ends the progress and closes the logs.
func (r *logReader) Close() {
	_ = r.bar.Clear()
	r.Reader.Close()
}
