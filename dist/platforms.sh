#!/usr/bin/env bash
# Vets everything but tests/, which needs Linux, for other platforms, and compiles the unit
# tests. They are not run: that needs the platform itself.
#
#	dist/platforms.sh [windows|darwin|freebsd]...
set -euo pipefail
cd "$(dirname "$0")/.."

export CGO_ENABLED=0 GOFLAGS='-trimpath -buildvcs=false -tags=nobadger,nomysql,nopgx'
platforms=(windows darwin freebsd)
for os in "${@:-${platforms[@]}}"; do
	echo "== $os"
	mapfile -t packages < <(GOOS=$os go list work | grep -v '/tests/')
	GOOS=$os go vet "${packages[@]}"
	GOOS=$os go test -c -o /dev/null "${packages[@]}"
done
