#!/usr/bin/env bash
# Tests this checkout:
#
#	tests/run.sh        with Go alone: formatting, vet, unit tests, and the whole system as far
#	                    as the servers it needs are installed; installs nothing
#	tests/run.sh all    everything: also linters, packages, the benchmarks' build, and php-fpm, Puma,
#	                    nginx, Redis, PostgreSQL, Chromium and applications; installs what is
#	                    missing, so it needs Debian, and root or sudo
#
# Parts of the second, which CI runs side by side:
#
#	tests/run.sh lint|stores|packages|system
#	tests/run.sh system 2/4    the second quarter of the tests of the whole system
#
# The first says at its end what it skipped. The second skips what it cannot install, and
# says so; CI=true or REQUIRE_SYSTEM=1 make that an error, but for linters that do not run.
# TEST_LONG=1 adds tests that measure time to the second, and SWARM_TRIALS says how long the
# trials under a swarm last: see CONTRIBUTING.md. shellcheck and, for the race detector, gcc are
# used if installed. A run that changes the checkout fails.
set -euo pipefail
cd "$(dirname "$0")/.."

# Neither vet nor any test needs the databases that Caddy's PKI can use; without
# them everything compiles sooner, and vet, the tests and the binary share it.
tags=nobadger,nomysql,nopgx
# Thirty test binaries link Caddy, in half the time without what only debuggers read.
test=(go test -vet=off -tags "$tags" -ldflags=-s)
# More tests of the whole system at once than processors, because many wait for a Retry-After.
# Those that measure run alone, and so does their package.
beside=(-p 2 -parallel 4)
[[ ${TEST_LONG:-} != 1 ]] || beside=(-p 1 -parallel 8)
# Packages that are tested with real Redis, PostgreSQL and Memcached.
shared='/(redis|pg|memcached)store(/|$)|/caddymodule/(redis|postgres|memcached)(/|$)'
policy=/usr/sbin/policy-rc.d
policy_is_ours=false

step() { printf '\n== %s, after %d s\n' "$*" "$SECONDS"; }

# changed prints what differs from the last commit, if git knows.
changed() { git status --porcelain 2>/dev/null || true; }

required() { [[ ${CI:-} == true || ${REQUIRE_SYSTEM:-} == 1 ]]; }

# as_root runs a command as root, through sudo if need be.
as_root() {
	if [[ $(id -u) == 0 ]]; then "$@"; else sudo "$@"; fi
}

have() { command -v "$1" >/dev/null || [[ -x /usr/sbin/$1 ]]; }

has_php_fpm() { have php-fpm || compgen -G '/usr/sbin/php-fpm[0-9]*' >/dev/null; }

compiles_c() { have gcc && echo '#include <stdlib.h>' | gcc -E - >/dev/null 2>&1; }

has_postgres() { have postgres || compgen -G '/usr/lib/postgresql/*/bin/postgres' >/dev/null; }

has_rack() { have ruby && ruby -e 'require "rack"' >/dev/null 2>&1; }

has_devise() { have ruby && ruby -e 'gem "devise"; gem "rails"; gem "sqlite3"' >/dev/null 2>&1; }

# Without -q, which would leave before php has written all, and so make it fail at times.
has_php_extension() { have php && php -m | grep -x "$1" >/dev/null; }

# missing_packages prints the Debian packages of all tools that are missing.
missing_packages() {
	compiles_c || echo gcc libc6-dev
	has_php_fpm || echo php-fpm
	have php || echo php-cli
	have ruby || echo ruby
	have puma || echo puma
	has_rack || echo ruby-rack
	have nginx || echo nginx-light
	have haproxy || echo haproxy
	have apache2 && compgen -G '/usr/lib/apache2/modules/libphp*.so' >/dev/null || echo apache2 libapache2-mod-php
	[[ -e /usr/lib/apache2/modules/mod_passenger.so ]] || echo libapache2-mod-passenger
	have curl || echo curl
	have ip || echo iproute2
	have jq || echo jq
	missing_for_stores
	have unshare || echo util-linux
	have chromium || echo chromium
	[[ ${TEST_LONG:-} != 1 ]] || missing_for_long_tests
	have mariadbd || echo mariadb-server
	[[ -e /usr/share/wordpress/wp-load.php ]] || echo wordpress
	[[ -e /usr/share/wordpress/wp-content/themes/twentytwentythree ]] || echo wordpress-theme-twentytwentythree
	[[ -e /usr/share/dokuwiki/doku.php ]] || echo dokuwiki
	[[ -e /usr/share/mediawiki/index.php ]] || echo mediawiki
	# dbconfig-no-thanks keeps them from setting up databases of their own.
	[[ -e /usr/share/redmine/config.ru ]] || echo redmine redmine-sqlite dbconfig-no-thanks
	[[ -e /var/lib/roundcube/public_html/index.php ]] && have dovecot || echo roundcube-core roundcube-sqlite3 dovecot-imapd dbconfig-no-thanks
	[[ -e /usr/share/phpmyadmin/index.php ]] || echo phpmyadmin dbconfig-no-thanks
	[[ -e /usr/share/cacti/site/index.php ]] || echo cacti dbconfig-no-thanks
	[[ -e /usr/share/php/Illuminate/autoload.php ]] || echo php-laravel-framework
	has_devise || echo ruby-devise ruby-rails ruby-sqlite3
	have wget || echo wget
	have fail2ban-regex || echo fail2ban
	have prometheus && have promtool || echo prometheus
	# What WordPress, MediaWiki and Laravel need of PHP.
	local extension
	for extension in curl gd intl mbstring mysql:mysqli sqlite3:pdo_sqlite xml zip; do
		has_php_extension "${extension#*:}" || echo "php-${extension%:*}"
	done
}

missing_for_stores() {
	have redis-server && have redis-cli || echo redis-server
	have redis-sentinel || echo redis-sentinel
	has_postgres || echo postgresql
	have pgbouncer || echo pgbouncer
	have memcached || echo memcached
}

missing_for_long_tests() {
	have debootstrap || echo debootstrap
	have goaccess || echo goaccess
}

# Debian starts the servers it installs; the tests start their own.
forbid_autostart() {
	[[ -e $policy ]] && return
	policy_is_ours=true
	printf '#!/bin/sh\nexit 101\n' | as_root tee "$policy" >/dev/null
	as_root chmod 755 "$policy"
}

allow_autostart() {
	if $policy_is_ours; then
		as_root rm -f "$policy"
		policy_is_ours=false
	fi
}

# install_missing installs the packages that a function prints.
install_missing() {
	local packages
	read -ra packages <<<"$("$1" | tr '\n' ' ')"
	((${#packages[@]})) || return 0
	if ! have apt-get || { [[ $(id -u) != 0 ]] && ! have sudo; }; then
		if required; then
			echo "tests/run.sh: missing ${packages[*]}, and no apt-get as root or through sudo to install them" >&2
			return 1
		fi
		echo "SKIPPED: what needs ${packages[*]}: no apt-get as root or through sudo to install them"
		return 0
	fi
	step "installing ${packages[*]}"
	forbid_autostart
	as_root apt-get -qq update
	as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends "${packages[@]}" >/dev/null
	allow_autostart
}

go_is_here() {
	have go && return
	[[ -x /usr/local/go/bin/go ]] || return
	PATH=$PATH:/usr/local/go/bin
}

check_text() {
	if have shellcheck; then
		step shellcheck
		shellcheck tests/*.sh bench/*.sh xcaddy.sh .ci/run dist/*.sh dist/deb/* dist/rpm/*
	fi
	step gofmt
	local unformatted
	unformatted=$(gofmt -l .)
	if [[ $unformatted ]]; then
		printf 'tests/run.sh: not formatted by gofmt:\n%s\n' "$unformatted" >&2
		return 1
	fi
}

# concurrent prints the packages that lock, wait or count together, of which the race detector
# may find something, without those that are tested with the package $1: to compile Caddy or
# net/http once more takes longer than all their tests.
concurrent() {
	local server=" $1 "
	shift
	comm -12 \
		<(go list -tags "$tags" -f '{{.ImportPath}}{{range .Imports}} {{.}}{{end}} ' "$@" | grep -E ' sync(/atomic)? ' | cut -d' ' -f1 | sort) \
		<(go list -tags "$tags" -test -f '{{.ImportPath}}{{range .Deps}} {{.}}{{end}} ' "$@" | sed -n 's/^\([^ ]*\)\.test /\1 /p' | grep -v "$server" | cut -d' ' -f1 | sort)
}

# test_races runs the race detector over the packages among the arguments that may have races
# and are tested without the package $1.
test_races() {
	if ! compiles_c; then
		echo 'SKIPPED: the race detector, which needs gcc'
		return
	fi
	local racy
	mapfile -t racy < <(CGO_ENABLED=1 concurrent "$@")
	step 'go test -race'
	CGO_ENABLED=1 "${test[@]}" -race -short -timeout 30m "${racy[@]}"
}

test_quickly() {
	step 'go test, and the whole system beside it' # which waits more than it works
	local output passed=true
	output=$(mktemp)
	"${test[@]}" -short -count=1 "${beside[@]}" -timeout 20m ./tests/... &>"$output" &
	trap 'kill %1' INT TERM
	"${test[@]}" -short -timeout 20m "${stores[@]}" "${packages[@]}" || passed=false
	wait %1 || passed=false
	trap - INT TERM
	cat "$output"
	rm "$output"
	$passed
	test_races net/http "${packages[@]}"
	local missing
	missing=$(missing_packages | tr '\n' ' ')
	step 'skipped'
	echo 'The packages of dist, the benchmarks, trials under a swarm, and whole applications such as'
	echo 'WordPress. "tests/run.sh all" runs them.'
	if [[ $missing ]]; then
		echo "What needs these packages of Debian, which are not installed: $missing"
	fi
}

test_units() {
	step 'go test'
	"${test[@]}" -timeout 30m "${packages[@]}"
	step 'go test, of the core without its guests' # of which Go has kept what is the same
	tests/core.sh -ldflags=-s -timeout 30m
	test_stores
	if [[ ${TEST_LONG:-} == 1 ]]; then
		test_races none "${packages[@]}"
	else
		test_races github.com/caddyserver/caddy/v2 "${packages[@]}"
	fi
}

test_stores() {
	step 'go test, of the stores'
	if [[ ${TEST_LONG:-} != 1 ]]; then
		"${test[@]}" -timeout 30m "${stores[@]}"
		return
	fi
	local race=()
	compiles_c && race=(-race)
	# One after the other, because they measure time.
	CGO_ENABLED=${#race[@]} "${test[@]}" "${race[@]}" -p 1 -timeout 30m "${stores[@]}"
}

test_packages() {
	step 'the packages'
	if [[ ${TEST_LONG:-} == 1 ]]; then
		as_root env "PATH=$PATH" dist/test.sh bookworm trixie
		dist/platforms.sh
		dist/caddy-versions.sh
		dist/modules.sh test
	else
		dist/test.sh
	fi
}

# tests_of prints, as a pattern for -run, every n-th test of the whole system from the i-th on:
# "2/4" is i/n.
tests_of() {
	grep -hoE '^func Test[A-Z]\w*' tests/*/*_test.go | grep -v TestMain | sort | awk -v "i=${1%/*}" -v "n=${1#*/}" \
		'(NR - i) % n == 0 { names = names "|" $2 } END { print "^(" substr(names, 2) ")$" }'
}

# test_system tests the whole system, or a part of it such as 2/4.
test_system() {
	step "the whole system${1:+, $1}"
	local limit=30m
	[[ ${TEST_LONG:-} != 1 ]] || limit=90m
	[[ -z ${SWARM_TRIALS:-} ]] || limit=24h
	"${test[@]}" -count=1 "${beside[@]}" -timeout "$limit" ${1:+-run "$(tests_of "$1")"} ./tests/...
}

test_all() {
	test_units
	# bench is no part of go.work: the peers that it measures must not choose what is built here.
	step 'the benchmarks build'
	(cd bench && export GOWORK=off && go vet -vettool="$OLDPWD/tests/vet.sh" -tags "$tags" ./... && "${test[@]}" -short -timeout 60m ./...)
	if [[ ${TEST_LONG:-} == 1 ]]; then
		step 'memstore and requests have lost no ground'
		bench/run.sh --guard
	fi
	if linter "$golangci" version; then
		lint
	else
		echo 'SKIPPED: the linters, for the reason above'
	fi
	test_packages
	test_system
}

golangci=github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.13.2
govulncheck=golang.org/x/vuln/cmd/govulncheck@v1.9.0

# lint runs linters of fixed versions, which are dependencies of no module here, and the
# linter of workflows, whose version is in dist/go.mod.
lint() {
	step actionlint
	GOWORK=off GOFLAGS='' go tool -modfile="$PWD/dist/go.mod" actionlint .github/workflows/*
	step golangci-lint
	local modules
	mapfile -t modules < <(go list -m -f '{{.Dir}}/...') # of go.work
	linter "$golangci" run "${modules[@]}"
	step govulncheck
	if [[ ${GITHUB_ACTIONS:-} == true ]] || linter "$govulncheck" -version | grep "^DB updated" >/dev/null; then
		GOWORK=off linter "$govulncheck" -tags "$tags" ./caddymodule/cmd/caddy
	else
		echo 'SKIPPED: govulncheck, which cannot reach its database'
	fi
}

linter() { GOFLAGS='' go run "$@"; }

check() {
	check_text
	step 'go vet'
	VET=$(go tool -n vet)
	export VET # for vet.sh
	# "work" is all packages of the modules in go.work.
	go vet -vettool="$PWD/tests/vet.sh" -tags "$tags" work
}

usage() {
	echo "tests/run.sh: unknown arguments \"$*\": use none, all, lint, stores, packages, system, or system 2/4" >&2
	exit 2
}

case "$*" in
'' | all | lint | stores | packages | system) ;;
'system '[1-9]/[1-9]) ;;
*) usage "$@" ;;
esac
if ! go_is_here; then
	echo 'tests/run.sh: no Go in PATH: install it from https://go.dev/dl/' >&2
	exit 1
fi
# What tests leave, even those that were killed, goes with this run. The folder has the same name
# each time, or Go would run all tests again, but for a run beside another one. No core file may
# fill the disk.
TMPDIR=${TMPDIR:-/tmp}/throttle-$(pwd | cksum | cut -d' ' -f1)
if [[ -e $TMPDIR/run ]] && kill -0 "$(<"$TMPDIR/run")" 2>/dev/null; then TMPDIR+=-$$; fi
export TMPDIR
trap 'allow_autostart; rm -rf "$TMPDIR"' EXIT
mkdir -p "$TMPDIR"
chmod 1777 "$TMPDIR" # for php-fpm and PostgreSQL
echo $$ >"$TMPDIR/run"
if (($(df -Pk "$TMPDIR" | awk 'NR == 2 { print $4 }') < 2000000)); then
	echo "tests/run.sh: less than 2 GB are free below $TMPDIR, which tests need: set TMPDIR to a folder with room" >&2
	exit 1
fi
ulimit -c 0
before=$(changed)
mapfile -t packages < <(go list -tags "$tags" work | grep -Ev "/tests/|$shared")
mapfile -t stores < <(go list -tags "$tags" work | grep -E "$shared")
case ${1-} in
'')
	check
	test_quickly
	;;
all)
	install_missing missing_packages
	check
	test_all
	;;
lint)
	check
	lint
	;;
stores)
	install_missing missing_for_stores
	test_stores
	;;
packages) test_packages ;;
system)
	install_missing missing_packages
	test_system "${2-}"
	;;
esac
if [[ $(changed) != "$before" ]]; then
	printf 'tests/run.sh: the tests changed the checkout:\n%s\n' "$(changed)" >&2
	exit 1
fi
