#!/usr/bin/env bash
# Versions of the modules of this repository. They all have the same:
#
#	dist/modules.sh tag     tag the last commit with what its go.mod require, in order
#	dist/modules.sh test    build from a module proxy in a folder, as users do who have no
#	                        checkout: it has the tags that a clone of the last commit gets
set -euo pipefail
cd "$(dirname "$0")/.."

module=github.com/caddy-throttle/caddy-throttle
modules=(/leakybucket /leakybucket/redisstore /leakybucket/pgstore /leakybucket/memcachedstore /leakybucket/sharedstore '') # each behind those that it requires

fail() {
	echo "dist/modules.sh: $*" >&2
	exit 1
}

# version prints the one version that the modules require of each other.
version() {
	local all files=("${modules[@]/%//go.mod}")
	all=$(sed -nE "s|^(require )?[[:space:]]*$module/leakybucket[^ ]* (v[^ ]+)$|\2|p" "${files[@]/#/.}" | sort -u)
	[[ $all =~ ^v[0-9.]+$ ]] || fail "want one version that the modules require of each other: got ${all//$'\n'/, }"
	echo "$all"
}

tag() {
	local part tags=()
	[[ -z $(git status --porcelain) ]] || fail 'commit first'
	for part in "${modules[@]}"; do
		part=${part#/}
		git tag "${part:+$part/}$version"
		tags+=("${part:+$part/}$version")
	done
	# GitHub runs no workflow for tags of which more than three are pushed at once.
	echo "git push origin ${tags[*]::${#tags[@]}-1} && git push origin $version"
}

# proxy writes what a module proxy would serve of the tags.
proxy() {
	local part inner to tag
	for part in "${modules[@]}"; do
		to=$1/$module$part/@v tag=${part:+${part#/}/}$version
		mkdir -p "$to"
		echo "$version" >"$to/list"
		printf '{"Version":"%s"}' "$version" >"$to/$version.info"
		cp ".$part/go.mod" "$to/$version.mod"
		# A module has no folders in which others begin.
		mapfile -t inner < <(cd ".$part" && git ls-files '*/go.mod' | sed 's|\(.*\)/go.mod|:!\1|')
		(cd ".$part" && git archive --format=zip -1 --prefix="$module$part@$version/" --output="$to/$version.zip" "$tag" . "${inner[@]}")
	done
}

# outside writes a program that uses nothing but Go modules, and imports the given packages.
outside() {
	printf 'package main\n\nimport (\n' >main.go
	printf '\t_ "%s"\n' github.com/jackc/pgx/v5 github.com/prometheus/client_golang/prometheus golang.org/x/net/idna "$@" >>main.go
	printf ')\n\nfunc main() {}\n' >>main.go
}

test_library() {
	mkdir "$work/outside"
	cd "$work/outside"
	cat >go.mod <<-END
		module example.com/outside

		go 1.25

		require (
			github.com/jackc/pgx/v5 v5.5.0
			github.com/prometheus/client_golang v1.17.0
			golang.org/x/net v0.20.0
		)
	END
	outside
	go mod tidy
	cp go.mod ../before
	outside $module/leakybucket/memstore $module/leakybucket/httplimit
	go mod tidy
	diff --unified=0 ../before go.mod | tail -n +4 >../moved || true
	cat ../moved
	[[ $(<../moved) == "+	$module/leakybucket $version" ]] || fail 'the library moves other lines of a go.mod'
	go build -o outside .
	cd - >/dev/null
}

# test_stores gets each module by itself, and builds what a program would import of it.
test_stores() {
	local part
	mkdir "$work/stores"
	cd "$work/stores"
	go mod init example.com/stores
	for part in redisstore pgstore memcachedstore sharedstore; do
		go get "$module/leakybucket/$part@$version"
		go build "$module/leakybucket/$part"
	done
	cd - >/dev/null
}

test_xcaddy() {
	local caddy
	caddy=$(go list -m -f '{{.Version}}' github.com/caddyserver/caddy/v2)
	mkdir "$work/xcaddy"
	(
		cd "$work/xcaddy"
		"$work/tool" build "$caddy" --with "$module/caddymodule/standard@$version" --output caddy
		./caddy list-modules --versions | grep throttle
		./caddy list-modules | grep throttle.stores.postgres >/dev/null # to its end, or Caddy gets a SIGPIPE
	)
}

version=$(version)
case ${1-} in
tag) tag ;;
test)
	work=$(mktemp -d)
	trap 'chmod -R u+w "$work"; rm -rf "$work"' EXIT
	GOWORK=off go build -modfile=dist/go.mod -o "$work/tool" github.com/caddyserver/xcaddy/cmd/xcaddy
	git clone --quiet --no-tags . "$work/clone"
	cd "$work/clone"
	tag
	proxy "$work/proxy"
	GOPROXY="file://$work/proxy,file://$(go env GOMODCACHE)/cache/download,$(go env GOPROXY)"
	export GOPROXY GOWORK=off GONOSUMDB=$module GOFLAGS=-buildvcs=false GOMODCACHE="$work/cache"
	export XCADDY_GO_BUILD_FLAGS="-trimpath -ldflags '-w -s' -tags nobadger,nomysql,nopgx"
	test_library
	test_stores
	test_xcaddy
	echo 'The modules pass.'
	;;
*)
	sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$0" >&2
	exit 2
	;;
esac
