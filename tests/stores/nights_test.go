package stores

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/servertest"
	"github.com/caddy-throttle/caddy-throttle/tests/internal/system"
)

// A night is what an operator does at three in the morning, with each kind of store, on
// whichever Caddy is at hand. The log says what was typed, what it printed, and how long it
// took.
type night struct {
	*testing.T
	fleet []*fleetNode
	store *storeServer // nil in memory
}

// types types a command on a Caddy, and returns what it prints.
func (n *night) types(on int, args ...string) string {
	n.Helper()
	began := time.Now()
	out, err := n.node(on).TryThrottle(args...)
	n.Logf("%d$ caddy throttle %s   (%.2f s, %v)\n%s", on%len(n.fleet), strings.Join(args, " "), time.Since(began).Seconds(), err, out)
	return out
}

// reads types a command, and wants words in what it prints.
func (n *night) reads(on int, args string, want ...string) {
	n.Helper()
	out := n.types(on, strings.Fields(args)...)
	for _, words := range want {
		check.That(n, strings.Contains(out, words), "%s: got\n%s\nwant it to say %q", args, out, words)
	}
}

func (n *night) node(on int) *fleetNode { return n.fleet[on%len(n.fleet)] }

// ask sends a request of a client. Of the API's, each has a key of its own, unless it is given.
func (n *night) ask(node *fleetNode, from, path string, headers ...string) (status int, err error) {
	if path == "api" && len(headers) == 0 {
		headers = []string{"X-Api-Key", fmt.Sprint("key ", time.Now().UnixNano())}
	}
	a, err := system.NewVisitorFrom(n.T, "h1", from).Try("GET", node.url+path, headers...)
	return a.Status, err
}

// get sends a request to the Caddy of a number.
func (n *night) get(on int, from, path string, headers ...string) int {
	n.Helper()
	status, err := n.ask(n.node(on), from, path, headers...)
	check.OK(n, err, "asking node %d", on)
	return status
}

// all wants all Caddys to answer so, within two seconds.
func (n *night) all(want int, from, path string, headers ...string) {
	n.Helper()
	within(n.T, followTime, fmt.Sprintf("%d for %s", want, from), n.fleet, func(node *fleetNode) bool {
		status, err := n.ask(node, from, path, headers...)
		return err == nil && status == want
	})
}

// fill lets a client exceed a limit of three.
func (n *night) fill(from, path string, headers ...string) {
	n.Helper()
	for range 4 {
		n.get(0, from, path, headers...)
	}
	n.all(429, from, path, headers...)
}

// nights are the tasks, by what woke the operator.
var nights = []struct {
	name string
	do   func(n *night)
}{
	{"1 an office is refused at the login", func(n *night) {
		n.fill("127.20.0.1", "login")
		n.reads(1, "status", "login")
		n.reads(1, "why 127.20.0.1", "refused: blocked", "It is refused now.")
		n.reads(2, "release 127.20.0.1", "emptied login/127.20.0.1")
		n.all(200, "127.20.0.1", "api")
		n.reads(1, "limit login 127.20.0.1 unlimited --for 2h", "holds until")
		for range 6 {
			n.get(0, "127.20.0.1", "login")
		}
		n.all(200, "127.20.0.1", "login")
	}},
	{"2 a scraper from many networks", func(n *night) {
		for i := range 12 {
			for range 3 {
				n.get(0, fmt.Sprintf("127.21.%d.1", i), "page")
			}
		}
		n.reads(0, "top pages --by /16", "127.21.0.0/16")
		n.reads(1, "ban 127.21.0.0/24 127.21.1.0/24 127.21.2.9", "127.21.0.0/24 is banned", "127.21.2.9 is banned", n.onAll())
		n.all(429, "127.21.1.200", "api")
		n.all(429, "127.21.2.9", "api")
		n.reads(2, "bans", "127.21.0.0/24", "HITS")
		n.reads(2, "unban 127.21.0.0/24 127.21.1.0/24 127.21.2.9", "Ended")
	}},
	{"3 a client of the API hammers", func(n *night) {
		n.types(1, "limit", "api", "a plain key", "deny", "--for", "1h")
		// Until then, each request would fill the bucket.
		within(n.T, followTime, "the denial", n.fleet, func(node *fleetNode) bool {
			return strings.Contains(node.Throttle("bans"), "deny")
		})
		n.all(429, "127.22.0.1", "api", "X-Api-Key", "a plain key")
		n.types(2, "unlimit", "api", "a plain key")
		n.all(200, "127.22.0.1", "api", "X-Api-Key", "a plain key")
	}},
	{"4, 16 a visitor reads a support code", func(n *night) {
		n.fill("127.23.0.1", "page")
		a, err := system.NewVisitorFrom(n.T, "h1", "127.23.0.1").Try("GET", n.node(0).url+"page")
		check.OK(n, err)
		code := regexp.MustCompile(`[0-9A-Z]{4}-[0-9A-Z]{4}`).FindString(a.Body)
		n.reads(0, "why "+strings.ToLower(code), "Refused ", "capacity", "127.23.0.1")
	}},
	{"5 a bad deploy refuses everybody", func(n *night) {
		n.fill("127.24.0.1", "page")
		n.reads(1, "shadow --all --for 30m --by alice", "Everything is in shadow until")
		n.all(200, "127.24.0.1", "page")
		n.reads(2, "status", "shadow", "alice")
		n.reads(2, "unshadow --all", "Ended")
		n.all(429, "127.24.0.1", "page")
	}},
	{"6, 7 the store hangs, and dies", func(n *night) {
		if n.store == nil {
			n.Skip("there is none")
		}
		thaw := n.store.freeze()
		n.get(0, "127.25.0.1", "page")
		within(n.T, 10*time.Second, "the store is seen to hang", n.fleet[:1], func(node *fleetNode) bool {
			n.get(0, "127.25.0.1", "page")
			return regexp.MustCompile(`is (FAILING|DOWN)`).MatchString(node.Throttle("status"))
		})
		thaw()
		n.store.kill()
		n.reads(0, "ban 127.25.0.0/24 --for 1h", "on this Caddy: the others are told when the store answers")
		check.Equal(n, n.get(0, "127.25.0.9", "api"), 429, "the ban in an outage, on the Caddy that was told")
		n.reads(0, "status", "Other Caddys are not told of changes now", "not been told of 1 change yet")
		n.store.run()
		within(n.T, 15*time.Second, "the ban after the outage", n.fleet, func(node *fleetNode) bool {
			status, err := n.ask(node, "127.25.0.9", "api")
			return err == nil && status == 429
		})
		n.reads(1, "unban 127.25.0.0/24", "Ended")
	}},
	{"8, 9, 12 a Caddy is killed, stopped and started", func(n *night) {
		n.fill("127.26.0.1", "login")
		<-time.After(1500 * time.Millisecond) // a snapshot of the memory
		n.types(1, "ban", "127.26.1.0/24", "--for", "2h", "--note", "until the morning")
		n.node(0).kill()
		n.node(0).start()
		n.reads(0, "why 127.26.0.1", "refused: blocked")
		n.reads(0, "bans", "127.26.1.0/24", "until the morning")
		check.NoError(n, n.node(0).ShutDown())
		n.node(0).start()
		n.all(429, "127.26.1.77", "api")
		n.reads(0, "unban 127.26.1.0/24", "Ended")
	}},
	{"10 the disk is full", func(n *night) {
		if n.store != nil || len(n.fleet) > 1 {
			n.Skip("the changes are in the store")
		}
		folder := filepath.Join(n.node(0).home, "caddy", "throttle")
		if err := errors.Join(os.Rename(folder, folder+".away"), os.WriteFile(folder, nil, 0o600)); err != nil { // where nothing can be written
			n.Fatal(err)
		}
		n.reads(0, "ban 127.27.1.0/24 --for 1h", "127.27.1.0/24 is banned until", ", unless this Caddy is restarted before")
		n.all(429, "127.27.1.9", "api")
		within(n.T, 15*time.Second, "a word about the snapshot", n.fleet[:1], func(node *fleetNode) bool {
			n.get(0, "127.27.2.1", "page") // so that there is something to write
			return strings.Contains(node.Throttle("status"), "The snapshot cannot be written")
		})
		check.OK(n, errors.Join(os.Remove(folder), os.Rename(folder+".away", folder)))
		within(n.T, 15*time.Second, "the snapshot again", n.fleet[:1], func(node *fleetNode) bool {
			n.get(0, "127.27.2.1", "page")
			return !strings.Contains(node.Throttle("status"), "The snapshot cannot be written")
		})
		check.Equal(n, n.types(0, "unban", "127.27.1.0/24"), "Ended.\n", "unban, want it ended for good")
	}},
	{"13, 14 two operators, and a reload", func(n *night) {
		n.reads(0, "limit pages x0.5 --for 1h --by alice", "holds until")
		n.reads(1, "limit pages x2 --for 1h --by bob", "by alice", "--replace")
		n.reads(2, "limit pages x2 --for 1h --by bob --replace", "holds until")
		within(n.T, 15*time.Second, "the limit of bob", n.fleet[:1], func(node *fleetNode) bool {
			return strings.Contains(node.Throttle("bans"), "limit x2")
		})
		status, message := n.node(0).Load(n.node(0).site.Caddyfile(n.node(0).Admin))
		check.That(n, status == 200, "reloading: got %d %s", status, message)
		n.reads(0, "bans", "limit x2", "bob")
		n.reads(0, "journal", "limit x0.5", "limit x2", "alice", "bob")
		n.reads(1, "unlimit pages", "Ended")
	}},
	{"15, 17 a client is nearly at its limit, and is released", func(n *night) {
		for range 3 {
			n.get(0, "127.28.0.1", "page")
		}
		n.reads(1, "why 127.28.0.1", "refused: capacity", "It is refused now.")
		n.reads(2, "release 127.28.0.1", "emptied pages/127.28.0.1")
		n.get(0, "127.28.0.1", "page")
		n.reads(0, "why 127.28.0.1", "fits", "Nothing refuses a request of cost 1 now.")
	}},
	{"18 a key stands for a network", func(n *night) {
		n.fill("127.29.0.1", "nets")
		out := n.types(0, "top", "nets")
		network := regexp.MustCompile(`127\.29\.0\.0/24`).FindString(out)
		n.reads(0, "ban "+network, "127.29.0.0/24 is banned until")
		n.all(429, "127.29.0.250", "api")
		n.reads(0, "unban "+network, "Ended")
	}},
	{"19 the page is opened at night", func(n *night) {
		inspector := n.node(1).url + "inspector"
		get := func(password string) int {
			req, err := http.NewRequest("GET", inspector, nil)
			check.OK(n, err)
			if password != "" {
				req.SetBasicAuth("alice", password)
			}
			return system.Surely(n.T, req).StatusCode
		}
		for range 12 { // monitors and link previews
			check.Need(n, get(""), 401, "the page without a password")
		}
		check.Equal(n, get("secret"), 200, "the page with the password")
	}},
	{"20 a Caddy hangs", func(n *night) {
		if len(n.fleet) > 1 && os.Getenv("TEST_LONG") != "1" {
			n.Skip("tried in memory")
		}
		hung := n.node(2)
		check.OK(n, hung.Cmd.Process.Signal(syscall.SIGSTOP))
		began := time.Now()
		n.reads(2, "status", "has not answered for 1m15s: it hangs, or is very busy")
		if took := time.Since(began); system.Long() && took > 90*time.Second {
			n.Errorf("it took %v, want an error after 75 s", took)
		}
		if len(n.fleet) > 1 {
			n.reads(1, "ban 127.31.0.0/24 --for 1h", n.onAll())
		}
		check.OK(n, hung.Cmd.Process.Signal(syscall.SIGCONT))
		if len(n.fleet) > 1 {
			n.all(429, "127.31.0.9", "api")
			n.reads(2, "unban 127.31.0.0/24", "Ended")
		}
	}},
	{"21 everybody is blocked, and the deploy undone", func(n *night) {
		for i := range 5 {
			n.fill(fmt.Sprintf("127.30.0.%d", i+1), "login")
		}
		n.reads(1, "release --all --zone login", "127.30.0.")
		for i := range 5 {
			n.all(200, fmt.Sprintf("127.30.0.%d", i+1), "api")
		}
	}},
}

// onAll is how the answer ends if a change holds on all Caddys.
func (n *night) onAll() string {
	if n.store == nil && len(n.fleet) == 1 {
		return ".\n"
	}
	return ", within two seconds on every Caddy of the store.\n"
}

// nightsSite is nightSite with a zone of networks, and with the page.
func nightsSite(port int) string {
	return strings.Replace(nightSite(port), "	respond ok\n", fmt.Sprintf(`	throttle /nets {
		zone nets {
			key client_ip ipv4 24
			limit 3 3/h
		}
	}
	handle /inspector {
		throttle {
			zone inspector_login {
				match header Authorization *
				limit 10 20/h
				settle status 401 1 after
			}
		}
		basic_auth {
			%s
		}
		throttle_inspector
	}
	respond ok
`, system.Alice), 1)
}

// do does all tasks with Caddys of one store. In the long form a Caddy is killed before each.
func (n *night) do(t *testing.T, caddys int, options string) {
	n.fleet = startFleet(t, caddys, options, nightsSite)
	for i, task := range nights {
		t.Run(task.name, func(t *testing.T) {
			if os.Getenv("TEST_LONG") == "1" {
				n.node(i).kill()
				n.node(i).start()
			}
			task.do(&night{T: t, fleet: n.fleet, store: n.store})
		})
	}
}

// TestTheNightsOfAnOperator with one Caddy or three, and each store, a cluster and a pooler.
func TestTheNightsOfAnOperator(t *testing.T) {
	if os.Getenv("TEST_LONG") != "1" {
		t.Skip("it takes minutes: set TEST_LONG=1")
	}
	t.Parallel()
	t.Run("memory", func(t *testing.T) {
		t.Parallel()
		new(night).do(t, 1, "store memory {\nsnapshot_interval 1s\n}")
	})
	const patient = "\nstore_timeout 500ms"
	eachStore(t, func(t *testing.T, s *storeServer) {
		store := s.directive()
		if s.name == "postgres" {
			store += "?connect_timeout=5"
		}
		(&night{store: s}).do(t, 3, store+patient)
	})
	t.Run("cluster", func(t *testing.T) {
		new(night).do(t, 3, "store redis "+servertest.StartRedisCluster(t).URL()+patient)
	})
	t.Run("pooler", func(t *testing.T) {
		new(night).do(t, 3, "store postgres "+servertest.StartPostgres(t).Bouncer(t, 3)+patient)
	})
}
