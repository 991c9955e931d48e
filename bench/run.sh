#!/usr/bin/env bash
# Measures throttle beside other limiters. README.md says what is measured, and how.
#
#	./run.sh                    print all tables; takes about half an hour
#	./run.sh --take             decisions in memory only
#	./run.sh --http [pairs]     requests through Caddy only, with wrk, beside nginx
#	./run.sh --place [rows]     what limiters cost in Caddy's server, between two probes, with wrk
#	./run.sh --shared           Redis and PostgreSQL only; needs both servers
#	./run.sh --guard            fail if memstore has lost ground to x/time/rate; TEST_LONG=1
#	                            ../tests/run.sh all does that, too
#	./run.sh --guard --update   commit to what it measures now
set -euo pipefail
cd "$(dirname "$0")"
export GOWORK=off # not with what the rest is built with
export GOFLAGS="${GOFLAGS:-} -tags=nobadger,nomysql,nopgx"

machine() {
	date -u +%Y-%m-%d
	git -C .. rev-parse --short HEAD 2>/dev/null || true
	go version
	grep -m1 'model name' /proc/cpuinfo || true
	echo "$(nproc) processors, load $(cut -d' ' -f1-3 /proc/loadavg)"
	go list -m golang.org/x/time github.com/sethvargo/go-limiter github.com/throttled/throttled/v2 \
		github.com/ulule/limiter/v3 github.com/mholt/caddy-ratelimit github.com/caddyserver/caddy/v2
}

take() {
	TEST_LONG=1 go test -count=1 -run '^TestFigures$' -v -timeout 60m .
	go test -run '^$' -bench Memory -benchtime 1x .
}

http() {
	load_tools || return
	TEST_LONG=1 go test -count=1 -run Throughput -v -timeout 60m . -pairs "${1:-11}" -slice 2s
}

place() {
	load_tools || return
	TEST_LONG=1 go test -count=1 -run InPlace -v -timeout 20m . -place "${1:-.}"
}

shared() { TEST_LONG=1 go test -count=1 -run 'RedisStore|Postgres' -v -timeout 20m .; }

have() { command -v "$1" >/dev/null || [[ -x /usr/sbin/$1 ]]; }

as_root() {
	if [[ $(id -u) == 0 ]]; then "$@"; else sudo "$@"; fi
}

# load_tools installs wrk and nginx, which --http needs, where apt-get can. Debian starts
# the servers that it installs, unless a policy forbids it.
load_tools() (
	packages=() policy=/usr/sbin/policy-rc.d
	have wrk || packages+=(wrk)
	have nginx || packages+=(nginx-light)
	((${#packages[@]})) || exit 0
	if ! have apt-get || { [[ $(id -u) != 0 ]] && ! have sudo; }; then
		echo "SKIPPED: rows that need ${packages[*]}: no apt-get as root or through sudo to install them"
		exit 0
	fi
	if [[ ! -e $policy ]]; then
		trap 'as_root rm -f "$policy"' EXIT
		printf '#!/bin/sh\nexit 101\n' | as_root tee "$policy" >/dev/null
		as_root chmod 755 "$policy"
	fi
	as_root apt-get -qq update
	as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends "${packages[@]}" >/dev/null
)

case "${1:-} ${2:-}" in
'--guard ') exec go test -count=1 -run '^TestGuard$' -v . -guard ;;
'--guard --update') exec go test -count=1 -run '^TestGuard$' -v . -guard.update ;;
'--take ') machine && take ;;
'--http '*) machine && http "${2:-}" ;;
'--place '*) machine && place "${2:-}" ;;
'--shared ') machine && shared ;;
' ') machine && take && http && shared ;;
*)
	sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$0" >&2
	exit 2
	;;
esac
