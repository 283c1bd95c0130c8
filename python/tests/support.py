"""What the tests share."""

import os
import subprocess
import sys
import textwrap
import unittest


def run_python(code: str, **variables: str) -> str:
    """Runs a program in an interpreter of its own (the process's allocators can be made once only), and returns what it printed."""
    environment = dict(os.environ, **variables)
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, env=environment, timeout=300
    )
    if done.returncode != 0:
        raise AssertionError(f"exit status {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done.stdout


def fake_cuda() -> "dict[str, str]":
    """The variables that put the simulator behind CUDA's driver interface."""
    library = os.environ.get("HEADWATER_FAKE_LIBCUDA")
    if not library or not os.path.exists(library):
        raise unittest.SkipTest("HEADWATER_FAKE_LIBCUDA names no library: python/tests/run builds it")
    return {"HEADWATER_LIBCUDA": library, "HEADWATER_DEVICE": "cuda"}
