"""Which rank is slow, whose memory fills, and whose accelerators are idle; pure."""

from collections.abc import Mapping
from itertools import chain, islice
from statistics import median
from typing import Any, NamedTuple

from trainingrun_protocol.progress import MOST_RANKS, RankMemory, RankRow, SlowestRank

from ..progress.rank_measures import WINDOW_S, AcceleratorUse, MemoryUse, RankTimes

SLOW = 1.5
"""How many times the others' median a rank takes before it is named."""
_LEAST_SHARE = 0.1
"""Share of a step by which it has to be longer: of short differences nobody has a gain."""
PATIENCE_S = 20.0
"""Seconds for which a rank has to be slow."""
SLOW_TIMES = 3
"""So often a rank has to be the slow one on a node before the run leaves it."""
SLOW_AGAIN_S = 600.0
"""Seconds after which a rank that is still slow counts once more."""
_MOST_TIMES = 100
_DATA_EXPLAIN = 0.5
"""Share of the difference from which on a longer wait for data is said to be its cause."""
_SOON_H = 1.0
"""Hours before memory is full from which on it is said."""
_IDLE = 0.1
"""Share of the time below which an accelerator is idle."""
_WAIT_EXPLAINS = 0.3
"""Share of the time in steps from which on a wait is said to make accelerators idle."""
_GIB = 2**30
_NOT_MEASURED = RankTimes(None, None, None)


class RankPlace(NamedTuple):
    """Where the latest process of a rank was started; "" where it is not known."""

    ray_node: str = ""
    node: str = ""
    """Of Kubernetes."""
    pod: str = ""


_NOWHERE = RankPlace()


class SlowNodes:
    """On which nodes a rank was the slow one again and again.

    A rank that is slow on one node and then on another one has more to do than others: no node is
    to blame for that.
    """

    def __init__(self) -> None:
        self._times: list[tuple[int, str]] = []  # (rank, node), each time that it was found slow
        self._since: tuple[int, str, float] | None = None  # and the Unix time of the last one
        self._told: set[str] = set()

    def note(self, rank: int | None, node: str, now: float) -> str | None:
        """The rank that is slow at this moment; returns a sentence once its node is to be left.

        Args:
            rank: None: no rank is.
            node: of the rank; "": not known.
            now: Unix time in seconds.
        """
        if rank is None or not node:
            self._since = None
            return None
        if self._since is not None:
            former_rank, former_node, since = self._since
            if (former_rank, former_node) == (rank, node) and now - since < SLOW_AGAIN_S:
                return None
        self._since = (rank, node, now)
        self._times = [*self._times, (rank, node)][-_MOST_TIMES:]
        ranks = {slow for slow, on in self._times if on == node}
        elsewhere = any(slow in ranks and on != node for slow, on in self._times)
        times = sum(on == node for _, on in self._times)
        if elsewhere or times < SLOW_TIMES or node in self._told:
            return None
        self._told.add(node)
        return f"rank {rank} was the slow one there {times} times"


class RankComparison:
    """The latest measurements of a worker group's ranks."""

    def __init__(self, world_size: int = 0) -> None:
        self._world_size = world_size
        self._times: dict[int, RankTimes] = {}
        self.memory: dict[int, MemoryUse] = {}
        """How full each rank's memory is."""
        self.accelerators: dict[int, AcceleratorUse] = {}
        """How busy each rank's accelerators are."""
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

    def slow_by_itself(self, now: float) -> int | None:
        """The rank that has been slow for long, and not for want of data; None: no rank is."""
        slowest = self._slowest()
        if slowest is None or self._slow is None or self._slow[0] != slowest[0]:
            return None
        rank, own_s, others_s = slowest
        waits = {each: times.data_s for each, times in self._times.items()}
        known = [waited for each, waited in waits.items() if each != rank and waited is not None]
        own = waits[rank]
        if now - self._slow[1] < PATIENCE_S or own is None or len(known) < len(waits) - 1:
            return None
        by_data = own - median(known) >= _DATA_EXPLAIN * (own_s - others_s)
        return None if by_data else rank

    def data_wait(self) -> dict[str, Any]:
        """Which rank waits longest for data, as fields of the progress document."""
        shares = {rank: times.data_share for rank, times in self._times.items()}
        rank, share = _largest(shares)
        return {"data_wait_share": share, "data_wait_rank": rank}

    def findings(self, places: Mapping[int, RankPlace], now: float) -> dict[str, Any]:
        """Fields of the progress document.

        Args:
            places: those of the ranks, where known.
            now: Unix time in seconds.
        """
        steps = [times.step_s for times in self._times.values() if times.step_s is not None]
        waiting, share = _largest({rank: times.wait_share for rank, times in self._times.items()})
        slowest, fullest = self._slowest(), self._fullest()
        slow, full = None, None
        if slowest is not None:
            rank, own, others = slowest
            node = places.get(rank, _NOWHERE).node or None
            slow = SlowestRank(rank=rank, node=node, own_seconds=own, median_seconds=others)
        if fullest is not None:
            node = places.get(fullest, _NOWHERE).node or None
            full = RankMemory(rank=fullest, node=node, **_used(self.memory[fullest]))
        warnings = [self._slow_sentence(slow, now), self._full_sentence(full)]
        warnings.append(self._idle_sentence(places))
        return {
            "step_seconds": median(steps) if steps else None,
            "communication_wait_share": share,
            "communication_wait_rank": waiting,
            "slowest_rank": slow,
            "memory": full,
            "ranks": [self._row(rank, places.get(rank, _NOWHERE)) for rank in self._shown()],
            "warnings": [warning for warning in warnings if warning is not None],
        }

    def _row(self, rank: int, place: RankPlace) -> RankRow:
        times, memory = self._times.get(rank, _NOT_MEASURED), self.memory.get(rank)
        use = self.accelerators.get(rank)
        return RankRow(
            rank=rank,
            node=place.node or None,
            pod=place.pod or None,
            step_seconds=times.step_s,
            data_wait_share=times.data_share,
            communication_wait_share=times.wait_share,
            accelerator_share=use.share if use is not None else None,
            **(_used(memory) if memory is not None else {}),
        )

    def _shown(self) -> list[int]:
        """Of many ranks those of interest, as many of each kind, by number."""
        ranks = sorted(self._times.keys() | self.memory.keys() | self.accelerators.keys())
        if len(ranks) <= MOST_RANKS:
            return ranks

        def slowness(rank: int) -> float:
            times = self._times.get(rank, _NOT_MEASURED)
            return times.own_s if times.own_s is not None else times.step_s or 0.0

        def data_wait(rank: int) -> float:
            return self._times.get(rank, _NOT_MEASURED).data_share or 0.0

        def fullness(rank: int) -> float:
            memory = self.memory.get(rank)
            return memory.used / (memory.limit or 1) if memory else 0.0

        def idleness(rank: int) -> float:
            use = self.accelerators.get(rank)
            return 1 - use.share if use else 0.0

        measures = [slowness, data_wait, fullness, *([idleness] if self.accelerators else [])]
        orders = [sorted(ranks, key=measure, reverse=True) for measure in measures]
        # The first one of each order, then the second one of each, and so on; each rank once.
        chosen = dict.fromkeys(chain.from_iterable(zip(*orders, strict=True)))
        return sorted(islice(chosen, MOST_RANKS))

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
            use = self.memory[rank]
            share = use.used / use.limit if use.limit else 0.0
            return (-use.hours_left, share, use.used, -rank)

        return max(self.memory, key=urgency, default=None)

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
        if own - median(known) >= _DATA_EXPLAIN * (slow.own_seconds - slow.median_seconds):
            return (
                f"it waits for data for {own:.3f} s of that, the others' median is "
                f"{median(known):.3f} s: see whether its data are more or farther away"
            )
        return (
            f"it waits for data for only {own:.3f} s of that, and the rest takes longer: see what "
            "else runs on that node"
        )

    def _full_sentence(self, full: RankMemory | None) -> str | None:
        if full is None or self.memory[full.rank].hours_left > _SOON_H:
            return None
        used, limit = full.used_bytes / _GIB, (full.limit_bytes or 0) / _GIB
        return (
            f"rank {full.rank}{_on(full.node)} runs out of memory in "
            f"{self.memory[full.rank].hours_left:.1f} h: its container holds {used:.1f} GiB of "
            f"{limit:.1f} GiB and {(full.bytes_per_hour or 0) / _GIB:.1f} GiB more each hour; see "
            "what the code keeps from step to step, as a list of losses without .item(), or raise "
            "workers.resources.memory"
        )

    def _idle_sentence(self, places: Mapping[int, RankPlace]) -> str | None:
        """Which rank's accelerators are idle, and for what it waits, if anything."""
        uses = self.accelerators
        idle = [r for r, use in uses.items() if use.seconds >= 0.9 * WINDOW_S and use.share < _IDLE]
        if not idle:
            return None
        rank = min(idle, key=lambda one: (uses[one].share, one))
        number = len(idle) - 1
        ranks = "another rank" if number == 1 else f"{number} other ranks"
        others = f", as are those of {ranks}" if number else ""
        return (
            f"the accelerators of rank {rank}{_on(places.get(rank, _NOWHERE).node)} are idle"
            f"{others}: they computed {uses[rank].share:.0%} of the last {WINDOW_S / 60:.0f} "
            f"minutes; {_idle_cause(self._times.get(rank, _NOT_MEASURED))}"
        )


def _idle_cause(times: RankTimes) -> str:
    data, waits = times.data_share, times.wait_share
    if data is not None and data >= _WAIT_EXPLAINS:
        return (
            f"the rank waits for data in {data:.0%} of the time in steps: give its loader more "
            "processes (num_workers), or load with Ray Data"
        )
    if waits is not None and waits >= _WAIT_EXPLAINS:
        return (
            f"the rank waits for gradients of other ranks in {waits:.0%} of the time in steps: see "
            "whether a rank is slow, or the network"
        )
    return (
        "no wait for data or for other ranks that is measured explains it: see whether the model "
        "is on the accelerator, and whether a larger batch_size fits"
    )


def _largest(shares: Mapping[int, float | None]) -> tuple[int | None, float | None]:
    """The rank with the largest share, of equal ones the first, and the share."""
    known = [(share, -rank) for rank, share in shares.items() if share is not None]
    share, rank = max(known, default=(None, None))
    return (-rank if rank is not None else None), share


def _used(memory: MemoryUse) -> dict[str, Any]:
    return {
        "used_bytes": memory.used,
        "limit_bytes": memory.limit,
        "bytes_per_hour": memory.per_hour,
    }


def _on(node: str | None) -> str:
    return f" on node {node}" if node else ""
