"""Does CuPy work on Headwater on this machine? Run it where there is a GPU: python examples/python/cupy_smoke.py"""

import gc
import time

import cupy

import headwater
import headwater.cupy


def pairs(label, count=20000):
    cupy.empty(1 << 20, dtype=cupy.uint8)
    begun = time.perf_counter()
    for _ in range(count):
        cupy.empty(1 << 20, dtype=cupy.uint8)
    print(f"{label}: {(time.perf_counter() - begun) / count * 1e9:.0f} ns a cupy.empty and its end")


def main():
    pairs("CuPy's own pool")
    headwater.cupy.enable()
    pairs("Headwater")
    gc.collect()
    before = headwater.cuda.memory_allocated()
    x = cupy.arange(1 << 20, dtype=cupy.float32)
    assert float((x * 2).sum()) == float(x.sum()) * 2
    assert headwater.cuda.memory_allocated() - before >= 4 << 20
    side = cupy.cuda.Stream(non_blocking=True)
    for step in range(50):
        x = cupy.full(1 << 20, step, dtype=cupy.float32)
        side.wait_event(cupy.cuda.get_current_stream().record())
        with side:
            total = (x * 2).sum()
        headwater.cupy.record_stream(x, side)
        del x
        cupy.full(1 << 20, -1, dtype=cupy.float32)
        side.synchronize()
        assert float(total) == 2.0 * step * (1 << 20), step
    try:
        cupy.empty(1 << 45, dtype=cupy.uint8)
    except cupy.cuda.memory.OutOfMemoryError as error:
        print("out of memory:", error.__cause__)
    buffer = headwater.zeros((4, 4), "float32")
    assert float(cupy.asarray(buffer).sum()) == 0.0 and float(cupy.from_dlpack(buffer).sum()) == 0.0
    headwater.cupy.disable()
    del total
    gc.collect()
    headwater.cuda.verify()
    print("ok,", headwater.cuda.memory_allocated() - before, "bytes left")


if __name__ == "__main__":
    main()
