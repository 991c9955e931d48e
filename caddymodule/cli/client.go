package cli

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/command"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/admin/wire"
)

// A client is how a command reaches the admin API of a running Caddy, and what its flags say.
type client struct {
	address, config, adapter string
	json                     bool
	out                      io.Writer
	unwritten                error // the first of out

	of               wire.ClientQuery
	top              wire.TopQuery
	length, note, by string // of a change
	replace          bool
}

// cobra returns the command as Caddy runs it.
func (cmd *spec) cobra() *cobra.Command {
	c := new(client)
	made := &cobra.Command{Use: cmd.use, Short: cmd.short, Long: "\n" + cmd.long, Example: cmd.example}
	made.Args = func(_ *cobra.Command, args []string) error {
		if len(args) < cmd.least || len(args) > cmd.most {
			return command.UsageErrorf("want caddy throttle %s", cmd.use)
		}
		return refuseEmpty(made, args)
	}
	f := made.Flags()
	f.StringVar(&c.address, "address", "", "The address of the admin endpoint. Default: that of the config, or localhost:2019")
	f.StringVarP(&c.config, "config", "c", "", "A config file whose admin endpoint is asked")
	f.StringVarP(&c.adapter, "adapter", "a", "", "The adapter of that config file, such as caddyfile; needed unless it is named *.json, Caddyfile* or *.caddyfile")
	f.BoolVar(&c.json, "json", false, "Print JSON")
	if cmd.flags != nil {
		cmd.flags(c, f)
	}
	made.RunE = func(_ *cobra.Command, args []string) error {
		c.out = made.OutOrStdout()
		return cmp.Or(cmd.run(c, args), c.unwritten)
	}
	return made
}

// refuseEmpty refuses what is given and empty. A script whose variable is not set must not
// change all zones instead of one.
func refuseEmpty(cmd *cobra.Command, args []string) (err error) {
	for i, arg := range args {
		if strings.TrimSpace(arg) == "" {
			err = command.UsageErrorf("argument %d is empty", i+1)
		}
	}
	cmd.Flags().Visit(func(f *pflag.Flag) {
		if f.Value.Type() == "string" && strings.TrimSpace(f.Value.String()) == "" {
			err = command.UsageErrorf("--%s is empty", f.Name)
		}
	})
	return err
}

// each does something for each of the arguments. After a failure the others follow.
func each(args []string, do func(arg string) error) error {
	var failed []error
	for _, arg := range args {
		if err := do(arg); err != nil {
			failed = append(failed, fmt.Errorf("%s: %w", sanitize(arg), err))
		}
	}
	return errors.Join(failed...)
}

// show asks, and presents the answer.
func show[T any](c *client, path string, in any, present func(*T)) error {
	answer, err := ask[T](c, path, in)
	if err == nil {
		present(answer)
	}
	return err
}

// ask returns the answer of a path of the admin API to some input, or to none, and prints it
// with --json.
func ask[T any](c *client, path string, in any) (*T, error) {
	address, err := caddycmd.DetermineAdminAPIAddress(c.address, nil, c.config, c.adapter)
	if err != nil {
		return nil, err
	}
	method, body := http.MethodGet, io.Reader(nil)
	if in != nil {
		input, err := json.Marshal(in)
		if err != nil {
			return nil, err
		}
		method, body = http.MethodPost, bytes.NewReader(input)
	}
	header := make(http.Header)
	if by := cmp.Or(c.by, os.Getenv("SUDO_USER"), os.Getenv("USER")); by != "" {
		header.Set(wire.ByHeader, by)
	}
	var answer []byte
	resp, err := caddycmd.AdminAPIRequest(address, method, "/throttle/"+path, header, body)
	if err == nil {
		answer, err = io.ReadAll(resp.Body)
		_ = resp.Body.Close()
	}
	if err != nil {
		return nil, plainly(err, address)
	}
	out := new(T)
	if err := json.Unmarshal(answer, out); err != nil {
		return nil, fmt.Errorf("what answers at %s is not Caddy's admin endpoint: %w", printableLine(address), err)
	}
	if c.json {
		var indented bytes.Buffer
		_ = json.Indent(&indented, answer, "", "\t") // it was JSON before
		_, c.unwritten = indented.WriteTo(c.out)
	}
	return out, nil
}

// plainly returns an error of the admin endpoint as a person can read it.
func plainly(err error, address string) error {
	if _, answer, answered := strings.Cut(err.Error(), ": {"); answered {
		var said struct{ Error string }
		if json.NewDecoder(strings.NewReader("{"+answer)).Decode(&said) == nil && said.Error != "" {
			return errors.New(printableLine(said.Error))
		}
	}
	if _, why, dialled := strings.Cut(err.Error(), ": dial "); dialled {
		return fmt.Errorf("no Caddy answers at %s (%s): if its admin endpoint is elsewhere, use --address or --config; with admin off, it cannot be asked",
			printableLine(address), printableLine(why))
	}
	if strings.HasSuffix(strings.TrimSpace(err.Error()), "404 page not found") { // as Caddy itself says
		return fmt.Errorf("the Caddy at %s runs without throttle: restart it, since a reload keeps the old program, or use --address for another", printableLine(address))
	}
	return errors.New(command.Printable(err.Error(), 2000))
}

// Write writes what people read.
func (c *client) Write(text []byte) (n int, err error) {
	if c.json {
		return len(text), nil
	}
	n, err = c.out.Write(text)
	c.unwritten = cmp.Or(c.unwritten, err)
	return n, err
}

// printf formats what people read. The command fails if that cannot be written.
func (c *client) printf(format string, args ...any) { _, _ = fmt.Fprintf(c, format, args...) }

// changeFlags adds the flags of changes, which end by themselves.
func (c *client) changeFlags(f *pflag.FlagSet) {
	f.StringVar(&c.length, "for", "", "How long it lasts, such as 30m, 2h or 7d. At most 30d, which is the default")
	f.StringVar(&c.by, "by", "", "Who you are, for those who ask later. Default: the user of the shell, also under sudo")
	f.BoolVar(&c.replace, "replace", false, "Replace the change in force for the same zone, key or network")
	f.StringVar(&c.note, "note", "", "Why, for those who ask later")
}

// make makes a change, and says until when it holds.
func (c *client) make(call string, in wire.Change) error {
	in.Note, in.Replace = c.note, c.replace
	if c.length != "" {
		length, err := caddy.ParseDuration(c.length)
		if err != nil || length <= 0 {
			return command.UsageErrorf("invalid --for %q: want a duration above 0, such as 30m, 2h or 7d", c.length)
		}
		in.For = caddy.Duration(length)
	}
	s, err := ask[wire.Override](c, call, in)
	if err != nil {
		return err
	}
	s.Key = cmp.Or(in.Key, s.Key) // the bucket's name may be a digest
	change, of := described(*s)
	c.printf("%s of %s holds until %s%s.\n", change, of, s.Until.Local().Format(time.DateTime), syncText(s.Sync))
	return nil
}

// described returns what a change is, and what it is of.
func described(o wire.Override) (change, of string) {
	o.Key = cmp.Or(o.Network, o.Key)
	return strings.TrimSpace(string(o.Kind) + " " + sanitize(o.Limit)), sanitize(o.Of())
}

// end ends a change.
func (c *client) end(call string, in wire.Change) error {
	s, err := ask[wire.Ended](c, call, in)
	if err != nil {
		return err
	}
	if !s.Ended {
		return errors.New("there is no such change: see caddy throttle bans")
	}
	c.printf("Ended%s.\n", syncText(s.Sync))
	return nil
}

// ofZone makes or ends a change of a zone, or with --all of all.
func (c *client) ofZone(call string, args []string, do func(string, wire.Change) error) error {
	if c.of.All == (len(args) == 1) {
		return command.UsageErrorf("want a zone, or --all")
	}
	return do(call, wire.Change{Zone: strings.Join(args, "")})
}

// syncText says where a change holds.
func syncText(t *wire.Sync) (where string) {
	where = ", on this Caddy"
	switch {
	case t.Error != "":
		where += ": the others are told when the store answers (" + command.Printable(t.Error, longestError) + ")"
	case t.Shared:
		where = ", within two seconds on every Caddy of the store"
	}
	if !t.Kept {
		where += ", unless it is restarted before"
	}
	return where
}

// showOverrides lists the changes that hold.
func (c *client) showOverrides(all *[]wire.Override) {
	if len(*all) == 0 {
		c.printf("Nothing was changed at run time.\n")
		return
	}
	writeTable(c, "CHANGE|OF|SINCE|LEFT|HITS HERE|BY|NOTE", *all, func(o *wire.Override) []any {
		change, of := described(*o)
		return []any{change, of, since(o.Since), remaining(o.Until), unlessZero(o.Hits), sanitize(o.By), sanitize(o.Note)}
	})
}

func (c *client) showJournal(journal *wire.Journal) {
	if len(*journal) == 0 {
		c.printf("Nobody has changed anything yet.\n")
		return
	}
	writeTable(c, "AT|BY|ACTION|OF|UNTIL|NOTE", *journal, func(done *wire.JournalEntry) []any {
		until := ""
		if done.Until != nil {
			until = since(*done.Until)
		}
		return []any{since(done.At), sanitize(cmp.Or(done.By, done.Via)), strings.TrimSpace(done.Action + " " + sanitize(done.Limit)), shortKey(done.Of), until, sanitize(done.Note)}
	})
}

// release empties buckets.
func (c *client) release() error {
	s, err := ask[wire.Released](c, "release", c.of)
	if err != nil {
		return err
	}
	for _, name := range s.Freed {
		if of, shadow := strings.CutPrefix(name, "~"); shadow {
			name = of + " (shadow)"
		}
		c.printf("emptied %s\n", sanitize(name))
	}
	switch {
	case s.Count > len(s.Freed):
		c.printf("and %d more, %d in all\n", s.Count-len(s.Freed), s.Count)
	case s.Count == 0 && c.of.All:
		c.printf("No bucket of the zone was in use.\n")
	case s.Count == 0:
		c.printf("No bucket of %s was in use.\n", sanitize(c.of.Client))
	}
	if s.Banned {
		c.printf("A ban still holds: caddy throttle bans names its network, and unban ends it.\n")
	}
	if !s.Complete {
		return fmt.Errorf("the release is not complete: %s", command.Printable(cmp.Or(s.Problem, "there are too many buckets"), 1000))
	}
	return nil
}
