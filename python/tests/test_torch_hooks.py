"""The plain hooks, called from C++ as PyTorch calls them, with the simulator behind CUDA's driver interface."""

import os
import subprocess
import tempfile
import unittest

from support import fake_cuda, run_python

PRELUDE = """
import ctypes, os
from headwater import _native, cuda
hooks = _native.torch_hooks()
library = ctypes.CDLL(os.environ["HOOKS_CHECK"])
address = {name: ctypes.c_void_p(value) for name, value in hooks.items()}
alloc = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)(hooks["alloc"])
free = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)(hooks["free"])
"""


class Hooks(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.variables = fake_cuda()
        cls.folder = tempfile.TemporaryDirectory()
        library = os.path.join(cls.folder.name, "hooks_check.so")
        source = os.path.join(os.path.dirname(os.path.abspath(__file__)), "hooks_check.cpp")
        compiler = os.environ.get("CXX", "g++")
        subprocess.run([compiler, "-std=c++17", "-shared", "-fPIC", "-O1", source, "-o", library], check=True, timeout=300)
        cls.variables["HOOKS_CHECK"] = library

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def run_hooks(self, code):
        return run_python(PRELUDE + code, **self.variables)

    def test_memory_out_and_back(self):
        said = self.run_hooks(
            """
ptr = alloc(1 << 20, 0, None)
assert ptr and cuda.memory_allocated() == 1 << 20
record = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(hooks["record_stream"])
record(ptr, None)
record(0x1234, None)  # Somebody else's: nothing happens.
base = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.POINTER(ctypes.c_size_t))(hooks["base_alloc"])
size = ctypes.c_size_t()
assert base(ptr + 100, ctypes.byref(size)) == ptr and size.value == 1 << 20
free(ptr, 1 << 20, 0, None)
free(None, 0, 0, None)
assert alloc(0, 0, None) is None
assert cuda.memory_allocated() == 0 and cuda.memory_reserved() > 0
ctypes.CFUNCTYPE(None)(hooks["reset"])()
assert cuda.memory_reserved() == 0
cuda.verify()
print("done")
"""
        )
        self.assertIn("done", said)

    def test_out_of_memory_is_an_exception(self):
        said = self.run_hooks(
            """
library.out_of_memory.restype = ctypes.c_char_p
print(library.out_of_memory(address["alloc"], ctypes.c_size_t(1 << 40)).decode())
ptr = alloc(4096, 0, None)
assert ptr, "and not the end"
fraction = ctypes.CFUNCTYPE(None, ctypes.c_double, ctypes.c_int)(hooks["memory_fraction"])
fraction(0.01, 0)
print(library.out_of_memory(address["alloc"], ctypes.c_size_t(1 << 30)).decode())
"""
        )
        lines = said.splitlines()
        self.assertRegex(lines[0], "^CUDA out of memory: .*1099511627776 bytes")
        self.assertRegex(lines[1], "^CUDA out of memory: .* of a limit of ")

    def test_a_filter_is_copied_asked_and_let_go(self):
        said = self.run_hooks(
            """
print(library.pool_filter(address["alloc"], address["free"], address["begin_allocate_to_pool"],
                          address["end_allocate_to_pool"], address["release_pool"]))
cuda.verify()
"""
        )
        self.assertEqual(said.strip(), "0")

    def test_what_a_filter_throws_comes_through(self):
        said = self.run_hooks(
            """
print(library.throwing_filter(address["alloc"], address["begin_allocate_to_pool"],
                              address["end_allocate_to_pool"], address["release_pool"]))
cuda.verify()
"""
        )
        self.assertEqual(said.strip(), "0")

    def test_a_foreign_pointer_stops_the_process_with_a_message(self):
        code = PRELUDE + "\nalloc(512, 0, None)\nfree(0x1234, 1, 0, None)\n"
        with self.assertRaisesRegex(AssertionError, "0x1234 was not given out"):
            run_python(code, **self.variables)

    def test_the_names_are_exported(self):
        self.run_hooks(
            """
exported = ctypes.CDLL(_native.__file__)
for name in hooks:
    assert ctypes.cast(getattr(exported, "headwater_torch_" + name), ctypes.c_void_p).value == hooks[name], name
"""
        )

    def test_a_recording_of_all_devices(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "out.hwt")
            said = self.run_hooks(
                f"""
_native.record_all({path!r}, "program")
free(alloc(1 << 20, 0, None), 1 << 20, 0, None)
free(alloc(1 << 20, 1, None), 1 << 20, 1, None)
print(_native.stop_recording_all())
"""
            )
            self.assertEqual(said.strip(), "4")
            self.assertEqual(sorted(os.listdir(folder)), ["out.1.hwt", "out.hwt"])


if __name__ == "__main__":
    unittest.main()
