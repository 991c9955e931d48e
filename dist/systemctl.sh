#!/usr/bin/env bash
# Stands in for systemd in dist/test.sh, because that does not run in a chroot. It runs the
# program of the unit as its user does, with the capability for port 80.
set -euo pipefail

args=()
for arg in "$@"; do
	[[ $arg == -* ]] || args+=("${arg%.service}")
done
action=${args[0]} name=${args[1]-}
pid=/run/$name.pid
wants=/etc/systemd/system/multi-user.target.wants

# setting prints a line of the unit.
setting() { sed -n "s/^$1=//p" "/usr/lib/systemd/system/$name.service"; }

active() { [[ -e $pid ]] && kill -0 "$(cat "$pid")" 2>/dev/null; }

start() {
	local user command
	active && return
	if [[ $(readlink "/etc/systemd/system/$name.service") == /dev/null ]]; then
		echo "$name is masked" >&2
		return 1
	fi
	user=$(setting User)
	read -ra command <<<"$(setting ExecStart)"
	HOME=$(getent passwd "$user" | cut -d: -f6) setsid setpriv --reuid "$user" --regid "$user" --init-groups \
		--inh-caps +net_bind_service --ambient-caps +net_bind_service "${command[@]}" >>"/run/$name.log" 2>&1 </dev/null &
	echo $! >"$pid"
	# As Type=notify does: until it serves.
	for _ in {1..100}; do
		curl --silent --output /dev/null http://localhost/ && return
		sleep .1
	done
	return 1
}

stop() {
	active || return 0
	kill "$(cat "$pid")"
	while active; do sleep .05; done
	rm "$pid"
}

case $action in
daemon-reload) ;;
is-active) active ;;
is-enabled)
	[[ -e $wants/$name.service ]] || exit 1
	echo enabled
	;;
enable | preset)
	mkdir --parents "$wants"
	ln --symbolic --force "/usr/lib/systemd/system/$name.service" "$wants"
	;;
disable) rm -f "$wants/$name.service" ;;
start | stop) "$action" ;;
restart) stop && start ;;
try-restart) ! active || { stop && start; } ;;
reload)
	read -ra command <<<"$(setting ExecReload)"
	"${command[@]}" >>"/run/$name.log" 2>&1
	;;
*)
	echo "the stand-in for systemctl does not know $action" >&2
	exit 1
	;;
esac
