"""PyTorch without a GPU: enabling, its refusals, and the build of the shim. Needs PyTorch with CUDA; skipped, and said, without."""

import importlib.util
import os
import tempfile
import unittest

from support import run_python

if importlib.util.find_spec("torch") is None:
    raise unittest.SkipTest("PyTorch is not installed: HEADWATER_TEST_PACKAGES=torch python/tests/run")


class Enabling(unittest.TestCase):
    def test_the_plain_hooks(self):
        said = run_python(
            """
            import torch, headwater.torch
            print(headwater.torch.status())
            status = headwater.torch.enable(shim=False)
            print(status.route, torch.cuda.get_allocator_backend(), headwater.torch.enable() is status)
            """
        )
        self.assertIn("not enabled", said)
        self.assertIn("hooks pluggable True", said)

    def test_the_shim_is_built_once(self):
        with tempfile.TemporaryDirectory() as folder:
            code = """
            import torch, headwater.torch
            status = headwater.torch.enable(shim=True)
            print(status.reason.split(",")[0], torch.cuda.get_allocator_backend())
            print(torch._C._cuda_memoryStats(0)["allocated_bytes"]["all"])
            print(sorted(torch._C._cuda_memorySnapshot(None)))
            """
            first = run_python(code, HEADWATER_CACHE=folder)
            second = run_python(code, HEADWATER_CACHE=folder)
        self.assertIn("built now headwater", first)
        self.assertIn("built earlier headwater", second)
        self.assertIn("'segments'", second)

    def test_without_a_compiler_the_hooks_serve_and_say_why(self):
        with tempfile.TemporaryDirectory() as folder:
            said = run_python(
                """
                import headwater.torch
                print(headwater.torch.enable())
                """,
                HEADWATER_CACHE=folder,
                CXX="no-such-compiler",
            )
        self.assertIn("by the hooks: there is no C++ compiler (no-such-compiler)", said)
        self.assertIn("missing: torch.OutOfMemoryError", said)

    def test_too_late_is_a_clear_error(self):
        said = run_python(
            """
            import torch, headwater.torch
            torch.cuda.is_initialized = lambda: True
            try:
                headwater.torch.enable()
            except RuntimeError as error:
                print(error)
            """
        )
        self.assertIn("came too late", said)
        self.assertIn("Move the call before the first use of CUDA", said)

    def test_another_allocator_is_a_clear_error(self):
        said = run_python(
            """
            import torch, headwater, headwater.torch
            other = torch.cuda.memory.CUDAPluggableAllocator(headwater._native.__file__, "headwater_torch_alloc", "headwater_torch_free")
            torch.cuda.memory.change_current_allocator(other)
            try:
                headwater.torch.enable()
            except RuntimeError as error:
                print(error)
            """
        )
        self.assertIn("was changed before", said)


class Running(unittest.TestCase):
    def test_a_program_runs_untouched(self):
        with tempfile.TemporaryDirectory() as folder:
            program = os.path.join(folder, "program.py")
            with open(program, "w") as file:
                file.write("import sys, torch\nprint(sys.argv[1:], __name__, torch.cuda.get_allocator_backend())\n")
            said = run_python(
                f"""
                import subprocess, sys
                subprocess.run([sys.executable, "-m", "headwater.torch", "--no-shim", "--status", {program!r}, "--epochs", "3"], check=True)
                """
            )
        self.assertIn("['--epochs', '3'] __main__ pluggable", said)

    def test_children_are_served_too(self):
        with tempfile.TemporaryDirectory() as folder:
            program = os.path.join(folder, "parent.py")
            child = "import torch; print('child', torch.cuda.get_allocator_backend())"
            with open(program, "w") as file:
                file.write(f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {child!r}], check=True)\n")
            said = run_python(
                f"""
                import subprocess, sys
                subprocess.run([sys.executable, "-m", "headwater.torch", "--no-shim", "--children", {program!r}], check=True)
                """
            )
        self.assertIn("child pluggable", said)


if __name__ == "__main__":
    unittest.main()
