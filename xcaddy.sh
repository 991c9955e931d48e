#!/usr/bin/env bash
# Builds ./caddy with this checkout's throttle, all its guests and all its stores:
#
#	./xcaddy.sh        build
#	./xcaddy.sh run    build, then run Caddyfile.example
#
# It uses xcaddy if that is in PATH. Otherwise, or if xcaddy fails, it uses plain
# `go build`, with the same result.
set -euo pipefail
cd "$(dirname "$0")"

module=github.com/caddy-throttle/caddy-throttle
tags=nobadger,nomysql,nopgx
export GOWORK=off # or what the tests require would choose what is built

fail() {
	echo "xcaddy.sh: $*" >&2
	exit 1
}

build_with_xcaddy() {
	local version part replace=()
	version=$(go list -m -f '{{.Version}}' github.com/caddyserver/caddy/v2) || return
	# xcaddy does not heed what go.mod replaces.
	for part in '' /leakybucket /leakybucket/memcachedstore /leakybucket/pgstore /leakybucket/redisstore /leakybucket/sharedstore; do
		replace+=(--replace "$module$part=$PWD$part")
	done
	XCADDY_GO_BUILD_FLAGS="-trimpath -ldflags '$ldflags' -tags $tags" xcaddy build "$version" --with "$module/caddymodule/standard" "${replace[@]}" --output "$PWD/caddy"
}

build_plainly() {
	go build -buildvcs=false -trimpath -ldflags "$ldflags" -tags "$tags" -o caddy ./caddymodule/cmd/caddy
}

case ${1-build} in
build | run) ;;
*) fail "unknown argument \"$1\": want none, or run" ;;
esac

if ! command -v go >/dev/null; then
	[[ -x /usr/local/go/bin/go ]] || fail 'no Go in PATH: install Go 1.26 or newer from https://go.dev/dl/'
	PATH=$PATH:/usr/local/go/bin
fi
ldflags='-w -s'
echo 'xcaddy.sh: building ./caddy, which takes some minutes the first time' >&2
# xcaddy asks the module proxy whether caddymodule/ is a module by itself, which
# fails without a network and where the proxy refuses instead of saying no.
if ! command -v xcaddy >/dev/null; then
	build_plainly
elif ! build_with_xcaddy; then
	echo 'xcaddy.sh: xcaddy failed, see above; building with go build' >&2
	build_plainly
fi

if [[ ${1-} == run ]]; then
	exec ./caddy run --config Caddyfile.example --adapter caddyfile
fi
