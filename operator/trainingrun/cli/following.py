"""The states of a run until nothing follows any more: for `watch`, `top` and `logs --follow`.

Each loop that waits for a run is `states`, and what ends it is in one place.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..api.status import Phase
from ..local import records
from . import views
from .errors import CliError, NotFoundError, UnreachableError

POLL_INTERVAL_S = 1.0
_UNREACHABLE_TIMEOUT_S = 60.0
"""How long it continues while the API server does not answer."""


@dataclass(frozen=True)
class Followed:
    """A run that is followed."""

    ask: Callable[[], dict[str, Any]]
    """The run as it is now. Raises NotFoundError and UnreachableError."""
    ends: frozenset[Phase]
    """Phases after which nothing follows by itself. A run that is deleted has ended too."""


def of_folder(own: Path) -> Followed:
    """The local run with a record in this folder."""

    def ask() -> dict[str, Any]:
        found = records.read(own)
        if found is None:
            raise NotFoundError(f"{own} is gone")
        return found

    return Followed(ask, records.ENDS)


def states(
    run: Followed, pause: Callable[[], None] = lambda: time.sleep(POLL_INTERVAL_S)
) -> Iterator[dict[str, Any]]:
    """The run as it is now, again after each pause; the last one is that of its end.

    An API server that is away is asked again. A run that is deleted meanwhile has no last state.

    Args:
        run: What is followed.
        pause: Called between two looks; a loop that has something to do meanwhile does it there.

    Raises:
        CliError: It is not there at first, or the API server does not answer any more.
    """
    answered_at = None
    while True:
        try:
            found = run.ask()
        except NotFoundError:
            if answered_at is None:
                raise
            return
        except UnreachableError:
            if answered_at is None or time.monotonic() - answered_at > _UNREACHABLE_TIMEOUT_S:
                raise
        else:
            answered_at = time.monotonic()
            yield found
            if views.phase(found) in run.ends:
                return
        pause()


def deleted(name: str) -> CliError:
    """What is said of a run that is deleted while it is followed."""
    return CliError(f"{name} was deleted")
