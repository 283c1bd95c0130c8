"""Runs one of the programs once, and prints one line of JSON: its outputs, its peak and its time a step."""

import hashlib
import json
import os
import statistics
import sys
import time

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch

from programs import PROGRAMS

WARM = 3


def main():
    name = sys.argv[1]
    torch.manual_seed(0)
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False
    torch.use_deterministic_algorithms(True, warn_only=True)
    outputs, times = [], []
    begun = time.perf_counter()
    for output in PROGRAMS[name]():
        outputs.append(output.item())  # Waits for the step.
        now = time.perf_counter()
        times.append(now - begun)
        begun = now
    stats = torch.cuda.memory_stats()
    print(
        json.dumps(
            {
                "program": name,
                "backend": torch.cuda.get_allocator_backend(),
                "outputs": hashlib.sha256(repr(outputs).encode()).hexdigest()[:16],
                "last": outputs[-1],
                "steps": len(times),
                "step_ms": 1e3 * statistics.median(times[WARM:]),
                "step_ms_mean": 1e3 * statistics.mean(times[WARM:]),
                "peak_reserved": torch.cuda.max_memory_reserved(),
                "peak_allocated": torch.cuda.max_memory_allocated(),
                "retries": stats.get("num_alloc_retries", 0),
            }
        )
    )


if __name__ == "__main__":
    main()
