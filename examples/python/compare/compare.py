"""Native PyTorch, native with expandable segments, and Headwater: the same programs, separate processes, runs in alternation.

    python examples/python/compare/compare.py --output results            # results.json and results.md
    python examples/python/compare/compare.py --only gpt2_varlen,two_graphs --runs 1

Where native repeats itself to the bit, so must Headwater; its peak may not be above that of expandable segments; its time a step may
not be above native's beyond noise. The table says where one of these does not hold.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
WAYS = ("native", "expandable", "headwater")
NAMES = (
    "gpt2_varlen", "llama_varlen", "resnet_multiscale", "mixture_of_experts", "generation", "fsdp_streams", "two_graphs"
)


def run(way, program, hooks):
    environment = {name: value for name, value in os.environ.items() if not name.endswith("_ALLOC_CONF")}
    command = [sys.executable, str(HERE / "run_one.py"), program]
    if way == "expandable":
        environment["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    elif way == "headwater":
        command[1:1] = ["-m", "headwater.torch", *(["--no-shim"] if hooks else [])]
    begun = time.perf_counter()
    done = subprocess.run(command, cwd=HERE, env=environment, capture_output=True, text=True, timeout=600)
    if done.returncode != 0:
        tail = (done.stderr.strip().splitlines() or ["no message"])[-1]
        return {"program": program, "error": tail, "stderr": done.stderr[-4000:]}
    result = json.loads(done.stdout.strip().splitlines()[-1])
    result["process_s"] = time.perf_counter() - begun
    return result


def verdicts(row):
    """What does not hold, in words."""
    native, expandable, headwater = (row[way] for way in WAYS)
    said = []
    if any("error" in result for way in WAYS for result in row[way]):
        return [f"{way}: {result['error']}" for way in WAYS for result in row[way] if "error" in result][:1]
    outputs = lambda results: {result["outputs"] for result in results}  # noqa: E731
    if len(outputs(native)) == 1 and outputs(headwater) != outputs(native):
        said.append("outputs differ")
    if peak(headwater) > peak(expandable):
        said.append(f"peak {100 * (peak(headwater) / peak(expandable) - 1):+.1f} % against expandable")
    spread = max(result["step_ms"] for result in native) - min(result["step_ms"] for result in native)
    slower = step(headwater) - step(native)
    if slower > max(spread, 0.01 * step(native)):
        said.append(f"step {100 * slower / step(native):+.1f} % against native")
    return said


def peak(results):
    return max(result["peak_reserved"] for result in results)


def step(results):
    return statistics.median(result["step_ms"] for result in results)


def table(rows, machine):
    lines = [
        f"Measured on {machine}; {len(next(iter(rows.values()))['native'])} run(s) each in alternation. Peaks are MiB reserved.",
        "",
        "| program | outputs | peak live | native | expandable | Headwater | step native | expandable | Headwater | |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name, row in rows.items():
        said = verdicts(row)
        if any("error" in result for way in WAYS for result in row[way]):
            lines.append(f"| {name} | | | | | | | | | {said[0]} |")
            continue
        repeats = len({result["outputs"] for result in row["native"]}) == 1
        same = {result["outputs"] for way in WAYS for result in row[way]}
        outputs = "identical" if len(same) == 1 else ("native does not repeat itself" if not repeats else "DIFFER")
        mib = lambda value: f"{value / 2**20:,.0f}"  # noqa: E731
        live = mib(max(result["peak_allocated"] for result in row["headwater"]))
        peaks = " | ".join(mib(peak(row[way])) for way in WAYS)
        steps = " | ".join(f"{step(row[way]):.2f} ms" for way in WAYS)
        lines.append(f"| {name} | {outputs} | {live} | {peaks} | {steps} | {'; '.join(said) or 'ok'} |")
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="programs, separated by commas")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--hooks", action="store_true", help="Headwater by the plain hooks")
    parser.add_argument("--output", default="results", help="results.json and results.md are written")
    options = parser.parse_args()
    names = options.only.split(",") if options.only else NAMES
    machine = subprocess.run(
        [sys.executable, "-c", "import torch; print(torch.cuda.get_device_name(0), 'PyTorch', torch.__version__)"],
        capture_output=True, text=True,
    ).stdout.strip()
    rows = {name: {way: [] for way in WAYS} for name in names}
    for name in names:
        for number in range(options.runs):
            for way in WAYS:
                result = run(way, name, options.hooks)
                rows[name][way].append(result)
                shown = result.get("error") or f"{result['step_ms']:.2f} ms a step, {result['peak_reserved'] / 2**20:,.0f} MiB"
                print(f"{name} {way} {number + 1}: {shown}", file=sys.stderr, flush=True)
        # After every program: a run that is cut short has said something.
        Path(options.output + ".json").write_text(json.dumps({"machine": machine, "rows": rows}, indent=1))
        done = {name: row for name, row in rows.items() if row["headwater"]}
        Path(options.output + ".md").write_text(table(done, machine))
    print(table(rows, machine))
    sys.exit(1 if any(verdicts(row) for row in rows.values()) else 0)


if __name__ == "__main__":
    main()
