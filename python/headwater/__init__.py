"""Headwater: GPU memory for Python programs.

On a GPU where there is one, and on a simulated device otherwise::

    import headwater

    buffer = headwater.zeros((1024, 1024), "float32")     # memory of the device
    print(headwater.cuda.memory_allocated(), headwater.info()["why"])

| where | what |
|---|---|
| this module | opening a device; buffers; limits and recordings as context managers; errors |
| :mod:`headwater.cuda` | statistics, snapshots, streams, pools: the names of ``torch.cuda`` |
| :mod:`headwater.torch` | PyTorch on Headwater's memory |
| :mod:`headwater.cupy`, :mod:`headwater.numba` | the same for CuPy and Numba |
"""

from . import _native, cuda
from ._buffer import Buffer, asarray, empty, zeros
from ._errors import DeviceError, DriverError, OutOfMemoryError, TraceError
from ._scopes import limit, recording
from ._native import open_process as open
from ._native import process_info as info

__version__ = _native.__version__

__all__ = [
    "Buffer",
    "DeviceError",
    "DriverError",
    "OutOfMemoryError",
    "TraceError",
    "__version__",
    "asarray",
    "cuda",
    "empty",
    "info",
    "limit",
    "open",
    "recording",
    "zeros",
]
