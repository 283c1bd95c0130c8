"""Limits and recordings that last for a ``with`` block."""

import os
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Iterator, Optional, Union

from . import _native


@contextmanager
def limit(nbytes: Optional[int], device: Optional[int] = None) -> Iterator[None]:
    """At most ``nbytes`` are reserved inside of the block, private pools included; afterwards the former limit holds again.
    What is reserved beyond a smaller limit stays until it is released. ``None`` is no limit but the device's."""
    former = _native.limit_bytes(device)
    _native.set_limit_bytes(nbytes, device)
    try:
        yield
    finally:
        _native.set_limit_bytes(former, device)


@dataclass
class Recording:
    """A trace that is being written."""

    path: str
    events: Optional[int] = None
    """How many events are in it; ``None`` until it is closed."""


@contextmanager
def recording(path: Union[str, "os.PathLike[str]"], name: str = "", device: Optional[int] = None) -> Iterator[Recording]:
    """Writes what the device is asked for inside of the block into the file ``path``, for ``headwater replay`` and ``report``."""
    trace = Recording(os.fspath(path))
    _native.start_recording(trace.path, name, device)
    try:
        yield trace
    finally:
        trace.events = _native.stop_recording(device)
