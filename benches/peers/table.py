#!/usr/bin/env python3
"""Turns the lines of a run into a table and a picture; with `--docs PAGE`, puts both into that page.

`table.py ROWS.csv [--machine MACHINE.txt] [--out DIR] [--docs docs/benchmarks.md]`. Only the standard library.

Several rounds of a contestant become their median. In the page, everything between the two marks is replaced.
"""

import argparse
import csv
import math
import pathlib
import statistics
import sys

COLUMNS = ("contestant", "bench", "size", "threads", "ns", "mean", "min", "p50", "p99", "p999", "mops")
FIGURES = COLUMNS[4:]
ORDER = (
    "headwater_paged", "headwater_binned", "headwater_classic", "torch", "torch_expandable", "rmm_pool", "rmm_arena",
    "cupy", "cudaMallocAsync", "cudaMalloc",
)
TITLES = {
    "headwater_paged": "Headwater paged", "headwater_binned": "Headwater binned",
    "headwater_classic": "Headwater classic", "headwater_direct": "Headwater direct", "torch": "PyTorch",
    "torch_expandable": "PyTorch, expandable", "rmm_pool": "RMM pool", "rmm_arena": "RMM arena", "cupy": "CuPy pool",
}
BEGIN, END = "<!-- peers: begin -->", "<!-- peers: end -->"
# Told apart also by those who see fewer colours (Okabe and Ito's set).
COLOURS = ("#0072b2", "#56b4e9", "#009e73", "#d55e00", "#e69f00", "#cc79a7", "#f0e442", "#666666", "#999999", "#bbbbbb")


def read(path):
    """The median of every figure, by (bench, size, threads) and contestant, in the order of the file."""
    seen = {}
    with open(path, newline="", encoding="utf-8") as file:
        lines = (line for line in file if line.strip() and not line.startswith("#"))
        for entry in csv.DictReader(lines):
            key = (entry["bench"], int(entry["size"]), int(entry["threads"]))
            by_contestant = seen.setdefault(key, {}).setdefault(entry["contestant"], {name: [] for name in FIGURES})
            for name in FIGURES:
                by_contestant[name].append(float(entry[name]))
    return {
        key: {
            contestant: {name: statistics.median(values) for name, values in figures.items()}
            for contestant, figures in contestants.items()
        }
        for key, contestants in seen.items()
    }


def contestants_of(rows):
    present = {name for contestants in rows.values() for name in contestants} - {"malloc"}
    return [name for name in ORDER if name in present] + sorted(present.difference(ORDER))


def human(size):
    for unit, name in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit:
            return f"{size // unit} {name}"
    return f"{size} B"


def number(value):
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 1 else f"{value:.2f}"


def table(head, lines, names, best):
    """One Markdown table; the best figure of a line is bold. A contestant without a figure has a dash."""
    used = [name for name in names if any(name in line for _, line in lines)]
    out = ["| " + " | ".join([head] + [TITLES.get(name, name) for name in used]) + " |", "|---" * (len(used) + 1) + "|"]
    for label, line in lines:
        winner = best(line.values()) if line else None
        cells = ["-" if name not in line else number(line[name]) for name in used]
        cells = [f"**{cell}**" if name in line and line[name] == winner else cell for name, cell in zip(used, cells)]
        out.append("| " + " | ".join([label] + cells) + " |")
    return "\n".join(out)


def lines_of(rows, figure, keys):
    lines = []
    for label, key in keys:
        line = {name: figures[figure] for name, figures in rows.get(key, {}).items() if figures[figure] > 0}
        lines.append((label, line))
    return [(label, line) for label, line in lines if line]


def markdown(rows, machine, picture_name):
    names = contestants_of(rows)
    pairs = sorted(key for key in rows if key[0] == "pair" and key[1] != 64)
    single = [(human(size), ("pair", size, threads)) for _, size, threads in pairs]
    single.append(("mixed, 256 live, a call", ("mixed", 0, 1)))
    single.append(("record_stream", ("record_stream", 64 << 10, 1)))
    threads = sorted({key[2] for key in rows if key[0] == "threads"})
    many = [(f"{count}, {label}", ("threads", size, count)) for size, label in ((0, "mixed"), (1 << 20, "1 MiB"))
            for count in threads]
    misses = [("16 MiB", ("miss", 16 << 20, 1))]
    yardstick = rows.get(("pair", 64, 1), {}).get("malloc")
    parts = []
    if machine:
        parts.append("\n".join(f"- {line}" for line in machine))
    if yardstick:
        parts.append(f"The C library's malloc/free pair of 64 bytes in the same runs: {number(yardstick['ns'])} ns.")
    for title, head, figure, keys, best in (
        ("Alloc and free, one thread, cache hit (ns, best round; median of the runs)", "size", "ns", single, min),
        ("The same, p50 of single operations (ns, the clock's own cost taken off)", "size", "p50", single[:-1], min),
        ("The same, p99.9", "size", "p999", single[:-1], min),
        ("Threads, each with its own stream (million calls a second, all together)", "threads", "mops", many, max),
        ("Miss: the driver is asked (us a request)", "size", "ns", misses, min),
    ):
        lines = lines_of(rows, figure, keys)
        if figure == "ns" and keys is misses:
            lines = [(label, {name: value / 1000 for name, value in line.items()}) for label, line in lines]
        if lines:
            parts.append(f"**{title}**\n\n" + table(head, lines, names, best))
    parts.append(f"![Pairs and threads, every contestant]({picture_name})")
    return "\n\n".join(parts) + "\n"


def escaped(text):
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


class Picture:
    """Two plots side by side on logarithmic scales, one line a contestant. Plain SVG, no script."""

    WIDTH, HEIGHT, TOP, BOTTOM = 1080, 460, 40, 60

    def __init__(self, names):
        self.names = names
        self.parts = []

    def text(self, x, y, text, anchor="middle", size=11):
        self.parts.append(f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}">{escaped(text)}</text>')

    def plot(self, left, width, title, labels, series):
        """`series`: for each contestant the values by label, None where there is none."""
        values = [value for line in series.values() for value in line if value]
        if not values:
            return
        low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
        high = max(high, low + 1)
        floor = self.HEIGHT - self.BOTTOM

        def y(value):
            return floor - (floor - self.TOP) * (math.log10(value) - low) / (high - low)

        def x(place):
            return left + width * (place + 0.5) / len(labels)

        self.text(left + width / 2, 22, title, size=13)
        for power in range(low, high + 1):
            at = y(10.0**power)
            self.parts.append(f'<line x1="{left}" x2="{left + width}" y1="{at:.1f}" y2="{at:.1f}" stroke="#ddd"/>')
            self.text(left - 6, at + 4, f"{10.0**power:,g}", "end")
        for place, label in enumerate(labels):
            self.text(x(place), floor + 16, label)
        for name, line in series.items():
            colour = COLOURS[self.names.index(name) % len(COLOURS)]
            dash = "" if name.startswith("headwater") else ' stroke-dasharray="5 3"'
            points = [(x(place), y(value)) for place, value in enumerate(line) if value]
            path = " ".join(f"{px:.1f},{py:.1f}" for px, py in points)
            self.parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>')
            for px, py in points:
                self.parts.append(f'<circle cx="{px:.1f}" cy="{py:.1f}" r="3" fill="{colour}"/>')

    def legend(self):
        step = self.WIDTH / max(len(self.names), 1)
        for place, name in enumerate(self.names):
            left, colour = 8 + step * place, COLOURS[place % len(COLOURS)]
            self.parts.append(f'<rect x="{left:.1f}" y="{self.HEIGHT - 22}" width="10" height="10" fill="{colour}"/>')
            self.text(left + 13, self.HEIGHT - 13, TITLES.get(name, name), "start", 9)

    def svg(self):
        head = (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.WIDTH} {self.HEIGHT}" '
                'font-family="sans-serif">\n<rect width="100%" height="100%" fill="white"/>\n')
        return head + "\n".join(self.parts) + "\n</svg>\n"


def picture(rows):
    names = contestants_of(rows)
    drawn = Picture(names)

    def series(keys, figure):
        lines = {name: [rows.get(key, {}).get(name, {}).get(figure) for key in keys] for name in names}
        return {name: line for name, line in lines.items() if any(line)}

    pairs = sorted(key for key in rows if key[0] == "pair" and key[1] != 64)
    drawn.plot(60, 440, "Alloc and free, cache hit (ns)", [human(key[1]) for key in pairs], series(pairs, "ns"))
    threads = sorted(key for key in rows if key[0] == "threads" and key[1] == 0)
    drawn.plot(600, 440, "Mixed sizes, million calls a second, by threads", [str(key[2]) for key in threads],
               series(threads, "mops"))
    drawn.legend()
    return drawn.svg()


def replace_in_page(page, text):
    old = page.read_text(encoding="utf-8")
    before, begin, rest = old.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        sys.exit(f"{page} has no `{BEGIN}` and `{END}`")
    page.write_text(f"{before}{BEGIN}\n\n{text}\n{END}{after}", encoding="utf-8")


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("rows", type=pathlib.Path)
    arguments.add_argument("--machine", type=pathlib.Path, help="a text with one line a fact")
    arguments.add_argument("--out", type=pathlib.Path, help="where peers.md and peers.svg go")
    arguments.add_argument("--docs", type=pathlib.Path, help="the page to put the tables into; the picture goes beside it")
    options = arguments.parse_args()
    rows = read(options.rows)
    if not rows:
        sys.exit(f"{options.rows} has no rows")
    machine = []
    if options.machine:
        machine = [line.strip() for line in options.machine.read_text(encoding="utf-8").splitlines() if line.strip()]
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "peers.md").write_text(markdown(rows, machine, "peers.svg"), encoding="utf-8")
        (options.out / "peers.svg").write_text(picture(rows), encoding="utf-8")
    if options.docs:
        name = "benchmarks-peers.svg"
        (options.docs.parent / name).write_text(picture(rows), encoding="utf-8")
        replace_in_page(options.docs, markdown(rows, machine, name))
    if not options.out and not options.docs:
        print(markdown(rows, machine, "peers.svg"))


if __name__ == "__main__":
    main()
