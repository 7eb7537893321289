#!/usr/bin/env bash
# Measures what a decision costs behind ext_proc, beside the floor: builds the
# picker, the floor and the load client, fetches the Qwen3 tokenizer, and prints
# the machine and a table for bench/RESULTS.md. Linux; takes about four minutes.
#
# Usage: bench/extproc.sh [flags of bench/extload …]    e.g. --rounds 1 --for 1s
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

tokenizer=$(test/fetch-tokenizers.sh qwen3)
bin=$(mktemp -d)
trap 'rm -rf "$bin"' EXIT
for command in ./cmd/epp ./bench/nullepp ./bench/extload; do
	CGO_ENABLED=0 go build -buildvcs=false -trimpath -o "$bin/" "$command"
done

cpu=$(sed -n 's/^model name[[:space:]]*: //p' /proc/cpuinfo | head -n 1)
echo "$cpu, $(nproc) cores; $(go version | cut -d' ' -f3); grpc $(go list -m -f '{{.Version}}' google.golang.org/grpc); load before $(cut -d' ' -f1-3 /proc/loadavg)"
echo
"$bin/extload" --epp "$bin/epp" --nullepp "$bin/nullepp" --tokenizer "$tokenizer" --corpus "$(go env GOROOT)/src/net/http" "$@"
echo
echo "load after $(cut -d' ' -f1-3 /proc/loadavg)"
