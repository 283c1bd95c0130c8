"""Read by interpreters that a program under ``python -m headwater.torch --children`` starts: Headwater is enabled as soon as PyTorch is
imported. Whatever ``sitecustomize`` the machine has of its own is run as well."""

import importlib.machinery
import importlib.util
import os
import sys
from typing import Any


class _WhenTorchComes:
    """Stands in front of the finders until PyTorch was found."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec("torch")
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            execute(module)
            import headwater.torch

            headwater.torch.enable()

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


sys.meta_path.insert(0, _WhenTorchComes())

_here = os.path.dirname(os.path.abspath(__file__))
_others = [folder for folder in sys.path if os.path.abspath(folder or ".") != _here]
_spec = importlib.machinery.PathFinder.find_spec("sitecustomize", _others)
if _spec is not None and _spec.loader is not None:
    _spec.loader.exec_module(importlib.util.module_from_spec(_spec))
