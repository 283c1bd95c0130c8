"""Statistics for the plain route.

PyTorch's interface for pluggable allocators has no statistics: ``torch.cuda.memory_stats()`` and everything built on it would
raise. Python's functions ask the extension module ``torch._C``, so it is given functions that answer with Headwater's figures.
"""

from typing import Any, Dict

from .. import _native


def nested(flat: Dict[str, int]) -> Dict[str, Any]:
    """``{"a.b.c": 1}`` as ``{"a": {"b": {"c": 1}}}``."""
    tree: Dict[str, Any] = {}
    for name, value in flat.items():
        *parents, leaf = name.split(".")
        place = tree
        for parent in parents:
            place = place.setdefault(parent, {})
        place[leaf] = value
    return tree


def memory_snapshot(*_pool: Any) -> Dict[str, Any]:
    """All devices, as ``torch._C._cuda_memorySnapshot`` shows them."""
    devices = range(_native.process_info()["device_count"])
    snapshots = [_native.memory_snapshot(device) for device in devices if _native.is_used(device)]
    segments = [dict(segment, frames=[]) for snapshot in snapshots for segment in snapshot["segments"]]
    for segment in segments:
        segment["blocks"] = [dict(block, frames=[]) for block in segment["blocks"]]
    return {
        "segments": segments,
        "device_traces": [trace for snapshot in snapshots for trace in snapshot["device_traces"]],
        "allocator_settings": {"headwater": _native.process_info()["settings"]},
        "external_annotations": [],
    }


def install(torch: Any) -> None:
    """Puts Headwater's figures where PyTorch's Python code looks for them."""
    torch._C._cuda_memoryStats = lambda device: nested(_native.memory_stats(device))
    torch._C._cuda_resetPeakMemoryStats = _native.reset_peaks
    torch._C._cuda_resetAccumulatedMemoryStats = _native.reset_totals
    torch._C._cuda_memorySnapshot = memory_snapshot
