"""Putting Headwater in the place of PyTorch's own allocator."""

import os
import threading
from dataclasses import dataclass, field
from typing import Any, List, Optional, Tuple

from .. import _native
from .._errors import DeviceError
from . import _hooks, _patches, _shim

OLDEST = (2, 6)
"""The oldest PyTorch whose hooks are all there."""

_lock = threading.Lock()
_status: "Optional[Status]" = None
_kept: List[Any] = []
"""What PyTorch holds only by address: it must outlive the process's last tensor."""


@dataclass(frozen=True)
class Status:
    """How PyTorch and Headwater are connected."""

    enabled: bool
    """Whether PyTorch's memory comes from Headwater."""
    route: str
    """``"shim"`` (all of PyTorch's allocator interface), ``"hooks"`` (the plain pluggable allocator) or ``"none"``."""
    reason: str
    """Why it is this route."""
    torch_version: Optional[str] = None
    missing: Tuple[str, ...] = field(default=())
    """What PyTorch's own allocator can do and this route cannot."""

    def __str__(self) -> str:
        head = f"Headwater serves PyTorch {self.torch_version} by the {self.route}" if self.enabled else "not enabled"
        lines = [f"{head}: {self.reason}"] + [f"  missing: {what}" for what in self.missing]
        return "\n".join(lines)


def is_enabled() -> bool:
    """Whether PyTorch's memory comes from Headwater."""
    return _status is not None


def status() -> Status:
    """What is in force, and what is missing."""
    if _status is not None:
        return _status
    return Status(False, "none", "headwater.torch.enable() was not called")


def enable(*, shim: Optional[bool] = None, settings: Optional[str] = None) -> Status:
    """Serves PyTorch's CUDA memory from Headwater from now on.

    Call it before CUDA is used for the first time: PyTorch cannot change allocators later. A second call changes nothing.

    ``shim``: ``None`` builds and uses the C++ shim where that works and falls back to the plain hooks where it does not; ``True``
    makes a failure an error; ``False`` uses the plain hooks. The variable ``HEADWATER_TORCH_SHIM`` (``0`` or ``1``) decides where
    the argument does not.

    ``settings``: as in ``HEADWATER_ALLOC_CONF``; ``None`` reads the environment, PyTorch's own variables included.
    """
    global _status
    with _lock:
        if _status is None:
            _status = _enable(_wanted(shim), settings)
        return _status


def _wanted(shim: Optional[bool]) -> Optional[bool]:
    named = os.environ.get("HEADWATER_TORCH_SHIM", "")
    if shim is not None or named == "":
        return shim
    if named not in ("0", "1"):
        raise ValueError(f"HEADWATER_TORCH_SHIM is {named!r}: use 0 or 1")
    return named == "1"


def _enable(shim: Optional[bool], settings: Optional[str]) -> Status:
    import torch

    _check(torch)
    _native.prepare_process("cuda", settings)
    reason = "the shim was not wanted"
    if shim is not False:
        try:
            library = _shim.load(torch)
            _kept.append(library)
            library.install(_native.torch_calls())
            return Status(True, "shim", library.reason, torch.__version__, library.missing)
        except _shim.Unavailable as error:
            if shim:
                raise RuntimeError(f"the C++ shim cannot be used: {error}") from error
            reason = str(error)
    allocator = _hooks.make(torch)
    torch.cuda.memory.change_current_allocator(allocator)
    _kept.append(allocator)
    _patches.install(torch)
    return Status(True, "hooks", reason, torch.__version__, _hooks.MISSING)


def _check(torch: Any) -> None:
    """Whether PyTorch can be served now; what is in the way is an error that says what to do."""
    version = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    if version < OLDEST:
        raise RuntimeError(f"PyTorch {torch.__version__} is too old for Headwater: 2.6 or later is needed")
    if not torch.backends.cuda.is_built():
        raise DeviceError(f"this PyTorch ({torch.__version__}) was built without CUDA: there is nothing to serve")
    if torch.cuda.is_initialized():
        raise RuntimeError(
            "headwater.torch.enable() came too late: PyTorch has used CUDA already, and cannot change its allocator any more. "
            "Move the call before the first use of CUDA (the first .cuda(), .to('cuda'), device='cuda' or torch.cuda call that "
            "needs the device), best directly after `import torch`; or run the program with `python -m headwater.torch`."
        )
    if torch.cuda.memory._get_current_allocator() is not None and torch.cuda.get_allocator_backend() != "native":
        raise RuntimeError(
            f"PyTorch's allocator was changed before (its backend is {torch.cuda.get_allocator_backend()!r}), and can be changed "
            "once only: enable Headwater instead of the other one. For PYTORCH_CUDA_ALLOC_CONF=backend:cudaMallocAsync, take "
            "that setting away."
        )


def pool(**options: Any) -> Any:
    """A ``torch.cuda.MemPool`` whose memory comes from Headwater, for part of a program::

        with torch.cuda.use_mem_pool(headwater.torch.pool()):
            ...

    PyTorch's own allocator asks Headwater for whole segments then, and cuts them up itself. Where :func:`enable` was called, a
    plain ``torch.cuda.MemPool()`` is one of Headwater's pools already, and that is what this returns.
    """
    import torch

    if _status is not None and _status.route == "shim":
        return torch.cuda.MemPool(**options)
    if _status is not None:
        raise RuntimeError(
            "pools need PyTorch's own allocator or the C++ shim; Headwater was enabled by the plain hooks, because: " + _status.reason
        )
    _native.prepare_process("cuda")
    allocator = _hooks.make(torch)
    _kept.append(allocator)
    return torch.cuda.MemPool(allocator.allocator(), **options)
