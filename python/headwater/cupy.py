"""CuPy on Headwater's memory::

    import headwater.cupy
    headwater.cupy.enable()

CuPy asks its allocator function for memory with its current device and stream; both are passed on, so a block belongs to the stream
that its array was made in. CuPy itself does not say which other streams use an array: :func:`record_stream` does.
"""

import threading
from typing import Any, Callable, Optional

from . import _native
from ._errors import OutOfMemoryError

__all__ = ["disable", "enable", "is_enabled", "record_stream", "using"]

_lock = threading.Lock()
_former: Optional[Callable[[int], Any]] = None
_enabled = False


def _cupy() -> Any:
    try:
        import cupy
    except ImportError as error:
        raise ImportError("headwater.cupy needs CuPy: install cupy-cuda12x or cupy-cuda13x") from error
    return cupy


def _allocator(cupy: Any) -> Callable[[int], Any]:
    """A function from a size to a ``cupy.cuda.MemoryPointer``.

    ``UnownedMemory`` keeps an owner object alive, and the owner gives the memory back when it goes. CuPy's other way, a pair of
    C functions behind ``CFunctionAllocator``, is told neither the device nor the stream of a give-back, and makes one more Python
    object for each block; this one makes two and no call into CuPy on the way back.
    """
    memory = cupy.cuda.memory
    unowned, pointer = memory.UnownedMemory, memory.MemoryPointer
    current_device, current_stream = cupy.cuda.runtime.getDevice, cupy.cuda.get_current_stream
    block = _native.Block

    def allocate(nbytes: int) -> Any:
        device = current_device()
        try:
            owner = block(nbytes, current_stream().ptr, device)
        except OutOfMemoryError as error:
            # CuPy's own type, so that programs that catch it still do; the numbers hang on it.
            raised = memory.OutOfMemoryError(error.requested_bytes, error.allocated_bytes, error.limit_bytes or 0)
            raise raised from error
        return pointer(unowned(owner.ptr, nbytes, owner, device), 0)

    return allocate


def enable(settings: Optional[str] = None) -> None:
    """Serves CuPy's device memory from Headwater from now on. Arrays that exist stay where they are. ``settings`` as in
    ``HEADWATER_ALLOC_CONF``; ``None`` reads the environment."""
    global _former, _enabled
    cupy = _cupy()
    with _lock:
        if _enabled:
            return
        if not _native.is_open():
            _native.open_process("cuda", settings)
        elif _native.process_info()["backend"] != "cuda":
            _native.open_process("cuda")  # Says what is in the way.
        _former = cupy.cuda.get_allocator()
        cupy.cuda.set_allocator(_allocator(cupy))
        _enabled = True


def disable() -> None:
    """Gives CuPy its former allocator back. Arrays that exist keep their memory until they go."""
    global _former, _enabled
    with _lock:
        if _enabled:
            _cupy().cuda.set_allocator(_former)
            _former, _enabled = None, False


def is_enabled() -> bool:
    """Whether CuPy's memory comes from Headwater."""
    return _enabled


class using:
    """``with using():`` the thread's CuPy arrays come from Headwater inside of the block."""

    def __enter__(self) -> None:
        cupy = _cupy()
        if not _native.is_open():
            _native.open_process("cuda")
        self._scope = cupy.cuda.using_allocator(_allocator(cupy))
        self._scope.__enter__()

    def __exit__(self, *error: Any) -> None:
        self._scope.__exit__(*error)


def record_stream(array: Any, stream: Any) -> None:
    """Announces that work in ``stream`` uses ``array``: its memory is not handed out again before that work, as far as it is queued
    when the array goes, has finished. CuPy has no such call of its own."""
    from . import cuda

    device = int(array.device.id)
    place = _native.block_at(int(array.data.ptr), device)
    if place is None:
        raise ValueError("the array's memory is not Headwater's")
    _native.record_stream(place[0], cuda.as_stream(stream, device).ptr, device)
