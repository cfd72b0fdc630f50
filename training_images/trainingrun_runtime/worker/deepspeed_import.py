"""DeepSpeed on CPUs: without an extension that it compiles when it starts.

An image needs a compiler for it, and it does nothing unless LOCAL_SIZE says that all ranks are on
one node; Ray sets no such variable. Read for DeepSpeed 0.19: `deepspeed/comm/torch.py`.
"""

import importlib.abc
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

_MODULE = "deepspeed.comm.torch"
_BUILDS = "build_shm_op"
"""Its function that compiles the extension and returns it, or None where there is none."""


def leave_out_extension() -> None:
    """Have DeepSpeed start without its extension in this process, once it is imported, if ever.

    It is not imported here. Where LOCAL_SIZE is set, DeepSpeed is left as it is.
    """
    if "LOCAL_SIZE" in os.environ:
        return
    if _MODULE in sys.modules:
        _replace(sys.modules[_MODULE])
    elif not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


class _Finder(importlib.abc.MetaPathFinder):
    """Finds that one module as Python does, and changes it once it is executed."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != _MODULE:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_replace(module: ModuleType) -> None:
                execute(module)
                _replace(module)

            spec.loader.exec_module = execute_and_replace  # type: ignore[method-assign]
        return spec


def _replace(module: ModuleType) -> None:
    if hasattr(module, _BUILDS):
        setattr(module, _BUILDS, lambda: None)
