"""What each rank has measured, as rows of the progress document; pure."""

from collections.abc import Mapping
from itertools import chain, islice
from typing import Any

from trainingrun_protocol.progress import MOST_RANKS, RankRow

from ..progress.accelerator_use import AcceleratorUse
from ..progress.memory_use import MemoryUse
from ..progress.rank_times import RankTimes


def rank_rows(
    times: Mapping[int, RankTimes],
    memory: Mapping[int, MemoryUse],
    accelerators: Mapping[int, AcceleratorUse],
    nodes: Mapping[int, str],
    pods: Mapping[int, str],
) -> list[RankRow]:
    """The ranks by number, at most `MOST_RANKS`.

    Args:
        times: what the ranks have measured of their steps.
        memory: how full their memory is.
        accelerators: how busy their accelerators are.
        nodes: Kubernetes nodes of the ranks, where known.
        pods: their pods, where known.
    """
    return [
        RankRow(
            rank=rank,
            node=nodes.get(rank) or None,
            pod=pods.get(rank) or None,
            **_measured(times.get(rank)),
            **_used(memory.get(rank)),
            accelerator_share=accelerators[rank].share if rank in accelerators else None,
        )
        for rank in _shown(times, memory, accelerators)
    ]


def _shown(
    times: Mapping[int, RankTimes],
    memory: Mapping[int, MemoryUse],
    accelerators: Mapping[int, AcceleratorUse],
) -> list[int]:
    """Of many ranks those of interest, as many of each kind."""
    ranks = sorted(times.keys() | memory.keys() | accelerators.keys())
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

    def idleness(rank: int) -> float:
        found = accelerators.get(rank)
        return 1 - found.share if found else 0.0

    measures = [slowness, data_wait, fullness, *([idleness] if accelerators else [])]
    orders = [sorted(ranks, key=measure, reverse=True) for measure in measures]
    # The first one of each order, then the second one of each, and so on; each rank once.
    chosen = dict.fromkeys(chain.from_iterable(zip(*orders, strict=True)))
    return sorted(islice(chosen, MOST_RANKS))


def _measured(times: RankTimes | None) -> dict[str, Any]:
    if times is None:
        return {}
    return {
        "step_seconds": times.step_s,
        "data_wait_share": times.data_share,
        "communication_wait_share": times.wait_share,
    }


def _used(memory: MemoryUse | None) -> dict[str, Any]:
    if memory is None:
        return {}
    return {
        "used_bytes": memory.used,
        "limit_bytes": memory.limit,
        "bytes_per_hour": memory.per_hour,
    }
