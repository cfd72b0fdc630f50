"""What each rank has measured, as rows of the progress document; pure."""

from collections.abc import Mapping
from itertools import chain, islice

from trainingrun.api.progress import MOST_RANKS, RankRow

from .memory_use import MemoryUse
from .rank_times import RankTimes


def rank_rows(
    times: Mapping[int, RankTimes],
    memory: Mapping[int, MemoryUse],
    nodes: Mapping[int, str],
    pods: Mapping[int, str],
) -> list[RankRow]:
    """The ranks by number, at most `MOST_RANKS`.

    Args:
        times: what the ranks have measured of their steps.
        memory: how full their memory is.
        nodes: Kubernetes nodes of the ranks, where known.
        pods: their pods, where known.
    """
    return [
        _row(rank, times.get(rank), memory.get(rank), nodes.get(rank), pods.get(rank))
        for rank in _shown(times, memory)
    ]


def _shown(times: Mapping[int, RankTimes], memory: Mapping[int, MemoryUse]) -> list[int]:
    """Of many ranks those of interest, as many of each kind."""
    ranks = sorted(times.keys() | memory.keys())
    if len(ranks) <= MOST_RANKS:
        return ranks

    def slowness(rank: int) -> float:
        found = times.get(rank)
        if found is None:
            return 0.0
        return found.own_s if found.own_s is not None else found.step_s or 0.0

    def data_wait(rank: int) -> float:
        found = times.get(rank)
        return (found.data_share or 0.0) if found else 0.0

    def fullness(rank: int) -> float:
        found = memory.get(rank)
        return found.used / (found.limit or 1) if found else 0.0

    orders = [
        sorted(ranks, key=measure, reverse=True) for measure in (slowness, data_wait, fullness)
    ]
    # The first one of each order, then the second one of each, and so on; each rank once.
    chosen = dict.fromkeys(chain.from_iterable(zip(*orders, strict=True)))
    return sorted(islice(chosen, MOST_RANKS))


def _row(
    rank: int,
    times: RankTimes | None,
    memory: MemoryUse | None,
    node: str | None,
    pod: str | None,
) -> RankRow:
    return RankRow(
        rank=rank,
        node=node or None,
        pod=pod or None,
        step_seconds=times.step_s if times else None,
        data_wait_share=times.data_share if times else None,
        communication_wait_share=times.wait_share if times else None,
        used_bytes=memory.used if memory else None,
        limit_bytes=memory.limit if memory else None,
        bytes_per_hour=memory.per_hour if memory else None,
    )
