#!/usr/bin/env bash
# Instructions of the hit paths, counted by callgrind: a regression check that noise cannot move.
#
#   benches/instructions.sh [--require] [--update]
#
# benches/instructions.txt has the most instructions that each path may take. A path that takes more fails the check.
# --update writes new bounds, a tenth above what this build takes. --require fails where valgrind is missing; without it,
# nothing is counted then. Takes half a minute after the build.
set -euo pipefail
cd "$(dirname "$0")/.."
bounds=benches/instructions.txt
update='' require=''
for option in "$@"; do
    case $option in
        --update) update=1 ;;
        --require) require=1 ;;
        *) echo "unknown option $option" >&2; exit 2 ;;
    esac
done
if ! command -v valgrind > /dev/null; then
    echo "valgrind is not here: nothing counted"
    [ -z "$require" ]
    exit
fi
cargo build --release -q -p headwater-bench --example hit_path_instructions
program="${CARGO_TARGET_DIR:-target}/release/examples/hit_path_instructions"
counted=$(mktemp -d)
trap 'rm -rf "$counted"' EXIT

few=1000 many=21000

# all_instructions POLICY WORK COUNT: of one whole run.
all_instructions() {
    valgrind --tool=callgrind --callgrind-out-file=/dev/null "$program" "$@" 2>&1 |
        sed -n 's/.*Collected : \([0-9]*\).*/\1/p'
}

# What two runs differ by is the work alone. Both at once: what another process does changes no count.
instructions() {
    all_instructions "$1" "$2" $few > "$counted/few" &
    all_instructions "$1" "$2" $many > "$counted/many"
    wait $!
    echo $((($(cat "$counted/many") - $(cat "$counted/few")) / (many - few)))
}

status=0
{
    echo "# The most instructions of each hit path: POLICY WORK BOUND. Written by benches/instructions.sh --update."
    echo "# The yardstick is the C library's 64-byte pair, and not judged."
} > "$counted/bounds"
while read -r policy work; do
    now=$(instructions "$policy" "$work")
    bound=$(sed -n "s/^$policy $work //p" $bounds)
    verdict="at most $bound"
    if [ "$work" = malloc ]; then
        verdict="the yardstick"
    elif [ -z "$bound" ]; then
        verdict="no bound in $bounds"
        status=1
    elif [ "$now" -gt "$bound" ]; then
        verdict="MORE THAN $bound"
        status=1
    fi
    printf '%-8s %-14s %6d instructions, %s\n' "$policy" "$work" "$now" "$verdict"
    echo "$policy $work $(((now * 11 + 9) / 10))" >> "$counted/bounds"
done <<'PATHS'
binned malloc
binned pair
binned pair_large
binned record_stream
paged pair
paged pair_large
paged record_stream
classic pair
classic pair_large
classic record_stream
PATHS
if [ -n "$update" ]; then
    grep -v ' malloc ' "$counted/bounds" > $bounds
    echo "written to $bounds"
    exit 0
fi
exit $status
