#!/usr/bin/env bash
# Builds and tests the core without its guests: for Go, their files do not exist. The modules of
# the shared stores are built, and tested elsewhere.
#
#	tests/core.sh [flags of go test]
set -euo pipefail
cd "$(dirname "$0")/.."

export GOFLAGS=-tags=nobadger,nomysql,nopgx
overlay=$(mktemp)
trap 'rm "$overlay"' EXIT
find "$PWD"/caddymodule/{command,cli,inspector,crawler,listener,seen,tune,memcached,standard,cmd} -name '*.go' |
	jq --raw-input '{key: ., value: ""}' | jq --slurp '{Replace: from_entries}' >"$overlay"
go build -overlay "$overlay" ./caddymodule/...
mapfile -t packages < <(go list -overlay "$overlay" ./caddymodule/... ./internal/swarm | grep -Ev '/caddymodule/(redis|postgres)$')
go test -vet=off -overlay "$overlay" "$@" "${packages[@]}"
