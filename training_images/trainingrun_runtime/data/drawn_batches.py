"""What a training draws from its loaders: how long it waits, and that each step draws its own."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

from ..checkpoints.stateful_objects import instead_of_loader
from .position import Microbatch, ResumableLoader

T = TypeVar("T")


class DrawnBatches:
    """Measures the time spent waiting for data, and watches when loaders hand out batches.

    Args:
        objects: those of the session, by name.
    """

    def __init__(self, objects: Mapping[str, Any]) -> None:
        self._objects = objects
        self._drawn = {
            name: thing.drawn
            for name, thing in objects.items()
            if isinstance(thing, ResumableLoader)
        }
        self._waited_s: float | None = None

    def waited(self, productive_s: float) -> float | None:
        """Share of the seconds in steps in which the training has waited for data.

        None: it draws nothing that is measured.
        """
        if self._waited_s is None or productive_s <= 0:
            return None
        return min(self._waited_s / productive_s, 1.0)

    def step_begins(self) -> None:
        """A step is handed out.

        Raises:
            RuntimeError: a batch was drawn before it: a checkpoint would count it as seen.
        """
        for name, drawn in self._drawn.items():
            if self._objects[name].drawn != drawn:
                raise RuntimeError(
                    f"{name} has handed out a batch before the step that uses it, so a resumed run "
                    "would leave it out; loop over session.batches(loader), or draw the batch in "
                    "the body of the loop over session.steps()"
                )

    def step_done(self) -> None:
        """The step is over; the next one draws batches of its own.

        Raises:
            RuntimeError: some of its microbatches are left, and a resumed run would see all again.
        """
        for name in self._drawn:
            if self._objects[name].within_step:
                raise RuntimeError(
                    f"a step has ended before it has taken all of its microbatches of {name}; let "
                    "the inner loop over them run to its end"
                )
        self._drawn = {name: self._objects[name].drawn for name in self._drawn}

    def timed(self, items: Iterable[T]) -> Iterator[T]:
        """The same items; waiting for each is measured."""
        began = time.monotonic()
        iterator = iter(items)  # which may start worker processes
        while True:
            try:
                item = next(iterator)
            except StopIteration:
                return
            finally:
                self._waited_s = (self._waited_s or 0.0) + time.monotonic() - began
            yield item
            began = time.monotonic()

    def repeated(self, loader: Iterable[T]) -> Iterator[T]:
        """The loader's items, again from its beginning after its last one.

        Raises:
            ValueError: the session does not restore it, or it has no item.
        """
        self._require_known(loader)
        return self._repeated(loader, lambda: loader)

    def microbatches(self, loader: ResumableLoader) -> Iterator[Microbatch]:
        """The same of its microbatches.

        Raises:
            TypeError: it has none.
        """
        if not isinstance(loader, ResumableLoader):
            raise TypeError(
                f"session.microbatches() takes a ResumableDataLoader, and this is a "
                f"{type(loader).__name__}; make one of the same data set"
            )
        self._require_known(loader)
        return self._repeated(loader, loader.microbatches)

    def _require_known(self, loader: Any) -> None:
        known = self._objects.values()
        if all(loader is not thing for thing in known):
            instead = instead_of_loader(loader)
            raise ValueError(
                f"{f'{instead}, and ' if instead else ''}pass the loader to the session as well, "
                f"as in Session(loader=loader): this {type(loader).__name__} would begin anew in a "
                "resumed run"
            )

    def _repeated(self, loader: Any, begin: Callable[[], Iterable[T]]) -> Iterator[T]:
        # A loader that was saved at its end may be there still, and then has none at first.
        empty = 0
        while empty < 2:
            empty += 1
            for item in self.timed(begin()):
                empty = 0
                yield item
        raise ValueError(f"this {type(loader).__name__} has no batch")
