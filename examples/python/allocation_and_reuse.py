"""Allocation and reuse: memory that is given back is handed out again at once, without a call to the driver.

    python examples/python/allocation_and_reuse.py            # PyTorch on a GPU; the simulated device where there is none
"""

import headwater
import headwater.torch


def with_torch(torch):
    headwater.torch.enable()
    tensor = torch.zeros(1000, 1000, dtype=torch.float64, device="cuda")
    result = tensor @ tensor.T
    first = tensor.data_ptr()
    print(f"8 MB asked for, {headwater.cuda.memory_allocated() / 1e6:.1f} MB allocated with the product")
    del tensor, result
    again = torch.empty(1000, 1000, dtype=torch.float64, device="cuda")
    return first, again.data_ptr()


def simulated():
    headwater.open("sim")
    buffer = headwater.zeros((1000, 1000), "float64")
    array = buffer.numpy()  # The memory itself, seen by NumPy.
    array += 1
    first = buffer.ptr
    print(f"8 MB asked for, {headwater.cuda.memory_allocated() / 1e6:.1f} MB allocated, sum {array.sum():.0f}")
    del buffer, array
    again = headwater.empty((1000, 1000), "float64")
    return first, again.ptr


def main():
    first, again = run(with_torch, simulated)
    stats = headwater.cuda.memory_stats()
    print(f"the second one is at the same place: {first == again}; {stats['num_hits']} hit(s), {stats['num_misses']} miss(es)")
    assert first == again


def run(with_torch, simulated):
    """PyTorch's version where it has a GPU, and the simulated device's otherwise."""
    try:
        import torch

        if torch.cuda.is_available():
            return with_torch(torch)
    except ImportError:
        pass
    return simulated()


if __name__ == "__main__":
    main()
