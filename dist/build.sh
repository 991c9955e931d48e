#!/usr/bin/env bash
# Builds what a release has, from a clone, into dist/out:
#
#	dist/build.sh                        everything
#	dist/build.sh linux/amd64 ...        for these platforms only
#
#	caddy-throttle_VERSION_OS_ARCH.tar.gz    Caddy with throttle, its guests and its stores
#	caddy-throttle_VERSION_ARCH.deb, .rpm    the same as packages, for Linux
#	caddy-throttle_VERSION_OS_ARCH.cdx.json  what is compiled in, as CycloneDX
#	SHA256SUMS
#
# The same commit and the same Go give the same bytes. VERSION and OUT name another version
# and another folder. It needs git, Go and nothing of the network but Go's modules.
set -euo pipefail
cd "$(dirname "$0")/.."

all=(linux/amd64 linux/arm64 linux/armv7 darwin/amd64 darwin/arm64 windows/amd64 freebsd/amd64)

# tool runs a program that dist/go.mod requires.
tool() { GOOS='' GOARCH='' GOARM='' go tool -modfile="$PWD/dist/go.mod" "$@"; }

# build compiles a static program, whose build-info names the tag or the commit.
build() {
	local os=$1 arch=$2 file=$3
	CGO_ENABLED=0 GOOS=$os GOARCH=${arch%v7} GOARM=7 go build -buildvcs=true -trimpath -tags nobadger,nomysql,nopgx \
		-ldflags "-s -w" -o "$file" ./caddymodule/cmd/caddy
}

# archive packs a folder, in an order and with times and owners that are always the same.
archive() {
	tar --create --directory "$1" --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner \
		--mode=u=rwX,go=rX . | gzip -9 --no-name >"$2"
}

# packages makes a .deb and an .rpm of the program in a folder.
packages() {
	local folder=$1 arch=$2 format
	for format in deb rpm; do
		ARCH=${arch/armv7/arm7} FOLDER=$folder STAGE=$stage tool nfpm package --config dist/nfpm.yaml --packager $format \
			--target "$OUT/caddy-throttle_${VERSION}_$arch.$format"
	done
}

release() {
	local platform=$1 os=${1%/*} arch=${1#*/} name program=caddy
	name=caddy-throttle_${VERSION}_${os}_$arch
	echo "== $platform"
	[[ $os != windows ]] || program=caddy.exe
	mkdir "$stage/$name"
	if [[ ${PROGRAM-} ]]; then # a stand-in, for tests
		cp "$PROGRAM" "$stage/$name/$program"
	else
		build "$os" "$arch" "$stage/$name/$program"
		tool cyclonedx-gomod bin -json -std -noserial -notimestamp -version "v$VERSION" -output "$OUT/$name.cdx.json" "$stage/$name/$program"
	fi
	cp LICENSE CHANGELOG.md Caddyfile.example "$stage/$name"
	cp dist/Caddyfile dist/caddy.service "$stage"
	chmod -R u=rwX,go=rX "$stage"
	find "$stage" -exec touch --date="@$SOURCE_DATE_EPOCH" {} +
	archive "$stage/$name" "$OUT/$name.tar.gz"
	[[ $os != linux ]] || packages "$stage/$name" "$arch"
	rm -r "${stage:?}/$name"
}

for platform in "$@"; do
	if [[ " ${all[*]} " != *" $platform "* ]]; then
		echo "dist/build.sh: unknown platform \"$platform\": want some of ${all[*]}" >&2
		exit 1
	fi
done
VERSION=${VERSION:-$(dist/version.sh)}
OUT=$(realpath --canonicalize-missing "${OUT:-dist/out}")
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export VERSION SOURCE_DATE_EPOCH GOFLAGS='' GOWORK=off # what tests require chooses nothing here
umask 022
stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
mkdir -p "$OUT"
rm -f "$OUT"/{caddy-throttle_*,SHA256SUMS} # nothing else that a named folder has
for platform in "${@:-${all[@]}}"; do
	release "$platform"
done
cd "$OUT"
sha256sum caddy-throttle_* >SHA256SUMS
cat SHA256SUMS
