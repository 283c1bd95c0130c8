"""Buffers: device memory with a shape and a type, which other libraries see without copying.

A buffer is C-contiguous. On a GPU it has ``__cuda_array_interface__`` and is a CUDA array to DLPack; on the simulated device its
memory is the host's as well, so it has ``__array_interface__`` and is a CPU array to DLPack.
"""

import ctypes
import math
from typing import Any, Dict, NamedTuple, Optional, Sequence, Tuple, Union

from . import _native, cuda

Shape = Union[int, Sequence[int]]


class _Type(NamedTuple):
    """A type of elements in the terms of all interfaces."""

    name: str
    typestr: str
    """NumPy's, of the array interfaces."""
    code: int
    """DLPack's."""
    bits: int

    @property
    def itemsize(self) -> int:
        return self.bits // 8


_INT, _UINT, _FLOAT, _COMPLEX, _BOOL = 0, 1, 2, 5, 6

_TYPES = [
    _Type("bool", "|b1", _BOOL, 8),
    _Type("int8", "|i1", _INT, 8),
    _Type("int16", "<i2", _INT, 16),
    _Type("int32", "<i4", _INT, 32),
    _Type("int64", "<i8", _INT, 64),
    _Type("uint8", "|u1", _UINT, 8),
    _Type("uint16", "<u2", _UINT, 16),
    _Type("uint32", "<u4", _UINT, 32),
    _Type("uint64", "<u8", _UINT, 64),
    _Type("float16", "<f2", _FLOAT, 16),
    _Type("float32", "<f4", _FLOAT, 32),
    _Type("float64", "<f8", _FLOAT, 64),
    _Type("complex64", "<c8", _COMPLEX, 64),
    _Type("complex128", "<c16", _COMPLEX, 128),
]
_BY_NAME: Dict[str, _Type] = {key: kind for kind in _TYPES for key in (kind.name, kind.typestr, kind.typestr[1:])}

_CPU, _CUDA = 1, 2
"""DLPack's device types."""


def _type_of(dtype: Any) -> _Type:
    """``dtype`` by name, by NumPy's type string, or a NumPy type."""
    for key in (dtype, getattr(dtype, "name", None), getattr(dtype, "__name__", None)):
        if isinstance(key, str) and key in _BY_NAME:
            return _BY_NAME[key]
    raise TypeError(f"{dtype!r} is no type of a buffer: use one of {', '.join(kind.name for kind in _TYPES)}")


def _shape_of(shape: Shape) -> Tuple[int, ...]:
    parts = (shape,) if isinstance(shape, int) else tuple(int(part) for part in shape)
    if any(part < 0 for part in parts):
        raise ValueError(f"a shape has no negative parts: {parts}")
    return parts


class Buffer:
    """Device memory with a shape and a type. It is given back by :meth:`free`, at the end of a ``with`` block, or when the object
    goes; views that other libraries hold keep it."""

    def __init__(self, shape: Shape, dtype: Any = "uint8", *, stream: Any = None, device: Optional[int] = None) -> None:
        self._type = _type_of(dtype)
        self.shape = _shape_of(shape)
        owner = cuda.as_stream(stream, device)
        self._block = _native.Block(math.prod(self.shape) * self._type.itemsize, owner.ptr, owner.device)
        self._stream = owner

    @property
    def ptr(self) -> int:
        """The first address; 0 where the buffer is empty."""
        ptr = self._block.ptr
        if ptr == 0 and self._block.nbytes > 0:
            raise ValueError("the buffer was given back")
        return ptr

    @property
    def nbytes(self) -> int:
        """How many bytes it has."""
        return self._block.nbytes

    @property
    def dtype(self) -> str:
        """The name of its elements' type."""
        return self._type.name

    @property
    def device(self) -> int:
        """The ordinal of its device."""
        return self._block.device

    @property
    def stream(self) -> cuda.Stream:
        """The stream it belongs to."""
        return self._stream

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("a buffer without dimensions has no length")
        return self.shape[0]

    def __repr__(self) -> str:
        return f"<headwater.Buffer shape={self.shape} dtype={self.dtype} device={self.device} ptr={self._block.ptr:#x}>"

    def record_stream(self, stream: Any) -> None:
        """Announces that work in ``stream`` uses the memory: after give-back it is not handed out again before that work, as far
        as it is queued by then, has finished."""
        self._block.record_stream(cuda.as_stream(stream, self.device).ptr)

    def free(self) -> None:
        """Gives the memory back now. Whoever still looks at it must not."""
        self._block.free()

    def __enter__(self) -> "Buffer":
        return self

    def __exit__(self, *_: Any) -> None:
        self.free()

    def fill(self, byte: int, stream: Any = None) -> "Buffer":
        """Sets every byte to ``byte``, in stream order."""
        if self.nbytes:
            _native.fill(self.ptr, byte, self.nbytes, self._in(stream).ptr, self.device)
        return self

    def copy_from(self, source: Any, stream: Any = None) -> "Buffer":
        """Copies from a buffer of the same device (queued), or from anything with the buffer protocol, such as a NumPy array or
        ``bytes`` (waited for). The sizes must be equal."""
        where = self._in(stream)
        if isinstance(source, Buffer):
            self._check_size(source.nbytes)
            where.wait_stream(source.stream)
            source.record_stream(where)
            if self.nbytes:
                _native.copy_on_device(self.ptr, source.ptr, self.nbytes, where.ptr, self.device)
            return self
        view = memoryview(source)
        if not view.c_contiguous:
            view = memoryview(view.tobytes())
        self._check_size(view.nbytes)
        if self.nbytes:
            address, _kept = _address_of(view)
            _native.copy_to_device(self.ptr, address, self.nbytes, where.ptr, self.device)
        return self

    def copy_to(self, target: Any, stream: Any = None) -> Any:
        """Copies into a writable object with the buffer protocol, and waits for it."""
        view = memoryview(target)
        if view.readonly or not view.c_contiguous:
            raise ValueError("the target must be writable and contiguous")
        self._check_size(view.nbytes)
        if self.nbytes:
            address, _kept = _address_of(view)
            _native.copy_to_host(address, self.ptr, self.nbytes, self._in(stream).ptr, self.device)
        return target

    def tobytes(self, stream: Any = None) -> bytes:
        """A copy of the content."""
        return bytes(self.copy_to(bytearray(self.nbytes), stream))

    def numpy(self) -> Any:
        """A NumPy array. On the simulated device it is the memory itself; on a GPU it is a copy."""
        import numpy

        if self._is_on_host():
            return numpy.asarray(self)
        return self.copy_to(numpy.empty(self.shape, self._type.typestr))

    def _is_on_host(self) -> bool:
        return _native.is_host_visible(self.ptr, self.nbytes)

    def _in(self, stream: Any) -> cuda.Stream:
        """Where work on the buffer goes. In another stream than its own it is ordered after what that one has."""
        if stream is None:
            return self._stream
        where = cuda.as_stream(stream, self.device)
        if where != self._stream:
            where.wait_stream(self._stream)
            self._block.record_stream(where.ptr)
        return where

    def _check_size(self, nbytes: int) -> None:
        if nbytes != self.nbytes:
            raise ValueError(f"the other side has {nbytes} bytes, the buffer {self.nbytes}")

    @property
    def __array_interface__(self) -> Dict[str, Any]:
        if not self._is_on_host():
            raise AttributeError("memory of a GPU is not the host's: use .numpy() for a copy")
        # What the stream was given by now is what a reader on the host expects to see.
        self._stream.synchronize()
        return {"shape": self.shape, "typestr": self._type.typestr, "data": (self.ptr, False), "version": 3}

    @property
    def __cuda_array_interface__(self) -> Dict[str, Any]:
        if self._is_on_host():
            raise AttributeError("the simulated device's memory is no CUDA memory")
        return {
            "shape": self.shape,
            "typestr": self._type.typestr,
            "data": (self.ptr, False),
            "strides": None,
            # 1 is the legacy default stream in this interface; 0 is not allowed.
            "stream": self._stream.ptr or 1,
            "version": 3,
        }

    def __dlpack_device__(self) -> Tuple[int, int]:
        return (_CPU, 0) if self._is_on_host() else (_CUDA, self.device)

    def __dlpack__(
        self,
        *,
        stream: Optional[int] = None,
        max_version: Optional[Tuple[int, int]] = None,
        dl_device: Optional[Tuple[int, int]] = None,
        copy: Optional[bool] = None,
    ) -> Any:
        if copy:
            raise BufferError("a buffer is handed over without copying, or not at all")
        kind, ordinal = self.__dlpack_device__()
        if dl_device is not None and tuple(dl_device) != (kind, ordinal):
            raise BufferError(f"the buffer is on device {(kind, ordinal)}, not on {tuple(dl_device)}")
        if kind == _CPU:
            self._stream.synchronize()
        elif stream is None or stream != -1:
            # -1: the caller orders. Otherwise the consumer's stream waits for ours, and is a user of the memory.
            consumer = cuda.Stream.from_pointer(0 if stream in (None, 0, 1) else int(stream), self.device)
            if consumer != self._stream:
                consumer.wait_stream(self._stream)
                self._block.record_stream(consumer.ptr)
        return _native.dlpack_capsule(self, self.ptr, list(self.shape), self._type.code, self._type.bits, kind, ordinal)


def _address_of(view: memoryview) -> Tuple[int, Any]:
    """The address of a contiguous view, and what keeps it valid. Memory that ctypes may not touch, such as ``bytes``, is copied."""
    flat = view.cast("B")
    if flat.readonly:
        held: Any = ctypes.create_string_buffer(flat.tobytes(), flat.nbytes)
        return ctypes.addressof(held), held
    held = (ctypes.c_char * flat.nbytes).from_buffer(flat)
    return ctypes.addressof(held), held


def empty(shape: Shape, dtype: Any = "uint8", *, stream: Any = None, device: Optional[int] = None) -> Buffer:
    """A buffer whose content is undefined."""
    return Buffer(shape, dtype, stream=stream, device=device)


def zeros(shape: Shape, dtype: Any = "uint8", *, stream: Any = None, device: Optional[int] = None) -> Buffer:
    """A buffer whose bytes are all zero. The fill is queued, not waited for."""
    return Buffer(shape, dtype, stream=stream, device=device).fill(0)


def asarray(source: Any, *, stream: Any = None, device: Optional[int] = None) -> Buffer:
    """A copy of a host array, such as a NumPy array or anything else with the buffer protocol, in device memory."""
    view = memoryview(source)
    dtype = getattr(source, "dtype", None)
    if dtype is None:
        return Buffer(view.nbytes, "uint8", stream=stream, device=device).copy_from(view)
    return Buffer(view.shape or (), dtype, stream=stream, device=device).copy_from(view)
