"""The C++ shim inside of PyTorch, without a GPU: PyTorch's own entry points, the shim, Headwater, and the simulator behind CUDA's
driver interface. Needs PyTorch with CUDA; skipped, and said, without."""

import importlib.util
import os
import subprocess
import tempfile
import unittest

from support import fake_cuda, run_python

if importlib.util.find_spec("torch") is None:
    raise unittest.SkipTest("PyTorch is not installed: HEADWATER_TEST_PACKAGES=torch python/tests/run")

PRELUDE = """
import torch, headwater.torch
from headwater import cuda
headwater.torch.enable(shim=True)
C = torch._C
alloc = lambda size, stream=0: C._cuda_cudaCachingAllocator_raw_alloc(size, stream)
free = C._cuda_cudaCachingAllocator_raw_delete
stats = lambda: C._cuda_memoryStats(0)
"""


class Shim(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.variables = fake_cuda()
        cls.folder = tempfile.TemporaryDirectory()
        library = os.path.join(cls.folder.name, "fake_cudart.so")
        source = os.path.join(os.path.dirname(os.path.abspath(__file__)), "fake_cudart.c")
        subprocess.run([os.environ.get("CC", "gcc"), "-shared", "-fPIC", source, "-o", library], check=True, timeout=300)
        cls.variables["LD_PRELOAD"] = library
        if "HEADWATER_CACHE" not in os.environ:
            cls.variables["HEADWATER_CACHE"] = os.environ.get("HEADWATER_TEST_FOLDER", cls.folder.name)

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def run_shim(self, code):
        return run_python(PRELUDE + code, **self.variables)

    def test_memory_and_statistics(self):
        self.run_shim(
            """
ptr = alloc(1 << 20)
assert stats()["allocated_bytes"]["all"]["current"] == 1 << 20 == cuda.memory_allocated()
assert stats()["reserved_bytes"]["all"]["current"] == cuda.memory_reserved()
free(ptr)
assert stats()["allocated_bytes"]["all"] == {"current": 0, "peak": 1 << 20, "allocated": 1 << 20, "freed": 1 << 20}
C._cuda_resetPeakMemoryStats(0)
C._cuda_resetAccumulatedMemoryStats(0)
assert stats()["allocated_bytes"]["all"] == {"current": 0, "peak": 0, "allocated": 0, "freed": 0}
C._cuda_emptyCache()
assert cuda.memory_reserved() == 0
cuda.verify()
"""
        )

    def test_out_of_memory_is_pytorchs(self):
        said = self.run_shim(
            """
seen = []
C._cuda_attach_out_of_memory_observer(lambda *numbers: seen.append(numbers))
for size in (1 << 40, 800000000 << 30):
    try:
        alloc(size)
    except torch.OutOfMemoryError as error:
        print(error)
print(seen)
C._cuda_setMemoryFraction(0.01, 0)
assert abs(C._cuda_getMemoryFraction(0) - 0.01) < 1e-6
try:
    alloc(1 << 30)
except torch.OutOfMemoryError as error:
    print(error)
C._cuda_setMemoryFraction(1.0, 0)
free(alloc(1 << 30))
"""
        )
        lines = said.splitlines()
        self.assertRegex(lines[0], r"^CUDA out of memory. Tried to allocate 1024.00 GiB. GPU 0 has a total capacity of 8.00 GiB of which 5.00 GiB is free.")
        self.assertIn("Tried to allocate 800000000.00 GiB. GPU 0 has a total capacity of", lines[1])
        self.assertIn("1099511627776", lines[2])
        self.assertIn("allowed", lines[3])

    def test_pools_and_their_states(self):
        self.run_shim(
            """
pool = (0, 7)
C._cuda_beginAllocateToPool(0, pool)
one, two = alloc(1 << 20), alloc(1 << 20)
state = C._cuda_getCheckpointState(0, pool)
three = alloc(2 << 20)
assert C._cuda_checkPoolLiveAllocations(0, pool, {one, two, three})
assert not C._cuda_checkPoolLiveAllocations(0, pool, {one, two})
C._cuda_endAllocateToPool(0, pool)
outside = alloc(1 << 20)
segments = C._cuda_memorySnapshot(None)["segments"]
mine = [segment for segment in segments if tuple(segment["segment_pool_id"]) == pool]
assert sum(segment["allocated_size"] for segment in mine) == 4 << 20, mine
assert sum(segment["total_size"] for segment in segments) == cuda.memory_reserved()
only = C._cuda_memorySnapshot(pool)["segments"]
assert [segment["address"] for segment in only] == [segment["address"] for segment in mine]
for ptr in (one, two, three, outside):
    free(ptr)
C._cuda_releasePool(0, pool)
C._cuda_emptyCache()
assert cuda.memory_reserved() == 0
cuda.verify()
"""
        )

    def test_mempools_count_their_users(self):
        self.run_shim(
            """
torch.cuda._initialized = True  # There is no device that PyTorch could initialise.
pool = torch.cuda.MemPool()
assert pool.use_count() == 1
C._cuda_beginAllocateCurrentThreadToPool(0, pool.id)
ptr = alloc(1 << 20)
assert pool.use_count() == 2
C._cuda_endAllocateToPool(0, pool.id)
C._cuda_releasePool(0, pool.id)
[segment] = C._cuda_memorySnapshot(None)["segments"]
assert tuple(segment["segment_pool_id"]) == tuple(pool.id)
free(ptr)
del pool
assert cuda.memory_reserved() == 0
cuda.verify()
"""
        )

    def test_history_has_stacks(self):
        self.run_shim(
            """
torch.cuda.memory._record_memory_history(stacks="python", max_entries=1000)
assert C._cuda_isHistoryEnabled()
ptr = alloc(3 << 20)
snapshot = C._cuda_memorySnapshot(None)
actions = [entry["action"] for entry in snapshot["device_traces"][0]]
assert "alloc" in actions and "segment_map" in actions and "snapshot" in actions, actions
[block] = [block for segment in snapshot["segments"] for block in segment["blocks"] if block["state"] == "active_allocated"]
assert any(frame["name"] == "<module>" for frame in block["frames"]), block
free(ptr)
C._cuda_emptyCache()
actions = [entry["action"] for entry in C._cuda_memorySnapshot(None)["device_traces"][0]]
assert "free_requested" in actions and "free_completed" in actions and "segment_unmap" in actions, actions
torch.cuda.memory._record_memory_history(enabled=None)
assert not C._cuda_isHistoryEnabled()
assert C._cuda_memorySnapshot(None)["device_traces"] == [[]]
"""
        )


if __name__ == "__main__":
    unittest.main()
