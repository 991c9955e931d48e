package caddymodule

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"strings"
	"syscall"
	"time"

	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	"github.com/dustin/go-humanize"
	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/accesslog"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/cli"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/usage"
)

func init() {
	caddycmd.RegisterCommand(caddycmd.Command{
		Name:  "throttle",
		Usage: "COMMAND ...", // in capitals, as manual pages lose words in angle brackets
		Short: "Steers rate limits, and tunes them with access logs",
		Long: `
Most commands speak to a running Caddy, over its admin endpoint: they show what the
limits do, let clients back in, and ban networks for a while.

The commands replay, recommend and summary tune limits before they are enforced,
from the access logs that a site has already. They read files and print what they
find. They need no running Caddy and change nothing.

Logs may be Caddy's own, in JSON, or common or combined logs of nginx and
Apache, plain or compressed by gzip or zstd. Give several, such as a rotated
set, in any order. A dash is the standard input. A combined line may end with
a request time: seconds, as nginx's $request_time, or microseconds, as Apache's
%D. Without --format, a number without a point is taken for microseconds.

The exit code is 1 if a log cannot be read, and 2 if the command is used in a
wrong way.`,
		CobraFunc: func(cmd *cobra.Command) {
			usage.RefuseUnknown(cmd)
			cmd.AddCommand(replayCommand(), recommendCommand(), summaryCommand())
			cmd.AddCommand(cli.Commands()...)
		},
	})
}

// runnable lets a command run, and exit with the code that its error means.
func runnable(cmd *cobra.Command, run func(ctx context.Context, logs []string) error) *cobra.Command {
	cmd.RunE = func(cmd *cobra.Command, logs []string) error {
		ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
		defer stop()
		context.AfterFunc(ctx, stop) // the next signal ends the process
		if len(logs) == 0 {
			return usage.Fail(cmd, usage.Errorf("no log given: want files, or - for the standard input"))
		}
		debug.SetGCPercent(gcPercent)
		return usage.Fail(cmd, run(ctx, logs))
	}
	usage.FailFlags(cmd)
	return cmd
}

// gcPercent makes the garbage collector run less often: little is kept of a log, and
// much is read.
const gcPercent = 400

// logFlags are the flags of all commands that read logs.
type logFlags struct {
	format, host string
	json         bool
}

// add adds the flags to a command.
func (f *logFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.format, "format", "auto", "How lines are written: auto, caddy, nginx or apache; see caddy throttle --help")
	cmd.Flags().StringVar(&f.host, "host", "", "The host of requests whose line has none, as in combined logs")
	cmd.Flags().BoolVar(&f.json, "json", false, "Print JSON")
}

// print prints what a command has found, for people or as JSON.
func (f *logFlags) print(found interface{ Write(io.Writer) error }) error {
	if !f.json {
		return found.Write(os.Stdout)
	}
	out := json.NewEncoder(os.Stdout)
	out.SetIndent("", "\t")
	return out.Encode(found)
}

// A logReader reads the requests of logs, shows the progress on a terminal, and ends
// early when the command is interrupted.
type logReader struct {
	*accesslog.Reader
	ctx         context.Context
	interrupted bool
	done        chan struct{} // closed to end the progress
	ended       chan struct{}
}

// open opens logs.
func (f *logFlags) open(ctx context.Context, logs []string) (*logReader, error) {
	format, err := accesslog.ParseFormat(f.format)
	if err != nil {
		return nil, usage.Errorf("--format: %w", err)
	}
	if strings.ContainsAny(f.host, "/ ") {
		return nil, usage.Errorf("invalid --host %q: want a name such as example.com", f.host)
	}
	reader, err := accesslog.Open(logs, accesslog.Options{Format: format, Host: f.host, Stdin: &interruptible{ctx: ctx, in: os.Stdin}})
	if err != nil {
		return nil, err
	}
	r := &logReader{Reader: reader, ctx: ctx, done: make(chan struct{}), ended: make(chan struct{})}
	if term.IsTerminal(int(os.Stderr.Fd())) {
		go r.show(os.Stderr)
	} else {
		close(r.ended)
	}
	return r, nil
}

// checkEvery is after how many requests a command looks whether it is interrupted.
const checkEvery = 256

// each calls f with each request.
func (r *logReader) each(f func(*accesslog.Request) error) error {
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
	r.interrupted = r.ctx.Err() != nil
	return nil
}

// close ends the progress and closes the logs.
func (r *logReader) close() {
	close(r.done)
	<-r.ended
	r.Close()
}

// broken returns the error of the first log that broke off, or nil.
func (r *logReader) broken() error {
	if broken := r.Stats().Broken; len(broken) > 0 {
		return broken[0]
	}
	return nil
}

const (
	progressAfter = time.Second
	progressEvery = 200 * time.Millisecond
)

// show shows the progress until the reader is closed.
func (r *logReader) show(out io.Writer) {
	defer close(r.ended)
	_, total, _ := r.Progress()
	if total == 0 {
		total = -1
	}
	bar := progressbar.NewOptions64(total, progressbar.OptionSetWriter(out), progressbar.OptionShowBytes(true),
		progressbar.OptionSetPredictTime(true), progressbar.OptionClearOnFinish(), progressbar.OptionFullWidth())
	began := time.Now()
	select {
	case <-r.done:
		return
	case <-time.After(progressAfter):
	}
	defer func() { _ = bar.Clear() }()
	ticker := time.NewTicker(progressEvery)
	defer ticker.Stop()
	for {
		read, _, lines := r.Progress()
		bar.Describe(fmt.Sprintf("%s lines, %s a second", humanize.Comma(lines), humanize.Comma(int64(float64(lines)/time.Since(began).Seconds()))))
		if total < 0 || read < total {
			_ = bar.Set64(read)
		}
		select {
		case <-r.done:
			return
		case <-ticker.C:
		}
	}
}

// An interruptible reader ends when its context does, also while it waits for input.
type interruptible struct {
	ctx  context.Context
	in   io.Reader
	buf  []byte
	read chan readResult
}

type readResult struct {
	n   int
	err error
}

// Read implements io.Reader.
func (i *interruptible) Read(p []byte) (int, error) {
	if i.read == nil {
		i.read = make(chan readResult, 1)
	}
	if len(i.buf) < len(p) {
		i.buf = make([]byte, len(p))
	}
	room := i.buf[:len(p)]
	go func() {
		n, err := i.in.Read(room)
		i.read <- readResult{n, err}
	}()
	select {
	case got := <-i.read:
		return copy(p, room[:got.n]), got.err
	case <-i.ctx.Done():
		return 0, io.EOF
	}
}
