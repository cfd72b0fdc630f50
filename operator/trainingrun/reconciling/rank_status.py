"""What the driver reports of single ranks -> status.progress.

All ranks report their memory and the use of their accelerators every few seconds, also while no
step is done. A status that followed each of these measurements would be written as often.
"""

from typing import Any

from ..api.progress import Progress, RankMemory, RankRow
from ..api.rank_status import MemoryStatus, RankStatus, SlowestRankStatus
from ..api.status import RunProgress
from .texts import short

STEADY = {"used_bytes": 0.02, "limit_bytes": 0.0, "bytes_per_hour": 0.2}
"""Share by which a measurement of memory has to differ from what the status has."""

STEADY_USE = 0.05
"""The same for the use of accelerators, which is a share itself."""

_LONGEST_NAME = 253


def slowest(progress: Progress) -> SlowestRankStatus | None:
    """The rank for which the others wait longest."""
    slow = progress.slowest_rank
    if slow is None:
        return None
    return SlowestRankStatus(
        rank=slow.rank,
        node=_name(slow.node),
        own_seconds=seconds(slow.own_seconds),
        median_seconds=seconds(slow.median_seconds),
    )


def memory(progress: Progress, former: RunProgress | None) -> MemoryStatus | None:
    """The rank with the fullest memory.

    Args:
        progress: as reported.
        former: what the status has.
    """
    found, known = progress.memory, former.memory if former is not None else None
    if found is None:
        return None
    same = known if known is not None and known.rank == found.rank else None
    return MemoryStatus(rank=found.rank, node=_name(found.node), **_memory(found, same))


def ranks(progress: Progress, former: RunProgress | None) -> list[RankStatus] | None:
    """Each rank that is reported, once: the API server refuses a number that is there twice.

    Args:
        progress: as reported.
        former: what the status has.
    """
    known = {one.rank: one for one in (former.ranks if former is not None else None) or ()}
    found = {
        one.rank: RankStatus(
            rank=one.rank,
            node=_name(one.node),
            pod=_name(one.pod),
            step_seconds=seconds(one.step_seconds) if one.step_seconds is not None else None,
            data_wait_share=share(one.data_wait_share),
            communication_wait_share=share(one.communication_wait_share),
            **_memory(one, known.get(one.rank)),
            accelerator_share=_use(one, known.get(one.rank)),
        )
        for one in progress.ranks
    }
    return [found[rank] for rank in sorted(found)] or None


def seconds(measured: float) -> float:
    """With three digits: more of them would only change from one poll to the next."""
    return float(f"{measured:.3g}")


def share(measured: float | None) -> float | None:
    """In whole percent."""
    return round(measured, 2) if measured is not None else None


def _name(reported: str | None) -> str | None:
    return short(reported, _LONGEST_NAME) if reported else None


def _memory(found: RankMemory | RankRow, known: MemoryStatus | RankStatus | None) -> dict[str, Any]:
    return {
        name: _steady(getattr(known, name, None), getattr(found, name), least)
        for name, least in STEADY.items()
    }


def _use(found: RankRow, known: RankStatus | None) -> float | None:
    measured, former = found.accelerator_share, known.accelerator_share if known else None
    if measured is not None and former is not None and abs(measured - former) < STEADY_USE:
        return former
    return share(measured)


def _steady(known: int | None, found: int | None, least: float) -> int | None:
    if known is None or found is None or abs(found - known) > least * known:
        return found
    return known
