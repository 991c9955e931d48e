#!/usr/bin/env bash
# Prints the version of this checkout: 0.1.0 at the tag v0.1.0, and elsewhere one that
# sorts below all releases, with the time of the commit and its name.
set -euo pipefail
cd "$(dirname "$0")/.."

if ! tag=$(git describe --tags --exact-match --match 'v[0-9]*' 2>/dev/null); then
	tag=$(TZ=UTC git log -1 --abbrev=12 --date=format-local:%Y%m%d%H%M%S --format=v0.0.0-%cd.g%h)
fi
if [[ $(git status --porcelain) ]]; then
	tag+=.changed
fi
echo "${tag#v}"
