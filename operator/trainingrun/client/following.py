"""The states of a run until nothing follows any more, and what its end means.

Each loop that waits for a run is `states`, and what ends it is in one place.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..api.errors import RunError, RunFailedError
from ..api.status import Phase
from ..local import records
from ..local.run_line import Run, condition, options, phase
from ..local.terminal_text import plain
from .errors import NotFoundError, RefusedError, UnreachableError

POLL_INTERVAL_S = 1.0
AWAY_S = 60.0
"""How long it continues while the API server is away (`passes`), where nobody says otherwise."""


@dataclass(frozen=True)
class Followed:
    """A run that is followed."""

    ask: Callable[[], dict[str, Any]]
    """The run as it is now. Raises NotFoundError, and others of which some pass (`passes`)."""
    ends: frozenset[Phase]
    """Phases after which nothing follows by itself. A run that is deleted has ended too."""


def of_name(name: str, ask: Callable[[], dict[str, Any]], ends: frozenset[Phase]) -> Followed:
    """The run of a cluster that has this name at the first look.

    A later one of that name is another run, whose success is not that of this one.
    """
    first: str | None = None

    def same() -> dict[str, Any]:
        nonlocal first
        found = ask()
        uid = found["metadata"].get("uid")
        first = first or uid
        if uid != first:
            raise deleted(name)
        return found

    return Followed(same, ends)


def of_folder(own: Path) -> Followed:
    """The local run with a record in this folder."""

    def ask() -> dict[str, Any]:
        found = records.read(own)
        if found is None:
            raise NotFoundError(f"{own} is gone")
        return found

    return Followed(ask, records.ENDS)


def passes(error: Exception) -> bool:
    """Whether a later call may succeed: the API server does not answer, or is busy or restarts.

    A 404 that is no NotFoundError is that of a proxy which does not reach it.
    """
    busy = isinstance(error, RefusedError) and (error.status >= 500 or error.status in (404, 429))
    return busy or isinstance(error, UnreachableError)


def looks(
    run: Followed, away_s: float | None = None, known: bool = False
) -> Iterator[dict[str, Any] | None]:
    """The run as it is now at each look, until that of its end; None: the API server is away.

    Who asks pauses between two looks. A run that is deleted meanwhile has no last state.

    Args:
        run: The run.
        away_s: Seconds for which the API server may be away; None: a minute.
        known: Whether there is such a run, so that it may be away at the first look, too.

    Raises:
        RunError: It is not there at first, or the API server does not answer any more.
    """
    bound_s = AWAY_S if away_s is None else away_s
    answered_at, seen = time.monotonic() if known else None, False
    while True:
        try:
            found = run.ask()
        except NotFoundError:
            if not seen:
                raise
            return
        except RunError as error:
            if answered_at is None or not passes(error):
                raise
            if time.monotonic() - answered_at > bound_s:
                raise
            yield None
        else:
            answered_at, seen = time.monotonic(), True
            yield found
            if phase(found) in run.ends:
                return


def states(run: Followed, known: bool = False) -> Iterator[dict[str, Any]]:
    """The run as it is now, again after each pause; the last one is that of its end.

    Raises:
        RunError: As `looks`.
    """
    for found in looks(run, known=known):
        if found is not None:
            yield found
            if phase(found) in run.ends:
                return
        time.sleep(POLL_INTERVAL_S)


def ended(name: str, last: Run | None, ends: frozenset[Phase]) -> None:
    """What the last state of a run means that was followed.

    Args:
        name: Of the run.
        last: Its last state; None: it was deleted before it was seen.
        ends: Those of `Followed`.

    Raises:
        RunFailedError: It has failed.
        RunError: It has not ended by itself, or it is gone.
    """
    now = None if last is None else _came_to(last)
    if last is None or now not in ends:
        raise deleted(name)
    if now == Phase.FAILED:
        raise RunFailedError(f"{name} failed: {plain(failure(last))}")
    if now == Phase.DELETING:
        holding = plain(", ".join(last["metadata"].get("finalizers") or ()))
        raise RunError(f"{name} is deleted; finalizers hold the object: {holding}")
    if now == Phase.SUSPENDED:
        found = condition(last, "Suspended") or {}
        raise RunError(
            f"{name} is suspended: {plain(str(found.get('message', 'no reason is given')))}; "
            f"`trainingrun run FILE{options(last)} --resume` continues"
        )


def _came_to(run: Run) -> str:
    """The phase of a run; that of its end also where it is deleted, and a finalizer holds it."""
    found = (run.get("status") or {}).get("phase")
    return str(found) if found in (Phase.SUCCEEDED, Phase.FAILED) else phase(run)


def failure(run: Run) -> str:
    """Reason and message of condition Failed."""
    found = condition(run, "Failed")
    return f"{found['reason']}: {found.get('message', '')}" if found else "no reason is given"


def deleted(name: str) -> NotFoundError:
    """What is said of a run that is deleted while it is followed."""
    return NotFoundError(f"{name} was deleted")
