"""Whether ranks wait for others that do not come, in a sentence; pure."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import Enum, auto

from ..error_text import in_words

PATIENCE_S = 30.0
"""Seconds for which a rank waits before it is said."""
_SAME_STEPS = "every rank must do the same steps: give each as many batches, as drop_last=True does"
_ALONE = "what one rank does alone between the loops keeps all others waiting"
LEFT_LOOP = "after a loop"
"""The place of a rank whose loop is over."""


class At(Enum):
    """The kind of place where a rank is."""

    REPORT = auto()
    """In `ray.train.report`, until all other ranks have called it."""
    SESSION = auto()
    """At a place of the session where all ranks agree."""
    RETURNED = auto()
    """The training function has returned."""
    CODE = auto()
    """On one line of the user's code."""


@dataclass(frozen=True)
class Location:
    """Where one rank has been for a while."""

    at: At
    where: str = ""
    """`after a loop`, or `train.py:20 in train`."""
    steps: int = 0
    """Steps that the rank has done, where it has a session."""
    since: float = 0.0
    """Unix time in seconds."""
    blocked: bool = False
    """In the user's code: the training thread has used no CPU time since then. A loop that is seen
    on the same line each time, as one that mostly waits for its data, has."""


def sentence(locations: Mapping[int, Location], world_size: int, now: float) -> str | None:
    """Which ranks wait, for which, and what to do; None: none waits for long.

    Args:
        locations: where ranks are; those that move are not in it.
        world_size: ranks of the worker group.
        now: Unix time in seconds.
    """
    long = {rank: one for rank, one in locations.items() if now - one.since >= PATIENCE_S}
    at = {rank: one.at for rank, one in locations.items()}
    for place in (At.REPORT, At.SESSION, At.RETURNED):
        waiting = [rank for rank in sorted(long) if at[rank] is place]
        missing = [rank for rank in range(world_size) if at.get(rank) is not place]
        # Between loops one rank may evaluate for all: then it moves from line to line.
        moves = place is not At.REPORT and any(rank not in long for rank in missing)
        if waiting and missing and not moves:
            works = any(at.get(rank, At.CODE) is At.CODE for rank in missing)
            where = _whereabouts(locations, missing)
            return _said(long[waiting[0]], waiting, missing, where, works)
    return _at_different_lines(long, world_size)


def _at_different_lines(long: Mapping[int, Location], world_size: int) -> str | None:
    """Of ranks that are all blocked in the user's code: they may be in different collectives."""
    lines: dict[str, list[int]] = {}
    for rank in sorted(long):
        if long[rank].blocked:
            lines.setdefault(long[rank].where, []).append(rank)
    if len(lines) < 2 or sum(map(len, lines.values())) < world_size:
        return None
    (one, first), (other, second), *_ = lines.items()
    return (
        f"{in_words(first)} {_stands(first)} at {one}, and {in_words(second)} at {other}, for over "
        f"{round(PATIENCE_S)} s; where one waits for the other there, {_SAME_STEPS}; where one "
        "still works, the wait ends by itself"
    )


def _stands(ranks: Collection[int]) -> str:
    return "stands" if len(ranks) == 1 else "stand"


def _said(
    location: Location, waiting: Collection[int], missing: Collection[int], where: str, works: bool
) -> str:
    who, others, limit = in_words(waiting), in_words(missing), round(PATIENCE_S)
    waits = "waits" if len(waiting) == 1 else "wait"
    if location.at is At.REPORT:
        # One rank may evaluate or save for all, and then report: nobody can tell that from a rank
        # that never does.
        still = f", unless {others} still {_works(missing)}: then the wait ends by itself"
        return (
            f"{who} {waits} in ray.train.report for over {limit} s for {others}, {where}; call it "
            "on every rank equally often, not under `if rank == 0` (the metrics of rank 0 are "
            f"used){still if works else ''}"
        )
    if location.at is At.SESSION:
        advice = _SAME_STEPS if location.where == LEFT_LOOP else _ALONE
        return (
            f"{who} {waits} {location.where} with {location.steps} steps done, for over {limit} s "
            f"for {others}, {where}; {advice}"
        )
    return (
        f"{who} returned from the training function over {limit} s ago, and not {others}, {where}; "
        f"{_SAME_STEPS}"
    )


def _works(ranks: Collection[int]) -> str:
    own, work = ("its", "works") if len(ranks) == 1 else ("their", "work")
    return f"{work} before {own} own call, as in an evaluation or a save"


def _whereabouts(locations: Mapping[int, Location], missing: Collection[int]) -> str:
    """What is known of the ranks for which others wait."""
    of = "which" if len(missing) == 1 else f"of which rank {next(iter(missing))}"
    location = locations.get(next(iter(missing)))
    if location is None:
        return f"{of} is elsewhere"
    if location.at is At.RETURNED:
        return f"{of} has returned from the training function"
    if location.at is At.REPORT:
        return f"{of} is in ray.train.report"
    return f"{of} is {'at ' if location.at is At.CODE else ''}{location.where}"
