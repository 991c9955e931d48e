#!/usr/bin/env bash
# Prints how large this checkout is, or another one: lines of code and of tests, packages,
# options, words of the documentation, and direct dependencies.
#
#	./size.sh [folder]
#
# A line of code has something on it besides a comment. Suites and tools that only tests use
# are no code here, and no tests either: storetest, servertest, golden.
set -euo pipefail
cd "${1:-$(dirname "$0")/..}"

suites='/(storetest|servertest|golden)/'
guests='^caddymodule/(command|cli|inspector|crawler|tune|listener|seen|memcached|standard|redis|postgres|cmd)/'

# files prints the Go files below folders that match the first pattern but not the second.
files() { find caddymodule leakybucket internal tests docs bench -name '*.go' | sort | grep -E "$1" | grep -Ev "$2" || true; }

# code counts the lines of files named on its input that are neither empty nor a comment.
code() {
	local names
	mapfile -t names
	((${#names[@]})) || { echo 0; return; }
	awk '
		FNR == 1 { within = 0 }
		{ gsub(/^[ \t]+/, "") }
		within { if (sub(/^.*\*\/[ \t]*/, "")) within = 0; else next }
		/^\/\// || /^$/ { next }
		/^\/\*/ { if (!sub(/^\/\*.*\*\/[ \t]*/, "")) { within = 1; next } if ($0 == "") next }
		{ n++ }
		END { print n + 0 }' "${names[@]}"
}

row() { printf '%-44s %8s\n' "$1" "$2"; }

shipped() { files "^(caddymodule|leakybucket)/.*$1" "_test\.go$|$suites"; }

row 'code, all that ships' "$(shipped '' | code)"
row '  leakybucket' "$(shipped '' | grep ^leakybucket/ | code)"
row '  the core (caddymodule without guests, stores)' "$(shipped '' | grep ^caddymodule/ | grep -Ev "$guests" | code)"
row '  guests, stores and programs' "$(shipped '' | grep -E "$guests" | code)"
for package in limit inflight; do
	if [[ -d caddymodule/internal/$package ]]; then
		row "  internal/$package" "$(shipped '' | grep "^caddymodule/internal/$package/" | code)"
	fi
done
row 'Lua and SQL' "$(find leakybucket -name '*.lua' -o -name '*.sql' | sort | xargs cat | grep -Evc '^[ \t]*(--|$)')"
row 'tests, all lines of _test.go' "$(files '_test\.go$' '^$' | xargs cat | wc -l)"
row 'suites and tools, code' "$(files "$suites" '_test\.go$' | code)"
row 'packages that ship' "$(shipped '' | xargs -n1 dirname | sort -u | wc -l)"
row 'options with a section of their own' "$(cat docs/zone-reference.md docs/in-flight*.md 2>/dev/null | grep -cE '^#{3,4} ')"
row 'words, README and docs' "$(find README.md docs -name '*.md' -exec cat {} + | wc -w)"
row 'direct dependencies of the root module' "$(sed -n '/^require (/,/^)/p' go.mod | grep -v '// indirect' | grep -c '^	')"
