"""CuPy's and Numba's side without CuPy and Numba: what their interfaces are given, with the simulator behind CUDA's."""

import unittest

from support import fake_cuda, run_python

CUPY = """
import sys, types
cupy = types.ModuleType("cupy")
class UnownedMemory:
    def __init__(self, ptr, size, owner, device_id=-1):
        self.ptr, self.size, self.owner, self.device_id = ptr, size, owner, device_id
class MemoryPointer:
    def __init__(self, mem, offset):
        self.mem, self.ptr = mem, mem.ptr + offset
class OutOfMemoryError(MemoryError):
    def __init__(self, size, total, limit=0):
        self.size, self.total, self.limit = size, total, limit
memory = types.SimpleNamespace(UnownedMemory=UnownedMemory, MemoryPointer=MemoryPointer, OutOfMemoryError=OutOfMemoryError)
state = {"allocator": "CuPy's own"}
stream = types.SimpleNamespace(ptr=0)
cupy.cuda = types.SimpleNamespace(
    memory=memory, get_allocator=lambda: state["allocator"], set_allocator=lambda f: state.update(allocator=f),
    runtime=types.SimpleNamespace(getDevice=lambda: 0), get_current_stream=lambda: stream)
sys.modules["cupy"] = cupy
import headwater.cupy
from headwater import cuda
"""


class CuPy(unittest.TestCase):
    def test_without_cupy_it_says_so(self):
        said = run_python(
            """
            import sys
            sys.modules["cupy"] = None
            import headwater.cupy
            try:
                headwater.cupy.enable()
            except ImportError as error:
                print(error)
            """
        )
        self.assertIn("needs CuPy", said)

    def test_memory_comes_from_headwater_until_disabled(self):
        said = run_python(
            CUPY
            + """
headwater.cupy.enable()
headwater.cupy.enable()
assert headwater.cupy.is_enabled()
made = cuda.Stream()
stream.ptr = made.ptr
pointer = state["allocator"](1 << 20)
assert cuda.memory_allocated() == 1 << 20 and pointer.mem.owner.stream == stream.ptr
array = types.SimpleNamespace(device=types.SimpleNamespace(id=0), data=types.SimpleNamespace(ptr=pointer.ptr))
other = cuda.Stream()
headwater.cupy.record_stream(array, other)
try:
    state["allocator"](1 << 42)
except OutOfMemoryError as error:
    print("caught", error.size == 1 << 42, type(error.__cause__).__name__)
headwater.cupy.disable()
assert state["allocator"] == "CuPy's own"
del pointer
assert cuda.memory_allocated() == 0
cuda.verify()
""",
            **fake_cuda(),
        )
        self.assertIn("caught True OutOfMemoryError", said)


class Numba(unittest.TestCase):
    def test_without_numba_it_says_so(self):
        said = run_python(
            """
            import sys
            sys.modules["numba"] = None
            import headwater.numba
            assert headwater.numba._numba_memory_manager is headwater.numba.HeadwaterMemoryManager
            try:
                headwater.numba.enable()
            except ImportError as error:
                print(error)
            """
        )
        self.assertIn("needs Numba", said)


if __name__ == "__main__":
    unittest.main()
