#!/usr/bin/env bash
# Measures throttle beside other limiters. README.md says what, and how.
#
#	./run.sh --guard            fail if memstore has lost ground to x/time/rate
#	./run.sh --guard --update   commit to what it measures now
set -euo pipefail
cd "$(dirname "$0")"

case "$*" in
--guard) exec go test -count=1 -run '^TestGuard$' -v . -guard ;;
'--guard --update') exec go test -count=1 -run '^TestGuard$' -v . -guard.update ;;
*)
	sed -n '2,/^set/s/^# \{0,1\}//p' "$0" >&2
	exit 2
	;;
esac
