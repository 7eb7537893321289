#!/usr/bin/env bash
# Measures the proxy beside sglang-router and a straight connection: builds the
# picker and the client, fetches the Qwen3 tokenizer, installs sglang-router's wheel
# unless SGLANG_ROUTER names its program, and prints the machine and a table for
# bench/RESULTS.md. Linux; takes about a minute.
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
router=${SGLANG_ROUTER:-}
if [ -z "$router" ]; then
	python3 -m venv "$bin/venv"
	"$bin/venv/bin/pip" install --quiet --disable-pip-version-check sglang-router==0.3.2
	router=$bin/venv/bin/sglang-router
fi

cpu=$(sed -n 's/^model name[[:space:]]*: //p' /proc/cpuinfo | head -n 1)
echo "$cpu, $(nproc) cores; $(go version | cut -d' ' -f3); load before $(cut -d' ' -f1-3 /proc/loadavg)"
echo
"$bin/proxyload" --epp "$bin/epp" --tokenizer "$tokenizer" --corpus "$(go env GOROOT)/src/net/http" --sglang-router "$router" "$@"
echo
echo "load after $(cut -d' ' -f1-3 /proc/loadavg)"
