#!/usr/bin/env bash
# Builds, vets and tests the core without its guests: for Go, their files do not exist.
#
#	tests/core.sh [flags of go test]
set -euo pipefail
cd "$(dirname "$0")/.."

export GOFLAGS=-tags=nobadger,nomysql,nopgx
overlay=$(mktemp)
trap 'rm "$overlay"' EXIT
find "$PWD"/caddymodule/{inspector,crawler,listener,tune,standard,cmd} -name '*.go' |
	jq --raw-input '{key: ., value: ""}' | jq --slurp '{Replace: from_entries}' >"$overlay"
mapfile -t packages < <(go list -overlay "$overlay" ./caddymodule/... ./internal/swarm)
go vet -overlay "$overlay" "${packages[@]}"
go test -vet=off -overlay "$overlay" "$@" "${packages[@]}"
