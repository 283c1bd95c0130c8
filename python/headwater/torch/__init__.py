"""PyTorch on Headwater's memory.

Before the first use of CUDA::

    import headwater.torch
    headwater.torch.enable()

or, with the program untouched::

    python -m headwater.torch program.py its arguments

:func:`status` tells what is in force and what is missing; docs/pytorch.md says what each part does.
"""

from ._enable import Status, enable, is_enabled, pool, status

__all__ = ["Status", "enable", "is_enabled", "pool", "status"]
