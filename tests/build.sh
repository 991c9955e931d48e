#!/usr/bin/env bash
# Builds Caddy with this checkout's module, and prints where it is: in Go's build cache, where
# each package of tests finds it linked.
#
# Without -trimpath, so that packages compiled by `go vet` are used again, and without go.work,
# so that what the tests require chooses nothing that ships.
set -euo pipefail
cd "$(dirname "$0")/.."

run() {
	GOWORK=off go run -buildvcs=false -ldflags='-w -s' -tags=nobadger,nomysql,nopgx -exec="$1" ./caddymodule/cmd/caddy
}

# One at a time, for two packages are tested at once.
exec 9<tests/build.sh
flock 9 2>/dev/null || true # which macOS lacks
run true # links it into the cache, unless it is there
run echo
