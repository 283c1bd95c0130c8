#!/usr/bin/env python3
"""CuPy's memory pool, on the same work as the C++ programs and with the same lines on standard output.

Its users call it from Python, so that is what is measured: the interpreter's share is in every figure.
"""

import sys
import threading
import time

QUICK = "--quick" in sys.argv
ROUNDS, ROUND_MS, SINGLES_MS, THREADS_MS = (2, 0.2, 0.5, 20) if QUICK else (7, 10, 80, 200)
MIB = 1 << 20
MASK = (1 << 64) - 1


class Draws:
    """Knuth's linear congruential generator, as in `work/sizes.hpp`."""

    def __init__(self, seed):
        self.state = seed

    def below(self, end):
        self.state = (self.state * 6364136223846793005 + 1442695040888963407) & MASK
        return (self.state >> 33) % max(end, 1)

    def size(self):
        magnitude = 512 << self.below(15)
        return magnitude + self.below(magnitude)


def row(bench, size, threads, rounds, singles=()):
    singles = sorted(singles)

    def share(of_one):
        return singles[round(of_one * (len(singles) - 1))] if singles else 0

    best = min(rounds)
    figures = [best, sum(rounds) / len(rounds), *(share(part) for part in (0, 0.5, 0.99, 0.999))]
    text = ",".join(f"{figure:.2f}" for figure in figures)
    print(f"cupy,{bench},{size},{threads},{text},{threads * 1000 / best:.4f}", flush=True)


def measure(operation, operations):
    """Nanoseconds an operation: of whole rounds, and of single calls with the clock's own cost taken off."""
    clock = time.perf_counter_ns
    once = 10**18
    for _ in range(8):
        begun = clock()
        operation()
        once = min(once, clock() - begun)
    repetitions = int(min(max(ROUND_MS * 1e6 / max(once, 1), 4), 100_000))
    rounds = []
    for _ in range(ROUNDS):
        begun = clock()
        for _ in range(repetitions):
            operation()
        rounds.append((clock() - begun) / repetitions / operations)
    floor = min(-clock() + clock() for _ in range(1000))
    singles = []
    for _ in range(int(min(max(SINGLES_MS * 1e6 / (once + 200), 20), 200_000))):
        begun = clock()
        operation()
        singles.append(max(clock() - begun - floor, 0) / operations)
    return rounds, singles


class Mixed:
    """256 live blocks; each step gives one back and takes another."""

    def __init__(self, malloc, seed):
        draws = Draws(seed)
        self.malloc = malloc
        self.steps = [(draws.below(256), draws.size()) for _ in range(4096)]
        self.live = [malloc(draws.size()) for _ in range(256)]
        self.next = 0

    def step(self):
        place, size = self.steps[self.next % 4096]
        self.next += 1
        self.live[place] = None
        self.live[place] = self.malloc(size)


def together(cupy, threads, prepare):
    """Million calls a second of so many threads, each in a stream of its own."""
    ready, stop = threading.Barrier(threads + 1), threading.Event()
    done, failures = [0] * threads, []

    def work(place):
        try:
            with cupy.cuda.Stream(non_blocking=True):
                step = prepare(place)
                ready.wait()
                steps = 0
                while not stop.is_set():
                    for _ in range(8):
                        step()
                    steps += 8
                done[place] = steps
        except Exception as error:  # noqa: BLE001 - told below, in the thread that reports
            failures.append(error)
            ready.abort()

    running = [threading.Thread(target=work, args=(place,)) for place in range(threads)]
    for thread in running:
        thread.start()
    try:
        ready.wait()
        begun = time.perf_counter_ns()
        time.sleep(THREADS_MS / 1000)
        stop.set()
        ended = time.perf_counter_ns()
    except threading.BrokenBarrierError:
        stop.set()
        ended = begun = 0
    for thread in running:
        thread.join()
    if failures:
        raise failures[0]
    return (ended - begun) * threads / max(2 * sum(done), 1)


def main():
    import cupy

    pool = cupy.cuda.MemoryPool()
    malloc = pool.malloc
    with cupy.cuda.Stream(non_blocking=True):
        for size in (512, 64 << 10, MIB, 16 * MIB, 64 * MIB):
            # The block is given back when nothing refers to it any more, which is at once.
            row("pair", size, 1, *measure(lambda size=size: malloc(size), 1))
        mixed = Mixed(malloc, 1)
        for _ in range(4096):
            mixed.step()
        row("mixed", 0, 1, *measure(mixed.step, 2))
        del mixed
        rounds = []
        for _ in range(min(ROUNDS, 5)):
            pool.free_all_blocks()
            begun = time.perf_counter_ns()
            blocks = [malloc(16 * MIB) for _ in range(64)]
            rounds.append((time.perf_counter_ns() - begun) / 64)
            del blocks
        row("miss", 16 * MIB, 1, rounds)
    for threads in (1, 2) if QUICK else (1, 2, 4, 8, 16):
        row("threads", 0, threads, [together(cupy, threads, lambda place: Mixed(malloc, 1 + place).step)])
        row("threads", MIB, threads, [together(cupy, threads, lambda place: lambda: malloc(MIB))])


if __name__ == "__main__":
    main()
