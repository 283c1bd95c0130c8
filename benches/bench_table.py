#!/usr/bin/env python3
"""Turns the lines of `headwater bench --json` into tables; with `--docs PAGE --mark NAME`, puts them into that page.

`bench_table.py RESULT.jsonl [--note TEXT]... [--docs docs/benchmarks.md --mark h200-host]`. Only the standard library.

In the page, everything between `<!-- bench NAME: begin -->` and `<!-- bench NAME: end -->` is replaced.
"""

import argparse
import json
import pathlib
import sys

THREADS = {"threads": "own stream each", "threads_shared": "one shared stream", "threads_handover": "one half gives back"}


def human(size):
    for unit, name in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit and size % unit == 0:
            return f"{size // unit} {name}"
    return f"{size:,} B" if size else "mixed"


def number(value):
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}"


def table(heads, lines):
    text = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    return "\n".join(text + ["| " + " | ".join(line) + " |" for line in lines])


def markdown(rows, notes):
    malloc = next((row["ns"] for row in rows if row["allocator"] == "malloc"), None)
    rows = [row for row in rows if row["allocator"] != "malloc"]
    names = list(dict.fromkeys(row["allocator"] for row in rows))
    parts = ["\n".join(f"- {note}" for note in notes)] if notes else []
    if malloc:
        parts.append(f"The yardstick, malloc and free of 64 bytes: {number(malloc)} ns. Beside a time, how many of it that is.")

    def cell(row, figure="ns"):
        if row is None or not row[figure]:
            return "-"
        ratio = f" ({row[figure] / malloc:.1f})" if malloc and figure == "ns" and row["bench"] == "pair" else ""
        return number(row[figure]) + ratio

    def find(bench, size, threads, name):
        wanted = (bench, size, threads, name)
        return next((row for row in rows if (row["bench"], row["size"], row["threads"], row["allocator"]) == wanted), None)

    single = [row for row in rows if not row["bench"].startswith("threads")]
    keys = list(dict.fromkeys((row["bench"], row["size"], row["threads"]) for row in single))
    lines = [[key[0], human(key[1]) + (f", {key[2]} threads" if key[2] > 1 else "")]
             + [cell(find(*key, name)) for name in names] for key in keys]
    parts.append("**Nanoseconds an operation, best round**\n\n" + table(["bench", "size", *names], lines))
    lines = [[key[0], human(key[1])] + [cell(find(*key, name), "p999") for name in names] for key in keys
             if any((find(*key, name) or {}).get("p999") for name in names)]
    parts.append("**p99.9 of single operations, ns**\n\n" + table(["bench", "size", *names], lines))
    many = [row for row in rows if row["bench"] in THREADS]
    counts = sorted({row["threads"] for row in many})
    kinds = list(dict.fromkeys((row["allocator"], row["bench"], row["size"]) for row in many))
    lines = [[name, f"{human(size)}, {THREADS[bench]}"]
             + [cell(find(bench, size, count, name), "mops") for count in counts] for name, bench, size in kinds]
    if lines:
        heads = ["allocator", "work", *(f"{count} thread{'s' if count > 1 else ''}" for count in counts)]
        parts.append("**Million calls a second, all threads together**\n\n" + table(heads, lines))
    return "\n\n".join(parts) + "\n"


def replace_in_page(page, mark, text):
    begin_mark, end_mark = (f"<!-- bench {mark}: {side} -->" for side in ("begin", "end"))
    before, begin, rest = page.read_text(encoding="utf-8").partition(begin_mark)
    _, end, after = rest.partition(end_mark)
    if not begin or not end:
        sys.exit(f"{page} has no `{begin_mark}` and `{end_mark}`")
    page.write_text(f"{before}{begin_mark}\n\n{text}\n{end_mark}{after}", encoding="utf-8")


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("result", type=pathlib.Path)
    arguments.add_argument("--note", action="append", default=[], help="a fact about the machine or the run")
    arguments.add_argument("--docs", type=pathlib.Path)
    arguments.add_argument("--mark", default="h200-host")
    options = arguments.parse_args()
    lines = options.result.read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines if line.startswith("{")]
    if not rows:
        sys.exit(f"{options.result} has no rows")
    text = markdown(rows, options.note)
    if options.docs:
        replace_in_page(options.docs, options.mark, text)
    else:
        print(text)


if __name__ == "__main__":
    main()
