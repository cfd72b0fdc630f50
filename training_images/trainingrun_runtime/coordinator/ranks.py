"""The ranks of the worker group: where they are, what they tell, and what they restore."""

import threading
import time
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from ..progress.rank_measures import AcceleratorUse, MemoryUse, RankTimes
from . import standstill
from .rank_comparison import RankComparison, RankPlace, SlowNodes
from .standstill import Location

LOST_S = 120.0
"""Seconds for which a node is said to be lost that had a rank of a larger group."""


class Survivors(NamedTuple):
    """What is known of a worker group of which a rank was lost."""

    actors: Mapping[int, bytes]
    """Pickled handles of those that note their steps, by rank; a lost one may be among them."""
    saved_step: int
    """The group's newest step in the bucket."""
    without_notes: str
    """Why there is no such actor, if there is none."""


class RankProcess(NamedTuple):
    """The process of a rank."""

    actor: bytes
    """Its handle, pickled; see `ray_internals.training.worker_actor`."""
    pid: int
    """Its number on its own machine, or in its container."""
    started: float
    """When it was started, in the machine's own time: another process may get its number."""
    of_script: bool = False
    """Whether it is that of a script, which the rank's own process has started."""


class Member(NamedTuple):
    """A rank of the worker group, and where it is."""

    process: RankProcess
    place: RankPlace


class OutOfMemory(NamedTuple):
    """A rank whose process the kernel has ended, in a pod that lives on."""

    rank: int
    place: RankPlace


class _LostNode(NamedTuple):
    """A node of Ray that is dead."""

    name: str
    """Kubernetes node on which it was."""
    since: float
    """When that was seen, in seconds of a monotonic clock."""


class _Group:
    """What the ranks of one worker group have told."""

    def __init__(self, number: int, world_size: int) -> None:
        self.number, self.world_size = number, world_size
        self.actors: dict[int, bytes] = {}  # by rank, those that can save the last step alone
        self.without_notes = "that takes a Session"
        self.comparison = RankComparison(world_size)
        self.locations: dict[int, Location] = {}
        self.returned: set[int] = set()  # ranks whose training function has returned


class Ranks:
    """One lock guards all of it. What a rank of a former group tells changes nothing.

    Args:
        others_wait: whether there are nodes without a rank, or a rank's number may be given out
            again while the node that had it still dies.
    """

    def __init__(self, *, others_wait: bool = False) -> None:
        self._lock, self._others_wait = threading.Lock(), others_wait
        self._places: dict[int, RankPlace] = {}
        self._processes: dict[int, RankProcess] = {}
        self._lost: dict[str, _LostNode] = {}  # by the id of the Ray node
        self._left: dict[str, str] = {}  # Ray nodes of no rank any longer -> Kubernetes node
        self._most = 0  # ranks of the largest group until now
        self._oom_kills: dict[int, int] = {}  # of its pod, as each rank has told last
        self._before_loss: dict[str, tuple[int, int]] = {}  # Ray node -> rank, its last `oom_kills`
        self._slow_nodes = SlowNodes()
        self._group = _Group(0, 0)

    def slow_node(self, now: float) -> tuple[str, str] | None:
        """A node on which a rank was slow again and again, once, and a sentence about it."""
        with self._lock:
            rank = self._group.comparison.slow_by_itself(now)
            place = self._places.get(rank) if rank is not None else None
            node = place.node if place is not None else ""
            sentence = self._slow_nodes.note(rank, node, now)
        return (node, sentence) if sentence is not None else None

    def begin(self, group: int, world_size: int) -> None:
        """A worker group begins, whose ranks have joined."""
        with self._lock:
            self._group, self._most = _Group(group, world_size), max(self._most, world_size)
            for rank in [rank for rank in self._places if rank >= world_size]:
                place = self._places.pop(rank)
                self._processes.pop(rank, None)
                self._left[place.ray_node] = place.node
            for place in self._places.values():
                self._left.pop(place.ray_node, None)

    def returned(self, group: int, rank: int) -> None:
        """A worker: its training function has returned."""
        with self._lock:
            if group == self._group.number:
                self._group.returned.add(rank)

    def not_returned(self) -> list[int]:
        """The driver: the ranks of the newest worker group that have not said so."""
        with self._lock:
            return sorted(set(range(self._group.world_size)) - self._group.returned)

    def joined(
        self,
        rank: int,
        ray_node: str,
        node: str,
        pod: str,
        process: "RankProcess | None" = None,
        oom_kills: int | None = None,
    ) -> "OutOfMemory | None":
        """A worker started: its Ray node, Kubernetes node and pod; "" where not known.

        Args:
            rank: its own.
            ray_node: id of its node.
            node: name of its Kubernetes node.
            pod: name of its pod.
            process: its process.
            oom_kills: processes that the kernel has ended in its pod for want of memory.

        Returns:
            The rank of the former worker group that was lost in this pod for want of memory, if
            one was: the kernel has ended a process here since that rank last told.
        """
        with self._lock:
            before = self._before_loss.pop(ray_node, None)
            if oom_kills is not None:
                self._oom_kills[rank] = oom_kills
            else:
                self._oom_kills.pop(rank, None)
            former = self._places.get(rank)
            if self._others_wait and former is not None:
                self._left[former.ray_node] = former.node  # it may still be dying
            self._places[rank] = RankPlace(ray_node, node, pod)
            if process is not None:
                self._processes[rank] = process
            # A node that is reachable again, or runs a new pod, is not lost.
            self._lost = {dead: lost for dead, lost in self._lost.items() if lost.name != node}
            self._left = {left: name for left, name in self._left.items() if name != node}
            if before is None or oom_kills is None or oom_kills <= before[1]:
                return None
            self._before_loss = {}
            return OutOfMemory(before[0], RankPlace(ray_node, node, pod))

    def waits(self, ray_node: str, node: str) -> None:
        """A node answers on which no rank is."""
        with self._lock:
            # Another one on the same Kubernetes node may be dead.
            self._lost = {dead: lost for dead, lost in self._lost.items() if lost.name != node}
            self._left = {left: name for left, name in self._left.items() if name != node}
            self._left[ray_node] = node

    def ray_nodes(self) -> frozenset[str]:
        """The Ray nodes of the worker group."""
        with self._lock:
            size = self._group.world_size
            return frozenset(p.ray_node for rank, p in self._places.items() if rank < size)

    def ended(self, lost: Collection[int]) -> None:
        """The worker group has ended, by the loss of these ranks; none: it is not known which."""
        with self._lock:
            self._before_loss = {}
            for rank in sorted(lost or self._places):
                if rank in self._oom_kills and rank in self._places:
                    node = self._places[rank].ray_node
                    self._before_loss.setdefault(node, (rank, self._oom_kills[rank]))

    @property
    def have_joined(self) -> bool:
        """Whether there is one."""
        return bool(self._places)

    def died(self, ray_nodes: Collection[str]) -> None:
        """These nodes of Ray are dead; those on which no rank is or was do not count."""
        with self._lock:
            here = {place.ray_node: place.node for place in self._places.values()}
            alive = {name for ray_node, name in here.items() if ray_node not in ray_nodes}
            # Beside a rank that lives a pod alone has ended.
            left = {ray_node: name for ray_node, name in self._left.items() if name not in alive}
            for ray_node, name in (left | here).items():
                if ray_node in ray_nodes:
                    self._left.pop(ray_node, None)
                    self._lost.setdefault(ray_node, _LostNode(name, time.monotonic()))

    @property
    def lost_nodes(self) -> list[str]:
        """Kubernetes nodes whose Ray is dead.

        While fewer ranks train than did, or others wait, a new pod without a rank may run there:
        only for a while is this known to be true.
        """
        with self._lock:
            fewer = self._others_wait or self._group.world_size < self._most
            now = time.monotonic()
            lost = [one for one in self._lost.values() if not fewer or now - one.since < LOST_S]
            return sorted({one.name for one in lost})

    def of_first(self, ranks: Collection[int]) -> RankPlace | None:
        """Where the first of these ranks is whose place is known."""
        with self._lock:
            return next((self._places[rank] for rank in ranks if rank in self._places), None)

    def pods(self) -> dict[int, str]:
        """The pod of each rank of the worker group that is known."""
        with self._lock:
            size = self._group.world_size
            ranks = sorted(rank for rank in self._places if rank < size)
            return {rank: self._places[rank].pod for rank in ranks if self._places[rank].pod}

    def members(self) -> dict[int, Member]:
        """The driver: the ranks of the worker group that runs, as far as they have joined."""
        with self._lock:
            return {
                rank: Member(process, self._places[rank])
                for rank, process in sorted(self._processes.items())
            }

    def script_runs(self, rank: int, group: int, pid: int, started: float) -> None:
        """A worker: this process trains in place of its own."""
        with self._lock:
            if group == self._group.number and rank in self._processes:
                actor = self._processes[rank].actor
                self._processes[rank] = RankProcess(actor, pid, started, of_script=True)

    def forget_processes(self) -> None:
        """The worker group has ended; the next one joins before it begins."""
        with self._lock:
            self._processes.clear()

    def rank_times(self, rank: int, group: int, times: RankTimes) -> None:
        """A worker: what its steps take, and for what it waits."""
        with self._lock:
            if group == self._group.number:
                self._group.comparison.times(rank, times, time.time())

    def rank_use(
        self, rank: int, group: int, memory: MemoryUse, accelerators: AcceleratorUse | None
    ) -> None:
        """A worker: how full its memory is, and how busy its accelerators are, if it has some."""
        with self._lock:
            if group == self._group.number:
                self._group.comparison.memory[rank] = memory
                if memory.oom_kills is not None:
                    self._oom_kills[rank] = memory.oom_kills
                if accelerators is not None:
                    self._group.comparison.accelerators[rank] = accelerators

    def rank_location(
        self, rank: int, group: int, location: Location | None, seconds: float
    ) -> None:
        """A worker: where it has been for so many seconds; None: it moves again."""
        with self._lock:
            if group != self._group.number:
                return
            if location is None:
                self._group.locations.pop(rank, None)
            else:
                # The clocks of the nodes may differ.
                self._group.locations[rank] = replace(location, since=time.time() - seconds)

    def can_save_alone(self, rank: int, group: int, actor: bytes) -> None:
        """A worker that notes its steps: it can be called, also while it waits for a lost rank.

        Args:
            rank: its own.
            group: its worker group.
            actor: its handle, pickled.
        """
        with self._lock:
            if group == self._group.number:
                self._group.actors[rank] = actor

    def cannot_save_alone(self, group: int, reason: str) -> None:
        """Rank 0: no step's end is noted; why, in a sentence without its period."""
        with self._lock:
            if group == self._group.number:
                self._group.without_notes = reason

    def survivors(self, saved_step: int) -> Survivors:
        """The ranks that can be asked for the last step, where this one is in the bucket."""
        with self._lock:
            return Survivors(dict(self._group.actors), saved_step, self._group.without_notes)

    def findings(self, now: float, training: bool) -> dict[str, Any]:
        """Fields of the progress document.

        Args:
            now: Unix time in seconds.
            training: whether the group trains; else only what it has waited for is of interest.
        """
        with self._lock:
            group = self._group
            fields = group.comparison.data_wait()
            if training:
                fields |= group.comparison.findings(self._places, now)
                stuck = standstill.sentence(group.locations, group.world_size, now)
                fields["standstill"] = stuck
        return fields


class RestoreSearch:
    """How a worker group agrees on a checkpoint, and where its pods keep the files; one lock."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._refused: dict[str, str] = {}  # URI of a manifest -> what is wrong with its files
        self._number = 0  # each worker group makes one search or more
        self._folders: dict[str, str] = {}  # by Ray node, where its ranks find common files

    def end(self) -> None:
        """The worker group has restored a checkpoint."""
        with self._lock:
            self._refused = {}

    def refuse(self, uri: str, reason: str) -> None:
        """A worker: the checkpoint of the manifest at `uri` is damaged; the first reason counts."""
        with self._lock:
            self._refused.setdefault(uri, reason)

    def refused(self) -> dict[str, str]:
        """The checkpoints that the worker group that begins has found not to be intact, and why."""
        with self._lock:
            return dict(self._refused)

    def search_begins(self) -> tuple[int, dict[str, str]]:
        """Rank 0: a checkpoint is chosen; the number of this search, and what `refused` returns."""
        with self._lock:
            self._number, self._folders = self._number + 1, {}
            return self._number, dict(self._refused)

    def restore_folder(self, search: int, disk: str, folder: str) -> str:
        """A worker: the folder of the rank that downloads what all ranks of this pod restore.

        It is the first one that asks.

        Args:
            search: number of the search; processes of a former worker group share nothing.
            disk: tells the pod's temporary folder from those of other pods.
            folder: the worker's own.
        """
        with self._lock:
            return self._folders.setdefault(disk, folder) if search == self._number else folder
