"""Memory of the process, seen and steered: the names of ``torch.cuda``, answered by Headwater.

They work on the process's allocators, whoever uses them: PyTorch, CuPy, Numba or this package, on a GPU or on the simulated
device. ``device`` is an ordinal; ``None`` is the device that was opened.
"""

import threading
from types import TracebackType
from typing import Any, Dict, List, Optional, Type, Union

from . import _native

__all__ = [
    "Pool",
    "Stream",
    "current_stream",
    "device_count",
    "empty_cache",
    "max_memory_allocated",
    "max_memory_reserved",
    "mem_get_info",
    "memory_allocated",
    "memory_reserved",
    "memory_snapshot",
    "memory_stats",
    "memory_summary",
    "reset_accumulated_stats",
    "reset_peak_memory_stats",
    "set_per_process_memory_fraction",
    "stream",
    "synchronize",
    "use_pool",
    "verify",
]


def device_count() -> int:
    """How many devices there are."""
    return int(_native.process_info()["device_count"])


def memory_stats(device: Optional[int] = None) -> Dict[str, int]:
    """Every number that is counted, by name, such as ``"allocated_bytes.all.peak"``. The names are those of
    ``torch.cuda.memory_stats()``; ``num_hits``, ``num_misses`` and ``num_owed_give_backs`` are Headwater's own."""
    return _native.memory_stats(device)


def memory_allocated(device: Optional[int] = None) -> int:
    """Bytes of the blocks that callers hold."""
    return memory_stats(device)["allocated_bytes.all.current"]


def max_memory_allocated(device: Optional[int] = None) -> int:
    """The most that was since the peaks were reset."""
    return memory_stats(device)["allocated_bytes.all.peak"]


def memory_reserved(device: Optional[int] = None) -> int:
    """Bytes that the driver gave."""
    return memory_stats(device)["reserved_bytes.all.current"]


def max_memory_reserved(device: Optional[int] = None) -> int:
    """The most that was since the peaks were reset."""
    return memory_stats(device)["reserved_bytes.all.peak"]


def memory_summary(device: Optional[int] = None) -> str:
    """The figures as a table, for people."""
    return _native.memory_summary(device)


def memory_snapshot(device: Optional[int] = None) -> List[Dict[str, Any]]:
    """All segments with their blocks, as ``torch.cuda.memory_snapshot()`` has them."""
    return _native.memory_snapshot(device)["segments"]


def reset_peak_memory_stats(device: Optional[int] = None) -> None:
    """Lets every peak start again from now."""
    _native.reset_peaks(device)


def reset_accumulated_stats(device: Optional[int] = None) -> None:
    """Lets every total start again from zero."""
    _native.reset_totals(device)


def empty_cache(device: Optional[int] = None) -> int:
    """Returns what nobody uses to the driver, and says how many bytes that was."""
    return _native.empty_cache(device)


def set_per_process_memory_fraction(fraction: float, device: Optional[int] = None) -> None:
    """At most this share of the device's memory is reserved from now on; 1 is no limit."""
    _native.set_memory_fraction(fraction, device)


def mem_get_info(device: Optional[int] = None) -> "tuple[int, int]":
    """Free and total bytes of the device."""
    return _native.memory_info(device)


def verify(device: Optional[int] = None) -> None:
    """Walks every byte, and raises ``ValueError`` where one is not where it is counted. For those in doubt."""
    _native.verify(device)


class Stream:
    """An order in which work runs.

    ``Stream()`` makes one; ``Stream.from_pointer(value)`` stands for one that somebody else made, such as
    ``torch.cuda.Stream().cuda_stream`` or ``cupy.cuda.Stream().ptr``. As a context manager it is the current stream of the
    thread: buffers that are made meanwhile belong to it.
    """

    def __init__(self, device: Optional[int] = None, priority: int = 0, *, non_blocking: bool = True) -> None:
        self.device = int(_native.process_info()["device"]) if device is None else device
        self._ptr = _native.stream_create(priority, non_blocking, self.device)
        self._owned = True

    @classmethod
    def from_pointer(cls, ptr: int, device: Optional[int] = None) -> "Stream":
        """The stream that CUDA knows as ``ptr``; 0 is the default stream. Whoever made it destroys it."""
        stream = cls.__new__(cls)
        stream.device = int(_native.process_info()["device"]) if device is None else device
        stream._ptr = ptr
        stream._owned = False
        return stream

    @property
    def ptr(self) -> int:
        """CUDA's value for the stream."""
        return self._ptr

    cuda_stream = ptr

    def __cuda_stream__(self) -> "tuple[int, int]":
        return (0, self._ptr)

    def synchronize(self) -> None:
        """Waits until all work in the stream has finished."""
        _native.stream_synchronize(self._ptr, self.device)

    def query(self) -> bool:
        """Whether all work in the stream has finished."""
        return _native.stream_query(self._ptr, self.device)

    def wait_stream(self, other: "Stream") -> None:
        """Later work in this stream waits for what ``other`` has been given by now."""
        _native.stream_wait_stream(self._ptr, other._ptr, self.device)

    def __enter__(self) -> "Stream":
        _stack().append(self)
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        _stack().pop()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and (self._ptr, self.device) == (other._ptr, other.device)

    def __hash__(self) -> int:
        return hash((self._ptr, self.device))

    def __repr__(self) -> str:
        return f"<headwater.cuda.Stream device={self.device} ptr={self._ptr:#x}>"

    def __del__(self) -> None:
        if getattr(self, "_owned", False) and _native is not None:
            try:
                _native.stream_destroy(self._ptr, self.device)
            except Exception:  # noqa: BLE001 - the interpreter is going down, or the device is lost: nobody is left to tell
                pass


_threads = threading.local()


def _stack() -> List[Stream]:
    if not hasattr(_threads, "streams"):
        _threads.streams = []
    return _threads.streams


def current_stream(device: Optional[int] = None) -> Stream:
    """The thread's current stream: that of the innermost ``with stream(...)``, or else the default stream."""
    if device is None:
        device = int(_native.process_info()["device"])
    for stream in reversed(_stack()):
        if stream.device == device:
            return stream
    return Stream.from_pointer(0, device)


def stream(stream: Union[Stream, Any]) -> Stream:
    """``with stream(s):`` makes ``s`` the current stream of the thread. Streams of PyTorch and CuPy, and everything with
    ``__cuda_stream__``, are taken as well."""
    return as_stream(stream)


def as_stream(stream: Any, device: Optional[int] = None) -> Stream:
    """``stream`` as a :class:`Stream`: one of ours, of PyTorch's, of CuPy's, a CUDA value, or ``None`` for the current one."""
    if stream is None:
        return current_stream(device)
    if isinstance(stream, Stream):
        return stream
    if isinstance(stream, int):
        return Stream.from_pointer(stream, device)
    for name in ("cuda_stream", "ptr"):
        value = getattr(stream, name, None)
        if isinstance(value, int):
            return Stream.from_pointer(value, device)
    protocol = getattr(stream, "__cuda_stream__", None)
    if callable(protocol):
        return Stream.from_pointer(int(protocol()[1]), device)
    raise TypeError(f"{type(stream).__name__} is no stream")


def synchronize(device: Optional[int] = None) -> None:
    """Waits until all work in the thread's current stream has finished."""
    current_stream(device).synchronize()


class Pool:
    """A private pool: what a thread asks for inside of ``with use_pool(pool)`` comes from it, and nothing else does.

    Its memory goes back to the driver when the pool is closed and the last block of it was given back. Also a context manager,
    which closes it at the end.
    """

    def __init__(self, device: Optional[int] = None) -> None:
        self.device = int(_native.process_info()["device"]) if device is None else device
        self._id: Optional[int] = _native.pool_create(self.device)

    @property
    def reserved_bytes(self) -> int:
        """What the driver gave the pool."""
        return 0 if self._id is None else _native.pool_reserved_bytes(self._id, self.device)

    def close(self) -> None:
        """Lets the pool go. Blocks of it that are held stay good."""
        if self._id is not None:
            id, self._id = self._id, None
            _native.pool_release(id, self.device)

    def __enter__(self) -> "Pool":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_id", None) is not None and _native is not None:
            try:
                self.close()
            except Exception:  # noqa: BLE001 - as for streams
                pass


class use_pool:
    """``with use_pool(pool):`` the thread's requests come from the pool."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool

    def __enter__(self) -> Pool:
        if self.pool._id is None:
            raise ValueError("the pool is closed")
        self._id = self.pool._id
        _native.pool_enter(self._id, self.pool.device)
        return self.pool

    def __exit__(self, *_: Any) -> None:
        _native.pool_leave(self._id, self.pool.device)
