#!/usr/bin/env bash
# Builds and tests the last commit with the newest patches of the last two minors of Caddy,
# or with the versions that are named:
#
#	dist/caddy-versions.sh [v2.11.9]...
#
# A Caddy older than that of go.mod is left out: nobody can build throttle with it, because
# Go takes the latter instead.
set -euo pipefail
cd "$(dirname "$0")/.."

caddy=github.com/caddyserver/caddy/v2
export GOFLAGS='-trimpath -buildvcs=false -tags=nobadger,nomysql,nopgx' GOWORK=off

# last_minors prints the newest patch of each of the last two minors.
last_minors() {
	go list -m -versions -f '{{join .Versions "\n"}}' $caddy | grep --invert-match -e - | sort --version-sort |
		awk -F. '{newest[$2] = $0} END {for (minor in newest) print newest[minor]}' | sort --version-sort | tail -2
}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
git archive HEAD | tar --extract --directory "$work"
cd "$work"
least=$(go list -m -f '{{.Version}}' $caddy)
versions=("$@")
[[ $# -gt 0 ]] || mapfile -t versions < <(last_minors)
for version in "${versions[@]}"; do
	if [[ $(printf '%s\n' "$version" "$least" | sort --version-sort | head -1) != "$least" ]]; then
		echo "== Caddy $version: left out, because go.mod requires $least"
		continue
	fi
	echo "== Caddy $version"
	go get $caddy@"$version"
	go mod tidy
	go build -o caddy ./caddymodule/cmd/caddy
	./caddy version
	go test -short ./caddymodule/...
done
