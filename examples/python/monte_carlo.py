"""A financial simulator that makes its temporaries anew in every iteration, and reuses their memory all the same.

    python examples/python/monte_carlo.py [--assets 100] [--paths 10000] [--iterations 100]
"""

import argparse
import time

import headwater
import headwater.torch
from allocation_and_reuse import run


class Simulator:
    """Prices of many assets along many paths; everything it needs on the way is an array of its own."""

    def __init__(self, arrays, assets, paths):
        self.arrays = arrays
        self.prices = arrays.full((paths, assets), 100.0)
        self.weights = arrays.full((assets,), 1.0 / assets)

    def iterate(self):
        before = self.prices
        self.prices = before * (1.0 + 0.01 * self.arrays.normal(before.shape))
        returns = self.arrays.log(self.prices / before)
        values = self.prices @ self.weights
        return float(values.mean()), float(values.std()), float(returns.mean())


class TorchArrays:
    def __init__(self, torch):
        headwater.torch.enable()
        torch.manual_seed(0)
        self.torch = torch
        self.log = torch.log

    def full(self, shape, value):
        return self.torch.full(shape, value, dtype=self.torch.float64, device="cuda")

    def normal(self, shape):
        return self.torch.randn(shape, dtype=self.torch.float64, device="cuda")


class SimulatedArrays:
    """NumPy computes; the memory is the simulated device's."""

    def __init__(self):
        import numpy

        headwater.open("sim")
        self.numpy = numpy
        self.generator = numpy.random.default_rng(0)
        self.log = numpy.log

    def full(self, shape, value):
        array = headwater.empty(shape, "float64").numpy()
        array[...] = value
        return array

    def normal(self, shape):
        array = headwater.empty(shape, "float64").numpy()
        self.generator.standard_normal(out=array)
        return array


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--assets", type=int, default=100)
    parser.add_argument("--paths", type=int, default=10_000)
    parser.add_argument("--iterations", type=int, default=100)
    options = parser.parse_args()
    simulator = Simulator(run(TorchArrays, SimulatedArrays), options.assets, options.paths)
    begun = time.perf_counter()
    for number in range(options.iterations):
        mean, deviation, _ = simulator.iterate()
        if number % max(1, options.iterations // 5) == 0:
            print(f"iteration {number}: mean {mean:.2f}, deviation {deviation:.2f}")
            headwater.cuda.reset_peak_memory_stats()
    seconds = time.perf_counter() - begun
    stats = headwater.cuda.memory_stats()
    print(
        f"{options.iterations} iterations in {seconds:.2f} s: {stats['num_hits']} requests served from the cache, "
        f"{stats['num_misses']} by the driver; {stats['reserved_bytes.all.peak'] / 1e6:.1f} MB reserved"
    )
    assert stats["num_misses"] <= 12, "the same sizes come again: they are in the cache"


if __name__ == "__main__":
    main()
