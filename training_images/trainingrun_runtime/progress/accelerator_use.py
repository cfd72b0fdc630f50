"""Whether the accelerators of the ranks compute; pure."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean

from .rank_times import RankTimes

IDLE = 0.1
"""Share of the time below which an accelerator is idle."""
PATIENCE_S = 300.0
"""Seconds for which it has to be, and over which the mean goes."""
_EXPLAINS = 0.3
"""Share of the time in steps from which on a wait is said to be the cause."""


@dataclass(frozen=True)
class AcceleratorUse:
    """What a rank has measured of its accelerators."""

    share: float
    """Share of the time in which they computed, as the mean of the last minutes."""
    seconds: float
    """How long these minutes are."""


class AcceleratorSamples:
    """The samples of the last minutes."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, float]] = deque()

    def add(self, now: float, share: float) -> AcceleratorUse:
        """A sample at `now` seconds; the mean until then."""
        self._seen.append((now, share))
        while self._seen[0][0] < now - PATIENCE_S:
            self._seen.popleft()
        return AcceleratorUse(fmean(found for _, found in self._seen), now - self._seen[0][0])


def idle_sentence(
    uses: Mapping[int, AcceleratorUse], times: Mapping[int, RankTimes], nodes: Mapping[int, str]
) -> str | None:
    """Which rank's accelerators are idle, and for what it waits, if anything; None: none are.

    Args:
        uses: of the ranks that measure it.
        times: what the ranks have measured of their steps.
        nodes: Kubernetes nodes of the ranks, where known.
    """
    idle = [
        rank for rank, use in uses.items() if use.seconds >= 0.9 * PATIENCE_S and use.share < IDLE
    ]
    if not idle:
        return None
    rank = min(idle, key=lambda one: (uses[one].share, one))
    where = f" on node {nodes[rank]}" if nodes.get(rank) else ""
    others = f", as are those of {_ranks(len(idle) - 1)}" if len(idle) > 1 else ""
    return (
        f"the accelerators of rank {rank}{where} are idle{others}: they computed "
        f"{uses[rank].share:.0%} of the last {PATIENCE_S / 60:.0f} minutes; "
        f"{_cause(times.get(rank))}"
    )


def _ranks(number: int) -> str:
    return "another rank" if number == 1 else f"{number} other ranks"


def _cause(times: RankTimes | None) -> str:
    data = times.data_share if times is not None else None
    waits = times.wait_share if times is not None else None
    if data is not None and data >= _EXPLAINS:
        return (
            f"the rank waits for data in {data:.0%} of the time in steps: give its loader more "
            "processes (num_workers), or load with Ray Data"
        )
    if waits is not None and waits >= _EXPLAINS:
        return (
            f"the rank waits for gradients of other ranks in {waits:.0%} of the time in steps: see "
            "whether a rank is slow, or the network"
        )
    return (
        "no wait for data or for other ranks that is measured explains it: see whether the model "
        "is on the accelerator, and whether a larger batch_size fits"
    )
