package swarm

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/internal/swarm"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/servertest"
	"github.com/caddy-throttle/caddy-throttle/tests/internal/system"
)

// swarmWorkers is pm.max_children of the site under a swarm.
const swarmWorkers = 5

// burnt is the share of a page's time that PHP computes; it waits for the rest, as
// pages wait for a database. So the workers are the limit, and not the processors of the
// machine that also sends the traffic. Four sites for each processor use two thirds of it.
const burnt = "0.03"

// swarmPages are the files of the site. A page holds a worker for as many milliseconds
// as it is asked to, and a login sets the cookie of a member.
var swarmPages = map[string]string{
	"page.php": `<?php
header('Content-Type: text/html; charset=utf-8');
header('Cache-Control: private, no-store');
$seconds = min(90, max(0, (int) ($_GET['ms'] ?? 0) / 1000));
$cpu = function () { $u = getrusage(); return $u['ru_utime.tv_sec'] + $u['ru_stime.tv_sec'] + ($u['ru_utime.tv_usec'] + $u['ru_stime.tv_usec']) / 1e6; };
$end = microtime(true) + $seconds;
for ($from = $cpu(); $cpu() - $from < $seconds * BURNT;) { for ($i = 0; $i < 200; $i++) { md5("page $i"); } }
if (($left = $end - microtime(true)) > 0) { usleep((int) ($left * 1e6)); }
echo '<!DOCTYPE html><title>A page</title><p id="page">A page.';
`,
	"login.php": `<?php
header('Cache-Control: private, no-store');
$user = preg_replace('/[^a-z0-9]/', '', $_GET['user'] ?? 'nobody');
setcookie('wordpress_logged_in_0123', $user . '|1999999999|' . sha1($user), ['path' => '/', 'secure' => true, 'httponly' => true]);
echo 'Hello ', $user;
`,
}

// startSwarmPHP starts php-fpm with static workers, a backlog as Debian's, a page of its
// status, and a log of what the workers do.
func startSwarmPHP(t *testing.T) (root, socket string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "swarm-") // not t.TempDir, whose names are too long for a socket
	check.OK(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	root, socket = filepath.Join(dir, "php"), filepath.Join(dir, "fpm.sock")
	check.OK(t, os.MkdirAll(root, 0o755))
	for name, text := range swarmPages {
		check.OK(t, os.WriteFile(filepath.Join(root, name), []byte(strings.Replace(text, "BURNT", burnt, 1)), 0o644))
	}
	user := ""
	if os.Getuid() == 0 {
		user = "user = www-data\ngroup = www-data\nlisten.mode = 0666\n"
		check.OK(t, os.Chmod(dir, 0o755))
	}
	conf := filepath.Join(dir, "fpm.conf")
	text := fmt.Sprintf("[global]\nerror_log = /dev/stderr\ndaemonize = no\n[www]\nlisten = %s\nlisten.backlog = 511\n%spm = static\npm.max_children = %d\npm.status_path = /fpm-status\naccess.log = %s\naccess.format = \"%%{micro}d %%q\"\n", socket, user, swarmWorkers, workLog(socket))
	check.OK(t, os.WriteFile(conf, []byte(text), 0o644))
	fpm, err := system.StartProcess(exec.Command(system.Need(t, "php-fpm", "/usr/sbin/php-fpm[0-9]*"), "--nodaemonize", "--fpm-config", conf))
	check.OK(t, err, "starting php-fpm")
	t.Cleanup(func() {
		check.NoError(t, fpm.Stop(), "stopping php-fpm")
	})
	check.OK(t, fpm.WaitUntil(func() bool { return system.Listens("unix", socket) }), "waiting for php-fpm")
	return root, socket
}

// workLog returns the log of the workers behind a socket.
func workLog(socket string) string { return filepath.Join(filepath.Dir(socket), "work.log") }

// A holder is what is in front of the workers.
type holder struct {
	name  string
	start func(t *testing.T) swarm.Site
}

// caddyBefore holds the site up by in_flight with so many slots, or by nothing.
func caddyBefore(name string, slots int, options string) holder {
	return holder{name, func(t *testing.T) swarm.Site {
		site, _ := startSwarmCaddy(t, slots, options)
		return site
	}}
}

func startSwarmCaddy(t *testing.T, slots int, options string) (site swarm.Site, running *system.Caddy) {
	root, socket := startSwarmPHP(t)
	return startSwarmSite(t, slots, options, fmt.Sprintf("root * %s\nphp_fastcgi unix/%s", root, socket), workLog(socket))
}

func startSwarmSite(t *testing.T, slots int, options, upstream, log string) (site swarm.Site, running *system.Caddy) {
	port := servertest.FreePort(t)
	if slots > 0 {
		options = system.Block(fmt.Sprint("in_flight php ", slots), options)
	}
	running = system.StartCaddy(t, system.Config{
		Servers: "trusted_proxies static 127.0.0.0/8",
		Sites:   fmt.Sprintf("http://:%d {\n%s\n%s\n}", port, options, upstream),
	})
	return swarm.Site{URL: fmt.Sprintf("http://127.0.0.1:%d", port), Log: log}, running
}

// First come, first served.
const fifoOptions = "wait 10s\nqueue 200"

// nginxBefore refuses whatever the workers cannot take at once.
func nginxBefore() holder {
	return holder{"nginx limit_conn", func(t *testing.T) swarm.Site {
		root, socket := startSwarmPHP(t)
		port := system.StartNginx(t, "limit_conn_zone $server_port zone=all:1m;\nlimit_conn_status 503;", fmt.Sprintf(`location / {
			limit_conn all %d;
			fastcgi_pass unix:%s;
			fastcgi_param SCRIPT_FILENAME %s$fastcgi_script_name;
			fastcgi_param QUERY_STRING $query_string;
			fastcgi_param REQUEST_METHOD $request_method;
			fastcgi_param REQUEST_URI $request_uri;
		}`, swarmWorkers, socket, root))
		return swarm.Site{URL: fmt.Sprintf("http://127.0.0.1:%d", port), Log: workLog(socket)}
	}}
}

// haproxyBefore lets requests queue for as long, members first if it has classes.
func haproxyBefore(queue time.Duration, classes bool) holder {
	name, rule := fmt.Sprintf("HAProxy maxconn, %.0f s", queue.Seconds()), ""
	if classes {
		name += ", classes"
		rule = "http-request set-priority-class int(-10) if { req.cook(wordpress_logged_in_0123) -m found }"
	}
	return holder{name, func(t *testing.T) swarm.Site {
		upstream, _ := startSwarmCaddy(t, 0, "")
		port := servertest.FreePort(t)
		system.StartHAProxy(t, port, fmt.Sprintf(`global
	maxconn 2000
defaults
	mode http
	timeout connect 5s
	timeout client 120s
	timeout server 120s
	timeout queue %dms
	option http-server-close
frontend people
	bind 127.0.0.1:%d
	default_backend php
backend php
	%s
	server php %s maxconn %d
`, queue.Milliseconds(), port, rule, strings.TrimPrefix(upstream.URL, "http://"), swarmWorkers))
		return swarm.Site{URL: fmt.Sprintf("http://127.0.0.1:%d", port), Log: upstream.Log}
	}}
}

// An onslaught is a scenario by its name.
type onslaught struct {
	name   string
	change func(*swarm.Scenario)
}

// People alone ask for three tenths of the workers. Robots add what is missing to a
// multiple of them.
func swarmOf(times float64) func(*swarm.Scenario) {
	return func(s *swarm.Scenario) { s.Robots = times*float64(s.Workers) - s.People }
}

// scenario returns the traffic of people alone, in the short form. Compared with the long
// form's, more people think for a shorter time and ask for shorter pages, so that there are
// enough of them to count. Robots ask for longer pages, so that a busy machine can send as
// many as it takes. They come for some time before anybody is counted, because they must
// first fill the row.
func scenario(seed uint64) swarm.Scenario {
	return swarm.Scenario{
		Workers: swarmWorkers, Seed: seed, People: 1.5, Members: 0.25,
		Page: 120 * time.Millisecond, Think: time.Second, RobotPage: 2 * time.Second,
		RobotsFrom: 0, From: 10 * time.Second, To: 15 * time.Second, End: 27 * time.Second,
	}
}

// baselines are what people put in front of PHP today.
func baselines() []holder {
	return []holder{
		caddyBefore("nothing", 0, ""), nginxBefore(), haproxyBefore(3*time.Second, false), haproxyBefore(10*time.Second, false),
		haproxyBefore(3*time.Second, true), haproxyBefore(10*time.Second, true), caddyBefore("first come, first served", swarmWorkers, fifoOptions),
	}
}

// TestNothingOfTodayLetsNewPeopleInUnderASwarm tries the baselines, each with and
// without an error page that reloads itself. The short form, in
// TestPeopleGetInUnderASwarm, tries some.
func TestNothingOfTodayLetsNewPeopleInUnderASwarm(t *testing.T) {
	form := longSwarm(t)
	for _, reloads := range []bool{false, true} {
		for _, times := range []float64{2, 10} {
			for _, h := range baselines() {
				name, what := h.name, freshSwarm(times)
				if reloads {
					name += reloading
				}
				t.Run(what.name+", "+name, func(t *testing.T) {
					t.Parallel()
					share := form.try(t, what, name, func(t *testing.T) swarm.Site {
						site := h.start(t)
						site.Reloads = reloads
						return site
					}).First.Share()
					check.That(t, share <= 0.8, "%.0f %% of the pages of newcomers were served, so that little is left to win", 100*share)
				})
			}
		}
	}
}
