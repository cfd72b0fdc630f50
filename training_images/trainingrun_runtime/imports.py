"""Imports of PyTorch and Ray Train, which take seconds of CPU time in each process."""

import gc
import importlib
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from types import ModuleType


@contextmanager
def collector_paused() -> Iterator[None]:
    """No cyclic garbage collection: an import makes many objects and hardly any garbage.

    Saves a fifth of the CPU time of `import ray.train.torch`. For known modules alone: users'
    modules may have settings of the collector.
    """
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()


class BackgroundImports:
    """Imports modules one after the other, while the main thread waits for the network.

    Two threads that import parts of one package with circular imports can fail, so whoever needs
    one of the modules calls `wait` first.
    """

    def __init__(self, *modules: str) -> None:
        self._done: dict[str, Future[ModuleType]] = {name: Future() for name in modules}
        # Not a daemon: a thread that ends inside an import can abort the process at its exit.
        threading.Thread(target=self._import, name="imports").start()

    def _import(self) -> None:
        with collector_paused():
            for name, done in self._done.items():
                try:
                    done.set_result(importlib.import_module(name))
                except BaseException as error:  # for whoever waits
                    done.set_exception(error)

    def wait(self, module: str) -> None:
        """Wait until a module is imported.

        Raises:
            BaseException: what its import raised.
        """
        self._done[module].result()
