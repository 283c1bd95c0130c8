"""``python -m headwater.torch [--record FILE] [--no-shim] [--status] [--children] PROGRAM ARGS...``: a program on Headwater, untouched."""

import argparse
import atexit
import os
import runpy
import sys
from pathlib import Path
from typing import List, Optional

from .. import _native
from .._errors import DeviceError
from ._enable import enable


SITE = Path(__file__).parent / "site"


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m headwater.torch",
        description="Runs a PyTorch program with its GPU memory served by Headwater.",
    )
    parser.add_argument("--record", metavar="FILE", help="write what the program asks for into FILE (.hwt), see `headwater replay`")
    parser.add_argument("--no-shim", action="store_true", help="use the plain hooks, build nothing")
    parser.add_argument("--status", action="store_true", help="print how PyTorch and Headwater are connected before the program starts")
    parser.add_argument("--children", action="store_true", help="the same for Python programs that this one starts")
    parser.add_argument("-m", dest="module", metavar="MODULE", help="run a module, as `python -m` does")
    parser.add_argument("program", nargs="?", help="the program's file")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="its arguments")
    return parser


def main(arguments: Optional[List[str]] = None) -> None:
    options = parser().parse_args(arguments)
    if options.module is None and options.program is None:
        parser().error("which program?")
    try:
        status = enable(shim=False if options.no_shim else None)
    except (DeviceError, RuntimeError) as error:
        sys.exit(f"headwater: {error}")
    if options.children:
        # Every interpreter looks for `sitecustomize` on its path when it starts.
        os.environ["PYTHONPATH"] = os.pathsep.join([str(SITE), *filter(None, [os.environ.get("PYTHONPATH")])])
        if options.no_shim:
            os.environ["HEADWATER_TORCH_SHIM"] = "0"
    if options.status:
        print(status, file=sys.stderr)
    if options.record:
        _native.record_all(options.record, os.path.splitext(os.path.basename(options.record))[0])
        atexit.register(_native.stop_recording_all)
    if options.module is not None:
        rest = ([options.program] if options.program is not None else []) + options.arguments
        sys.argv = [options.module] + rest
        sys.path.insert(0, os.getcwd())
        runpy.run_module(options.module, run_name="__main__", alter_sys=True)
    else:
        sys.argv = [options.program] + options.arguments
        sys.path.insert(0, os.path.dirname(os.path.abspath(options.program)))
        runpy.run_path(options.program, run_name="__main__")


if __name__ == "__main__":
    main()
