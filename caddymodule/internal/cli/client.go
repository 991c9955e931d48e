package cli

import (
	"bytes"
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
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
	remote                   remote
	json                     bool
	by                       string       // who asks
	out                      bytes.Buffer // what people read
	answers                  bytes.Buffer // what --json prints instead
}

// A command asks a running Caddy.
type command struct {
	use, short, long, example string
	least, most               int  // arguments
	zone                      bool // the first argument is a zone
	watch                     bool // it can be shown again and again
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
		cmd.Flags().StringVar(&client.address, "address", "", "The address of the admin endpoint, such as https://caddy.example.com:2021 of a remote one. Default: that of the config, or localhost:2019")
		cmd.Flags().StringVar(&client.remote.cert, "cert", "", "The client certificate for a remote admin endpoint, in PEM")
		cmd.Flags().StringVar(&client.remote.key, "key", "", "Its key")
		cmd.Flags().StringVar(&client.remote.ca, "ca", "", "The authority of that endpoint's certificate, in PEM. Default: those of the system")
		cmd.Flags().StringVarP(&client.config, "config", "c", "", "A config file whose admin endpoint is asked")
		cmd.Flags().StringVarP(&client.adapter, "adapter", "a", "", "The adapter of that config file, such as caddyfile")
	}
	cmd.Flags().BoolVar(&client.json, "json", false, "Print JSON")
	if c.flags != nil {
		c.flags(cmd)
	}
	watched := false
	if c.watch {
		cmd.Flags().BoolVar(&watched, "watch", false, "Show it again every two seconds, until it is interrupted")
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		for {
			err := c.run(client, args)
			out := &client.out
			if client.json {
				out = &client.answers
			} else if watched {
				fmt.Fprint(cmd.OutOrStdout(), "\x1b[H\x1b[2J") // an empty screen
			}
			_, failed := out.WriteTo(cmd.OutOrStdout())
			if err = cmp.Or(err, failed); err != nil || !watched {
				return usage.Fail(cmd, err)
			}
			select {
			case <-cmd.Context().Done():
				return nil
			case <-time.After(watchEvery):
			}
		}
	}
	c.completes(cmd, client)
	usage.FailFlags(cmd)
	return cmd
}

// choose lets shells complete the values of a flag.
func choose(cmd *cobra.Command, flag string, values ...string) {
	_ = cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)) // fails for no flag that exists
}

const watchEvery = 2 * time.Second

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

// completes lets shells complete the names of zones, which the running Caddy knows.
func (c command) completes(cmd *cobra.Command, client *adminClient) {
	zones := func(*cobra.Command, []string, string) (names []string, _ cobra.ShellCompDirective) {
		if status, err := ask[wire.Status](client, "zones", nil); err == nil {
			for _, z := range status.Zones {
				names = append(names, z.Zone)
			}
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	}
	cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
		if c.zone && len(args) == 0 {
			return zones(cmd, args, word)
		}
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	if cmd.Flags().Lookup("zone") != nil {
		_ = cmd.RegisterFlagCompletionFunc("zone", zones) // fails for no flag that exists
	}
}

// mostArguments bounds those of commands that take several clients.
const mostArguments = 10_000

// each does something for each of the arguments, or for each line of standard input if the
// argument is "-". A failure is said, and the others follow.
func (c *adminClient) each(args []string, do func(arg string) error) error {
	if len(args) == 1 && args[0] == "-" {
		lines, err := io.ReadAll(io.LimitReader(os.Stdin, 1<<20))
		if err != nil {
			return err
		}
		if args = strings.Fields(string(lines)); len(args) == 0 {
			return usage.Errorf("standard input is empty: want one a line")
		}
	}
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
	patience := patience
	if slices.Contains([]string{"why", "buckets", "release"}, path) {
		patience = 75 * time.Second // they go through a whole store
	}
	request := caddycmd.AdminAPIRequest
	if strings.HasPrefix(address, "https://") {
		request = c.remote.do
	}
	var answer []byte
	answered := make(chan error, 1)
	go func() {
		resp, err := request(address, method, "/throttle/"+path, header, body)
		if err == nil {
			if answer, err = io.ReadAll(resp.Body); err != nil {
				err = fmt.Errorf("reading the answer: %w", err)
			}
			_ = resp.Body.Close()
		}
		answered <- err
	}()
	select {
	case err = <-answered:
	case <-time.After(patience):
		return nil, fmt.Errorf("the Caddy at %s has not answered for %v: it hangs, or is very busy. What was asked may still be done", printableLine(address), patience)
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

// patience is how long a command waits for an answer.
const patience = 15 * time.Second

// keepAnswer notes an answer for --json.
func (c *adminClient) keepAnswer(answer []byte) {
	var indented bytes.Buffer
	_ = json.Indent(&indented, bytes.TrimSpace(answer), "", "\t") // it was JSON before
	c.answers.WriteString(escapeJSON(indented.String()) + "\n")
}

// plainly returns an error of the admin endpoint as a person can read it.
func plainly(err error, address string) error {
	if errors.As(err, new(usage.Error)) {
		return err
	}
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

// A remote is how a command reaches Caddy's remote admin endpoint.
type remote struct{ cert, key, ca string }

// do is [caddycmd.AdminAPIRequest] with the client certificate.
func (r *remote) do(address, method, path string, header http.Header, body io.Reader) (*http.Response, error) {
	if r.cert == "" || r.key == "" {
		return nil, usage.Errorf("a remote admin endpoint asks for a client certificate: want --cert and --key")
	}
	cert, err := tls.LoadX509KeyPair(r.cert, r.key)
	if err != nil {
		return nil, fmt.Errorf("reading --cert and --key: %w", err)
	}
	config := &tls.Config{Certificates: []tls.Certificate{cert}}
	if r.ca != "" {
		pem, err := os.ReadFile(r.ca)
		if err != nil {
			return nil, fmt.Errorf("reading --ca: %w", err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("reading --ca: %s has no certificate in PEM", r.ca)
		}
	}
	req, err := http.NewRequest(method, strings.TrimSuffix(address, "/")+path, body)
	if err != nil {
		return nil, err
	}
	req.Header = header
	req.Header.Set("Content-Type", "application/json")
	client := http.Client{Transport: &http.Transport{TLSClientConfig: config}}
	resp, err := client.Do(req)
	if err == nil && resp.StatusCode >= 400 {
		said, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
		_ = resp.Body.Close()
		err = fmt.Errorf("HTTP %d: %s", resp.StatusCode, said)
	}
	return resp, err
}
