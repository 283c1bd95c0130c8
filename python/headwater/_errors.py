"""What can go wrong. All of them carry a message of one line; :class:`OutOfMemoryError` carries the numbers as well."""

from typing import Any, Optional


class OutOfMemoryError(MemoryError):
    """There is not enough memory, after everything the allocator can do about it.

    The attributes are the numbers of the message, in bytes. ``limit_bytes`` is ``None`` where no limit is set, and the device's
    own figures are ``None`` where it could not be asked.
    """

    device: int
    requested_bytes: int
    live_bytes: int
    allocated_bytes: int
    cached_bytes: int
    pending_bytes: int
    reserved_bytes: int
    limit_bytes: Optional[int]
    over_limit: bool
    device_free_bytes: Optional[int]
    device_total_bytes: Optional[int]

    def __init__(self, message: str = "out of memory", **numbers: Any) -> None:
        super().__init__(message)
        self._numbers = numbers
        for name, value in numbers.items():
            setattr(self, name, value)

    def __reduce__(self) -> Any:
        # So that it survives the way from a worker process to its parent.
        return (_restore, (str(self), self._numbers))


def _restore(message: str, numbers: "dict[str, Any]") -> OutOfMemoryError:
    return OutOfMemoryError(message, **numbers)


class DeviceError(RuntimeError):
    """The device that was asked for cannot be had."""


class DriverError(RuntimeError):
    """A call of the driver failed for another reason than memory."""


class TraceError(RuntimeError):
    """A recording could not be written."""
