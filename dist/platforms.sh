#!/usr/bin/env bash
# Vets everything for the platforms that are not Linux, and compiles the unit tests. They
# are not run: that needs the platform itself. What a platform lacks is in files with its
# name, and tests/ needs Linux.
#
#	dist/platforms.sh [windows|darwin|freebsd]...
set -euo pipefail
cd "$(dirname "$0")/.."

export CGO_ENABLED=0 GOFLAGS='-trimpath -buildvcs=false -tags=nobadger,nomysql,nopgx'
platforms=(windows darwin freebsd)
for os in "${@:-${platforms[@]}}"; do
	echo "== $os"
	GOOS=$os go vet ./...
	GOOS=$os go test -c -o /dev/null ./...
done
