#!/bin/sh
# Writes the Envoy configurations of this folder anew: every mode and upstream,
# fail-closed, and one that is fail-open.
set -eu
cd "$(dirname "$0")"

write() { # file, configuration, further flags
	file=$1 config=$2
	shift 2
	go run ../../cmd/epp envoy-config --config "$config" "$@" >"$file"
}

for mode in buffered streamed full-duplex; do
	write $mode-original-dst.yaml epp.yaml --mode $mode --upstream original-dst
	write $mode-override-host.yaml epp-fallbacks.yaml --mode $mode --upstream override-host
done
write buffered-override-host-fail-open.yaml epp-fallbacks.yaml --mode buffered --upstream override-host --fail-open
