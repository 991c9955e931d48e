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
