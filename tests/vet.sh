#!/usr/bin/env bash
# go vet -vettool=tests/vet.sh, which looks at the packages it is asked about and not at
# everything they import. go vet looks there for functions that only call Printf or never
# return; to type-check a thousand packages for that takes as long as to compile them.
set -euo pipefail
LC_ALL=C # or a match in a long text is slow
vet=${VET:-$(go tool -n vet)}
config=${*: -1}
if [[ $config == -V=full ]]; then # by which Go tells results in its cache apart
	echo "vet.sh version 1 of $("$vet" -V=full)"
	exit
fi
if [[ $config == *.cfg ]]; then
	text=$(<"$config")
	if [[ $text == *'"VetxOnly": true'* && $text =~ '"VetxOutput": "'([^\"]+)\" ]]; then
		: >"${BASH_REMATCH[1]}"
		exit
	fi
fi
exec "$vet" "$@"
