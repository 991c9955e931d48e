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

	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/admin/wire"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/text"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/usage"
)

// An adminClient is how a command reaches the admin API of a running Caddy.
type adminClient struct {
	address, config, adapter string
	json                     bool
	by                       string       // who asks
	out                      bytes.Buffer // what people read
	answers                  bytes.Buffer // what --json prints instead
}

// A command asks a running Caddy.
type command struct {
	use, short, long, example string
	least, most               int  // arguments
	local                     bool // it asks nobody
	flags                     func(*cobra.Command)
	run                       func(c *adminClient, args []string) error
}

// cobra returns the command as Caddy runs it.
func (c command) cobra() *cobra.Command {
	client := &adminClient{by: cmp.Or(os.Getenv("SUDO_USER"), os.Getenv("USER"))}
	cmd := &cobra.Command{Use: c.use, Short: c.short, Long: "\n" + c.long, Example: c.example, Args: func(cmd *cobra.Command, args []string) error {
		if err := cobra.RangeArgs(c.least, c.most)(cmd, args); err != nil {
			return usage.Fail(cmd, usage.Errorf("want caddy throttle %s", c.use))
		}
		return usage.Fail(cmd, refuseEmpty(cmd, args))
	}}
	if !c.local {
		cmd.Flags().StringVar(&client.address, "address", "", "The address of the admin endpoint. Default: that of the config, or localhost:2019")
		cmd.Flags().StringVarP(&client.config, "config", "c", "", "A config file whose admin endpoint is asked")
		cmd.Flags().StringVarP(&client.adapter, "adapter", "a", "", "The adapter of that config file, such as caddyfile")
	}
	cmd.Flags().BoolVar(&client.json, "json", false, "Print JSON")
	if c.flags != nil {
		c.flags(cmd)
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		err := c.run(client, args)
		out := &client.out
		if client.json {
			out = &client.answers
		}
		_, failed := out.WriteTo(cmd.OutOrStdout())
		return usage.Fail(cmd, cmp.Or(err, failed))
	}
	usage.FailFlags(cmd)
	return cmd
}

// refuseEmpty refuses what is given and empty. A script whose variable is not set must not
// change all zones instead of one.
func refuseEmpty(cmd *cobra.Command, args []string) (err error) {
	for i, arg := range args {
		if strings.TrimSpace(arg) == "" {
			err = usage.Errorf("argument %d is empty", i+1)
		}
	}
	cmd.Flags().Visit(func(f *pflag.Flag) {
		if f.Value.Type() == "string" && strings.TrimSpace(f.Value.String()) == "" {
			err = usage.Errorf("--%s is empty", f.Name)
		}
	})
	return err
}

// mostArguments bounds those of commands that take several clients.
const mostArguments = 10_000

// each does something for each of the arguments. A failure is said, and the others follow.
func (c *adminClient) each(args []string, do func(arg string) error) error {
	if len(args) == 1 {
		return do(args[0])
	}
	failed := 0
	for _, arg := range args {
		if err := do(arg); err != nil {
			failed++
			c.printf("failed: %s: %s\n", sanitize(arg), printableLine(err.Error()))
		}
	}
	switch failed {
	case 0:
		return nil
	case len(args):
		return fmt.Errorf("all %d failed", failed)
	}
	return fmt.Errorf("%d of %d failed, and the others are done", failed, len(args))
}

// show asks, and presents the answer.
func show[T any](c *adminClient, path string, in any, present func(*T)) error {
	answer, err := ask[T](c, path, in)
	if err == nil {
		present(answer)
	}
	return err
}

// longestCall is how long a command waits for an answer: Caddy itself goes through all buckets of a
// shared store for a minute at most.
const longestCall = 75 * time.Second

// ask returns the answer of a path of the admin API to some input, or to none.
func ask[T any](c *adminClient, path string, in any) (*T, error) {
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
	if c.by != "" {
		header.Set(wire.ByHeader, c.by)
	}
	var answer []byte
	done := make(chan error, 1)
	go func() {
		resp, err := caddycmd.AdminAPIRequest(address, method, "/throttle/"+path, header, body)
		if err == nil {
			answer, err = io.ReadAll(resp.Body)
			_ = resp.Body.Close()
		}
		done <- err
	}()
	select {
	case err = <-done:
	case <-time.After(longestCall):
		return nil, fmt.Errorf("the Caddy at %s has not answered for %v: it hangs, or is very busy. What was asked may still be done", printableLine(address), longestCall)
	}
	if err != nil {
		return nil, plainly(err, address)
	}
	out := new(T)
	if err := json.Unmarshal(answer, out); err != nil {
		return nil, err
	}
	c.keepAnswer(answer)
	return out, nil
}

// keepAnswer notes an answer for --json.
func (c *adminClient) keepAnswer(answer []byte) {
	var indented bytes.Buffer
	_ = json.Indent(&indented, bytes.TrimSpace(answer), "", "\t") // it was JSON before
	c.answers.WriteString(escapeJSON(indented.String()) + "\n")
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
		return fmt.Errorf("no Caddy answers at %s (%s): if its admin endpoint is elsewhere, want --address or --config; with admin off, it cannot be asked",
			printableLine(address), printableLine(why))
	}
	return errors.New(text.Printable(err.Error(), 2000))
}

// printf writes what people read.
func (c *adminClient) printf(format string, args ...any) { fmt.Fprintf(&c.out, format, args...) }

// say writes a line of it.
func (c *adminClient) say(line string) { c.out.WriteString(line + "\n") }
