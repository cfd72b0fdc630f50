"""A watch without a connection, by a clock that the test moves."""

from typing import Any

from trainingrun.cluster.object_store import Store
from trainingrun.cluster.watches import Watch


def a_watch(clock: list[float], path: str, kind: str) -> Watch:
    """One that was not listed yet; `clock` holds the seconds of now."""
    connection: Any = None
    return Watch(connection, path, Store(), kind=kind, monotonic=lambda: clock[0])
