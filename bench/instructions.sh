#!/bin/sh
# Counts the instructions and allocations of the core benchmarks and compares
# them with bench/instructions.txt: more allocations, or over 10 % more
# instructions, fail. With --write it writes that file instead.
#
# valgrind counts, so the figures hardly depend on the machine or on what else
# runs there; two runs differ by under 1 %. What is counted is the difference
# between few and many repetitions, so start and setup do not count.
# The baseline is of one Go release and of amd64; another release is compared all
# the same, and said. Needs: go, and valgrind, which root gets by apt-get.
set -eu
cd "$(dirname "$0")/.."
baseline=bench/instructions.txt
tolerance=10 # percent
few=100 many=300

if ! command -v valgrind >/dev/null; then
	if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
		echo "valgrind is missing: apt-get install valgrind" >&2
		exit 1
	fi
	apt-get update -q
	DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends valgrind
fi
now=$(go version | cut -d' ' -f3,4)
then=$(sed -n 's/^# \(go1.*\)/\1/p' $baseline)
if [ "${1:-}" != --write ] && [ "$now" != "$then" ]; then
	echo "this is $now, the baseline is of $then: compared all the same; bench/instructions.sh --write makes it anew"
fi

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
CGO_ENABLED=0 GOAMD64=v1 go build -o "$dir/work" ./bench/instructions

# count WORK TIMES prints the instructions of that many repetitions.
count() {
	GODEBUG=asyncpreemptoff=1 GOMAXPROCS=1 GOGC=off valgrind --tool=callgrind \
		--callgrind-out-file=/dev/null "$dir/work" "$1" "$2" 2>&1 >"$dir/allocs" | sed -n 's/.*Collected : //p'
}

for work in $("$dir/work"); do
	less=$(count "$work" $few)
	more=$(count "$work" $many)
	echo "$work $(((more - less) / (many - few))) $(cat "$dir/allocs")"
done >"$dir/now"

if [ "${1:-}" = --write ]; then
	{
		echo "# work, instructions, allocations; written by bench/instructions.sh --write"
		echo "# $now"
		cat "$dir/now"
	} >$baseline
	cat $baseline
	exit
fi

awk -v tolerance=$tolerance '
	/^#/ { next }
	NR == FNR { instructions[$1] = $2; allocations[$1] = $3; next }
	{
		verdict = "ok"
		if (!($1 in instructions)) verdict = "not in the baseline"
		else if ($3 > allocations[$1]) verdict = "more allocations than " allocations[$1]
		else if ($2 > instructions[$1] * (1 + tolerance / 100)) verdict = "over " tolerance " % more instructions"
		if (verdict != "ok") failed = 1
		printf "%-12s %9d instructions (%+.1f %%) %3d allocations: %s\n", $1, $2,
			$1 in instructions ? ($2 / instructions[$1] - 1) * 100 : 0, $3, verdict
	}
	END { exit failed }' $baseline "$dir/now"
