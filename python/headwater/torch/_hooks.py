"""The plain route: PyTorch's pluggable allocator, with every hook it has.

The functions are exported by the extension's own shared object, so there is nothing to build. What the interface lacks is listed
in :data:`MISSING`.
"""

from typing import Any

from .. import _native

MISSING = (
    "torch.OutOfMemoryError: out of memory is a RuntimeError whose message begins with 'CUDA out of memory'",
    "torch.cuda.MemPool() without an allocator",
    "memory history: torch.cuda.memory._record_memory_history raises",
    "torch.compile(mode='reduce-overhead'): its checkpointed pools need the shim",
    "torch.accelerator's memory figures: they stay at zero",
    "cudnn.benchmark's workspace choice: PyTorch raises where it asks for the largest free block",
    "sharing tensors between processes",
)
"""What only the shim can do."""

SETTERS = {
    "init": "set_init_fn",
    "reset": "set_reset_fn",
    "memory_fraction": "set_memory_fraction_fn",
    "base_alloc": "set_base_alloc_fn",
    "record_stream": "set_record_stream_fn",
    "begin_allocate_to_pool": "set_begin_allocate_to_pool",
    "end_allocate_to_pool": "set_end_allocate_to_pool_fn",
    # Not `..._fn`: that is PyTorch's name for it.
    "release_pool": "set_release_pool",
}
"""PyTorch's setter for each hook."""


def make(torch: Any) -> Any:
    """A ``torch.cuda.memory.CUDAPluggableAllocator`` on Headwater's memory."""
    allocator = torch.cuda.memory.CUDAPluggableAllocator(
        _native.__file__, "headwater_torch_alloc", "headwater_torch_free"
    )
    hooks = _native.torch_hooks()
    for name, setter in SETTERS.items():
        getattr(allocator.allocator(), setter)(hooks[name])
    return allocator
