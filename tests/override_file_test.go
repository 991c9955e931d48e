package tests

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// customersSite refuses keys that the override file does not name.
func customersSite(port int, file string) string {
	return fmt.Sprintf(`
http://:%d {
	throttle {
		zone api {
			key header X-Api-Key unlisted refuse
			limit 100000 1000/s
			override_file %s
		}
	}
	respond ok
}`, port, file)
}

// customers is a Caddy with an override file, and the API keys that it names.
type customers struct {
	*caddy
	url, file string
}

func startCustomers(t *testing.T, text string) *customers {
	t.Helper()
	port, file := freePort(t), writeFile(t, "customers", text)
	return &customers{
		caddy: startCaddy(t, config{throttle: "plan gold 100000 1000/s", sites: customersSite(port, file)}),
		url:   fmt.Sprintf("http://127.0.0.1:%d/", port), file: file,
	}
}

// passes reports whether the file that is in force names a key.
func (c *customers) passes(key string) bool {
	c.t.Helper()
	req, err := http.NewRequest("GET", c.url, nil)
	if err != nil {
		c.t.Fatal(err)
	}
	req.Header.Set("X-Api-Key", key)
	resp := surely(c.t, req)
	resp.Body.Close()
	if resp.StatusCode != 200 && resp.StatusCode != 429 {
		c.t.Fatalf("key %s: got %d, want 200 or 429", key, resp.StatusCode)
	}
	return resp.StatusCode == 200
}

// follows waits until the file names a key, and another one no more.
func (c *customers) follows(what, named, gone string) {
	c.t.Helper()
	eventually(c.t, what, func() bool { return c.passes(named) })
	if c.passes(gone) {
		c.t.Fatalf("%s: got that %s passes, want only what the new file names", what, gone)
	}
}

// stays waits until the log says what is wrong with the file, and checks that a key of
// the one before passes.
func (c *customers) stays(what, named, problem string) {
	c.t.Helper()
	eventually(c.t, what, func() bool {
		lines := c.logLines("override_file is wrong; the overrides that were read before stay in force")
		return len(lines) > 0 && strings.Contains(strings.ReplaceAll(lines[len(lines)-1], `\"`, `"`), problem)
	})
	if !c.passes(named) {
		c.t.Fatalf("%s: got that %s is refused, want the overrides from before", what, named)
	}
}

func (c *customers) do(err error) {
	c.t.Helper()
	if err != nil {
		c.t.Fatal(err)
	}
}

func (c *customers) writes(text string) {
	c.t.Helper()
	c.do(os.WriteFile(c.file, []byte(text), 0o644))
}

// renames replaces the file by another one.
func (c *customers) renames(text string) {
	c.t.Helper()
	next := c.file + ".next"
	c.do(os.WriteFile(next, []byte(text), 0o644))
	c.do(os.Rename(next, c.file))
}

func TestAnOverrideFileIsReadAgainHoweverItChanges(t *testing.T) {
	t.Parallel()
	c := startCustomers(t, "one gold\n")
	c.follows("the first file", "one", "two")
	c.writes("two gold\n")
	c.follows("a write in place", "two", "one")
	c.renames("three gold\n")
	c.follows("a rename", "three", "two")
	c.do(os.Remove(c.file))
	c.stays("a removed file", "three", "no such file or directory: want a file with overrides, or with a comment alone")
	c.writes("four gold\n")
	c.follows("a file that is there again", "four", "three")
	c.writes("\ufeff# from Windows\r\nfive gold\r\n\"six\" 10 1/s as six # in CRLF\r\n")
	c.follows("CRLF and a byte order mark", "five", "four")
	c.follows("CRLF and a byte order mark", "six", "four")

	// A config map of Kubernetes: the file is a link through ..data, which is replaced.
	folder := filepath.Dir(c.file)
	for i, version := range []string{"seven", "eight"} {
		c.do(os.Mkdir(filepath.Join(folder, version), 0o755))
		c.do(os.WriteFile(filepath.Join(folder, version, "customers"), []byte(version+" gold\n"), 0o644))
		c.do(os.Symlink(version, filepath.Join(folder, "..data_tmp")))
		c.do(os.Rename(filepath.Join(folder, "..data_tmp"), filepath.Join(folder, "..data")))
		if i == 0 {
			c.do(os.Remove(c.file))
			c.do(os.Symlink("..data/customers", c.file))
		}
		c.follows("a config map", version, []string{"six", "seven"}[i])
	}
	c.do(os.RemoveAll(filepath.Join(folder, "seven")))
	if !c.passes("eight") {
		t.Error("the old version of a config map is removed: got eight refused, want it to pass")
	}
}

func TestAWrongOverrideFileKeepsTheOldOne(t *testing.T) {
	t.Parallel()
	c := startCustomers(t, "one gold\n")
	for _, test := range []struct{ name, text, problem string }{
		{"an unknown plan", "two gold\n\nthree golf\n", `unknown plan "golf": want one of the plans, <capacity> <leak>, unlimited or deny, at ` + c.file + ":3"},
		{"no limit", "two\n", "too few words: want <part>... <plan>|<capacity> <leak>|unlimited|deny [as <name>], at " + c.file + ":1"},
		{"a key twice", "two gold\none deny\ntwo deny\n", "given twice; see line 1, at " + c.file + ":3"},
		{"no UTF-8", "two gold\n\xff\xfe gold\n", "bytes that are no UTF-8: want UTF-8, or the part as sha256: and its digest, at " + c.file + ":2"},
		{"no bytes", "", "the file is empty, as if a write had failed"},
	} {
		c.writes(test.text)
		c.stays(test.name, "one", test.problem)
		if c.passes("two") {
			t.Errorf("%s: got that two passes, want nothing of the wrong file", test.name)
		}
	}
	c.do(os.Remove(c.file))
	c.do(os.Mkdir(c.file, 0o755))
	c.stays("a directory", "one", "is a directory: want a file")
	c.do(os.Remove(c.file))
	c.do(syscall.Mkfifo(c.file, 0o644))
	c.stays("a FIFO", "one", "is no regular file")
	if status, message := c.load(config{throttle: "plan gold 100000 1000/s", sites: customersSite(freePort(t), c.file)}.caddyfile(c.admin)); status != 400 || !strings.Contains(message, "is no regular file") {
		t.Errorf("a reload with a FIFO: got %d %s, want it refused at once", status, message)
	}
	out := c.throttle("status")
	for _, want := range []string{"api: 1 override of " + c.file + ", read ", "The file cannot be used as it is now, so these stay: " + c.file + " is no regular file"} {
		if !strings.Contains(out, want) {
			t.Errorf("status: got\n%s\nwant it to hold %q", out, want)
		}
	}
	c.do(os.Remove(c.file))
	c.writes("two gold\n")
	c.follows("a good file", "two", "one")
}

// Root may read everything, so Caddy runs as nobody here.
func TestAnOverrideFileThatMayNotBeReadIsReadOnceItMay(t *testing.T) {
	t.Parallel()
	folder, err := os.MkdirTemp("", "throttle-nobody-") // which nobody can reach, other than t.TempDir
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(folder) })
	port, admin, file := freePort(t), fmt.Sprintf("127.0.0.1:%d", freePort(t)), filepath.Join(folder, "customers")
	c := &customers{url: fmt.Sprintf("http://127.0.0.1:%d/", port), file: file}
	c.caddy = &caddy{t: t}
	c.do(os.Chmod(folder, 0o777))
	c.writes("one gold\n")
	caddyfile := filepath.Join(folder, "Caddyfile")
	c.do(os.WriteFile(caddyfile, []byte(config{throttle: "plan gold 100000 1000/s", sites: customersSite(port, file)}.caddyfile(admin)), 0o644))
	cmd := caddyCommand(t, "run", "--config", caddyfile, "--adapter", "caddyfile")
	if os.Getuid() == 0 {
		binary := filepath.Join(folder, "binary")
		c.do(os.Link(caddyBinary, binary))
		cmd = exec.Command("setpriv", append([]string{"--reuid=65534", "--regid=65534", "--clear-groups", binary}, cmd.Args[1:]...)...)
	}
	cmd.Dir = folder
	cmd.Env = append(os.Environ(), "HOME="+folder, "XDG_DATA_HOME="+folder, "XDG_CONFIG_HOME="+folder)
	c.caddy = startCaddyBy(t, admin, cmd)
	c.follows("the first file", "one", "two")
	next := c.file + ".next"
	c.do(os.WriteFile(next, []byte("two gold\n"), 0))
	c.do(os.Chmod(next, 0))
	c.do(os.Rename(next, c.file))
	c.stays("no right to read", "one", "permission denied")
	c.do(os.Chmod(c.file, 0o644))
	c.follows("the right to read", "two", "one")
}

// Two jobs replace the file at once, each by its own. The last one counts, whole.
func TestTwoWritersOfAnOverrideFileAtOnceLeaveOneWholeFile(t *testing.T) {
	t.Parallel()
	c := startCustomers(t, "one gold\n")
	text := func(name string) string {
		var b strings.Builder
		for i := range 1000 {
			fmt.Fprintf(&b, "%s-%d gold\n", name, i)
		}
		return b.String()
	}
	deadline := time.Now().Add(3 * time.Second)
	var writers sync.WaitGroup
	for _, name := range []string{"a", "b"} {
		writers.Go(func() {
			next := c.file + "." + name
			for all := text(name); time.Now().Before(deadline); {
				if err := os.WriteFile(next, []byte(all), 0o644); err != nil {
					t.Error(err)
				}
				if err := os.Rename(next, c.file); err != nil {
					t.Error(err)
				}
			}
		})
	}
	writers.Wait()
	won, err := os.ReadFile(c.file)
	c.do(err)
	last, lost := "a", "b"
	if strings.HasPrefix(string(won), "b") {
		last, lost = "b", "a"
	}
	eventually(t, "the file of the last writer", func() bool { return c.passes(last+"-0") && !c.passes(lost+"-0") })
	if !c.passes(last+"-999") || c.passes(lost+"-999") {
		t.Error("got a mixture of both files, want that of the last writer alone")
	}
	if got := c.logLines("override_file is wrong"); len(got) > 0 {
		t.Errorf("got %q, want no file that is half written", got)
	}
}

// Reading a large file holds up no request, and is one swap.
func TestAnOverrideFileOfAHundredThousandLines(t *testing.T) {
	t.Parallel()
	c := startCustomers(t, "one gold\n")
	const lines = 100_000
	var text strings.Builder
	for i := range lines {
		fmt.Fprintf(&text, "demo-key-%d %d 10/s\n", i, 100+i%100)
	}
	c.renames(text.String())
	last, n := fmt.Sprintf("demo-key-%d", lines-1), 0
	eventually(t, "a hundred thousand overrides", func() bool {
		n++
		if !c.passes("one") && !c.passes("demo-key-0") {
			t.Fatalf("request %d: got neither the old overrides nor the new ones, want one of both", n)
		}
		return c.passes(last)
	})
	if c.passes("one") || !c.passes("demo-key-50000") || !c.passes("demo-key-0") {
		t.Error("got parts of the new file, want all of it")
	}
	var listed struct {
		Buckets []struct {
			Capacity float64
			From     string
		}
	}
	if err := json.Unmarshal([]byte(c.throttle("why", last, "--json")), &listed); err != nil {
		t.Fatal(err)
	}
	if len(listed.Buckets) != 1 || listed.Buckets[0].Capacity != 100+(lines-1)%100 || listed.Buckets[0].From != fmt.Sprintf("%s:%d", c.file, lines) {
		t.Errorf("why: got %+v, want the limit of the last line", listed)
	}
	c.writes(text.String() + "demo-key-0 gold\n")
	c.stays("a wrong line at the end", last, fmt.Sprintf("given twice; see line 1, at %s:%d", c.file, lines+1))
}

// Reloads must neither pile up what watches files nor lose a change.
func TestReloadsLeaveOneWatcherOfAnOverrideFile(t *testing.T) {
	t.Parallel()
	port, file := freePort(t), writeFile(t, "customers", "v0 gold\n")
	generation := func(n int) config {
		return config{throttle: "plan gold 100000 1000/s", sites: strings.Replace(customersSite(port, file), "respond ok", fmt.Sprintf("respond %d", n), 1)}
	}
	c := &customers{caddy: startCaddy(t, generation(0)), url: fmt.Sprintf("http://127.0.0.1:%d/", port), file: file}
	watchers := func() int {
		_, profile := c.askAdmin("GET", "/debug/pprof/goroutine?debug=2", "")
		return strings.Count(profile, "(*overrideFile).watch(")
	}
	descriptors := func() int {
		open, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", c.cmd.Process.Pid))
		c.do(err)
		return len(open)
	}
	c.reload(generation(1))
	eventually(t, "one watcher after a reload", func() bool { return watchers() == 1 })
	http.DefaultClient.CloseIdleConnections()
	before := descriptors()
	for n := range 20 {
		c.reload(generation(n + 2))
	}
	eventually(t, "one watcher after twenty more", func() bool { return watchers() == 1 })
	eventually(t, "as many descriptors as before", func() bool {
		http.DefaultClient.CloseIdleConnections()
		return descriptors() <= before+2 // connections of other tests are others'
	})
	c.renames("v1 gold\n")
	c.follows("a change after reloads", "v1", "v0")
	c.reload(config{sites: fmt.Sprintf("http://:%d {\nrespond ok\n}", port)})
	eventually(t, "no watcher without a file", func() bool { return watchers() == 0 })
}

// With each store: keys of one name share a bucket on all nodes, the file beats the
// Caddyfile, and what is changed at run time beats the file, over reloads too.
func TestOverrideFilesWithEachStore(t *testing.T) {
	t.Parallel()
	eachKindOfStore(t, func(t *testing.T, options string) {
		file := writeFile(t, "customers", "shop 4 4/h as shop\nits-app 4 4/h as shop\nbakery 3 3/h\n")
		site := func(port int) string {
			return fmt.Sprintf(`
http://:%d {
	throttle {
		zone api {
			key header X-Api-Key
			limit 1 1/h
			block 1h
			override bakery deny
			override its-till 4 4/h as shop
			override_file %s
		}
	}
	respond ok
}`, port, file)
		}
		nodes := startNodes(t, options, site, 0)
		if options == "" {
			nodes = append(nodes, nodes[0]) // another one has a memory of its own
		} else {
			nodes = append(nodes, startNodes(t, options, site, 0)...)
		}
		for i, key := range []string{"shop", "its-app", "its-till", "shop"} {
			wantStatus(t, nodes[i%2].url, 200, "X-Api-Key", key)
		}
		for i, key := range []string{"its-app", "its-till", "shop"} {
			wantStatus(t, nodes[i%2].url, 429, "X-Api-Key", key)
		}
		c := nodes[0]
		if out := c.throttle("why", "its-app"); !strings.Contains(out, "@as/shop") || !strings.Contains(out, filepath.Base(file)+":1") {
			t.Errorf("why: got\n%s\nwant the full bucket that its line names", out)
		}
		c.throttle("release", "its-app")
		wantStatus(t, c.url, 200, "X-Api-Key", "shop")

		fillUp(t, c.url, "X-Api-Key", "bakery")
		c.throttle("release", "bakery")
		c.throttle("limit", "api", "bakery", "unlimited", "--for", "1h")
		for range 10 {
			wantStatus(t, c.url, 200, "X-Api-Key", "bakery")
		}
		if err := os.WriteFile(file, []byte("bakery deny\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the new file", func() bool { return strings.Contains(c.throttle("status"), "api: 1 override of ") })
		port := 0
		if _, err := fmt.Sscanf(c.url, "http://127.0.0.1:%d/", &port); err != nil {
			t.Fatal(err)
		}
		c.reload(config{throttle: options, sites: strings.Replace(site(port), "respond ok", "respond again", 1)})
		eventually(t, "an answer of the next config", func() bool { // a reload may lose a connection
			resp, err := http.Get(c.url)
			if err == nil {
				resp.Body.Close()
			}
			return err == nil
		})
		wantStatus(t, c.url, 200, "X-Api-Key", "bakery")
		c.throttle("unlimit", "api", "bakery")
		wantStatus(t, c.url, 429, "X-Api-Key", "bakery")
	})
}
