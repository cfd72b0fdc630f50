"""Which ranks hang, and which only wait for them, from where each stands; pure."""

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from trainingrun_protocol.progress import MOST_RANKS, Hang, HungRank

from .. import stacks
from ..coordinator.ranks import Member
from ..error_text import in_words
from .rank_stacks import Frame, RankStack, State

_WAITS = (
    "/torch/distributed/",
    "/torch/autograd/",  # DistributedDataParallel exchanges gradients there
    "/torch/nn/parallel/",
    "/trainingrun_runtime/worker/step_consensus.py",
    "/ray/train/",
    "/deepspeed/comm/",
    "/trainingrun_runtime/worker/torchrun.py:_wait_for_others",
)
"""Code in which a rank waits for others: a part of a file's name, with or without a function."""
_SAID = 4
"""Places that a sentence names."""


def hung_ranks(found: Mapping[int, RankStack | None]) -> list[int]:
    """The ranks for which the others wait; none: nobody can tell.

    Args:
        found: of each rank where it stands; None: its node does not answer.
    """
    away = [rank for rank, stack in found.items() if stack is None or stack.state != State.LIVES]
    if away:
        return away
    waiting = {rank for rank, stack in found.items() if stack is not None and waits(stack)}
    working = [
        rank
        for rank, stack in found.items()
        if rank not in waiting and stack is not None and stack.frames
    ]
    return working if waiting else []


def waits(stack: RankStack) -> bool:
    """Whether the user's code has called something that waits for other ranks."""
    files = [one.file for one in stack.frames]
    own = stacks.own_place(files)
    # Ray Train itself has called the training.
    called = stack.frames[: stacks.depth(files) if own is None else own]
    places = [f"{one.file}:{_name(one)}" for one in called]
    return any(part in place for place in places for part in _WAITS)


def where(stack: RankStack | None) -> str:
    """Such as `in all_reduce (train.py:88)`."""
    if stack is None:
        return "on a node that does not answer"
    if stack.state is State.GONE:
        return "in a process that has ended"
    return f"{'stopped ' if stack.state is State.STOPPED else ''}{_line(stack.frames)}"


def _line(frames: tuple[Frame, ...]) -> str:
    own = stacks.own_place([one.file for one in frames])
    if own is None:
        return f"in {_name(frames[0])}" if frames else "at a place that cannot be read"
    called, mine = frames[max(own - 1, 0)], frames[own]
    return f"in {_name(called)} ({Path(mine.file).name}:{mine.line})"


def _name(frame: Frame) -> str:
    return frame.function.rpartition(".")[2] or frame.function


def hang_of(
    found: Mapping[int, RankStack | None],
    members: Mapping[int, Member],
    now: float,
    seconds: float,
    folder: str,
) -> Hang:
    """What is told about it.

    Args:
        found: of each rank where it stands.
        members: the ranks.
        now: Unix time in seconds.
        seconds: for how long no step has been done.
        folder: where the stacks will be.
    """
    hung = set(hung_ranks(found))
    rows = [
        HungRank(
            rank=rank,
            node=members[rank].place.node or None,
            pod=members[rank].place.pod or None,
            where=where(stack),
            hangs=rank in hung,
        )
        for rank, stack in found.items()
    ]
    first = sorted(rows, key=lambda row: (not row.hangs, row.rank))[:MOST_RANKS]
    return Hang(
        time=now,
        seconds=seconds,
        message=f"no step for {seconds:.0f} s: {sentence(rows)}",
        ranks=sorted(first, key=lambda row: row.rank),
        stacks=folder,
        under_way=True,
    )


def sentence(rows: Collection[HungRank]) -> str:
    """Which ranks wait, and which one hangs."""
    parts = _said((row for row in rows if not row.hangs), "waits", "wait")
    return "; ".join([*parts, *_said((row for row in rows if row.hangs), "has been", "have been")])


def _said(rows: Iterable[HungRank], one: str, more: str) -> list[str]:
    places: dict[str, list[int]] = {}
    for row in rows:
        places.setdefault(row.where, []).append(row.rank)
    said = [
        f"{in_words(ranks)} {one if len(ranks) == 1 else more} {place}"
        for place, ranks in list(places.items())[:_SAID]
    ]
    if len(places) > _SAID:
        said.append(f"others {more} at {len(places) - _SAID} more places")
    return said
