#!/usr/bin/env bash
# Tests the packages:
#
#	dist/test.sh                    what is in them, with a stand-in for the program; the workflows
#	dist/test.sh bookworm trixie    the .deb in these releases of Debian, too
#
# The second form needs root, debootstrap and the network. In each release, with and without
# Debian's caddy, the .deb is installed, upgraded, removed and purged, while a site is asked
# all the time. A stand-in for systemd runs the programs of units. CHROOTS names a folder in
# which fresh systems are kept for the next run, and DEB a package to test instead of one
# that is built.
set -euo pipefail
cd "$(dirname "$0")/.."

fail() {
	echo "dist/test.sh: $*" >&2
	exit 1
}

# expect compares what is with what should be.
expect() { [[ $2 == "$3" ]] || fail "$1: got"$'\n'"$2"$'\n'"want"$'\n'"$3"; }

test_contents() {
	printf '#!/bin/sh\necho stand-in\n' >"$work/program"
	chmod +x "$work/program"
	local round
	for round in 1 2; do
		mkdir "$work/$round"
		touch "$work/$round/"{caddy-throttle_0.0.9_amd64.deb,notes}
		PROGRAM=$work/program OUT=$work/$round VERSION=0.1.0 dist/build.sh linux/amd64 linux/armv7 windows/amd64 >"$work/log" 2>&1 || fail "$(cat "$work/log")"
	done
	diff -r "$work/1" "$work/2" || fail 'two builds differ'
	(cd "$work/1" && sha256sum --quiet --check SHA256SUMS)
	expect 'what is built' "$(cd "$work/1" && ls)" "SHA256SUMS
caddy-throttle_0.1.0_amd64.deb
caddy-throttle_0.1.0_amd64.rpm
caddy-throttle_0.1.0_armv7.deb
caddy-throttle_0.1.0_armv7.rpm
caddy-throttle_0.1.0_linux_amd64.tar.gz
caddy-throttle_0.1.0_linux_armv7.tar.gz
caddy-throttle_0.1.0_windows_amd64.tar.gz
notes"
	if ! command -v dpkg-deb >/dev/null; then
		echo 'SKIPPED: what is in the .deb, which needs dpkg-deb'
		return
	fi
	local deb=$work/1/caddy-throttle_0.1.0_armv7.deb
	# shellcheck disable=SC2016 # dpkg-deb fills in the fields
	expect 'the fields of the .deb' "$(dpkg-deb --show --showformat '${Package} ${Version} ${Architecture}' "$deb")" 'caddy-throttle 0.1.0 armhf'
	expect 'the scripts of the .deb' "$(dpkg-deb --ctrl-tarfile "$deb" | tar --list | sort | xargs)" './control ./md5sums ./postinst ./postrm ./preinst ./prerm ./triggers'
	expect 'the files of the .deb' "$(dpkg-deb --fsys-tarfile "$deb" | tar --list | grep -v '/$' | sort)" './usr/bin/caddy.throttle
./usr/share/caddy-throttle/Caddyfile
./usr/share/caddy-throttle/caddy.service
./usr/share/doc/caddy-throttle/CHANGELOG.md
./usr/share/doc/caddy-throttle/Caddyfile.example
./usr/share/doc/caddy-throttle/copyright'
}

# test_tags looks at how the tags of a release are pushed: that of the program alone.
test_tags() {
	git clone --quiet --no-tags . "$work/clone"
	[[ $("$work/clone/dist/modules.sh" tag) == *' && git push origin v'* ]] || fail 'the tag that starts the release is pushed with more than two others'
}

# fresh makes a system of a release, or takes a kept one.
fresh() {
	local root=$1 release=$2
	[[ ! -e $root/ready ]] || return 0
	debootstrap --variant=minbase --include=ca-certificates,curl,iproute2 "$release" "$root" >"$work/log" || fail "$(tail -20 "$work/log")"
	chroot "$root" apt-get -qq update
	# What Debian's caddy needs; it is installed later, without a network.
	chroot "$root" apt-get -qq install -y --no-install-recommends media-types libnss3-tools >"$work/log" 2>&1
	chroot "$root" apt-get -qq install -y --no-install-recommends --download-only caddy >"$work/log" 2>&1
	touch "$root/ready"
}

# upgraded makes the same package with a higher version.
upgraded() {
	dpkg-deb --raw-extract "$1" "$work/raw"
	sed -i 's/^Version: .*/Version: 99.0.0/' "$work/raw/DEBIAN/control"
	dpkg-deb --build --root-owner-group -Znone "$work/raw" "$2" >"$work/log"
}

# test_release runs dist/lifecycle.sh in a system that is forgotten afterwards, with
# processes and a network of its own.
test_release() {
	local release=$1 mode root=$CHROOTS/$1
	mkdir -p "$work/system"
	fresh "$root" "$release"
	for mode in beside alone diverted; do
		echo "== $release, $mode"
		# shellcheck disable=SC2016 # the inner shell expands
		unshare --mount --net --pid --ipc --fork bash -euc '
			work=$1 root=$2 mode=$3 dist=$4
			mount -t tmpfs -o mode=755 system "$work/system"
			mkdir "$work/system/"{upper,work,root}
			mount -t overlay -o "lowerdir=$root,upperdir=$work/system/upper,workdir=$work/system/work" system "$work/system/root"
			cd "$work/system/root"
			mount -t proc proc proc
			mount -t tmpfs run run
			mkdir -p packages run/systemd/system
			echo 127.0.0.1 localhost >etc/hosts
			cp "$work"/{old,new}.deb "$dist/lifecycle.sh" packages
			install -m 755 "$dist/systemctl.sh" usr/bin/systemctl
			chroot . /packages/lifecycle.sh "$mode"
		' bash "$work" "$root" "$mode" "$PWD/dist"
	done
}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
GOWORK=off go tool -modfile="$PWD/dist/go.mod" actionlint .github/workflows/*
# It would install the first patch of Go, with holes that later ones have closed.
! grep --line-number go-version-file .github/workflows/* || fail 'name the minor of Go instead'
test_contents
test_tags
if (($#)); then
	CHROOTS=${CHROOTS:-$work}
	if [[ -z ${DEB-} ]]; then
		OUT=$work/real dist/build.sh linux/amd64
		DEB=$(echo "$work"/real/*.deb)
	fi
	cp "$DEB" "$work/old.deb"
	upgraded "$work/old.deb" "$work/new.deb"
	for release in "$@"; do
		test_release "$release"
	done
fi
echo 'The packages pass.'
