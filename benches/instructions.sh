#!/usr/bin/env bash
# Instructions of the hit paths, counted by callgrind: a regression check that noise cannot move.
# Compares with benches/instructions.txt and fails where a path needs more than a tenth more.
# `benches/instructions.sh --update` writes the numbers of this build.
set -euo pipefail
cd "$(dirname "$0")/.."
if ! command -v valgrind > /dev/null; then
    echo "valgrind is not here: nothing counted"
    exit 0
fi
cargo build --release -q -p headwater-bench --example hit_path_instructions
program="${CARGO_TARGET_DIR:-target}/release/examples/hit_path_instructions"
counted=$(mktemp)
trap 'rm -f "$counted"' EXIT

instructions() { # WORK COUNT: all instructions of one run
    valgrind --tool=callgrind --callgrind-out-file=/dev/null "$program" "$1" "$2" 2>&1 |
        sed -n 's/.*Collected : \([0-9]*\).*/\1/p'
}

for work in malloc pair record_stream; do
    few=$(instructions "$work" 10000)
    many=$(instructions "$work" 110000)
    echo "$work $(((many - few) / 100000))" >> "$counted"
done

if [ "${1:-}" = "--update" ]; then
    cp "$counted" benches/instructions.txt
    cat "$counted"
    exit 0
fi
status=0
while read -r work now; do
    before=$(sed -n "s/^$work //p" benches/instructions.txt)
    verdict=ok
    # The yardstick is the C library's, not ours: shown, not judged.
    if [ "$work" != malloc ] && [ $((now * 10)) -gt $((before * 11)) ]; then
        verdict="more than a tenth more than $before"
        status=1
    fi
    echo "$work: $now instructions, $verdict"
done < "$counted"
exit $status
