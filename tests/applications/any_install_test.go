package applications

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/servertest"
	"github.com/caddy-throttle/caddy-throttle/tests/internal/system"
)

// The applications of docs/recipes/any-application.md that Debian has, each with PHP workers of
// its own and somebody called alice, whose password is "right".

// write writes a file of the application, which its processes may read.
func (a *application) write(t *testing.T, name, text string) string {
	t.Helper()
	file := filepath.Join(a.dir, name)
	err := os.MkdirAll(filepath.Dir(file), 0o755)
	if err == nil {
		err = os.WriteFile(file, []byte(text), 0o644)
	}
	check.OK(t, err)
	return file
}

// open makes a folder of the application that its processes may write to, and everything in it.
func (a *application) open(t *testing.T, name string) string {
	t.Helper()
	folder := filepath.Join(a.dir, name)
	check.OK(t, os.MkdirAll(folder, 0o755))
	outputOf(t, exec.Command("chmod", "--recursive", "a+rwX", folder))
	return folder
}

// needPackage skips the test unless a file of a Debian package is there.
func needPackage(t *testing.T, name, file string) {
	t.Helper()
	if _, err := os.Stat(file); err != nil {
		system.Need(t, name+" in "+filepath.Dir(file))
	}
}

func installDokuWiki(t *testing.T, a *application) {
	php := system.Need(t, "php")
	needPackage(t, "DokuWiki", "/usr/share/dokuwiki/doku.php")
	outputOf(t, exec.Command("cp", "--recursive", "/etc/dokuwiki", filepath.Join(a.dir, "conf")))
	data := filepath.Join(a.dir, "data")
	for _, folder := range []string{"attic", "cache", "index", "locks", "log", "media", "media_attic", "media_meta", "meta", "pages", "tmp"} {
		a.open(t, "data/"+folder)
	}
	for n := range 12 {
		a.write(t, fmt.Sprintf("data/pages/page%d.txt", n), fmt.Sprintf("====== Page %d ======\n\nThe pump of page %d has a [[page%d|valve]].\n", n, n, n+1))
	}
	a.open(t, "data")
	for _, link := range []string{"users.auth.php", "acl.auth.php"} {
		check.OK(t, os.Remove(filepath.Join(a.dir, "conf", link)))
	}
	hash := outputOf(t, exec.Command(php, "-r", "echo password_hash('right', PASSWORD_BCRYPT, ['cost' => 4]);"))
	a.write(t, "conf/users.auth.php", "# <?php exit()?>\nalice:"+hash+":Alice:alice@example.com:admin,user\n")
	a.write(t, "conf/acl.auth.php", "# <?php exit()?>\n*\t@ALL\t1\n*\t@user\t8\n")
	a.write(t, "conf/local.php", fmt.Sprintf("<?php\n$conf['useacl'] = 1;\n$conf['superuser'] = '@admin';\n$conf['savedir'] = '%s';\n", data))
	a.startFPM(t, "php_admin_value[auto_prepend_file] = "+a.write(t, "before.php", fmt.Sprintf("<?php\ndefine('DOKU_CONF', '%s/conf/');\n", a.dir)))
}

func installRoundcube(t *testing.T, a *application) {
	needPackage(t, "Roundcube", "/var/lib/roundcube/public_html/index.php")
	dovecot := system.Need(t, "dovecot", "/usr/sbin/dovecot")
	php := system.Need(t, "php")
	if os.Getuid() != 0 {
		t.Skip("SKIPPED: Dovecot, which needs root")
	}
	for n := range 20 {
		a.write(t, fmt.Sprintf("mail/alice/Maildir/new/%d.mail", n), fmt.Sprintf("From: bob@example.com\nTo: alice@example.com\n"+
			"Subject: Pump %d\nDate: Mon, 02 Nov 2026 10:%02d:00 +0000\nMessage-ID: <%d@example.com>\nContent-Type: text/plain\n\nIs the valve mended?\n", n, n, n))
	}
	a.open(t, "mail")
	port := servertest.FreePort(t)
	conf := a.write(t, "dovecot.conf", fmt.Sprintf(`base_dir = %[1]s/dovecot
log_path = /dev/stderr
protocols = imap
listen = 127.0.0.1
ssl = no
disable_plaintext_auth = no
auth_failure_delay = 0
first_valid_uid = 1
mail_location = maildir:%[1]s/mail/%%n/Maildir
passdb {
	driver = static
	args = password=right
}
userdb {
	driver = static
	args = uid=www-data gid=www-data home=%[1]s/mail/%%n
}
service anvil {
	unix_listener anvil-auth-penalty {
		mode = 0
	}
}
service imap-login {
	inet_listener imap {
		port = %[2]d
	}
	inet_listener imaps {
		port = 0
	}
}
`, a.dir, port))
	a.run(t, exec.Command(dovecot, "-F", "-c", conf), filepath.Join(a.dir, "dovecot", "master"))
	a.open(t, "state")
	a.write(t, "config/config.inc.php", fmt.Sprintf(`<?php
$config = [
	'db_dsnw' => 'sqlite:///%[1]s/state/roundcube.sqlite?mode=0666',
	'imap_host' => '127.0.0.1:%[2]d',
	'des_key' => 'twenty-four characters!!',
	'skin' => 'elastic',
	'plugins' => [],
	'enable_spellcheck' => false,
	'log_dir' => '%[1]s/state',
	'temp_dir' => '%[1]s/state',
	'login_rate_limit' => 1000, // throttle is tested, not Roundcube
];
`, a.dir, port))
	outputOf(t, exec.Command("cp", "/etc/roundcube/defaults.inc.php", "/etc/roundcube/mimetypes.php", filepath.Join(a.dir, "config")))
	outputOf(t, exec.Command(php, "-r", `(new PDO("sqlite:$argv[1]"))->exec(file_get_contents("/usr/share/roundcube/SQL/sqlite.initial.sql"));`,
		filepath.Join(a.dir, "state/roundcube.sqlite")))
	a.open(t, "state")
	a.startFPM(t, "env[ROUNDCUBE_CONFIG_DIR] = "+filepath.Join(a.dir, "config"))
}

// sharedDatabase is one server for phpMyAdmin and Cacti.
var sharedDatabase = application{install: func(t *testing.T, a *application) { a.startMariaDB(t) }}

// useDatabase runs statements as its root.
func useDatabase(t *testing.T, statements string) (socket string) {
	t.Helper()
	sharedDatabase.use(t)
	socket = filepath.Join(sharedDatabase.dir, "db.sock")
	outputOf(t, exec.Command("mariadb", "--no-defaults", "--socket="+socket, "--user=root", "--execute", statements))
	return socket
}

func installPHPMyAdmin(t *testing.T, a *application) {
	needPackage(t, "phpMyAdmin", "/usr/share/phpmyadmin/index.php")
	socket := useDatabase(t, `USE site; GRANT ALL ON site.* TO alice@localhost IDENTIFIED BY "right"; CREATE TABLE pumps (id INT PRIMARY KEY, name TEXT);
		INSERT INTO pumps VALUES (1, "river"), (2, "well")`)
	a.startFPM(t, "php_admin_value[mysqli.default_socket] = "+socket, "php_admin_value[session.save_path] = "+a.open(t, "sessions"))
}

func installCacti(t *testing.T, a *application) {
	needPackage(t, "Cacti", "/usr/share/cacti/site/index.php")
	php := system.Need(t, "php")
	// Its relative links lead to other packages.
	shared := check.Must(filepath.Glob("/usr/share/*"))(t)
	a.open(t, "share")
	for _, folder := range shared {
		if filepath.Base(folder) == "cacti" {
			outputOf(t, exec.Command("cp", "--recursive", folder, filepath.Join(a.dir, "share")))
		} else if err := os.Symlink(folder, filepath.Join(a.dir, "share", filepath.Base(folder))); err != nil {
			t.Fatal(err)
		}
	}
	const site = "share/cacti/site/"
	for _, link := range []string{"log", "cache", "rra", "include/config.php"} {
		check.OK(t, os.Remove(filepath.Join(a.dir, site, link)))
	}
	for _, folder := range []string{"log", "rra", "cache/boost", "cache/mibcache", "cache/realtime", "cache/spikekill"} {
		a.open(t, site+folder)
	}
	a.write(t, site+"include/config.php", `<?php
$database_type = 'mysql';
$database_default = $database_username = $database_password = 'cacti';
$database_hostname = 'localhost';
$database_port = '3306';
$database_retries = 5;
$database_ssl = $database_persist = false;
$database_ssl_key = $database_ssl_cert = $database_ssl_ca = '';
$poller_id = 1;
$url_path = '/';
$cacti_session_name = 'Cacti';
$cacti_db_session = false;
$scripts_path = $resource_path = '';
$proxy_headers = null;
$path_csrf_secret = '`+a.open(t, "csrf")+`/secret.php';
`)
	hash := outputOf(t, exec.Command(php, "-r", "echo password_hash('right', PASSWORD_BCRYPT, ['cost' => 4]);"))
	socket := useDatabase(t, `CREATE DATABASE cacti CHARACTER SET utf8mb4; GRANT ALL ON cacti.* TO cacti@localhost IDENTIFIED BY "cacti"; USE cacti;
		source /usr/share/cacti/conf_templates/cacti.sql
		UPDATE version SET cacti = '1.2.24';
		UPDATE user_auth SET username = 'alice', must_change_password = '', password = '`+hash+`' WHERE username = 'admin';
		REPLACE INTO settings (name, value) VALUES ('auth_method', '1'), ('auth_cache_enabled', 'on')`)
	a.startFPM(t, "php_admin_value[mysqli.default_socket] = "+socket, "php_admin_value[pdo_mysql.default_socket] = "+socket)
}
