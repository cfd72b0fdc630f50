"""Which rank is slow, whose memory fills, and whose accelerators are idle; pure."""

from collections.abc import Mapping
from statistics import median
from typing import Any

from trainingrun_protocol.progress import RankMemory, SlowestRank

from ..progress.accelerator_use import AcceleratorUse, idle_sentence
from ..progress.memory_use import MemoryUse
from ..progress.rank_times import RankTimes
from .rank_table import rank_rows

SLOW = 1.5
"""How many times the others' median a rank takes before it is named."""
_LEAST_SHARE = 0.1
"""Share of a step by which it has to be longer: of short differences nobody has a gain."""
PATIENCE_S = 20.0
"""Seconds for which a rank has to be slow."""
_EXPLAINS = 0.5
"""Share of the difference from which on a longer wait for data is said to be its cause."""
_SOON_H = 1.0
"""Hours before memory is full from which on it is said."""
_GIB = 2**30


class RankComparison:
    """The latest reports of a worker group's ranks."""

    def __init__(self, world_size: int = 0) -> None:
        self._world_size = world_size
        self._times: dict[int, RankTimes] = {}
        self._memory: dict[int, MemoryUse] = {}
        self._accelerators: dict[int, AcceleratorUse] = {}
        self._slow: tuple[int, float] | None = None  # (rank, Unix time since when)

    def times(self, rank: int, times: RankTimes, now: float) -> None:
        """What a rank has measured of its steps."""
        self._times[rank] = times
        slowest = self._slowest()
        slow = slowest[0] if slowest is not None and self._is_slow(*slowest) else None
        if slow is None:
            self._slow = None
        elif self._slow is None or self._slow[0] != slow:
            self._slow = (slow, now)

    def memory(self, rank: int, use: MemoryUse) -> None:
        """How full a rank's memory is."""
        self._memory[rank] = use

    def accelerators(self, rank: int, use: AcceleratorUse) -> None:
        """How busy a rank's accelerators are."""
        self._accelerators[rank] = use

    def findings(
        self, nodes: Mapping[int, str], pods: Mapping[int, str], now: float
    ) -> dict[str, Any]:
        """Fields of the progress document.

        Args:
            nodes: Kubernetes nodes of the ranks, where known.
            pods: their pods, where known.
            now: Unix time in seconds.
        """
        steps = [times.step_s for times in self._times.values() if times.step_s is not None]
        shares = {
            rank: share
            for rank, times in self._times.items()
            if (share := times.wait_share) is not None
        }
        longest = max(shares, key=lambda rank: (shares[rank], -rank), default=None)
        slowest, fullest = self._slowest(), self._fullest()
        slow, full = None, None
        if slowest is not None:
            rank, own, others = slowest
            slow = SlowestRank(
                rank=rank, node=nodes.get(rank) or None, own_seconds=own, median_seconds=others
            )
        if fullest is not None:
            use = self._memory[fullest]
            full = RankMemory(
                rank=fullest,
                node=nodes.get(fullest) or None,
                used_bytes=use.used,
                limit_bytes=use.limit,
                bytes_per_hour=use.per_hour,
            )
        warnings = [
            self._slow_sentence(slow, now),
            self._full_sentence(full),
            idle_sentence(self._accelerators, self._times, nodes),
        ]
        return {
            "step_seconds": median(steps) if steps else None,
            "communication_wait_share": shares[longest] if longest is not None else None,
            "communication_wait_rank": longest,
            "slowest_rank": slow,
            "memory": full,
            "ranks": rank_rows(self._times, self._memory, self._accelerators, nodes, pods),
            "warnings": [warning for warning in warnings if warning is not None],
        }

    def _slowest(self) -> tuple[int, float, float] | None:
        """The rank that takes longest by itself, its seconds, and the median of the others'."""
        own = {r: seconds for r, t in self._times.items() if (seconds := t.own_s) is not None}
        if len(own) < 2 or len(own) < self._world_size:
            return None
        rank = max(own, key=lambda one: (own[one], -one))
        return rank, own[rank], median(own[one] for one in own if one != rank)

    def _is_slow(self, rank: int, own_s: float, others_s: float) -> bool:
        step_s = self._times[rank].step_s or 0.0
        return own_s >= SLOW * others_s and own_s - others_s >= _LEAST_SHARE * step_s

    def _fullest(self) -> int | None:
        """The rank whose memory is full first, else whose is fullest."""

        def urgency(rank: int) -> tuple[float, float, int, int]:
            use = self._memory[rank]
            share = use.used / use.limit if use.limit else 0.0
            return (-use.hours_left, share, use.used, -rank)

        return max(self._memory, key=urgency, default=None)

    def _slow_sentence(self, slow: SlowestRank | None, now: float) -> str | None:
        if slow is None or self._slow is None or self._slow[0] != slow.rank:
            return None
        if now - self._slow[1] < PATIENCE_S:
            return None
        times = (
            f"{slow.own_seconds / slow.median_seconds:.1f} times " if slow.median_seconds else ""
        )
        return (
            f"rank {slow.rank}{_on(slow.node)} is slow: a step takes it {slow.own_seconds:.3f} s "
            f"of its own, {times}the others' median of {slow.median_seconds:.3f} s, and they wait "
            f"for it; {self._slow_cause(slow)}"
        )

    def _slow_cause(self, slow: SlowestRank) -> str:
        own = self._times[slow.rank].data_s
        others = [t.data_s for r, t in self._times.items() if r != slow.rank]
        known = [waited for waited in others if waited is not None]
        if own is None or len(known) < len(others):
            return "see what else runs on that node, and whether its data are more or farther away"
        if own - median(known) >= _EXPLAINS * (slow.own_seconds - slow.median_seconds):
            return (
                f"it waits for data for {own:.3f} s of that, the others' median is "
                f"{median(known):.3f} s: see whether its data are more or farther away"
            )
        return (
            f"it waits for data for only {own:.3f} s of that, and the rest takes longer: see what "
            "else runs on that node"
        )

    def _full_sentence(self, full: RankMemory | None) -> str | None:
        if full is None or self._memory[full.rank].hours_left > _SOON_H:
            return None
        used, limit = full.used_bytes / _GIB, (full.limit_bytes or 0) / _GIB
        return (
            f"rank {full.rank}{_on(full.node)} runs out of memory in "
            f"{self._memory[full.rank].hours_left:.1f} h: its container holds {used:.1f} GiB of "
            f"{limit:.1f} GiB and {(full.bytes_per_hour or 0) / _GIB:.1f} GiB more each hour; see "
            "what the code keeps from step to step, as a list of losses without .item(), or raise "
            "workers.resources.memory"
        )


def _on(node: str | None) -> str:
    return f" on node {node}" if node else ""
