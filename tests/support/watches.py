"""A watch without a connection, by a clock that the test moves."""

from typing import Any

from trainingrun.cluster.object_store import Store
from trainingrun.cluster.watch_state import Watch


class Answer:
    """The open answer to a watch, as far as `Watch` reads it."""

    closed, connection = False, None


def a_watch(clock: list[float], path: str, what: str) -> Watch:
    """One that was not listed yet; `clock` holds the seconds of now."""
    connection: Any = None
    return Watch(connection, path, Store(), what=what, monotonic=lambda: clock[0])
