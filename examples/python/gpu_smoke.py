"""Does PyTorch work on Headwater on this machine? Run it where there is a GPU:

    python examples/python/gpu_smoke.py            # the C++ shim where it can be built
    python examples/python/gpu_smoke.py --no-shim  # the plain hooks

Every line is one thing that was tried; the exit status is 1 where one failed.
"""

import argparse
import gc
import sys
import time
import traceback

import torch

import headwater
import headwater.torch

FAILED = []


def check(name):
    """Runs the function below it, and says how it went."""

    def run(work):
        start = time.perf_counter()
        try:
            said = work()
            print(f"ok    {name}: {said or ''} ({(time.perf_counter() - start) * 1e3:.1f} ms)", flush=True)
        except Exception as error:  # noqa: BLE001 - all of them are reported
            FAILED.append(name)
            print(f"FAIL  {name}: {type(error).__name__}: {error}", flush=True)
            traceback.print_exc()
        return work

    return run


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--no-shim", action="store_true")
    options = parser.parse_args()
    status = headwater.torch.enable(shim=False if options.no_shim else None)
    print(status)
    shim = status.route == "shim"
    out_of_memory = torch.OutOfMemoryError if shim else RuntimeError
    print("torch", torch.__version__, torch.cuda.get_device_name(0), "backend", torch.cuda.get_allocator_backend())

    @check("allocate, compute, free")
    def _():
        a = torch.randn(4096, 4096, device="cuda")
        b = a @ a
        assert torch.isfinite(b).all().item()
        return f"{torch.cuda.memory_allocated() / 2**20:.0f} MiB allocated"

    @check("statistics are Headwater's")
    def _():
        gc.collect()
        before = torch.cuda.memory_allocated()
        x = torch.empty(10 << 20, dtype=torch.uint8, device="cuda")
        assert torch.cuda.memory_allocated() - before == 10 << 20, torch.cuda.memory_allocated() - before
        assert torch.cuda.memory_reserved() >= torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        del x
        assert torch.cuda.memory_allocated() == before
        assert torch.cuda.max_memory_allocated() >= before + (10 << 20)
        return f"{len(torch.cuda.memory_stats())} figures"

    @check("pairs of allocate and free, hits")
    def _():
        for size in (512, 64 << 10, 1 << 20, 16 << 20):
            torch.empty(size, dtype=torch.uint8, device="cuda")
            start = time.perf_counter()
            for _ in range(20000):
                torch.empty(size, dtype=torch.uint8, device="cuda")
            each = (time.perf_counter() - start) / 20000
            print(f"      {size:>9} bytes: {each * 1e9:.0f} ns a torch.empty and its end")

    @check("streams and record_stream")
    def _():
        side = torch.cuda.Stream()
        for step in range(50):
            x = torch.full((1 << 20,), float(step), device="cuda")
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                y = x * 2
            x.record_stream(side)
            del x
            noise = torch.full((1 << 20,), -1.0, device="cuda")
            torch.cuda.current_stream().wait_stream(side)
            assert (y == 2 * step).all().item()
            del noise, y

    @check("empty_cache returns memory")
    def _():
        big = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
        free_with = torch.cuda.mem_get_info()[0]
        del big
        torch.cuda.empty_cache()
        gained = torch.cuda.mem_get_info()[0] - free_with
        assert gained >= 1 << 29, gained
        return f"{gained / 2**20:.0f} MiB"

    @check("out of memory is an exception, and not the end")
    def _():
        try:
            torch.empty(1 << 45, dtype=torch.uint8, device="cuda")
        except out_of_memory as error:
            assert "out of memory" in str(error), error
            message = str(error)
        else:
            raise AssertionError("no exception")
        torch.empty(1 << 20, device="cuda").fill_(1).sum().item()
        return message[:160]

    @check("memory fraction")
    def _():
        torch.cuda.set_per_process_memory_fraction(0.01)
        try:
            torch.empty(int(torch.cuda.get_device_properties(0).total_memory * 0.02), dtype=torch.uint8, device="cuda")
        except out_of_memory:
            pass
        else:
            raise AssertionError("the limit does not hold")
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0)

    @check("a captured graph")
    def _():
        x = torch.zeros(1 << 20, device="cuda")
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                y = (x * 2 + 1).relu()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = (x * 2 + 1).relu()
            z = y.sum()
        for step in range(5):
            x.fill_(float(step))
            graph.replay()
            noise = [torch.full((1 << 20,), 7.0, device="cuda") for _ in range(8)]
            torch.cuda.synchronize()
            assert z.item() == (2 * step + 1) * (1 << 20), (z.item(), step)
            del noise
        pool = graph.pool()
        second = torch.cuda.CUDAGraph()
        with torch.cuda.graph(second, pool=pool):
            w = (x * 3).sum()
        second.replay()
        torch.cuda.synchronize()
        assert w.item() == 12 * (1 << 20), w.item()
        del graph, second, y, z, w

    @check("training, a graphed module")
    def _():
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(512, 2048), torch.nn.GELU(), torch.nn.Linear(2048, 512)).cuda()
        graphed = torch.cuda.make_graphed_callables(model, (torch.randn(64, 512, device="cuda", requires_grad=True),))
        optimizer = torch.optim.AdamW(model.parameters())
        first = last = None
        for _ in range(20):
            optimizer.zero_grad()
            x = torch.randn(64, 512, device="cuda")
            loss = torch.nn.functional.mse_loss(graphed(x), x)
            loss.backward()
            optimizer.step()
            first, last = first or loss.item(), loss.item()
        assert last < first, (first, last)
        return f"loss {first:.3f} -> {last:.3f}"

    @check("threads")
    def _():
        import threading

        wrong = []

        def work(number):
            with torch.cuda.stream(torch.cuda.Stream()):
                for step in range(200):
                    x = torch.full((1000 + 37 * step,), float(number), device="cuda")
                    if step % 50 == 0 and not (x == number).all().item():
                        wrong.append((number, step))

        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        assert not wrong, wrong

    if shim:

        @check("MemPool")
        def _():
            pool = torch.cuda.MemPool()
            with torch.cuda.use_mem_pool(pool):
                x = torch.ones(1 << 20, device="cuda")
            assert x.sum().item() == 1 << 20
            assert pool.use_count() == 1, pool.use_count()
            del x, pool

        @check("snapshot and history")
        def _():
            torch.cuda.memory._record_memory_history()
            x = torch.ones(3 << 20, device="cuda")
            snapshot = torch.cuda.memory._snapshot()
            torch.cuda.memory._record_memory_history(enabled=None)
            traces = snapshot["device_traces"][0]
            assert any(entry["action"] == "alloc" and entry["addr"] == x.data_ptr() for entry in traces)
            blocks = [block for segment in snapshot["segments"] for block in segment["blocks"]]
            mine = [block for block in blocks if block["address"] == x.data_ptr()]
            assert mine and mine[0]["state"] == "active_allocated" and mine[0]["frames"], mine
            return f"{len(blocks)} blocks, {len(traces)} events"

        @check("torch.accelerator")
        def _():
            assert torch.accelerator.memory_allocated() == torch.cuda.memory_allocated() > 0

    @check("nothing is left over, and the accounts add up")
    def _():
        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        headwater.cuda.verify()
        return f"{torch.cuda.memory_allocated()} bytes allocated, {torch.cuda.memory_reserved()} reserved"

    print("failed:", ", ".join(FAILED) if FAILED else "nothing")
    sys.exit(1 if FAILED else 0)


if __name__ == "__main__":
    main()
