#!/bin/sh
# Opens the simulator's report in a real browser and looks at what is drawn. The
# browser is Debian's Chromium, the driver playwright-core in a cache outside the
# checkout; both are installed once.
#
# Usage: test/browser/run.sh
set -eu
cd "$(dirname "$0")"

version=1.65.1
cache="${EPP_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/epp}/playwright-core-$version"

die() {
	echo "test/browser: $*" >&2
	exit 1
}

out=$(mktemp -d)
tmp=
trap 'rm -rf "$out" "$tmp"' EXIT

browser() { command -v chromium || command -v chromium-browser || command -v google-chrome; }
if ! browser >/dev/null; then
	[ "$(id -u)" = 0 ] && command -v apt-get >/dev/null || die "Chromium is missing: install the package chromium"
	apt-get update -q >&2
	DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends chromium fonts-dejavu-core >&2
fi
if [ ! -d "$cache" ]; then
	mkdir -p "$(dirname "$cache")"
	tmp=$(mktemp -d "$cache.XXXXXX")
	npm install --silent --no-audit --no-fund --prefix "$tmp" "playwright-core@$version" >&2 || die "npm install playwright-core@$version did not work; is the registry reachable?"
	[ -d "$cache" ] || mv "$tmp" "$cache"
fi

go build -o "$out/epp" ../../cmd/epp
"$out/epp" sim --generate chat --requests 1500 --profile a100-8b --policy weighted,latency,random --pods 5 --html "$out/report.html" >"$out/table"
NODE_PATH="$cache/node_modules" CHROMIUM="$(browser)" node page.cjs "$out/report.html" "$out/table"
