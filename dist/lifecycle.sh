#!/usr/bin/env bash
# Installs, upgrades, removes and purges the package in a system of Debian, for dist/test.sh,
# in one of the ways below.
set -euo pipefail
export DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8

fail() {
	echo "lifecycle: $*" >&2
	tail -20 /run/caddy.log >&2 || true
	exit 1
}

# step runs a command, and shows what it printed and what the site answered meanwhile.
step() {
	echo "-- $*"
	: >/run/answers
	"$@" </dev/null 2>&1 | sed 's/^/   /'
	sleep .3
	echo "   the site meanwhile: $(sort /run/answers | uniq --count | xargs)"
}

# served_by says which program serves the site, if one does.
served_by() {
	local got=nothing
	if [[ $(curl --silent http://localhost/) ]]; then
		got=$(readlink "/proc/$(cat /run/caddy.pid)/exe")
	fi
	[[ $got == "$1" ]] || fail "the site is served by $got, want $1"
	echo "   served by $got"
}

# write_site writes a Caddyfile, with a limit or without one, and reloads it.
write_site() {
	printf ':80 {\n%s\n\trespond "the site"\n}\n' "${1-}" >/etc/caddy/Caddyfile
	systemctl reload caddy || fail 'the reload failed'
}

limit='	throttle {
		zone pages {
			limit 100000 10000/s
		}
	}'

is_there() { [[ -e $1 ]] || fail "$1 is not there"; }
is_gone() { [[ ! -e $1 && ! -L $1 ]] || fail "$1 is still there"; }

has_limit() {
	grep -q limit /etc/caddy/Caddyfile || fail 'the Caddyfile was changed'
	caddy throttle status | grep '^pages' >/dev/null || fail 'the zone does not run'
}

untouched() {
	is_gone /usr/bin/caddy.throttle
	is_gone /usr/bin/caddy.default
	is_gone /etc/alternatives/caddy
	[[ -z $(dpkg-divert --list '*caddy*') ]] || fail "$(dpkg-divert --list '*caddy*')"
}

# is_whole: a service of Debian's kind is there, and enabled.
is_whole() {
	[[ $(readlink /etc/alternatives/caddy) == /usr/bin/caddy.throttle ]] || fail 'the alternative is another'
	is_there /usr/lib/systemd/system/caddy.service
	systemctl is-enabled caddy >/dev/null || fail 'the service is not enabled'
	[[ $(stat --format %U /var/lib/caddy /var/log/caddy | uniq) == caddy ]] || fail 'the folders are not of caddy'
}

install_caddy() { apt-get -qq install -y --no-install-recommends --no-download -o Dpkg::Use-Pty=0 -o Dpkg::Options::=--force-confold "$@" caddy; }

beside() {
	step install_caddy
	served_by /usr/bin/caddy
	step dpkg --install /packages/old.deb
	served_by /usr/bin/caddy.throttle
	is_whole
	caddy build-info | grep '^mod.*caddy-throttle.*v[0-9]' # not (devel)
	write_site "$limit"
	has_limit
	step dpkg --install /packages/new.deb
	served_by /usr/bin/caddy.throttle
	has_limit
	step install_caddy --reinstall
	served_by /usr/bin/caddy.throttle
	has_limit

	# Debian's caddy cannot read this Caddyfile: the removed program runs on.
	step dpkg --remove caddy-throttle
	served_by '/usr/bin/caddy.throttle (deleted)'
	untouched
	step dpkg --install /packages/new.deb
	served_by /usr/bin/caddy.throttle
	has_limit

	write_site
	step dpkg --remove caddy-throttle
	served_by /usr/bin/caddy
	untouched
	step dpkg --purge caddy-throttle
	served_by /usr/bin/caddy
	is_there /etc/caddy/Caddyfile
	is_there /var/lib/caddy
}

# diverted: the owner has put a program of their own there before, as Caddy's manual says.
diverted() {
	step install_caddy
	dpkg-divert --divert /usr/bin/caddy.default --rename /usr/bin/caddy
	cp /usr/bin/caddy.default /usr/bin/caddy.custom
	update-alternatives --install /usr/bin/caddy caddy /usr/bin/caddy.default 10
	update-alternatives --install /usr/bin/caddy caddy /usr/bin/caddy.custom 50
	step dpkg --install /packages/old.deb
	served_by /usr/bin/caddy.throttle
	is_whole
	step dpkg --purge caddy-throttle
	served_by /usr/bin/caddy.custom
	[[ $(dpkg-divert --listpackage /usr/bin/caddy) == LOCAL ]] || fail "the owner's diversion is gone"
}

alone() {
	step dpkg --install /packages/old.deb
	served_by /usr/bin/caddy.throttle
	is_whole
	write_site "$limit"
	has_limit
	step dpkg --install /packages/new.deb
	served_by /usr/bin/caddy.throttle
	has_limit
	step dpkg --remove caddy-throttle
	served_by nothing
	untouched
	is_gone /usr/lib/systemd/system/caddy.service
	is_there /etc/caddy/Caddyfile
	step dpkg --install /packages/new.deb
	served_by /usr/bin/caddy.throttle
	has_limit
	step dpkg --purge caddy-throttle
	served_by nothing
	untouched
	is_gone /etc/caddy
	is_gone /var/lib/caddy
	is_gone /etc/systemd/system/multi-user.target.wants/caddy.service

	# Debian's caddy comes later, and goes.
	step dpkg --install /packages/new.deb
	write_site "$limit"
	step install_caddy
	served_by /usr/bin/caddy.throttle
	is_whole
	has_limit
	step dpkg --remove caddy
	served_by /usr/bin/caddy.throttle
	is_whole
	has_limit
	step dpkg --purge caddy-throttle
	served_by nothing
	untouched
	is_there /etc/caddy/Caddyfile # of the other package, which was not purged
}

ask() {
	while sleep .05; do
		curl --silent --max-time 2 --output /dev/null --write-out '%{http_code}\n' http://localhost/ >>/run/answers || true
	done
}

ip link set lo up
ask &
"$1"
