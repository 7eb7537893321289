#!/usr/bin/env bash
# Measures rows 1 to 9 and 11 of the budgets, one after another on the same machine,
# prints one table of them and keeps it in bench/RESULTS.md. What each program prints
# of its own, and how far it is, goes to standard error. Linux; takes about ten minutes.
#
# Usage: bench/all.sh [flags of bench/table …]    e.g. -dynamo PATH -rows 1,5
# ROUNDS and LENGTH, by default 3 and 1s, are those of the measurements over sockets.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

found=$(mktemp -d)
trap 'rm -rf "$found"' EXIT
figures=$found/figures
rounds=${ROUNDS:-3} length=${LENGTH:-1s}
say() { echo "$(date -u +%H:%M:%S) $*" >&2; }

say "rows 7 and 9: tokens and events"
go test -run '^$' -bench '^BenchmarkAppend$/./^(new|flushed)$' -benchtime 500ms -count 3 ./tokenize/bpe >"$found/benchmarks"
go test -run '^$' -bench '^BenchmarkTurn$' -benchtime 500ms -count 3 ./tokenize >>"$found/benchmarks"
go test -run '^$' -bench '^Benchmark(Decode16Blocks|Messages)$' -benchtime 500ms -count 5 ./kvevents >>"$found/benchmarks"
say "row 11: memory"
make build >&2 # as it is shipped: other flags leave more in it
go run ./bench/memory --epp bin/epp --tokenizer "$(test/fetch-tokenizers.sh qwen3)" --figures "$figures" >&2
say "row 8: the proxy"
bench/proxy.sh --rounds "$rounds" --for "$length" --figures "$figures" >&2
say "row 6: ext_proc"
bench/extproc.sh --rounds "$rounds" --for "$length" --figures "$figures" >&2
say "rows 1 to 5: the core"
go run ./bench/table -figures "$figures" -benchmarks "$found/benchmarks" -results bench/RESULTS.md "$@"
