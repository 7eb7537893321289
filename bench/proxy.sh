#!/usr/bin/env bash
# Measures the proxy beside a straight connection, the floor, sglang-router and smg:
# builds the picker and the client, fetches the Qwen3 tokenizer, installs the peers'
# wheels unless SGLANG_ROUTER and SMG name their programs, and prints the machine and a
# table for bench/RESULTS.md. Linux; takes about two minutes.
#
# Usage: bench/proxy.sh [flags of bench/proxyload …]    e.g. --rounds 1 --for 1s
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

tokenizer=$(test/fetch-tokenizers.sh qwen3)
bin=$(mktemp -d)
trap 'rm -rf "$bin"' EXIT
for command in ./cmd/epp ./bench/proxyload; do
	CGO_ENABLED=0 go build -buildvcs=false -trimpath -o "$bin/" "$command"
done
# install NAME VERSION prints the program's path; each has a place of its own.
install() {
	python3 -m venv "$bin/$1"
	"$bin/$1/bin/pip" install --quiet --disable-pip-version-check "$1==$2" >&2
	echo "$bin/$1/bin/$1"
}
router=${SGLANG_ROUTER:-$(install sglang-router 0.3.2)}
smg=${SMG:-$(install smg 1.13.0)}

cpu=$(sed -n 's/^model name[[:space:]]*: //p' /proc/cpuinfo | head -n 1)
echo "$cpu, $(nproc) cores; $(go version | cut -d' ' -f3); load before $(cut -d' ' -f1-3 /proc/loadavg)"
echo
"$bin/proxyload" --epp "$bin/epp" --tokenizer "$tokenizer" --corpus "$(go env GOROOT)/src/net/http" --sglang-router "$router" --smg "$smg" "$@"
echo
echo "load after $(cut -d' ' -f1-3 /proc/loadavg)"
