"""Two streams and record_stream: memory that a second stream still reads is not handed out again, though its owner let it go.

    python examples/python/two_streams.py
"""

import headwater
import headwater.torch
from allocation_and_reuse import run


def with_torch(torch):
    headwater.torch.enable()
    one, two = torch.cuda.Stream(), torch.cuda.Stream()
    wrong = 0
    for step in range(100):
        with torch.cuda.stream(one):
            tensor = torch.full((1000, 1000), float(step), dtype=torch.float64, device="cuda")
            product = tensor @ tensor.T
        two.wait_stream(one)
        with torch.cuda.stream(two):
            total = (tensor + tensor).sum()
        tensor.record_stream(two)
        del tensor
        with torch.cuda.stream(one):
            # Wants memory of the same size at once: it must not be what stream two still reads.
            torch.full((1000, 1000), -1.0, dtype=torch.float64, device="cuda")
        wrong += total.item() != 2e6 * step
        del product
    return wrong


def simulated():
    headwater.open("sim")
    one, two = headwater.cuda.Stream(), headwater.cuda.Stream()
    wrong = 0
    for step in range(20):
        with one:
            buffer = headwater.empty(8_000_000).fill(step)
        two.wait_stream(one)
        copy = headwater.empty(8_000_000, stream=two).copy_from(buffer, stream=two)
        buffer.record_stream(two)
        ptr = buffer.ptr
        del buffer
        with one:
            headwater.empty(8_000_000).fill(255)
        wrong += set(copy.tobytes()) != {step}
    return wrong


def main():
    wrong = run(with_torch, simulated)
    print(f"{wrong} wrong result(s)")
    headwater.cuda.verify()
    assert wrong == 0


if __name__ == "__main__":
    main()
