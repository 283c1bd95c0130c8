"""Monitoring: where the memory is, what the peak was, what a snapshot shows, and giving the cache back.

    python examples/python/monitoring.py
"""

import headwater
import headwater.torch
from allocation_and_reuse import run


def with_torch(torch):
    headwater.torch.enable()
    headwater.cuda.reset_peak_memory_stats()
    return [torch.randn(1000, 1000, device="cuda") for _ in range(10)]


def simulated():
    headwater.open("sim")
    headwater.cuda.reset_peak_memory_stats()
    return [headwater.zeros((1000, 1000), "float32") for _ in range(10)]


def main():
    held = run(with_torch, simulated)
    stats = headwater.cuda.memory_stats()
    allocated, reserved = stats["allocated_bytes.all.current"], stats["reserved_bytes.all.current"]
    print(f"allocated {allocated / 1e6:.1f} MB, reserved {reserved / 1e6:.1f} MB, peak {stats['allocated_bytes.all.peak'] / 1e6:.1f} MB")
    print(f"overhead {100 * (reserved - allocated) / reserved:.1f} %")
    segments = headwater.cuda.memory_snapshot()
    blocks = [block["state"] for segment in segments for block in segment["blocks"]]
    print(f"{len(segments)} segment(s), {blocks.count('active_allocated')} block(s) held, {blocks.count('inactive')} free")
    held.clear()
    released = headwater.cuda.empty_cache()
    print(f"{released / 1e6:.1f} MB went back to the driver, {headwater.cuda.memory_reserved() / 1e6:.1f} MB stay")
    print(headwater.cuda.memory_summary())


if __name__ == "__main__":
    main()
