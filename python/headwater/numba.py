"""Numba's CUDA memory from Headwater: an external memory manager.

Either::

    import headwater.numba
    headwater.numba.enable()           # before Numba uses CUDA

or, with the program untouched, ``NUMBA_CUDA_MEMORY_MANAGER=headwater.numba``.

Numba asks for memory without naming a stream. Blocks belong to the default stream, which is ordered with Numba's own streams but
for those made as non-blocking; for these :func:`record_stream` says that they use an array.
"""

from contextlib import contextmanager
from typing import Any, Iterator

from . import _native

try:
    from numba import cuda as _cuda
    from numba.cuda import GetIpcHandleMixin, HostOnlyCUDAMemoryManager, MemoryInfo, MemoryPointer
except ImportError as _error:
    _missing = _error

    class HeadwaterMemoryManager:
        """Stands for the memory manager where Numba is not installed."""

        def __init__(self, *_: Any, **__: Any) -> None:
            raise ImportError("headwater.numba needs Numba with CUDA: install numba-cuda") from _missing

    def enable() -> None:
        """Numba is not installed."""
        HeadwaterMemoryManager()

else:

    class HeadwaterMemoryManager(GetIpcHandleMixin, HostOnlyCUDAMemoryManager):  # type: ignore[no-redef]
        """Numba's external memory manager on Headwater's memory. Pinned and mapped host memory stay Numba's own."""

        @property
        def interface_version(self) -> int:
            return 1

        def initialize(self) -> None:
            super().initialize()
            if not _native.is_open():
                _native.open_process("cuda")

        def memalloc(self, size: int) -> Any:
            device = self.context.device.id
            block = _native.Block(size, 0, device)
            ptr = block.ptr
            self.allocations[ptr] = block
            allocations = self.allocations

            def finalize() -> None:
                # The block gives its memory back when the last reference to it goes, which this is.
                allocations.pop(ptr, None)

            return MemoryPointer(self.context, _device_pointer(ptr), size, finalizer=finalize)

        def get_memory_info(self) -> Any:
            free, total = _native.memory_info(self.context.device.id)
            return MemoryInfo(free=free, total=total)

        def get_ipc_handle(self, memory: Any) -> Any:
            raise NotImplementedError("Headwater's memory cannot be shared between processes this way yet")

        def reset(self) -> None:
            super().reset()
            _native.empty_cache(self.context.device.id)

        @contextmanager
        def defer_cleanup(self) -> Iterator[None]:
            # A give-back never waits for the device, so there is nothing to put off.
            with super().defer_cleanup():
                yield

    def _device_pointer(ptr: int) -> Any:
        """The address in the type that Numba's binding to the driver uses."""
        try:
            from numba.cuda.cudadrv.driver import binding, USE_NV_BINDING  # type: ignore[attr-defined]

            return binding.CUdeviceptr(ptr) if USE_NV_BINDING else _c_pointer(ptr)
        except ImportError:
            from cuda.bindings import driver  # type: ignore[import-not-found]

            return driver.CUdeviceptr(ptr)

    def _c_pointer(ptr: int) -> Any:
        from ctypes import c_uint64

        return c_uint64(ptr)

    def enable() -> None:
        """Makes Numba use Headwater. Call it before Numba uses CUDA."""
        _cuda.set_memory_manager(HeadwaterMemoryManager)


_numba_memory_manager = HeadwaterMemoryManager
"""What ``NUMBA_CUDA_MEMORY_MANAGER=headwater.numba`` looks for."""


def record_stream(array: Any, stream: Any) -> None:
    """Announces that work in ``stream`` uses a Numba device array."""
    from . import cuda

    interface = array.__cuda_array_interface__
    place = _native.block_at(int(interface["data"][0]))
    if place is None:
        raise ValueError("the array's memory is not Headwater's")
    handle = getattr(stream, "handle", stream)
    _native.record_stream(place[0], cuda.as_stream(getattr(handle, "value", handle) or 0).ptr)
